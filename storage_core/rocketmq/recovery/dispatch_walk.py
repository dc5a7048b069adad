"""The log as a broker's dispatcher walks it: it checks no CRC, and damage misleads it. Source: rocketmq.md 5.5.

What the dispatcher appends for these records is decided by `dispatch`.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass, replace

from storage_core.files import system
from storage_core.files.file_chain import ChainFile, FileChain
from storage_core.files.open_files import OpenFiles
from storage_core.formats.rocketmq.message import MAGIC_V1
from storage_core.formats.rocketmq.record_walk import Stop, misread_sizes
from storage_core.rocketmq.disk.commit_log import Checks, FileWalk, RecordRun


@dataclass
class DispatchWalk:
    """Records of the log from `start` to `stop`. Each run is valid until the next step.

    If bytes are not a record, the rest of their file is skipped. 4.9 (`magics` without V2) continues behind the fields
    of a record whose lengths do not add up, but counts its TOTALSIZE; at the end of the file it skips that many bytes
    of the next one. `misread_at` is the address of the first such record of the current file, None if there is none.
    """

    chain: FileChain
    files: OpenFiles
    start: int
    stop: int
    magics: tuple[int, ...]
    misread_at: int | None = None

    def __iter__(self) -> Iterator[RecordRun]:
        at = self.start
        for file in self.chain.files:
            if file.end > at and file.base_offset < self.stop:
                clipped = replace(file, size=min(file.end, self.stop) - file.base_offset)
                at = yield from self._of_file(clipped, max(at, file.base_offset))

    def _of_file(self, file: ChainFile, at: int) -> Generator[RecordRun, None, int]:
        """The records of one file; returns the address where the dispatcher continues."""
        checks = Checks(self.magics, crc=False)
        counted = displaced = 0
        self.misread_at = None
        while True:
            walk = FileWalk(self.chain, self.files, file, at, checks)
            yield from walk
            if walk.reason is Stop.BLANK:
                size = self.chain.file_size
                return max((walk.end_offset + displaced) // size * size + size, file.end)
            misread = self._misread(file, walk.end_offset)
            if misread is None:
                return file.end + counted
            if self.misread_at is None:
                self.misread_at = walk.end_offset
            size, length = misread
            at = walk.end_offset + length
            counted, displaced = counted + size, displaced + size - length

    def _misread(self, file: ChainFile, at: int) -> tuple[int, int] | None:
        if self.magics != (MAGIC_V1,) or at >= file.end:
            return None
        descriptor, position = self.files.descriptor(file.path), at - file.base_offset

        def read(start: int, size: int) -> bytes:
            return system.pread(descriptor, max(min(size, file.size - position - start), 0), position + start)

        return misread_sizes(read)
