"""Progress of long operations, reported to a listener: scans of a log, checks, repairs.

Work that may take seconds reports here; the caller decides who shows it, and to whom. Without a listener a report costs
one variable lookup.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

Listener = Callable[[str, int, int], None]
"""Called with what is being done, how many bytes of it are done, and the total (0 if unknown)."""

_listener: ContextVar[Listener | None] = ContextVar("progress_listener", default=None)


@contextmanager
def reported_to(listener: Listener) -> Iterator[None]:
    """While the block runs, work of this thread reports to `listener`; if blocks nest, the innermost is called."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def report(work: str, done: int, total: int) -> None:
    """Reports that `done` of `total` bytes of `work` are done. Called often: once for each window or file."""
    listener = _listener.get()
    if listener is not None:
        listener(work, done, total)
