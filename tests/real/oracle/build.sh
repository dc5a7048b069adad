#!/bin/sh
# Builds the programs that drive the real RocketMQ message stores, with Maven:
#
#   build.sh DEST [493|533] ...        both versions when none is named
#
#   DEST/o493/target/oracle493.jar + target/lib/    RocketOracle493
#
# Nothing is written beside the sources. Running it again does nothing unless a source changed.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
die() { echo "build.sh: $*" >&2; exit 1; }
[ $# -ge 1 ] || die "usage: build.sh DEST [493|533] ..."
dest=$1; shift
[ $# -gt 0 ] || set -- 493 533
command -v mvn >/dev/null || die "mvn is not on the PATH (Maven 3.6 or newer and a JDK 11 or newer are needed)"
command -v javac >/dev/null || die "javac is not on the PATH (a JDK 11 or newer is needed, not only a JRE)"

mkdir -p "$dest"
dest=$(cd "$dest" && pwd)
for v in "$@"; do
    case $v in
        493|533) ;;
        *) die "unknown version '$v' (493 or 533)" ;;
    esac
    dir=$dest/o$v jar=oracle$v.jar
    sum=$(cd "$here" && cat "pom$v.xml" "RocketOracle$v.java" | cksum)
    if [ -f "$dir/target/$jar" ] && [ -d "$dir/target/lib" ] && [ "$(cat "$dir/.built" 2>/dev/null)" = "$sum" ]; then
        continue
    fi
    rm -rf "$dir"
    mkdir -p "$dir/src/main/java"
    cp "$here/pom$v.xml" "$dir/pom.xml"
    cp "$here/RocketOracle$v.java" "$dir/src/main/java/"
    if ! (cd "$dir" && mvn -q -B -DskipTests package) >"$dir/mvn.log" 2>&1; then
        tail -n 30 "$dir/mvn.log" >&2
        die "mvn package failed in $dir (full output: $dir/mvn.log)"
    fi
    echo "$sum" >"$dir/.built"
done
