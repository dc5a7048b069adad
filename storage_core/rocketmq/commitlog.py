"""The commit log on disk: its records in physical order, in bounded memory.

Where the log ends is for `recovery` to judge; this page only steps and checks what it is told to check.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from storage_core.files.file_chain import ChainFile, FileChain
from storage_core.files.window import OpenFiles, Window
from storage_core.formats.checksum import body_crcs
from storage_core.formats.layout import Bytes, Positions
from storage_core.formats.rocketmq.message import (
    MAGIC_V1,
    MAGIC_V2,
    Messages,
    Stop,
    decode,
    walk,
)
from storage_core.formats.rocketmq.paths import SCHEDULE_TOPIC
from storage_core.formats.rocketmq.properties import property_of

WINDOW_SIZE = 8 << 20

_SCHEDULE = SCHEDULE_TOPIC.encode()


@dataclass(frozen=True)
class Checks:
    """What makes a record valid for a walk: which magics, whether bodies must fit their CRC, and whether
    PHYSICALOFFSET must be the record's place (a broker does not ask). `broker` adds what stops a broker's dispatch.
    """

    magics: tuple[int, ...] = (MAGIC_V1, MAGIC_V2)
    crc: bool = True
    place: bool = False
    broker: bool = True


@dataclass(frozen=True)
class Stretch:
    """Valid records found one behind the other in one file: decoded, with the address of buffer byte 0."""

    messages: Messages
    sizes: Positions
    base_offset: int

    @property
    def places(self) -> Positions:
        """Where each record begins, as an address."""
        return self.messages.starts + self.base_offset

    @property
    def end_offset(self) -> int:
        """Address one past the last record."""
        return int(self.messages.starts[-1] + self.sizes[-1] + self.base_offset)

    def head(self, count: int) -> Stretch:
        """The first `count` records."""
        if count == len(self.sizes):
            return self
        messages = decode(self.messages.buffer, self.messages.starts[:count], self.sizes[:count])
        return Stretch(messages, self.sizes[:count], self.base_offset)

    def tail(self, first: int) -> Stretch:
        """The records from number `first` on."""
        messages = decode(self.messages.buffer, self.messages.starts[first:], self.sizes[first:])
        return Stretch(messages, self.sizes[first:], self.base_offset)


@dataclass
class FileWalk:
    """Walks one file of the log. After iteration `end_offset` and `reason` say where it stopped and why."""

    chain: FileChain
    files: OpenFiles
    file: ChainFile
    start: int
    checks: Checks
    window_size: int = WINDOW_SIZE
    end_offset: int = 0
    reason: Stop = Stop.END

    def __iter__(self) -> Iterator[Stretch]:
        window = Window(self.chain, self.files)
        self.end_offset = self.start
        size = self.window_size
        while self.end_offset < self.file.end:
            stop = min(self.end_offset + size, self.file.end)
            buffer = window.load(self.end_offset, stop)
            found = walk(buffer)
            base = self.end_offset
            self.reason = found.reason
            right, stretch = _valid(buffer, found.starts, found.sizes, base, self.checks)
            if right:
                self.end_offset = stretch.end_offset
                yield stretch
            if right < len(found.starts):
                self.reason = Stop.CORRUPT
                return
            if found.reason is not Stop.TORN or stop == self.file.end:
                return
            # A record larger than the window: read on with a larger one.
            size = self.window_size if right else size * 4


def _valid(buffer: Bytes, starts: Positions, sizes: Positions, base: int, checks: Checks) -> tuple[int, Stretch]:
    """How many records, from the first on, pass the checks, and those records."""
    messages = decode(buffer, starts, sizes)
    wrong = messages.flaws != 0
    if checks.magics != (MAGIC_V1, MAGIC_V2):
        wrong |= ~np.isin(messages.column("magic"), checks.magics)
    if checks.crc:
        wrong |= wrong_crcs(messages)
    if checks.place:
        wrong |= messages.column("physical_offset") != messages.starts + base
    if checks.broker:
        wrong |= _bad_delays(messages)
    count = int(wrong.argmax()) if wrong.any() else len(starts)
    if count < len(starts):
        messages = decode(buffer, starts[:count], sizes[:count])
    return count, Stretch(messages, sizes[:count], base)


def wrong_crcs(messages: Messages) -> npt.NDArray[np.bool_]:
    """Which records hold a body that does not fit BODYCRC; an empty body is not checked (rocketmq.md 5.4)."""
    wrong: npt.NDArray[np.bool_] = (messages.body_size > 0) & (
        body_crcs(messages.bodies()) != messages.column("body_crc")
    )
    return wrong


def _bad_delays(messages: Messages) -> npt.NDArray[np.bool_]:
    """Records of the schedule topic whose DELAY is no number: a broker's dispatch and recovery stop there."""
    wrong = np.zeros(len(messages), bool)
    rows = np.flatnonzero(messages.topic_size == len(_SCHEDULE))
    for row in rows.tolist():
        start, size = int(messages.topic_start[row]), int(messages.topic_size[row])
        if messages.buffer[start : start + size].tobytes() != _SCHEDULE:
            continue
        at = int(messages.properties_start[row])
        delay = property_of(messages.buffer[at : at + int(messages.properties_size[row])].tobytes(), "DELAY")
        wrong[row] = delay is not None and not _is_java_int(delay)
    return wrong


def _is_java_int(text: str) -> bool:
    digits = text[1:] if text[:1] in ("+", "-") else text
    if not digits or not all(c.isdecimal() for c in digits):
        return False
    return -(1 << 31) <= int(text) < 1 << 31
