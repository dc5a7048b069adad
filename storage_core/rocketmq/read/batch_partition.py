"""Partitions of batch queues, including compacted ones: cut at their entry files, read in the order of their log.

`disk.batch_queue` reads what such a queue holds, `recovery.batch_queues` finds what only the log has. Inner batches are
split into messages, as a client does. Source of the rules: rocketmq.md 2.8, 3.7, 3.9.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from isal.isal_zlib import crc32

from storage_core.errors import CorruptionError
from storage_core.files.file_chain import FileChain
from storage_core.files.open_files import OpenFiles
from storage_core.files.window import Window, vanished
from storage_core.formats.layout import Mask
from storage_core.formats.rocketmq.inner_batch import unwrapped
from storage_core.formats.rocketmq.message import decode
from storage_core.rocketmq.disk.batch_queue import BatchQueue, ends_of
from storage_core.rocketmq.disk.consume_queue import ConsumeQueue
from storage_core.rocketmq.read.batch_builder import BatchBuilder, none_in_place
from storage_core.rocketmq.read.columns import QueueEntries
from storage_core.rocketmq.read.queue_partition import QueuePartition
from storage_core.rocketmq.read.row_filter import may_have_tag
from storage_core.rocketmq.read.selection import BatchRange
from storage_core.rocketmq.recovery.queue_ranges import ServedQueues
from storage_core.rocketmq.recovery.redispatch import redispatched_batches
from storage_core.store import ScanPartition, ScanRequest

PIECE_SIZE = 16 << 20
"""Approximate maximum of record bytes in one piece; partitions consist of whole pieces."""


@dataclass(frozen=True, kw_only=True)
class _Batches(QueuePartition):
    """Messages of one batch queue with queue offsets [start, stop)."""

    start: int
    stop: int

    @property
    def is_compacted(self) -> bool:
        """Whether each entry is one message."""
        return False

    def _is_in_place(self, files: OpenFiles, entries: QueueEntries) -> Mask:
        return none_in_place(entries)

    def _selected(self, entries: QueueEntries, builder: BatchBuilder) -> QueueEntries:
        """All entries if an entry may have several messages, because conditions apply to messages."""
        return super()._selected(entries, builder) if self.is_compacted else entries

    def _rows(self, entries: QueueEntries, builder: BatchBuilder, window: Window) -> Iterator[pa.RecordBatch]:
        if self.is_compacted:
            return super()._rows(entries, builder, window)
        buffer, positions = self._loaded(entries, window)
        matching = builder.matching_bytes(buffer, positions, entries.sizes, entries.physical_offsets)
        if matching is not None:
            positions, entries = positions[matching], entries.take(matching)
            if not len(entries):
                return iter(())
        messages = decode(buffer, positions, entries.sizes)
        parts = unwrapped(messages, entries.sizes, self.request.verify_crc)
        record_sizes = None
        if parts is not None:
            buffer, positions, record_sizes = parts.buffer, parts.starts, parts.sizes
            entries = entries.take(parts.rows)
            entries = replace(entries, queue_offsets=entries.queue_offsets + parts.ordinals)
        inside = (entries.queue_offsets >= self.start) & (entries.queue_offsets < self.stop)
        inside &= builder.matching(entries)
        entries, positions = entries.take(inside), positions[inside]
        record_sizes = None if record_sizes is None else record_sizes[inside]
        return builder.from_queue(buffer, positions, entries, record_sizes) if len(entries) else iter(())


@dataclass(frozen=True, kw_only=True)
class _Piece(_Batches):
    """Messages of the entries [first, first + count) of one file, with the checksum of these entries."""

    queue: BatchQueue
    first: int
    count: int
    rows: int
    checksum: int

    @property
    def is_compacted(self) -> bool:
        return self.queue.is_compacted

    @property
    def estimated_rows(self) -> int:
        return self.rows

    @property
    def file_count(self) -> int:
        return len(self.files())

    def files(self) -> Sequence[str]:
        return [file.path for chain in (self.queue.log, self.queue.entry_files) for file in chain.files]

    def read(self) -> Iterator[pa.RecordBatch]:
        """Raises CorruptionError, also if a broker compacts the queue meanwhile: it replaces the log first."""
        try:
            yield from super().read()
        except CorruptionError:
            self._planned_entries()
            raise
        self._planned_entries()

    def _planned_entries(self, files: OpenFiles | None = None) -> npt.NDArray[Any]:
        """The entries as they were when the plan was made."""
        with OpenFiles() as opened:
            entries = self.queue.entries_at(files or opened, 0, self.first, self.count)
        if crc32(entries) != self.checksum:
            raise vanished(self.queue.entry_files.files[0])
        return entries

    def _entries(self, files: OpenFiles) -> Iterator[QueueEntries]:
        entries = self._planned_entries(files)
        # The tags code of an inner batch is that of its own tag, not of its messages' tags.
        if self.request.tags is not None and self.is_compacted:
            entries = entries[may_have_tag(self.request.tags, self.queues[0].topic, entries["tags_code"])]
        queue_offsets, physical_offsets, sizes = (
            entries[name].astype(np.int64) for name in ("queue_offset", "physical_offset", "size")
        )
        yield QueueEntries(np.zeros(len(entries), np.int32), queue_offsets, physical_offsets, sizes)


@dataclass(frozen=True, kw_only=True)
class _Unlisted(_Batches):
    """Messages of entries that only a broker start would write."""

    def _entries(self, files: OpenFiles) -> Iterator[QueueEntries]:
        if self.verdict is None:
            return
        key = self.queues[0].topic, self.queues[0].queue_id
        for _, found in redispatched_batches(self.log, self.verdict, files):
            own = np.array([each == key for each in found.keys], bool)[found.queue]
            own &= (found.queue_offsets < self.stop) & (found.stops > self.start)
            number = np.zeros(int(own.sum()), np.int32)
            yield QueueEntries(number, found.queue_offsets[own], found.physical_offsets[own], found.sizes[own])


class _Cut(NamedTuple):
    """The messages with queue offsets [start, stop) in the entries [first, last) of a file: `rows` of them."""

    first: int
    last: int
    start: int
    stop: int
    rows: int


@dataclass(frozen=True)
class BatchPartition(ScanPartition):
    """Pieces of batch queues, one after another."""

    pieces: tuple[_Piece, ...]

    @property
    def estimated_bytes(self) -> int:
        """Bytes of the records."""
        return sum(piece.estimated_bytes for piece in self.pieces)

    @property
    def estimated_rows(self) -> int:
        """Messages of the pieces."""
        return sum(piece.estimated_rows for piece in self.pieces)

    @property
    def file_count(self) -> int:
        """The number of log and entry files, as `files` lists them."""
        return len(self.files())

    def files(self) -> Sequence[str]:
        """Files of the queues' logs and of their entries."""
        return list(dict.fromkeys(path for piece in self.pieces for path in piece.files()))

    def read(self) -> Iterator[pa.RecordBatch]:
        """The rows in the order of each log. Raises CorruptionError."""
        for piece in self.pieces:
            yield from piece.read()


