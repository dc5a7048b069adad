"""A Java program of `java/` with RocketMQ's own jars: started once, it repeats its work for each line it receives.

The jars are those of the real stores that `make test-real` builds; if there are none, `missing` states that.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Self

HERE = Path(__file__).resolve().parent
VERSIONS = ("533", "493")
# The module access that RocketMQ's own start script grants, so that it can map and unmap files.
FLAGS = (
    "--add-opens=java.base/java.nio=ALL-UNNAMED", "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.base/jdk.internal.ref=ALL-UNNAMED", "--add-opens=java.base/java.lang=ALL-UNNAMED",
    "--add-exports=java.base/sun.nio.ch=ALL-UNNAMED", "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED", "-Xmx2g",
)  # fmt: skip


class JavaProgram:
    """A context manager for the process. `missing` is the reason if there is none, otherwise empty."""

    def __init__(self, name: str, arguments: list[str], folder: Path) -> None:
        """`name` is the class and its file in `java/`; classes are compiled into `folder`."""
        self._name, self._arguments, self._folder = name, arguments, folder
        self._process: subprocess.Popen[str] | None = None
        self._jars = _jars()
        self.missing = "" if self._jars and shutil.which("javac") else _why(self._jars)

    def __enter__(self) -> Self:
        if self.missing or self._jars is None:
            return self
        classes, jars = self._folder / "java", f"{self._jars}/*"
        source = str(HERE / "java" / f"{self._name}.java")
        built = subprocess.run(
            ["javac", "-cp", jars, "-d", str(classes), source], capture_output=True, text=True, check=False
        )
        if built.returncode:
            self.missing = f"{self._name}.java does not compile: {built.stderr.splitlines()[0]}"
            return self
        self._process = subprocess.Popen(
            ["java", *FLAGS, f"-Duser.home={self._folder}", "-cp", f"{classes}:{jars}", self._name, *self._arguments],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self._process.communicate()

    def again(self) -> str:
        """Makes the program do its work once; returns the line that it prints."""
        process = self._process
        if process is None or process.stdin is None or process.stdout is None:
            raise RuntimeError(f"there is no {self._name} to run: {self.missing}")
        process.stdin.write("again\n")
        process.stdin.flush()
        line = process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self._name} ended")
        return line


def _jars() -> Path | None:
    """The folder with a RocketMQ's jars: below `MQSTORE_ORACLE`, otherwise `.cache/oracle` of the checkout."""
    given = os.environ.get("MQSTORE_ORACLE")
    home = Path(given) if given else HERE.parent / ".cache" / "oracle"
    folders = [home / f"o{version}" / "target" / "lib" for version in VERSIONS]
    return next((folder for folder in folders if any(folder.glob("rocketmq-common-*.jar"))), None)


def _why(jars: Path | None) -> str:
    if jars is None:
        return "RocketMQ's jars are not here; make test-real builds them"
    return "there is no javac on the PATH"
