"""`<n>.idx`: one segment of a queue's index, records of publishes and of marks (deliver, then ack).

Walks the records; `index_records` decodes and encodes them, the engine decides which entries are live.
Source: rabbitmq.md 3.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct as Packer

import numpy as np
import numpy.typing as npt

from storage_core.compiled.loading import CompiledLoops
from storage_core.formats.layout import Bytes, Positions, struct

PUBLISH_BIT, PERSISTENT_BIT, MARK_BITS = 0x8000, 0x4000, 0x4000
RELATIVE_MASK = 0x3FFF

PUBLISH = struct(
    "segment publish",
    ("head", ">u2", "bit 15 = 1, bit 14 persistent, 14 bits relative sequence"),
    ("id", "V16", "message id"),
    ("expiry", ">u8", "expiry: µs since 1970, 0 = none"),
    ("size", ">u4", "size: length of the body"),
    ("embedded_size", ">u4", "length of the embedded message term, 0 = message is in the shared store"),
    size=34,
)
MARK = struct(
    "segment mark",
    ("head", ">u2", "bits 15 and 14 = 01, 14 bits relative sequence: the first one is a deliver, the second an ack"),
    size=2,
)

_loops = CompiledLoops("storage_core.formats.rabbitmq.compiled.segment_loops")
_EMBEDDED = Packer(">I")
_EMBEDDED_POSITION = PUBLISH.field("embedded_size").offset
_SHORTEST_RUN, _LONGEST_RUN = 16, 4096
_MAX_PAUSE = 4096


@dataclass(frozen=True)
class SegmentRecords:
    """Where the records of a segment file start, in file order.

    `stop` is the position after the last whole record, `reason` why the walk ended there: `end`, `blank` (the whole
    file is zero, which a node treats as empty), `torn` (an unfinished record) or `corrupt` (not the start of a record).
    """

    publishes: Positions
    marks: Positions
    stop: int
    reason: str


def walk(data: bytes | memoryview) -> SegmentRecords:
    """All whole records of a segment file. Never raises.

    Most files contain runs of records of one length, so after two equal steps a whole run is checked at once.
    """
    walker = _Walker(data)
    reason = walker.walk()
    if reason == "corrupt" and walker.position == 0 and not any(data):
        reason = "blank"
    return SegmentRecords(walker.publishes.joined(), walker.marks.joined(), walker.position, reason)


def content(data: bytes | memoryview, entry_count: int) -> tuple[npt.NDArray[np.uint8], Positions] | None:
    """Flags and publish position of each entry of a segment of `entry_count` entries, shape (entry_count,) each.

    None unless each entry has at most one publish, then at most two marks, and the file holds nothing else; also None
    without a compiled loop. The records are then found by `walk`.
    """
    loops = _loops.after(len(data))
    if loops is None:
        return None
    found: tuple[npt.NDArray[np.uint8], Positions] | None = loops.content(np.frombuffer(data, np.uint8), entry_count)
    return found


class _PositionList:
    """Positions collected one at a time (`single`) and in runs."""

    def __init__(self) -> None:
        self.single: list[int] = []
        self._parts: list[Positions] = []

    def add_run(self, positions: Positions) -> None:
        if self.single:
            self._parts.append(np.array(self.single, np.int64))
            self.single.clear()
        self._parts.append(positions)

    def joined(self) -> Positions:
        self.add_run(np.empty(0, np.int64))
        return np.concatenate(self._parts)


class _Walker:
    def __init__(self, data: bytes | memoryview) -> None:
        self.data = data
        self.buffer: Bytes = np.frombuffer(data, np.uint8)
        self.position = 0
        self.publishes, self.marks = _PositionList(), _PositionList()

    def walk(self) -> str:
        data, stop, embedded_at = self.data, len(self.data), _EMBEDDED.unpack_from
        publishes, marks = self.publishes.single, self.marks.single
        position, last_start, last_step, pause, wait = 0, -1, -1, 0, 1
        while position < stop:
            head = data[position]
            if head & 0x80:
                if position + PUBLISH.size > stop:
                    break
                step = position - last_start
                if step == last_step and pause <= 0 and last_start >= 0:
                    reached = self.run(last_start, step)
                    if reached > position:
                        position, last_start, wait = reached, -1, 1
                        continue
                    pause = wait = min(2 * wait, _MAX_PAUSE)
                pause -= 1
                length = PUBLISH.size + embedded_at(data, position + _EMBEDDED_POSITION)[0]
                if position + length > stop:
                    break
                publishes.append(position)
                last_start, last_step = position, step
                position += length
            elif head & 0x40:
                if position + MARK.size > stop:
                    break
                marks.append(position)
                position += MARK.size
            else:
                self.position = position
                return "corrupt"
        self.position = position
        return "end" if position == stop else "torn"

    def run(self, first: int, step: int) -> int:
        """Collects records after the one at `first` while they repeat its shape; returns the position after them."""
        length = PUBLISH.size + _EMBEDDED.unpack_from(self.data, first + _EMBEDDED_POSITION)[0]
        if (step - length) % MARK.size or step < length:
            return 0
        start, taken = first + step, 0
        want = _SHORTEST_RUN
        while True:
            count = min(want, (len(self.data) - start) // step)
            good = self.repeats(start, step, length, count)
            if taken == 0 and good < _SHORTEST_RUN:
                return 0
            self.take(start, step, length, good)
            start += good * step
            taken += good
            want = min(4 * want, _LONGEST_RUN)
            if good < count or not count:
                return start

    def repeats(self, start: int, step: int, length: int, count: int) -> int:
        """How many of the next `count` steps hold one publish of `length` bytes and otherwise only marks."""
        if count <= 0:
            return 0
        view = np.ndarray((count, step), np.uint8, self.buffer, start)
        same = view[:, 0] >= 0x80
        sizes = np.ndarray((count,), ">u4", self.buffer, start + _EMBEDDED_POSITION, (step,))
        same &= sizes == length - PUBLISH.size
        for offset in range(length, step, MARK.size):
            same &= (view[:, offset] & 0xC0) == 0x40
        return count if same.all() else int(same.argmin())

    def take(self, start: int, step: int, length: int, count: int) -> None:
        starts = start + step * np.arange(count, dtype=np.int64)
        self.publishes.add_run(starts)
        if step > length:
            offsets = np.arange(length, step, MARK.size, dtype=np.int64)
            self.marks.add_run((starts[:, None] + offsets).ravel())
