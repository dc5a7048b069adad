"""SIGINT and SIGTERM end a command in good order: by an exception where it is at work."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Stopped(BaseException):
    """The process was asked to end: nothing half-written may stay."""


class Signals:
    """Makes SIGINT and SIGTERM end a block by an exception, so that what is half done is removed.

    `number` is the signal that came, or None.
    """

    def __init__(self) -> None:
        self.number: int | None = None

    @contextmanager
    def raised(self) -> Iterator[None]:
        """While the block runs, a signal raises `Stopped` in it."""
        before = {}
        _running.append(self)
        try:
            for number in (signal.SIGINT, signal.SIGTERM):
                before[number] = signal.signal(number, self._raise)
        except ValueError:  # not the main thread: signals reach that one
            pass
        try:
            yield
        finally:
            _running.remove(self)
            for number, handler in before.items():
                signal.signal(number, handler)

    def check(self) -> None:
        """Raises `Stopped` once more when a signal came, for a library may have swallowed the first one."""
        if self.number is not None:
            raise Stopped

    def _raise(self, number: int, frame: FrameType | None) -> None:
        del frame
        self.number = number
        raise Stopped


_running: list[Signals] = []


def stop_if_asked() -> None:
    """Raises `Stopped` when a signal came to the running command: asked between batches and before a file is whole."""
    for signals in _running:
        signals.check()
