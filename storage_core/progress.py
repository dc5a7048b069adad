"""How far a long piece of work is, told to whoever listens: walks through a log, checks, repairs.

Work that may take seconds says so here; who shows it, and to whom, is the caller's affair. Without a listener a report
costs one look at a variable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

Listener = Callable[[str, int, int], None]
"""Takes what is being done, how many bytes of it are done, and how many there are (0 where nobody knows)."""

_listener: ContextVar[Listener | None] = ContextVar("progress_listener", default=None)


@contextmanager
def reported_to(listener: Listener) -> Iterator[None]:
    """While the block runs, work of this thread reports to `listener`; blocks nest, the inner one hears."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def report(work: str, done: int, total: int) -> None:
    """Says that `done` of `total` bytes of `work` are done. Called often: once for each window or file."""
    listener = _listener.get()
    if listener is not None:
        listener(work, done, total)
