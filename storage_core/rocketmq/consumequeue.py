"""One consume queue on disk: its files, and its units by ordinal.

Which of its units a broker would serve is judged by `recovery`; what they point at is read by `rows`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from storage_core.files import system
from storage_core.files.file_chain import FileChain
from storage_core.files.window import OpenFiles, shrunk, vanished
from storage_core.formats.rocketmq.consumequeue import UNIT, decode_units, leading_valid

FIRST_CHUNK = 4096 // UNIT.size * UNIT.size
LAST_CHUNK = (4 << 20) // UNIT.size * UNIT.size


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

    def valid_stop(self, files: OpenFiles, index: int) -> tuple[int, int]:
        """Scans file number `index` from its start for the first unit that is not valid.

        Returns (units before it, end of the last valid unit's record, or -1 when there is none).
        """
        file = self.chain.files[index]
        descriptor = files.descriptor(file.path)
        total = min(file.size, self.chain.file_size or file.size) // UNIT.size * UNIT.size
        position, chunk, reach = 0, FIRST_CHUNK, -1
        while position < total:
            units = decode_units(system.pread(descriptor, min(chunk, total - position), position))
            count = leading_valid(units)
            if count:
                last = units[count - 1]
                reach = int(last["physical_offset"]) + int(last["size"])
            position += count * UNIT.size
            if count < len(units) or not len(units):
                break
            chunk = min(chunk * 8, LAST_CHUNK)
        return position // UNIT.size, reach

    def offsets(self, files: OpenFiles, start: int, stop: int) -> npt.NDArray[np.int64]:
        """Physical offsets of units [start, stop), native byte order."""
        return self.units(files, start, stop)["physical_offset"].astype(np.int64)
