"""One consume queue on disk: its files, and its entries by queue offset.

Which entries a broker would serve is decided by `recovery`; the records that they point to are the readers' concern.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from storage_core.files import system
from storage_core.files.file_chain import ChainFile, FileChain
from storage_core.files.open_files import OpenFiles
from storage_core.files.window import shrunk, vanished
from storage_core.formats.bisection import first_where
from storage_core.formats.layout import Positions
from storage_core.formats.rocketmq.consumequeue import BLANK_SIZE, QUEUE_ENTRY, decode_entries, leading_valid

FIRST_CHUNK = 4096 // QUEUE_ENTRY.size * QUEUE_ENTRY.size
FAR_CHUNK = (32 << 10) // QUEUE_ENTRY.size * QUEUE_ENTRY.size
LAST_CHUNK = (4 << 20) // QUEUE_ENTRY.size * QUEUE_ENTRY.size
READ_WHOLE = 65_536
ENTRIES_PER_READ = 64
"""How many entries can be read sequentially in the time of one random read."""
ENTRIES_AT_ONCE = 1 << 18
LOOK_BACK = 4096


@dataclass(frozen=True)
class ValidEntries:
    """The valid entries at the start of one queue file.

    Their number, physical offset and size of the first, physical offset of the last and the end of its record
    (`reach`), and the largest physical offset among them; -1 where there is none.
    """

    count: int = 0
    first_physical_offset: int = -1
    first_size: int = -1
    last_physical_offset: int = -1
    reach: int = -1
    peak: int = -1


NO_ENTRIES = ValidEntries()


@dataclass(frozen=True)
class ConsumeQueue:
    """The files of one queue. The entry of queue offset q is at byte 20 q of the chain."""

    topic: str
    queue_id: int
    chain: FileChain

    @property
    def entries_per_file(self) -> int:
        """The number of entries in a full file."""
        return self.chain.file_size // QUEUE_ENTRY.size

    @property
    def start(self) -> int:
        """The first queue offset that has a file; 0 without files."""
        return self.chain.start // QUEUE_ENTRY.size

    def file_queue_offsets(self) -> Iterator[tuple[int, int]]:
        """The queue offsets [first, stop) that each file has room for; no two overlap."""
        for file in self.chain.disjoint.files:
            yield file.base_offset // QUEUE_ENTRY.size, file.end // QUEUE_ENTRY.size

    def entries(self, files: OpenFiles, start: int, stop: int) -> npt.NDArray[Any]:
        """Entries [start, stop) in disk byte order; those of a missing file are zeros. Shape (stop - start,).

        Raises CorruptionError when a file has vanished or become shorter since it was listed.
        """
        out = np.zeros(max(stop - start, 0), QUEUE_ENTRY.dtype)
        begin = start * QUEUE_ENTRY.size
        for file, low, high in self.spans(start, stop):
            target = out.view(np.uint8)[low - begin : high - begin].data
            try:
                count = system.pread_into(files.descriptor(file.path), target, low - file.base_offset)
            except FileNotFoundError:
                raise vanished(file) from None
            if count < len(target):
                raise shrunk(file, low - file.base_offset + count)
        return out

    def spans(self, start: int, stop: int) -> Iterator[tuple[ChainFile, int, int]]:
        """The files that contain entries [start, stop), and the addresses [low, high) of these entries in each."""
        begin, end = start * QUEUE_ENTRY.size, stop * QUEUE_ENTRY.size
        for file in self.chain.disjoint.files:
            low, high = max(begin, file.base_offset), min(end, file.end)
            if low < high:
                yield file, low, high

    def room(self, index: int) -> int:
        """How many entries file number `index` has room for."""
        file = self.chain.files[index]
        return min(file.size, self.chain.file_size or file.size) // QUEUE_ENTRY.size

    def valid_entries(self, files: OpenFiles, index: int) -> ValidEntries:
        """Scans file number `index` from its start up to the first invalid entry (rocketmq.md 3.4)."""
        seen = NO_ENTRIES
        for entries in self._chunks(files, index):
            valid = leading_valid(entries)
            if valid:
                physical_offsets, sizes = entries["physical_offset"], entries["size"]
                seen = ValidEntries(
                    seen.count + valid,
                    seen.first_physical_offset if seen.count else int(physical_offsets[0]),
                    seen.first_size if seen.count else int(sizes[0]),
                    int(physical_offsets[valid - 1]),
                    _end(entries[valid - 1]),
                    max(seen.peak, int(physical_offsets[:valid].max())),
                )
            if valid < len(entries):
                break
        return seen

    def valid_stop(self, files: OpenFiles) -> int:
        """The queue offset of the first invalid entry in the last file; the queue must have a file."""
        last = len(self.chain.files) - 1
        return self.chain.files[last].base_offset // QUEUE_ENTRY.size + self.valid_entries(files, last).count

    def truncated_stop(self, files: OpenFiles, index: int, log_end: int, begin: int = 0) -> tuple[int, int]:
        """How many entries a broker keeps of file number `index`, from its entry `begin` on, when the log ends at
        `log_end`, and the address after the last one's record; (0, -1) if it keeps none.

        The file's first entry is kept whatever its size (rocketmq.md 3.4).
        """
        count, reach = 0, -1
        for entries in self._chunks(files, index, begin):
            right = (entries["physical_offset"] >= 0) & (entries["size"] > 0)
            if not begin and not count:
                right[0] = True
            right &= entries["physical_offset"] < log_end
            valid = int(right.argmin()) if not right.all() else len(entries)
            if valid:
                reach = _end(entries[valid - 1])
            count += valid
            if valid < len(entries):
                break
        return count, reach

    def trusted_stop(self, files: OpenFiles) -> int:
        """The queue offset after the last entry, found by bisection on the assumption that only zeros follow it.

        A last file that does not begin with an entry is ignored.
        """

        def is_empty(queue_offset: int) -> bool:
            return not leading_valid(self.entries(files, queue_offset, queue_offset + 1))

        for first, end in reversed(list(self.file_queue_offsets())):
            stop = first_where(first, end, is_empty)
            if stop > first:
                return stop
        return self.start

    def first_readable(self, files: OpenFiles, stop: int, log_start: int) -> int:
        """The first queue offset below `stop` whose entry is not a filler and whose record is not expired, else `stop`.

        Fillers and expired entries come first in a queue, so this bisects (rocketmq.md 3.5, the robust reader). A
        damaged entry may lead the bisection past readable ones, so it then looks back until LOOK_BACK entries in a row
        are unreadable.
        """

        def is_readable(queue_offset: int) -> bool:
            entry = self._naming_entry(files, queue_offset)
            return int(entry["physical_offset"]) >= log_start and int(entry["size"]) != BLANK_SIZE

        if self.start < stop and is_readable(self.start):
            return self.start
        found = first_where(self.start, max(stop, self.start), is_readable)
        while found > self.start:
            begin = max(self.start, found - LOOK_BACK)
            entries = self.entries(files, begin, found)
            sizes = entries["size"]
            readable = (entries["physical_offset"] >= log_start) & (sizes > 0) & (sizes != BLANK_SIZE)
            if not readable.any():
                break
            found = begin + int(readable.argmax())
        return found

    def last_physical_offset(self, files: OpenFiles, stop: int) -> int:
        """The physical offset of the last entry before `stop` that names a record."""
        return int(self._naming_entry(files, stop - 1)["physical_offset"])

    def _naming_entry(self, files: OpenFiles, queue_offset: int) -> Any:
        """The entry at a queue offset, or the one before it if that entry is in a missing file or invalid.

        A broker can count one invalid entry: the first one of a file (rocketmq.md 3.4).
        """
        if self.chain.index_at(queue_offset * QUEUE_ENTRY.size) is None:
            before = [file.end for file in self.chain.files if file.end <= queue_offset * QUEUE_ENTRY.size]
            queue_offset = max(before, default=QUEUE_ENTRY.size) // QUEUE_ENTRY.size - 1
        entry = self.entries(files, queue_offset, queue_offset + 1)
        if not leading_valid(entry) and queue_offset > self.start:
            entry = self.entries(files, queue_offset - 1, queue_offset)
        return entry[0]

    def first_real(self, files: OpenFiles, start: int, stop: int) -> int:
        """The first queue offset in [start, stop) whose entry is not a filler, else `stop`; fillers come first."""
        return first_where(start, stop, lambda at: int(self.entries(files, at, at + 1)[0]["size"]) != BLANK_SIZE)

    def lower_bounds(self, files: OpenFiles, start: int, stop: int, physical_offsets: Positions) -> Positions:
        """For each of the ascending addresses, the first queue offset in [start, stop) whose record is at or after it.

        Addresses increase within a queue; if damage breaks that, the result is still ascending. Shape (n,).
        """
        count = max(stop - start, 0)
        if count <= max(READ_WHOLE, len(physical_offsets) * count.bit_length() * ENTRIES_PER_READ):
            return self._bounds_by_reading(files, start, stop, physical_offsets)
        bounds = np.empty(len(physical_offsets), np.int64)
        for index, physical_offset in enumerate(physical_offsets.tolist()):
            start = first_where(start, stop, partial(self.reaches, files, physical_offset))
            bounds[index] = start
        return bounds

    def span_bounds(self, files: OpenFiles, start: int, stop: int, spans: Positions) -> Positions:
        """For each of the ascending spans of the log, a range of queue offsets in [start, stop) that holds all entries
        whose records begin in it. Shape (n, 2).

        If the address of an entry is damaged, the range reaches from the first entry at or after the span's start to
        the last one before its stop; in a queue of more than READ_WHOLE entries, only a bisection is made.
        """
        bounds = self.lower_bounds(files, start, stop, spans.ravel()).reshape(-1, 2)
        if 0 < stop - start <= READ_WHOLE:
            offsets = self.offsets(files, start, stop)
            lowest_after = np.minimum.accumulate(offsets[::-1])[::-1]
            bounds[:, 1] = start + np.searchsorted(lowest_after, spans[:, 1])
        return bounds

    def _bounds_by_reading(self, files: OpenFiles, start: int, stop: int, physical_offsets: Positions) -> Positions:
        bounds = np.full(len(physical_offsets), max(start, stop), np.int64)
        done, peak = 0, -1
        for first in range(start, stop, ENTRIES_AT_ONCE):
            offsets = self.offsets(files, first, min(first + ENTRIES_AT_ONCE, stop))
            offsets[0] = max(int(offsets[0]), peak)
            np.maximum.accumulate(offsets, out=offsets)
            peak = int(offsets[-1])
            following = done + int(np.searchsorted(physical_offsets[done:], peak, "right"))
            bounds[done:following] = first + np.searchsorted(offsets, physical_offsets[done:following])
            done = following
            if done == len(physical_offsets):
                break
        return bounds

    def reaches(self, files: OpenFiles, physical_offset: int, queue_offset: int) -> bool:
        """Whether the record of one entry, or of the one before it, is at or after an address."""
        return int(self._naming_entry(files, queue_offset)["physical_offset"]) >= physical_offset

    def physical_offset(self, files: OpenFiles, queue_offset: int) -> int:
        """The physical offset of one entry."""
        return int(self.entries(files, queue_offset, queue_offset + 1)[0]["physical_offset"])

    def offsets(self, files: OpenFiles, start: int, stop: int) -> Positions:
        """Physical offsets of the entries [start, stop), native byte order."""
        return self.entries(files, start, stop)["physical_offset"].astype(np.int64)

    def _chunks(self, files: OpenFiles, index: int, begin: int = 0) -> Iterator[npt.NDArray[Any]]:
        """Entries of file number `index` from its entry `begin` on, a few at first: most of a new file is empty."""
        file = self.chain.files[index]
        descriptor = files.descriptor(file.path)
        total = self.room(index) * QUEUE_ENTRY.size
        position = begin * QUEUE_ENTRY.size
        chunk, growth = (FIRST_CHUNK, 8) if system.is_local(file.path) else (FAR_CHUNK, 4)
        while position < total:
            entries = decode_entries(system.pread(descriptor, min(chunk, total - position), position))
            if not len(entries):
                return
            yield entries
            position += len(entries) * QUEUE_ENTRY.size
            chunk = min(chunk * growth, LAST_CHUNK)


def _end(entry: Any) -> int:
    return int(entry["physical_offset"]) + int(entry["size"])
