"""RocketMQ's own `MessageDecoder` in a Java process that decodes the whole log each time it is asked.

Its jars are those of the real stores that `make test-real` builds; where there are none, `missing` says so.
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


class JavaDecoder:
    """A context manager around the process. `missing` is empty, or why there is none."""

    def __init__(self, store: str, folder: Path) -> None:
        self._store, self._folder = store, folder
        self._process: subprocess.Popen[str] | None = None
        self._jars = _jars()
        self.missing = "" if self._jars and shutil.which("javac") else _why(self._jars)

    def __enter__(self) -> Self:
        if self.missing or self._jars is None:
            return self
        classes, jars = self._folder / "java", f"{self._jars}/*"
        source = str(HERE / "java" / "DecodeBench.java")
        built = subprocess.run(
            ["javac", "-cp", jars, "-d", str(classes), source], capture_output=True, text=True, check=False
        )
        if built.returncode:
            self.missing = f"DecodeBench.java does not compile: {built.stderr.splitlines()[0]}"
            return self
        self._process = subprocess.Popen(
            ["java", "-cp", f"{classes}:{jars}", "DecodeBench", self._store],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self._process.communicate()

    def run(self) -> int:
        """Decodes every record of the log once; returns how many there are."""
        process = self._process
        if process is None or process.stdin is None or process.stdout is None:
            raise RuntimeError(f"there is no Java decoder to run: {self.missing}")
        process.stdin.write("again\n")
        process.stdin.flush()
        return int(process.stdout.readline())


def _jars() -> Path | None:
    """The folder with a RocketMQ's jars: below `MQSTORE_ORACLE`, else `.cache/oracle` of the checkout."""
    given = os.environ.get("MQSTORE_ORACLE")
    home = Path(given) if given else HERE.parent / ".cache" / "oracle"
    folders = [home / f"o{version}" / "target" / "lib" for version in VERSIONS]
    return next((folder for folder in folders if any(folder.glob("rocketmq-common-*.jar"))), None)


def _why(jars: Path | None) -> str:
    if jars is None:
        return "RocketMQ's jars are not here; make test-real builds them"
    return "there is no javac on the PATH"
