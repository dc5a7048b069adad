"""Partitions of compacted queues, which a broker serves from a log of their own: cut at files of it, read in its order.

What such a queue holds is `disk.compacted_queue`'s. Source of the rule: rocketmq.md 3.9.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from isal.isal_zlib import crc32

from storage_core.errors import CorruptionError
from storage_core.files.file_chain import FileChain
from storage_core.files.open_files import OpenFiles
from storage_core.files.window import vanished
from storage_core.formats.layout import Mask
from storage_core.rocketmq.disk.compacted_queue import CompactedQueue
from storage_core.rocketmq.disk.consume_queue import ConsumeQueue
from storage_core.rocketmq.read.batch_builder import none_stands_right
from storage_core.rocketmq.read.columns import QueueEntries
from storage_core.rocketmq.read.queue_partition import QueuePartition
from storage_core.rocketmq.read.row_filter import may_have_tag
from storage_core.rocketmq.read.selection import CompactedRange
from storage_core.store import ScanPartition, ScanRequest


@dataclass(frozen=True, kw_only=True)
class _Piece(QueuePartition):
    """The entries of one compacted queue with queue offsets [start, stop), all in one file, with their checksum."""

    queue: CompactedQueue
    start: int
    stop: int
    rows: int
    checksum: int

    @property
    def estimated_rows(self) -> int:
        return self.rows

    @property
    def file_count(self) -> int:
        return len(self.files())

    def files(self) -> Sequence[str]:
        return [file.path for chain in (self.queue.log, self.queue.entry_files) for file in chain.files]

    def read(self) -> Iterator[pa.RecordBatch]:
        """Raises CorruptionError, also where a broker compacts the queue meanwhile: it replaces the log first."""
        try:
            yield from super().read()
        except CorruptionError:
            self._planned_entries()
            raise
        self._planned_entries()

    def _planned_entries(self, files: OpenFiles | None = None) -> npt.NDArray[Any]:
        """The entries as they were when the plan was made."""
        with OpenFiles() as opened:
            entries = _between(self.queue.entries(files or opened, 0), self.start, self.stop)
        if crc32(entries) != self.checksum:
            raise vanished(self.queue.entry_files.files[0])
        return entries

    def _entries(self, files: OpenFiles) -> Iterator[QueueEntries]:
        entries = self._planned_entries(files)
        if self.request.tags is not None:
            entries = entries[may_have_tag(self.request.tags, self.queues[0].topic, entries["tags_code"])]
        queue_offsets, physical_offsets, sizes = (
            entries[name].astype(np.int64) for name in ("queue_offset", "physical_offset", "size")
        )
        yield QueueEntries(np.zeros(len(entries), np.int32), queue_offsets, physical_offsets, sizes)

    def _stands_right(self, files: OpenFiles, entries: QueueEntries) -> Mask:
        return none_stands_right(entries)


@dataclass(frozen=True)
class CompactedPartition(ScanPartition):
    """Pieces of compacted queues, one after another."""

    pieces: tuple[_Piece, ...]

    @property
    def estimated_bytes(self) -> int:
        """Bytes of the records."""
        return sum(piece.estimated_bytes for piece in self.pieces)

    @property
    def estimated_rows(self) -> int:
        """Entries of the pieces."""
        return sum(piece.estimated_rows for piece in self.pieces)

    @property
    def file_count(self) -> int:
        """A file of the log and one of entries for each piece."""
        return len(self.files())

    def files(self) -> Sequence[str]:
        """Files of the queues' logs and of their entries."""
        return list(dict.fromkeys(path for piece in self.pieces for path in piece.files()))

    def read(self) -> Iterator[pa.RecordBatch]:
        """The rows in the order of each log. Raises CorruptionError."""
        for piece in self.pieces:
            yield from piece.read()


def compacted_partitions(
    request: ScanRequest, ranges: Sequence[CompactedRange], store_name: str, files: OpenFiles
) -> list[ScanPartition]:
    """Partitions that together hold each selected message once that compacted queues list."""
    pieces = [piece for one in ranges for piece in _pieces(request, one, store_name, files)]
    total = sum(piece.estimated_bytes for piece in pieces)
    most_bytes = -(-total // request.partition_count(total))
    most_rows = request.max_records_per_partition or total + 1
    partitions: list[ScanPartition] = []
    held: list[_Piece] = []
    size = rows = 0
    for piece in pieces:
        if held and (size >= most_bytes or rows + piece.rows > most_rows):
            partitions.append(CompactedPartition(tuple(held)))
            held, size, rows = [], 0, 0
        held.append(piece)
        size, rows = size + piece.estimated_bytes, rows + piece.rows
    return [*partitions, CompactedPartition(tuple(held))] if held else partitions


def _pieces(request: ScanRequest, wanted: CompactedRange, store_name: str, files: OpenFiles) -> Iterator[_Piece]:
    """A piece for each file of entries, and more of one where so many of its messages may not be in one partition."""
    info, queue = wanted.info, wanted.queue
    for index, file in enumerate(queue.entry_files.files):
        entries = _between(queue.entries(files, index), wanted.start, min(wanted.stop, wanted.listed_stop))
        most = request.max_records_per_partition or max(len(entries), 1)
        own = CompactedQueue(_only(queue.log, file.base_offset), FileChain((file,), file.size))
        for first in range(0, len(entries), most):
            part = entries[first : first + most]
            yield _Piece(
                log=own.log,
                log_start=own.log.start,
                log_end=own.log.stop,
                queues=(ConsumeQueue(info.topic, info.queue_id, FileChain((), 0)),),
                request=request,
                store_name=store_name,
                weight=int(part["size"].astype(np.int64).sum()),
                queue=own,
                start=int(part["queue_offset"][0]),
                stop=int(part["queue_offset"][-1]) + 1,
                rows=len(part),
                checksum=crc32(part),
            )


def _only(log: FileChain, base_offset: int) -> FileChain:
    """The one file of a log that begins at an address."""
    return FileChain(tuple(file for file in log.files if file.base_offset == base_offset), log.file_size)


def _between(entries: npt.NDArray[Any], start: int, stop: int) -> npt.NDArray[Any]:
    """The entries with queue offsets [start, stop); these rise."""
    first, end = np.searchsorted(entries["queue_offset"].astype(np.int64), (start, stop))
    return entries[first:end]
