#!/bin/sh
# Builds the programs that drive the real RocketMQ, with Maven:
#
#   build.sh DEST [o493|o533|lab493|lab533] ...        all when none is named
#
#   DEST/o493/target/oracle493.jar + target/lib/    RocketOracle493    the message store alone
#   DEST/lab493/target/lab493.jar  + target/lib/    BrokerLab          name server, broker and client
#
# Nothing is written beside the sources. Running it again does nothing unless a source changed.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
die() { echo "build.sh: $*" >&2; exit 1; }
[ $# -ge 1 ] || die "usage: build.sh DEST [o493|o533|lab493|lab533] ..."
dest=$1; shift
[ $# -gt 0 ] || set -- o493 o533 lab493 lab533

mkdir -p "$dest"
dest=$(cd "$dest" && pwd)
for what in "$@"; do
    case $what in
        o493|o533) v=${what#o} pom=pom$v.xml jar=oracle$v.jar source=RocketOracle$v.java ;;
        lab493|lab533) v=${what#lab} pom=pom-lab$v.xml jar=lab$v.jar source=BrokerLab.java ;;
        *) die "unknown program '$what' (o493, o533, lab493 or lab533)" ;;
    esac
    dir=$dest/$what
    sum=$(cd "$here" && cat "$pom" "$source" | cksum)
    if [ -f "$dir/target/$jar" ] && [ -d "$dir/target/lib" ] && [ "$(cat "$dir/.built" 2>/dev/null)" = "$sum" ]; then
        continue
    fi
    command -v mvn >/dev/null || die "mvn is not on the PATH (Maven 3.6 or newer and a JDK 11 or newer are needed)"
    command -v javac >/dev/null || die "javac is not on the PATH (a JDK 11 or newer is needed, not only a JRE)"
    rm -rf "$dir"
    mkdir -p "$dir/src/main/java"
    cp "$here/$pom" "$dir/pom.xml"
    cp "$here/$source" "$dir/src/main/java/"
    if ! (cd "$dir" && mvn -q -B -DskipTests package) >"$dir/mvn.log" 2>&1; then
        tail -n 30 "$dir/mvn.log" >&2
        die "mvn package failed in $dir (full output: $dir/mvn.log)"
    fi
    echo "$sum" >"$dir/.built"
done
