"""How many requests a reader waits for one after another: counted rather than timed, so that load has no influence.

Each request takes one tick of a clock that each thread has. Work that a thread submits starts at the thread's time or,
if all places of the pool are busy, when the first of them is free; whoever waits for the result continues no earlier
than the time at which it was ready. The clock of the first caller is then the number of rounds.
"""

from __future__ import annotations

import heapq
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from storage_core.files.remote import threads
from tests.support.memory_bucket import Bucket


class Clock(threading.local):
    """The clock of one thread."""

    def __init__(self) -> None:
        self.now = 0


class Pool:
    """A pool of threads whose places are busy or free according to the clock."""

    def __init__(self, name: str, size: int, clock: Clock) -> None:
        self._threads, self._clock = ThreadPoolExecutor(size, name), clock
        self._free = [0] * size
        self._lock = threading.Lock()

    def submit(self, work: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Like `Executor.submit`."""
        submitted_at, clock = self._clock.now, self._clock
        times: list[int] = []

        def run() -> Any:
            with self._lock:
                clock.now = max(submitted_at, heapq.heappop(self._free))
            try:
                return work(*arguments)
            finally:
                times.append(clock.now)
                with self._lock:
                    heapq.heappush(self._free, clock.now)

        future = self._threads.submit(run)
        wait = future.result

        def result(timeout: float | None = None) -> Any:
            try:
                return wait(timeout)
            finally:
                if times:
                    clock.now = max(clock.now, times[0])

        future.result = result  # type: ignore[method-assign]
        return future

    def map(self, work: Callable[..., Any], *lists: Iterable[Any]) -> Iterator[Any]:
        """Like `Executor.map`."""
        futures = [self.submit(work, *each) for each in zip(*lists, strict=False)]
        return (future.result() for future in futures)


@dataclass
class Rounds:
    """The requests that a block of code sent to a bucket, and how many rounds of them waited for each other."""

    requests: int = 0
    rounds: int = 0
    paths: list[str] = field(default_factory=list)

    @property
    def at_once(self) -> float:
        """Requests per round: the speedup over one request at a time."""
        return self.requests / max(self.rounds, 1)

    def of(self, part: str) -> int:
        """The number of requests for paths that contain `part`."""
        return sum(part in path for path in self.paths)


@contextmanager
def rounds_of(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rounds]:
    """Counts requests and rounds while the block runs. `overlapped` keeps its thread without a clock: plans do not use
    it.
    """
    clock, pools, found = Clock(), dict[str, Pool](), Rounds()

    def pool(name: str, count: int) -> Pool:
        return pools.setdefault(name, Pool(name, count, clock))

    def tick(kind: str, path: str) -> None:
        del kind
        clock.now += 1
        found.paths.append(path)

    with monkeypatch.context() as patch:
        patch.setattr(threads, "_pool", pool)
        patch.setattr(bucket, "fault", tick)
        yield found
    found.requests, found.rounds = len(found.paths), clock.now
