"""SIGINT and SIGTERM end a command cleanly: by an exception raised where it is working."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

AGAIN_S = 0.02


class Stopped(BaseException):
    """The process was asked to end: nothing half-written may remain."""


class Signals:
    """Makes SIGINT and SIGTERM end a block by an exception, so that unfinished work is removed.

    `number` is the signal that was received, or None. If the interpreter cannot propagate the exception, as in the
    callback of a weak reference, the signal is raised again `AGAIN_S` seconds later.
    """

    def __init__(self) -> None:
        self.number: int | None = None
        self._report = sys.unraisablehook
        self._again: threading.Timer | None = None

    @contextmanager
    def raised(self) -> Iterator[None]:
        """While the block runs, a signal raises `Stopped` in it."""
        before = {}
        _running.append(self)
        try:
            for number in (signal.SIGINT, signal.SIGTERM):
                before[number] = signal.signal(number, self._raise)
        except ValueError:  # not the main thread, which alone receives signals
            pass
        self._report, sys.unraisablehook = sys.unraisablehook, self._not_passed_on
        try:
            yield
        finally:
            if self._again is not None:
                self._again.cancel()
                self._again.join()
            sys.unraisablehook = self._report
            _running.remove(self)
            for number, handler in before.items():
                signal.signal(number, handler)

    def check(self) -> None:
        """Raises `Stopped` again if a signal was received, because a library may have swallowed the first one."""
        if self.number is not None:
            raise Stopped

    def _raise(self, number: int, frame: FrameType | None) -> None:
        del frame
        self.number = number
        raise Stopped

    def _not_passed_on(self, unraisable: sys.UnraisableHookArgs) -> None:
        if unraisable.exc_type is not Stopped:
            self._report(unraisable)
        elif self.number is not None:
            self._again = threading.Timer(AGAIN_S, signal.raise_signal, [self.number])
            self._again.start()


_running: list[Signals] = []


def stop_if_asked() -> None:
    """Raises `Stopped` if the running command received a signal; called between batches, and before a file is whole."""
    for signals in _running:
        signals.check()
