"""A real name server, broker and client of RocketMQ 4.9.3 or 5.3.3 on 127.0.0.1, one JSON operation at a time.

The broker serves a store directory and changes it. The operations are listed at the top of `oracle/BrokerLab.java`.
"""

from __future__ import annotations

import ctypes
import json
import queue
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from tests.real.oracle import JAVA_FLAGS, Answer, Settings, home
from tests.support.free_ports import free_port

LOGBACK = """<configuration>
  <appender name="file" class="ch.qos.logback.core.FileAppender">
    <file>{file}</file><encoder><pattern>%d %-5p %logger{{20}} - %m%n</pattern></encoder>
  </appender>
  <root level="WARN"><appender-ref ref="file"/></root>
</configuration>
"""
START_S = 120.0
OTHER_PORTS = (-2, 1)
"""Beside its own port a broker takes these: for fast remoting and for replication (`BrokerLab.java`)."""


class BrokerError(Exception):
    """The broker refuses the store, or the client could not do an operation; with the end of the log."""


class Broker:
    """One store served by a real broker. Leaving the block stops the broker cleanly."""

    def __init__(self, version: str, store: Path, settings: Settings) -> None:
        self._version, self._store, self._settings = version, store, settings
        self._work = Path(tempfile.mkdtemp(prefix="mqstore-broker-"))
        self._client: _Process | None = None
        try:
            self._server, self._names = self._start()
        except BrokerError:
            shutil.rmtree(self._work)
            raise

    def _start(self) -> tuple[_Process, str]:
        ports = [str(free_port()), str(free_port(*OTHER_PORTS))]
        words = [f"{name}={value}" for name, value in self._settings.items()]
        server = _Process(self._java("broker"), ["serve", str(self._store), str(self._work), *ports, *words])
        ready = server.answer(START_S)
        if ready is None or ready.get("event") != "ready":
            server.kill()
            raise BrokerError(f"the broker did not start: {ready}\n{self._log('broker')}")
        return server, ready["namesrv"]

    def ask(self, timeout_s: float = 300.0, **operation: Any) -> Answer:
        """The answer to one operation; messages that arrive one by one are collected as its "messages"."""
        if self._client is None:
            self._client = _Process(self._java("client"), ["client", self._names])
            self._client.answer(START_S)
        self._client.send(operation)
        messages, stop = [], time.monotonic() + timeout_s
        while (answer := self._client.answer(stop - time.monotonic())) is not None:
            if answer.get("event") != "message":
                if "error" in answer:
                    raise BrokerError(f"{operation['op']}: {answer['error']}\n{self._log('client')}")
                return {"messages": messages, **answer}
            messages.append(answer)
        raise BrokerError(f"{operation['op']}: no answer\n{self._log('client')}")

    def consume(self, group: str, topics: list[str], idle_ms: int = 4000) -> list[Answer]:
        """What a push consumer receives until none arrives for a while; its single thread keeps each queue's order."""
        subscribed = dict.fromkeys(topics, "*")
        answer = self.ask(op="consume", group=group, topics=subscribed, idleMs=idle_ms, timeoutMs=280_000, threads=1)
        messages: list[Answer] = answer["messages"]
        return messages

    def stop(self) -> None:
        """Shuts down cleanly: everything is flushed, `abort` is removed."""
        self._end(self._server.stop)

    def kill(self) -> None:
        """Ends the broker at once; `abort` stays."""
        self._end(self._server.kill)

    def _end(self, how: Any) -> None:
        if self._client is not None:
            self._client.kill()
        how()
        shutil.rmtree(self._work, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.stop()
        else:
            self.kill()

    def _java(self, name: str) -> list[str]:
        log, built = self._work / f"logback-{name}.xml", home("lab") / f"lab{self._version}" / "target"
        log.write_text(LOGBACK.format(file=self._work / f"{name}.log"))
        return [
            "java", *(flag for flag in JAVA_FLAGS if not flag.startswith("-Xmx")), "-Xmx1g",
            f"-Duser.home={self._work}", f"-Dlogback.configurationFile={log}", f"-Drmq.logback.configurationFile={log}",
            "-Drocketmq.client.logUseSlf4j=true", "-Djava.net.preferIPv4Stack=true",
            "-cp", f"{built}/lab{self._version}.jar:{built}/lib/*", "BrokerLab",
        ]  # fmt: skip

    def _log(self, name: str) -> str:
        path = self._work / f"{name}.log"
        return "\n".join(path.read_text(errors="replace").splitlines()[-15:]) if path.exists() else "no log"


class _Process:
    """A Java process that answers in JSON lines, which are read in the background so that the pipe never fills."""

    def __init__(self, java: list[str], words: list[str]) -> None:
        self._process = subprocess.Popen(
            [*java, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            preexec_fn=_die_with_parent,  # noqa: PLW1509 - one call of the kernel, no lock
        )  # fmt: skip
        self._answers: queue.Queue[Answer | None] = queue.Queue()
        threading.Thread(target=self._read, args=(self._process.stdout,), daemon=True).start()

    def _read(self, pipe: IO[bytes]) -> None:
        with pipe:
            for line in pipe:
                if line.startswith(b"{"):
                    self._answers.put(json.loads(line))
        self._answers.put(None)

    def send(self, operation: dict[str, Any]) -> None:
        if self._process.stdin is None:
            raise RuntimeError("the process has no pipes")
        self._process.stdin.write(json.dumps(operation).encode() + b"\n")
        self._process.stdin.flush()

    def answer(self, timeout_s: float) -> Answer | None:
        """The next answer; None if the process ended or none arrived in time."""
        try:
            return self._answers.get(timeout=max(timeout_s, 0.0))
        except queue.Empty:
            return None

    def stop(self) -> None:
        self._process.terminate()
        self._close(120.0)

    def kill(self) -> None:
        self._process.kill()
        self._close(30.0)

    def _close(self, timeout_s: float) -> None:
        self._process.wait(timeout_s)
        if self._process.stdin is not None:
            self._process.stdin.close()


def _die_with_parent() -> None:
    """Makes Linux kill the process with its parent, so that a killed test run leaves no broker behind."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
