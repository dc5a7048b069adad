"""A progress line on the terminal: what a command is doing, how far it is, how fast, how long it will take.

Shows nothing if stderr is not a terminal, and nothing for work that is done at once.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from command_line.output.units import duration_text, size_text
from storage_core.progress import reported_to

QUIET_S = 0.6
"""How long a command may work before the line appears."""
STEP_S = 0.1
CLEAR = "\r\x1b[K"


class ProgressLine:
    """The progress line. Work is identified by name; another name begins another piece of work."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._on = sys.stderr.isatty()
        self._begun = self._since = self._shown_at = now()
        self._work, self._first = "", 0
        self._drawn = False

    def bytes_done(self, work: str, done: int, total: int) -> None:
        """`done` of `total` bytes (0: unknown) of a piece of work are done."""
        self._update(work, done, total, size_text)

    def messages_done(self, work: str, done: int, total: int) -> None:
        """The same for messages."""
        self._update(work, done, total, lambda count: f"{count:,}")

    def clear(self) -> None:
        """Removes the line, so that something else can be printed."""
        if self._drawn:
            sys.stderr.write(CLEAR)
            sys.stderr.flush()
            self._drawn = False

    def _update(self, work: str, done: int, total: int, text: Callable[[int], str]) -> None:
        if not self._on:
            return
        moment = self._now()
        if work != self._work:
            self._work, self._first, self._since = work, done, moment
        if moment - self._begun < QUIET_S or moment - self._shown_at < STEP_S:
            return
        self._shown_at, self._drawn = moment, True
        shown = progress_text(work, done, total, done - self._first, moment - self._since, text)
        sys.stderr.write(CLEAR + shown[: shutil.get_terminal_size().columns - 1])
        sys.stderr.flush()


def progress_text(work: str, done: int, total: int, since: int, seconds: float, text: Callable[[int], str]) -> str:
    """`reading the log: 1.2 GiB of 3.0 GiB, 210 MiB/s, 9 s left`; `since` is what was done in the last `seconds`."""
    parts = [f"{text(done)} of {text(total)}" if total else text(done)]
    rate = since / seconds if seconds > 0 else 0.0
    if rate > 0:
        parts.append(f"{text(round(rate))}/s")
        if total > done:
            parts.append(f"{duration_text((total - done) / rate)} left")
    return f"{work}: {', '.join(parts)}"


@contextmanager
def shown_progress() -> Iterator[ProgressLine]:
    """Shows the progress of the storage core while the block runs; the block may report its own."""
    line = ProgressLine()
    try:
        with reported_to(line.bytes_done):
            yield line
    finally:
        line.clear()
