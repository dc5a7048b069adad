"""How many requests a reader waits for one after the other: counted, not timed, so that no load changes it.

Each request takes one unit of a clock that every thread carries along: what a thread hands over begins at the thread's
time, in the first place that is free of a pool of the pool's size, and who takes the answer goes on at the time at
which that was there. The clock of who asked first is then the number of rounds.
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
    """The time of one thread."""

    def __init__(self) -> None:
        self.now = 0


class Pool:
    """A pool of threads whose places are busy by the clock."""

    def __init__(self, name: str, size: int, clock: Clock) -> None:
        self._threads, self._clock = ThreadPoolExecutor(size, name), clock
        self._free = [0] * size
        self._lock = threading.Lock()

    def submit(self, work: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """As that of an executor."""
        asked, clock = self._clock.now, self._clock
        times: list[int] = []

        def run() -> Any:
            with self._lock:
                clock.now = max(asked, heapq.heappop(self._free))
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
        """As that of an executor."""
        futures = [self.submit(work, *each) for each in zip(*lists, strict=False)]
        return (future.result() for future in futures)


@dataclass
class Rounds:
    """What a block of code asked of a bucket: its requests, and how many of them waited for each other."""

    requests: int = 0
    rounds: int = 0
    paths: list[str] = field(default_factory=list)

    @property
    def at_once(self) -> float:
        """How many requests there were a round: so much faster is it than one request at a time."""
        return self.requests / max(self.rounds, 1)

    def of(self, part: str) -> int:
        """Requests for paths with a part."""
        return sum(part in path for path in self.paths)


@contextmanager
def rounds_of(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rounds]:
    """Counts while the block runs. `one_behind` stays a thread without a clock: plans do not use it."""
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
