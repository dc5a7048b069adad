"""One partition of a read of the log alone: every valid record whose first byte lies in its spans.

It looks at no queue, abort file or checkpoint. Source of the rule: interface.md 4.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from storage_core.files.file_chain import ChainFile, FileChain
from storage_core.files.window import OpenFiles, Window
from storage_core.formats.layout import Mask
from storage_core.formats.rocketmq.message import BLANK, HEADER_V4, Messages, Stop, find_records
from storage_core.rocketmq.disk.commit_log import WINDOW_SIZE, Checks, FileWalk, RecordRun
from storage_core.rocketmq.disk.record_reader import record_at
from storage_core.rocketmq.read.batch_builder import FIRST_ROWS, ROWS, BatchBuilder, batch_bounds
from storage_core.rocketmq.read.columns import QueueEntries, Queues
from storage_core.rocketmq.read.selection import LogSelection
from storage_core.rocketmq.recovery.dispatch import queue_keys
from storage_core.store import ScanPartition


@dataclass(frozen=True)
class LogSpan:
    """Addresses [start, stop) of one file; `at_record` when a record is known to begin at `start`."""

    start: int
    stop: int
    at_record: bool


@dataclass(frozen=True)
class DamagedSpan:
    """Addresses [start, stop) that hold no valid record, with valid records after them."""

    start: int
    stop: int


@dataclass(frozen=True)
class LogPartition(ScanPartition):
    """Spans of the log, each inside one file, in ascending order."""

    log: FileChain
    spans: tuple[LogSpan, ...]
    selection: LogSelection
    store_name: str

    @property
    def estimated_bytes(self) -> int:
        """Bytes of log in the spans."""
        return sum(span.stop - span.start for span in self.spans)

    def read(self) -> Iterator[pa.RecordBatch]:
        """The rows in log order, in batches of at most 16,000 rows and 16 MB. Raises CorruptionError."""
        builder = BatchBuilder(self.selection.request, Queues([]), np.empty(0, bool), self.log, self.store_name)
        rows = FIRST_ROWS
        with OpenFiles() as files:
            for span in self.spans:
                file = self.log.file_at(span.start)
                if file is None:
                    continue
                for item in _SpanWalk(self.log, files, file, span):
                    for batch in self._batches(item, builder, rows):
                        rows = ROWS
                        yield batch
        builder.report()

    def _batches(
        self, item: RecordRun | DamagedSpan, builder: BatchBuilder, first_rows: int
    ) -> Iterator[pa.RecordBatch]:
        if isinstance(item, DamagedSpan):
            size = item.stop - item.start
            entry = QueueEntries(np.zeros(1, np.int32), np.full(1, -1), np.array([item.start]), np.array([size]))
            batch = builder.damage(entry, [f"{size} bytes that hold no right record"])
            if batch is not None and batch.num_rows:
                yield batch
            return
        for start, stop in batch_bounds(item.sizes, first_rows):
            part = item.part(start, stop)
            messages, physical_offsets = part.messages, part.physical_offsets
            selected = self.selected(messages)
            if not selected.all():
                messages, physical_offsets = messages.take(selected), physical_offsets[selected]
            batch = builder.from_log(messages, physical_offsets)
            if batch is not None and batch.num_rows:
                yield batch

    def selected(self, messages: Messages) -> Mask:
        """Which records the request selects by their own topic, queue id, offset and time."""
        selection, request = self.selection, self.selection.request
        mask = np.ones(len(messages), bool)
        if not selection.takes_everything:
            keys, queue = queue_keys(messages)
            bounds = np.array([selection.bounds(key) for key in keys], np.int64).reshape(-1, 2)[queue]
            offsets = messages.column("queue_offset")
            mask &= (offsets >= bounds[:, 0]) & (offsets < bounds[:, 1])
        if request.start_ms is not None:
            mask &= messages.column("store_ms") >= request.start_ms
        if request.stop_ms is not None:
            mask &= messages.column("store_ms") < request.stop_ms
        return mask


@dataclass
class _SpanWalk:
    """Valid records of one span and the damage between them."""

    log: FileChain
    files: OpenFiles
    file: ChainFile
    span: LogSpan

    def __iter__(self) -> Iterator[RecordRun | DamagedSpan]:
        at: int | None = self.span.start
        if not self.span.at_record:
            at = self._next_record(self.span.start, self.span.stop)
        while at is not None and at < self.span.stop:
            walk = FileWalk(self.log, self.files, self.file, at, Checks(crc=False, physical_offset=True, broker=False))
            for run in walk:
                count = int(np.searchsorted(run.physical_offsets, self.span.stop))
                if count:
                    yield run.part(0, count)
                if count < len(run.sizes):
                    return
            if walk.reason not in (Stop.CORRUPT, Stop.TORN):
                # Zeros: a record after them is found by the span that it begins in.
                at = self._next_record(walk.end_offset + 1, self.span.stop)
                continue
            at = self._next_record(walk.end_offset + 1, self.file.end)
            if not self._ends_here(at) and self._holds_bytes(walk.end_offset, at):
                yield DamagedSpan(walk.end_offset, self.file.end if at is None else at)

    def _ends_here(self, following: int | None) -> bool:
        """Whether nothing follows in the whole log: then what is left is a torn end, no damage."""
        if following is not None:
            return False
        window = Window(self.log, self.files)
        later = [
            file for file in self.log.files if file.base_offset > self.file.base_offset and file.size >= BLANK.size
        ]
        return not any(window.load(file.base_offset, file.base_offset + BLANK.size).any() for file in later)

    def _holds_bytes(self, start: int, stop: int | None) -> bool:
        end = self.file.end if stop is None else stop
        window = Window(self.log, self.files)
        return any(window.load(at, min(at + WINDOW_SIZE, end)).any() for at in range(start, end, WINDOW_SIZE))

    def _next_record(self, start: int, before: int) -> int | None:
        """Address of the first valid record that begins in [start, before) of this file."""
        window = Window(self.log, self.files)
        end = min(before + HEADER_V4.size - 1, self.file.end)
        while start + HEADER_V4.size <= end:
            stop = min(start + WINDOW_SIZE, end)
            buffer = window.load(start, stop)
            candidates: list[int] = find_records(buffer, start).tolist() if buffer.any() else []
            for position in candidates:
                if record_at(self.log, self.files, start + position, self.file.end) is not None:
                    return start + position
            if stop == end:
                return None
            start = stop - HEADER_V4.size + 1
        return None
