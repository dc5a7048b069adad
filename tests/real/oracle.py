"""Runs the real RocketMQ message stores of 4.9.3 and 5.3.3, one JSON operation at a time. Builds them on first use."""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from tests.support.cache import CACHE, maven_alone

HERE = Path(__file__).resolve().parent

JAVA_FLAGS = (
    "--add-opens=java.base/java.nio=ALL-UNNAMED", "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.base/jdk.internal.ref=ALL-UNNAMED", "--add-opens=java.base/java.lang=ALL-UNNAMED",
    "--add-exports=java.base/sun.nio.ch=ALL-UNNAMED", "--add-opens=java.base/sun.nio.cs=ALL-UNNAMED",
    "-Duser.timezone=UTC", "-Dfile.encoding=UTF-8", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xmx5g",
)  # fmt: skip

VERSIONS = {"493": "4.9.3", "533": "5.3.3"}

Answer = dict[str, Any]
Settings = Mapping[str, object]


class NeverAnswersError(Exception):
    """The real store does not answer: some damaged directories make it wait forever, or fail in every pull."""


@cache
def home(kind: str = "o") -> Path:
    """The folder of the built programs: `MQSTORE_ORACLE`, else `.cache/oracle` of the checkout. Builds what is missing
    or older than its source: the stores alone (`o`), or name server, broker and client (`lab`).
    """
    given = os.environ.get("MQSTORE_ORACLE")
    target = Path(given) if given else CACHE / "oracle"
    programs = [f"{kind}{version}" for version in VERSIONS]
    with maven_alone():
        subprocess.run([str(HERE / "oracle" / "build.sh"), str(target), *programs], check=True)
    return target


class Oracle:
    """One run of a real message store on a directory. Opening changes the directory, so pass a copy.

    Leaving the block stops the store cleanly; `halt` ends it like a crash.
    """

    def __init__(self, version: str, directory: Path, settings: Settings, timeout_s: float = 300.0) -> None:
        built = home() / f"o{version}" / "target"
        words = [
            f"{name}={str(value).lower() if isinstance(value, bool) else value}" for name, value in settings.items()
        ]
        command = [
            "java", *JAVA_FLAGS, f"-Duser.home={directory.parent}", "-cp", f"{built}/oracle{version}.jar:{built}/lib/*",
            f"RocketOracle{version}", str(directory), *words,
        ]  # fmt: skip
        self._timed_out = False
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        self._timer = threading.Timer(timeout_s, self._give_up)
        self._timer.daemon = True
        self._timer.start()
        hello = self._answer()
        self.loaded: bool = hello["loaded"]
        self.min_physical_offset: int = hello["minPhy"]
        self.max_physical_offset: int = hello["maxPhy"]

    def ask(self, **operation: Any) -> Answer:
        """The answer to one of the operations listed at the top of RocketOracle493.java."""
        stdin = self._pipe(self._process.stdin)
        try:
            stdin.write(json.dumps(operation).encode() + b"\n")
            stdin.flush()
        except BrokenPipeError as error:
            raise NeverAnswersError("the real store ended") from error
        return self._answer()

    def all_messages(self) -> list[Answer]:
        """Every message of every queue, as the store serves it starting at each queue's smallest offset."""
        found = []
        answer = self.ask(op="getall")
        while answer.get("op") != "getall":
            found.append(answer)
            answer = self._answer()
        if "error" in answer:
            raise NeverAnswersError(f"the real store fails to serve: {answer['error']}")
        return found

    def halt(self) -> None:
        """Ends the process immediately, without a shutdown."""
        self.ask(op="halt")
        self._end()

    def kill_while_doing(self, operations: list[Answer], after_s: float) -> None:
        """Sends operations without waiting for answers, and kills the process while it performs them."""
        stdin = self._pipe(self._process.stdin)
        try:
            stdin.write(b"".join(json.dumps(operation).encode() + b"\n" for operation in operations))
            stdin.flush()
        except BrokenPipeError as error:
            raise NeverAnswersError("the real store ended") from error
        time.sleep(after_s)
        self._process.kill()
        self._pipe(self._process.stdout).read()
        self._end()

    def close(self) -> None:
        """Shuts the store down as a broker does."""
        if self._process.poll() is None:
            self._pipe(self._process.stdin).close()
            while self._answer().get("op") != "closed":
                pass
        self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        else:
            self._process.kill()
            self._end()

    def _answer(self) -> Answer:
        for line in self._pipe(self._process.stdout):
            if line.startswith(b"{"):
                answer: Answer = json.loads(line)
                return answer
        self._end()
        raise NeverAnswersError("the real store gave no answer in time" if self._timed_out else "the real store ended")

    def _give_up(self) -> None:
        self._timed_out = True
        self._process.kill()

    def _end(self) -> None:
        self._timer.cancel()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe and not pipe.closed:
                try:
                    pipe.close()
                except BrokenPipeError:
                    continue

    @staticmethod
    def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
        if pipe is None:
            raise RuntimeError("the process has no pipes")
        return pipe
