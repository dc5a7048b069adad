"""What a stock store serves after it has opened a directory: the slow, obvious twin of the recovery rules.

It keeps small stores in memory and does, one record and one queue unit at a time, what sections 3.3 to 3.5, 5.4, 5.5
and 6.1 of the format page state for 4.9.3 and 5.3.3. `tests/real` compares it with both real stores on random
directories. It does not support light queues.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.reference.rocketmq_record import MAGIC_BLANK, MAGIC_V1, MAGIC_V2, parse_properties

QUEUE_ENTRY = 20
BLANK_ENTRY = (0, 0x7FFFFFFF)
ENTRIES_A_CALL = 800

Served = tuple[str, int, int, int, int]
"""Topic, queue id, queue offset, physical offset, and the size stated by the unit: the number of bytes served."""


@dataclass
class StoreFile:
    """One file of a log or queue: its base offset, its bytes, and how many of them count as written."""

    base: int
    data: bytearray
    written: int


@dataclass
class Chain:
    """The files of a log or a queue, in order, all of one size."""

    size: int
    files: list[StoreFile]

    @classmethod
    def load(cls, folder: Path, size: int) -> Chain:
        """Loads all files of a folder, each counted as full. Files of length zero are left out."""
        paths = sorted(folder.iterdir()) if folder.is_dir() else []
        found = [(int(path.name), bytearray(path.read_bytes())) for path in paths if path.name.isdigit()]
        return cls(size, [StoreFile(base, data, size) for base, data in found if data])

    def truncate(self, stop: int) -> None:
        """Sets the end of the chain; files beyond it are dropped."""
        for file in list(self.files):
            if file.base + self.size > stop:
                if stop >= file.base:
                    file.written = stop % self.size
                else:
                    self.files.remove(file)

    @property
    def stop(self) -> int:
        """The offset of the next byte to be written."""
        return self.files[-1].base + self.files[-1].written if self.files else 0

    def find(self, offset: int, first_when_missing: bool = False) -> StoreFile | None:
        """The file that contains the byte at an offset."""
        for file in self.files:
            if file.base <= offset < file.base + self.size:
                return file
        return self.files[0] if first_when_missing and self.files else None


@dataclass
class Dispatch:
    """The fields of a record that the dispatcher uses."""

    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    size: int
    sys_flag: int


@dataclass
class Checked:
    """The store's verdict on the bytes at a position: `size` is 0 for a blank record, negative if nothing is known.

    `read` is the length of the fields if they do not add up to `size`.
    """

    good: bool
    size: int
    dispatch: Dispatch | None = None
    read: int = 0


def check_record(data: bytearray, at: int, five: bool, crc: bool = True) -> Checked:
    """Section 5.4: validity of the record at a position. PHYSICALOFFSET and queue are not checked."""
    bad = Checked(False, -1)
    left = len(data) - at
    if left < 8 or (five and left <= 4):
        return bad
    size, magic = struct.unpack_from(">iI", data, at)
    if five and left - 4 < size - 4:
        return bad
    if magic == MAGIC_BLANK:
        return Checked(True, 0)
    if magic != MAGIC_V1 and not (five and magic == MAGIC_V2):
        return bad
    try:
        return _check_fields(data, at, size, magic, crc)
    except (struct.error, IndexError, ValueError):
        return bad


def _check_fields(data: bytearray, at: int, size: int, magic: int, crc: bool) -> Checked:
    body_crc, queue_id, _, queue_offset, phy, sys_flag = struct.unpack_from(">iiiqqi", data, at + 8)
    born, stored = (20 if sys_flag & 0x10 else 8), (20 if sys_flag & 0x20 else 8)
    place = at + 68 + born + stored
    _need(0 <= max(born, stored) <= size)
    body_size = struct.unpack_from(">i", data, place)[0]
    place += 4
    if body_size > 0:
        _need(body_size <= size or not crc)
        _need(place + body_size <= len(data))
        if crc and zlib.crc32(data[place : place + body_size]) & 0x7FFFFFFF != body_crc:
            return Checked(False, -1)
        place += body_size
    width = 2 if magic == MAGIC_V2 else 1
    topic_size = struct.unpack_from(">h" if width == 2 else ">b", data, place)[0]
    place += width
    _need(0 <= topic_size <= size and place + topic_size <= len(data))
    topic = data[place : place + topic_size].decode("utf-8", "replace")
    place += topic_size
    properties_size = struct.unpack_from(">h", data, place)[0]
    place += 2
    if properties_size > 0:
        _need(properties_size <= size and place + properties_size <= len(data))
        named = dict(parse_properties(bytes(data[place : place + properties_size])))
        if topic == "SCHEDULE_TOPIC_XXXX" and "DELAY" in named:
            int(named["DELAY"])
    length = 74 + width + born + stored + max(body_size, 0) + topic_size + max(properties_size, 0)
    if length != size:
        return Checked(False, size, read=length)
    return Checked(True, size, Dispatch(topic, queue_id, queue_offset, phy, size, sys_flag))


def _need(condition: bool) -> None:
    if not condition:
        raise ValueError("the reader would have stopped here")


@dataclass
class Queue:
    """One consume queue."""

    chain: Chain
    min_offset: int = 0
    max_physical: int = -1
    created: list[StoreFile] = field(default_factory=list)

    def recover(self) -> None:
        """Section 3.4: the end is the first invalid unit, searched for from the third-last file on."""
        files = self.chain.files
        if not files:
            return
        index = max(0, len(files) - 3)
        while True:
            file, used = files[index], 0
            for at in range(0, self.chain.size, QUEUE_ENTRY):
                phy, size = struct.unpack_from(">qi", file.data, at)
                if phy < 0 or size <= 0:
                    break
                used, self.max_physical = at + QUEUE_ENTRY, phy + size
            index += 1
            if used < self.chain.size or index == len(files):
                break
        self.chain.truncate(file.base + used)

    def truncate(self, log_stop: int) -> None:
        """Section 3.4: drops units at the tail whose record is beyond the end of the log."""
        self.max_physical = log_stop
        while self.chain.files:
            file = self.chain.files[-1]
            file.written = 0
            for at in range(0, self.chain.size, QUEUE_ENTRY):
                phy, size = struct.unpack_from(">qi", file.data, at)
                if at and (phy < 0 or size <= 0):
                    return
                if phy >= log_stop:
                    break
                file.written, self.max_physical = at + QUEUE_ENTRY, phy + size
            else:
                return
            if file.written:
                return
            self.chain.files.pop()

    def put(self, record: Dispatch) -> None:
        """Section 3.3: appends a unit unless it is already present; gaps close up, a first file gets blank units."""
        if record.physical_offset + record.size <= self.max_physical:
            return
        expected, files, size = record.queue_offset * QUEUE_ENTRY, self.chain.files, self.chain.size
        if not files:
            files.append(StoreFile(expected - expected % size, bytearray(size), 0))
            self.created.append(files[0])
        elif files[-1].written == size:
            files.append(StoreFile(files[-1].base + size, bytearray(size), 0))
        file = files[-1]
        if file in self.created and record.queue_offset and not file.written:
            self.min_offset = expected
            for _ in range(0, expected % size, QUEUE_ENTRY):
                self._append(file, *BLANK_ENTRY)
        if record.queue_offset and expected < file.base + file.written:
            return
        self.max_physical = record.physical_offset + record.size
        self._append(file, record.physical_offset, record.size)

    def _append(self, file: StoreFile, phy: int, size: int) -> None:
        struct.pack_into(">qi", file.data, file.written, phy, size)
        file.written += QUEUE_ENTRY

    def correct_min(self, low: int, five: bool) -> None:
        """Section 3.5."""
        if not self.chain.files:
            return
        first, last = self.chain.files[0], self.chain.files[-1]
        if five:
            if self.min_offset >= self.chain.stop:
                return
            if last.written and struct.unpack_from(">q", last.data, last.written - QUEUE_ENTRY)[0] < low:
                self.min_offset = last.base + last.written
                return
            self._bisect_min(first, low)
            return
        for at in range(0, first.written, QUEUE_ENTRY):
            if struct.unpack_from(">q", first.data, at)[0] >= low:
                self.min_offset = first.base + at
                return

    def _bisect_min(self, first: StoreFile, low: int) -> None:
        start = self.min_offset - first.base
        intact, start = start >= 0, max(start, 0)
        entries = [struct.unpack_from(">q", first.data, at)[0] for at in range(start, first.written, QUEUE_ENTRY)]
        if not entries or (intact and entries[0] >= low):
            return
        left, right = 0, len(entries) - 1
        while right - left > 1:
            middle = (left + right) // 2
            if entries[middle] == low:
                left = right = middle
            elif entries[middle] > low:
                right = middle
            else:
                left = middle
        for number in range(left, right + 1):
            if entries[number] >= low:
                self.min_offset = first.base + start + number * QUEUE_ENTRY
                return


class Recovered:
    """A directory after a stock store of `version` ("493" or "533") has opened it and started."""

    def __init__(self, store: Path, version: str, log_file_size: int, queue_file_size: int) -> None:
        self.five = version == "533"
        self.queue_file_size = -(-queue_file_size // QUEUE_ENTRY) * QUEUE_ENTRY
        self.log = Chain.load(store / "commitlog", log_file_size)
        self.queues: dict[tuple[str, int], Queue] = {}
        for folder in sorted((store / "consumequeue").glob("*/*")):
            if folder.is_dir() and folder.name.isdigit():
                self.queues[folder.parent.name, int(folder.name)] = Queue(Chain.load(folder, self.queue_file_size))
        checkpoint = store / "checkpoint"
        stamps = checkpoint.read_bytes()[:16].ljust(16, b"\0") if checkpoint.exists() else bytes(16)
        self.flushed_ms = max(0, min(struct.unpack(">qq", stamps)) - 3000)
        self._recover((store / "abort").exists())

    def _recover(self, crashed: bool) -> None:
        for queue in self.queues.values():
            queue.recover()
        indexed = max([-1, *(queue.max_physical for queue in self.queues.values())])
        if not self.log.files:
            self.queues = {name: Queue(Chain(self.queue_file_size, [])) for name in self.queues}
            return
        stop = self._scan(crashed, indexed)
        self.log.truncate(stop)
        if indexed >= stop:
            for queue in self.queues.values():
                queue.truncate(stop)
        low = self.log.files[0].base
        if not self.five:
            for queue in self.queues.values():
                queue.correct_min(low, self.five)
            self._catch_up(low)
        for queue in self.queues.values():
            queue.correct_min(low, self.five)

    def _scan(self, crashed: bool, indexed: int) -> int:
        """Section 5.4: where the log ends; records are dispatched on the way after a crash, and by 5.3.3."""
        files = self.log.files
        if crashed:
            index = next((n for n in range(len(files) - 1, -1, -1) if self._flushed(files[n])), 0)
        elif self.five:
            index = next((n for n in range(len(files) - 1, 0, -1) if files[n].base <= indexed), 0)
        else:
            index = max(0, len(files) - 3)
        at = 0
        while True:
            found = check_record(files[index].data, at, self.five)
            if not found.good:
                return files[index].base + at
            if found.dispatch is None:
                if index + 1 == len(files):
                    return files[index].base + at
                index, at = index + 1, 0
                continue
            at += found.size
            if crashed or (self.five and found.dispatch.physical_offset > indexed):
                self._dispatch(found.dispatch)

    def _flushed(self, file: StoreFile) -> bool:
        magic, flags = struct.unpack_from(">I", file.data, 4)[0], struct.unpack_from(">i", file.data, 36)[0]
        stored = struct.unpack_from(">q", file.data, 68 if flags & 0x10 else 56)[0]
        return magic in ((MAGIC_V1, MAGIC_V2) if self.five else (MAGIC_V1,)) and 0 != stored <= self.flushed_ms

    def _dispatch(self, record: Dispatch) -> None:
        if record.sys_flag & 12 in (0, 8):
            name = (record.topic, record.queue_id)
            self.queues.setdefault(name, Queue(Chain(self.queue_file_size, []))).put(record)

    def _catch_up(self, low: int) -> None:
        """Section 5.5, 4.9.3: the dispatcher continues where the queues end."""
        at = max([low, *(queue.max_physical for queue in self.queues.values())])
        while at < self.log.stop:
            file = self.log.find(at, at == 0)
            if file is None:
                raise TimeoutError("the real store waits for ever at a missing log file")
            at = self._catch_up_file(file, at)

    def _catch_up_file(self, file: StoreFile, at: int) -> int:
        """Dispatches one file from `at` on; returns the dispatcher's position afterwards. After a record whose fields
        do not add up to its size, the position advances by that size, but reading continues after the fields.
        """
        position, left = at - file.base, file.written - (at - file.base)
        while left > 0:
            found = check_record(file.data[: file.written], position, self.five, crc=False)
            if found.good and not found.dispatch:
                return at + self.log.size - at % self.log.size
            if found.size <= 0:
                return at + left
            at += found.size
            position += found.size if found.good else found.read
            if found.dispatch:
                left -= found.size
                self._dispatch(found.dispatch)
        return at

    def served(self) -> Iterator[Served]:
        """Section 6.1: what pulling each queue from its smallest offset returns, one message per call."""
        for (topic, queue_id), queue in sorted(self.queues.items()):
            offset, stop = queue.min_offset // QUEUE_ENTRY, queue.chain.stop // QUEUE_ENTRY
            while offset < stop:
                offset, found = self._pull(queue, offset)
                if found:
                    yield topic, queue_id, offset - 1, *found

    def _pull(self, queue: Queue, offset: int) -> tuple[int, tuple[int, int] | None]:
        """The next offset to pull from, and the message found before it."""
        per_file = self.queue_file_size // QUEUE_ENTRY
        file = queue.chain.find(offset * QUEUE_ENTRY) if offset * QUEUE_ENTRY >= queue.min_offset else None
        at = offset * QUEUE_ENTRY % self.queue_file_size
        if file is None or at >= file.written:
            return offset + per_file - offset % per_file, None
        hidden = None
        for number in range(min((file.written - at) // QUEUE_ENTRY, ENTRIES_A_CALL)):
            phy, size = struct.unpack_from(">qi", file.data, at + number * QUEUE_ENTRY)
            offset += 1
            if hidden is not None and phy < hidden:
                continue
            if self._readable(phy, size):
                return offset, (phy, size)
            # As in Java, the remainder of a negative address is not positive.
            hidden = phy + self.log.size - int(math.fmod(phy, self.log.size))
        return offset, None

    def _readable(self, phy: int, size: int) -> bool:
        file = self.log.find(phy, phy == 0)
        return file is not None and phy % self.log.size + size <= file.written
