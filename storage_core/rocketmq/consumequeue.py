"""One consume queue on disk: its files, and its units by ordinal.

Which of its units a broker would serve is judged by `recovery`; what they point at is read by `rows`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from storage_core.files import system
from storage_core.files.file_chain import FileChain
from storage_core.files.window import OpenFiles, shrunk, vanished
from storage_core.formats.rocketmq.consumequeue import BLANK_SIZE, UNIT, decode_units, leading_valid

FIRST_CHUNK = 4096 // UNIT.size * UNIT.size
LAST_CHUNK = (4 << 20) // UNIT.size * UNIT.size
READ_WHOLE = 65_536


@dataclass(frozen=True)
class ValidUnits:
    """The valid units at the start of one queue file.

    How many, the first one's place and size, the last one's place and the end of its record, and the largest place
    among them; -1 where there is none.
    """

    count: int = 0
    first_place: int = -1
    first_size: int = -1
    last_place: int = -1
    reach: int = -1
    peak: int = -1


@dataclass(frozen=True)
class ConsumeQueue:
    """The files of one queue. Ordinals are queue offsets: unit q lies at byte 20 q of the chain."""

    topic: str
    queue_id: int
    chain: FileChain

    @property
    def units_per_file(self) -> int:
        """Units that a full file holds."""
        return self.chain.file_size // UNIT.size

    def file_ordinals(self) -> Iterator[tuple[int, int]]:
        """First unit and one past the last that each file has room for."""
        for file in self.chain.files:
            yield file.base_offset // UNIT.size, file.end // UNIT.size

    def units(self, files: OpenFiles, start: int, stop: int) -> npt.NDArray[Any]:
        """Units [start, stop) in disk byte order; those of a missing file come back as zeros. Shape (stop - start,).

        Raises CorruptionError when a file is shorter than it was when it was listed.
        """
        out = np.zeros(max(stop - start, 0), UNIT.dtype)
        raw = out.view(np.uint8)
        begin, end = start * UNIT.size, stop * UNIT.size
        for file in self.chain.files:
            low, high = max(begin, file.base_offset), min(end, file.end)
            if low >= high:
                continue
            target = raw[low - begin : high - begin].data
            try:
                count = system.pread_into(files.descriptor(file.path), target, low - file.base_offset)
            except FileNotFoundError:
                raise vanished(file) from None
            if count < len(target):
                raise shrunk(file, low - file.base_offset + count)
        return out

    def valid_units(self, files: OpenFiles, index: int) -> ValidUnits:
        """Scans file number `index` from its start up to the first unit that is not valid (rocketmq.md 3.4)."""
        found = ValidUnits()
        for units in self._chunks(files, index):
            valid = leading_valid(units)
            if valid:
                places, sizes = units["physical_offset"], units["size"]
                last_place = int(places[valid - 1])
                found = ValidUnits(
                    found.count + valid,
                    found.first_place if found.count else int(places[0]),
                    found.first_size if found.count else int(sizes[0]),
                    last_place,
                    last_place + int(sizes[valid - 1]),
                    max(found.peak, int(places[:valid].max())),
                )
            if valid < len(units):
                break
        return found

    def valid_count(self, files: OpenFiles) -> int:
        """Units before the first that is not valid in the last file, counted from the chain's start."""
        last = len(self.chain.files) - 1
        return (self.chain.files[last].base_offset - self.chain.start) // UNIT.size + self.valid_units(
            files, last
        ).count

    def truncated_stop(self, files: OpenFiles, index: int, log_end: int) -> tuple[int, int]:
        """How many units of file number `index` a broker keeps when the log ends at `log_end`, and the last one's end.

        The first unit is kept whatever its size is (rocketmq.md 3.4). (0, -1): the file goes.
        """
        count, reach = 0, -1
        for units in self._chunks(files, index):
            right = (units["physical_offset"] >= 0) & (units["size"] > 0)
            if not count:
                right[0] = True
            right &= units["physical_offset"] < log_end
            valid = int(right.argmin()) if not right.all() else len(units)
            if valid:
                reach = _end(units[valid - 1])
            count += valid
            if valid < len(units):
                break
        return count, reach

    def trusted_stop(self, files: OpenFiles) -> int:
        """One past the last ordinal, when nothing but zeros is believed to lie behind the units: a bisection.

        A last file that begins with no unit counts as not there.
        """
        for file in reversed(self.chain.files):
            first = low = file.base_offset // UNIT.size
            high = file.end // UNIT.size
            while low < high:
                middle = (low + high) // 2
                if leading_valid(self.units(files, middle, middle + 1)):
                    low = middle + 1
                else:
                    high = middle
            if low > first:
                return low
        return self.chain.start // UNIT.size

    def first_readable(self, files: OpenFiles, stop: int, log_start: int) -> int:
        """The first ordinal below `stop` that is no filler and whose record is not expired; `stop` when there is none.

        Fillers and expired units come first in a queue, so this bisects (rocketmq.md 3.5, the robust reader). An
        ordinal whose file is missing counts as the last one before the hole.
        """
        low = self.chain.start // UNIT.size
        high = max(stop, low)

        def gone(ordinal: int) -> bool:
            if self.chain.index_at(ordinal * UNIT.size) is None:
                before = [file.end for file in self.chain.files if file.end <= ordinal * UNIT.size]
                ordinal = max(before, default=UNIT.size) // UNIT.size - 1
            unit = self.units(files, ordinal, ordinal + 1)[0]
            return int(unit["physical_offset"]) < log_start or int(unit["size"]) == BLANK_SIZE

        if low < high and not gone(low):
            return low
        while low < high:
            middle = (low + high) // 2
            if gone(middle):
                low = middle + 1
            else:
                high = middle
        return low

    def lower_bounds(
        self, files: OpenFiles, start: int, stop: int, addresses: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.int64]:
        """For each address (ascending) the first ordinal in [start, stop) whose record lies at or behind it.

        Offsets rise within a queue; where damage breaks that, the answer is still ascending.
        """
        if stop - start <= READ_WHOLE:
            offsets = np.maximum.accumulate(self.offsets(files, start, stop))
            return start + np.searchsorted(offsets, addresses)
        found = np.empty(len(addresses), np.int64)
        low = start
        for index, address in enumerate(addresses.tolist()):
            high = stop
            while low < high:
                middle = (low + high) // 2
                if int(self.units(files, middle, middle + 1)[0]["physical_offset"]) < address:
                    low = middle + 1
                else:
                    high = middle
            found[index] = low
        return found

    def _chunks(self, files: OpenFiles, index: int) -> Iterator[npt.NDArray[Any]]:
        """The units of file number `index`, a few at first: most of a young file is empty."""
        file = self.chain.files[index]
        descriptor = files.descriptor(file.path)
        total = min(file.size, self.chain.file_size or file.size) // UNIT.size * UNIT.size
        position, chunk = 0, FIRST_CHUNK
        while position < total:
            units = decode_units(system.pread(descriptor, min(chunk, total - position), position))
            if not len(units):
                return
            yield units
            position += len(units) * UNIT.size
            chunk = min(chunk * 8, LAST_CHUNK)

    def offsets(self, files: OpenFiles, start: int, stop: int) -> npt.NDArray[np.int64]:
        """Physical offsets of units [start, stop), native byte order."""
        return self.units(files, start, stop)["physical_offset"].astype(np.int64)


def _end(unit: Any) -> int:
    return int(unit["physical_offset"]) + int(unit["size"])