def batch_partitions(
    request: ScanRequest, ranges: Sequence[BatchRange], served: ServedQueues, store_name: str, files: OpenFiles
) -> list[ScanPartition]:
    """Partitions that together hold each selected message of batch queues once, except messages of compacted queues
    that only the commit log has.
    """
    total = sum(_listed_bytes(one, files) for one in ranges)
    most_bytes = -(-total // request.partition_count(total))
    piece_size = max(min(most_bytes, PIECE_SIZE), 1)
    pieces = [piece for one in ranges for piece in _pieces(request, one, served, store_name, piece_size, files)]
    most_rows = request.max_records_per_partition or total + 1
    partitions: list[ScanPartition] = []
    held: list[_Piece] = []
    size = rows = 0
    for piece in pieces:
        if held and (size >= most_bytes or rows + piece.rows > most_rows):
            partitions.append(BatchPartition(tuple(held)))
            held, size, rows = [], 0, 0
        held.append(piece)
        size, rows = size + piece.estimated_bytes, rows + piece.rows
    partitions += [BatchPartition(tuple(held))] if held else []
    return [*partitions, *(part for one in ranges if (part := _unlisted(request, one, served, store_name)) is not None)]


def _listed_bytes(batch_range: BatchRange, files: OpenFiles) -> int:
    """Bytes of the selected records that the queue's files list."""
    total = 0
    for entries in batch_range.queue.every(files):
        begin, end = _between(entries, batch_range.start, min(batch_range.stop, batch_range.listed_stop))
        total += int(entries["size"][begin:end].astype(np.int64).sum())
    return total


def _pieces(
    request: ScanRequest,
    batch_range: BatchRange,
    served: ServedQueues,
    store_name: str,
    piece_size: int,
    files: OpenFiles,
) -> Iterator[_Piece]:
    """The pieces of a queue, each with entries of one file and at most about `piece_size` bytes of records."""
    info, queue = batch_range.info, batch_range.queue
    for index, file in enumerate(queue.entry_files.files):
        entries = queue.entries(files, index)
        for cut in _cuts(entries, batch_range, piece_size, request.max_records_per_partition):
            part = entries[cut.first : cut.last]
            if queue.is_compacted:
                log = _only(queue.log, file.base_offset)
                log_start, log_end = log.start, log.stop
            else:
                addresses = part["physical_offset"].astype(np.int64)
                log = _spanning(queue.log, int(addresses.min()), int(addresses.max()))
                log_start, log_end = served.verdict.log_start, served.verdict.log_end
            yield _Piece(
                log=log,
                log_start=log_start,
                log_end=log_end,
                queues=(ConsumeQueue(info.topic, info.queue_id, FileChain((), 0)),),
                request=request,
                store_name=store_name,
                weight=int(part["size"].astype(np.int64).sum()),
                queue=replace(queue, log=log, entry_files=FileChain((file,), file.size)),
                first=cut.first,
                count=len(part),
                start=cut.start,
                stop=cut.stop,
                rows=cut.rows,
                checksum=crc32(part),
            )


def _cuts(entries: npt.NDArray[Any], batch_range: BatchRange, piece_size: int, most_rows: int | None) -> Iterator[_Cut]:
    """The selected messages of a file's entries, cut by record bytes and by rows, if need be within a record."""
    begin, end = _between(entries, batch_range.start, min(batch_range.stop, batch_range.listed_stop))
    entries = entries[begin:end]
    if not len(entries):
        return
    starts = np.maximum(entries["queue_offset"].astype(np.int64), batch_range.start)
    # A damaged entry may state a queue offset after the end: it has no message that is served.
    rows = np.maximum(np.minimum(ends_of(entries), min(batch_range.stop, batch_range.listed_stop)) - starts, 0)
    after = np.cumsum(rows)
    if not after[-1]:
        return
    before = after - rows
    fresh = np.diff(np.cumsum(entries["size"].astype(np.int64)) // piece_size, prepend=0) > 0
    bounds = np.union1d(before[fresh], np.arange(0, after[-1], most_rows or after[-1]))
    for start, stop in pairwise([*bounds.tolist(), int(after[-1])]):
        first, last = int(np.searchsorted(after, start, "right")), int(np.searchsorted(before, stop))
        inside, end_inside = start - int(before[first]), stop - int(before[last - 1])
        yield _Cut(
            begin + first, begin + last, int(starts[first]) + inside, int(starts[last - 1]) + end_inside, stop - start
        )


def _unlisted(request: ScanRequest, batch_range: BatchRange, served: ServedQueues, store_name: str) -> _Unlisted | None:
    """The selected messages of a batch queue that only the log has; None if there are none."""
    info, verdict = batch_range.info, served.verdict
    key = info.topic, info.queue_id
    tail = None if batch_range.queue.is_compacted else verdict.batches.get(key)
    if tail is None or max(batch_range.start, batch_range.listed_stop) >= batch_range.stop:
        return None
    log = _spanning(served.listing.log, tail.first_physical_offset, verdict.log_end)
    return _Unlisted(
        log=log,
        log_start=verdict.log_start,
        log_end=verdict.log_end,
        queues=(ConsumeQueue(*key, FileChain((), 0)),),
        request=request,
        store_name=store_name,
        weight=verdict.log_end - tail.first_physical_offset,
        verdict=replace(verdict, queues={}, replays=(), batches={key: tail}),
        start=max(batch_range.start, batch_range.listed_stop),
        stop=batch_range.stop,
    )


def _only(log: FileChain, base_offset: int) -> FileChain:
    """The one file of a log that begins at an address."""
    return FileChain(tuple(file for file in log.files if file.base_offset == base_offset), log.file_size)


def _spanning(log: FileChain, start: int, stop: int) -> FileChain:
    """The files of a log that overlap the addresses [start, stop]."""
    files = tuple(file for file in log.files if file.base_offset <= stop and file.end > start)
    return replace(log, files=files)


def _between(entries: npt.NDArray[Any], start: int, stop: int) -> tuple[int, int]:
    """The numbers [first, last) of the entries with messages at queue offsets [start, stop), which ascend."""
    first = int(np.searchsorted(ends_of(entries), start, "right"))
    last = int(np.searchsorted(entries["queue_offset"].astype(np.int64), stop))
    return first, max(first, last) if start < stop else first
