"""The report of a finished copy, and the threads that transfer its pieces."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import TypeVar

Item = TypeVar("Item")
Answer = TypeVar("Answer")
POLL_S = 0.1


@dataclass(frozen=True)
class CopyReport:
    """A finished copy. `resumed_bytes` were there from an earlier run; `checked` is `checksums` or `sizes`."""

    source: str
    target: str
    engine: str
    files: int
    bytes: int
    resumed_bytes: int
    checked: str


def each_done(
    work: Callable[[Item], Answer], items: Iterable[Item], threads: int, heartbeat: Callable[[], None]
) -> Iterator[Answer]:
    """The results of `work` for each item, run in threads, as they finish; few items are queued. `heartbeat` is called
    while none finishes.

    The first error ends it: items that have not started are cancelled, those that have are waited for.
    """
    pool = ThreadPoolExecutor(threads, "mqstore-copy")
    under_way: set[Future[Answer]] = set()
    try:
        for item in items:
            under_way.add(pool.submit(work, item))
            while len(under_way) >= threads + 2:
                yield from _finished(under_way, heartbeat)
        while under_way:
            yield from _finished(under_way, heartbeat)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _finished(under_way: set[Future[Answer]], heartbeat: Callable[[], None]) -> list[Answer]:
    done, _ = wait(under_way, POLL_S, FIRST_COMPLETED)
    under_way -= done
    heartbeat()
    return [future.result() for future in done]
