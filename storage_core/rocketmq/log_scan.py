"""One partition of a read of the log alone: every right record whose first byte lies in its spans.

It looks at no queue, abort file or checkpoint. Source of the rule: interface.md 4.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from storage_core.files.file_chain import ChainFile, FileChain
from storage_core.files.window import OpenFiles, Window
from storage_core.formats.rocketmq.message import FLAWS, HEADER_V4, Flaw, Messages, Stop, decode, find_records
from storage_core.rocketmq.commitlog import WINDOW_SIZE, Checks, FileWalk, Stretch
from storage_core.rocketmq.dispatch import queue_keys
from storage_core.rocketmq.queue_scan import BATCH_SIZE, FIRST_ROWS, ROWS
from storage_core.rocketmq.row_builder import RowBuilder
from storage_core.rocketmq.rows import Found, Queues
from storage_core.rocketmq.selection import Selection
from storage_core.store import ScanPartition, ScanRequest


@dataclass(frozen=True)
class LogSpan:
    """Addresses [start, stop) of one file; `at_record` when a record is known to begin at `start`."""

    start: int
    stop: int
    at_record: bool


@dataclass(frozen=True)
class LogScan(ScanPartition):
    """Spans of the log, each inside of one file, in ascending order."""

    log: FileChain
    spans: tuple[LogSpan, ...]
    selection: Selection
    request: ScanRequest
    store_name: str

    @property
    def estimated_bytes(self) -> int:
        """Bytes of log in the spans."""
        return sum(span.stop - span.start for span in self.spans)

    def read(self) -> Iterator[pa.RecordBatch]:
        """The rows in log order, in batches of at most 16,000 rows and 16 MB. Raises CorruptionError."""
        builder = RowBuilder(self.request, Queues([]), np.empty(0, bool), self.log, self.store_name)
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

    def _batches(self, item: Stretch | Damage, builder: RowBuilder, rows: int) -> Iterator[pa.RecordBatch]:
        if isinstance(item, Damage):
            batch = builder.damage(item.found, [item.reason])
            if batch is not None and batch.num_rows:
                yield batch
            return
        places = item.places
        start = 0
        ends = np.cumsum(item.sizes)
        while start < len(places):
            before = int(ends[start - 1]) if start else 0
            stop = int(np.searchsorted(ends, before + BATCH_SIZE, "right"))
            stop = max(start + 1, min(stop, start + rows, len(places)))
            part = slice(start, stop)
            messages = decode(item.messages.buffer, item.messages.starts[part], item.sizes[part])
            kept = self.selected(messages)
            matching = builder.filter.matching_bytes(messages.buffer, messages.starts, item.sizes[part], places[part])
            kept = kept if matching is None else kept & matching
            if not kept.all():
                messages = decode(messages.buffer, messages.starts[kept], item.sizes[part][kept])
            if len(messages):
                batch = builder.from_log(messages, places[part][kept])
                if batch.num_rows:
                    yield batch
            start, rows = stop, ROWS

    def selected(self, messages: Messages) -> npt.NDArray[np.bool_]:
        """Which records the request selects by their own topic, queue id, offset and time."""
        request, selection = self.request, self.selection
        kept = np.ones(len(messages), bool)
        if not selection.takes_everything:
            keys, queue = queue_keys(messages)
            bounds = np.array([selection.bounds(key) for key in keys], np.int64).reshape(-1, 2)[queue]
            offsets = messages.column("queue_offset")
            kept &= (offsets >= bounds[:, 0]) & (offsets < bounds[:, 1])
        if request.start_ms is not None:
            kept &= messages.column("store_ms") >= request.start_ms
        if request.stop_ms is not None:
            kept &= messages.column("store_ms") < request.stop_ms
        return kept


@dataclass(frozen=True)
class Damage:
    """A stretch of the log that holds no right record, with right records behind it."""

    found: Found
    reason: str


def _damage(start: int, stop: int, reason: str) -> Damage:
    place, size = np.array([start]), np.array([stop - start])
    return Damage(Found(np.zeros(1, np.int32), np.full(1, -1), place, size), reason)


@dataclass
class _SpanWalk:
    """Right records of one span and the damage between them."""

    log: FileChain
    files: OpenFiles
    file: ChainFile
    span: LogSpan

    def __iter__(self) -> Iterator[Stretch | Damage]:
        at: int | None = self.span.start
        if not self.span.at_record:
            at = self._next_record(self.span.start)
        while at is not None and at < self.span.stop:
            walk = FileWalk(self.log, self.files, self.file, at, Checks(crc=False, place=True, broker=False))
            for stretch in walk:
                count = int(np.searchsorted(stretch.places, self.span.stop))
                if count:
                    yield stretch.head(count)
                if count < len(stretch.sizes):
                    return
            at = self._next_record(walk.end_offset + 1)
            damaged = walk.reason in (Stop.CORRUPT, Stop.TORN) and not self._ends_here(at)
            if damaged and self._holds_bytes(walk.end_offset, at):
                stop = self.file.end if at is None else at
                yield _damage(walk.end_offset, stop, f"{stop - walk.end_offset} bytes that hold no right record")

    def _ends_here(self, following: int | None) -> bool:
        """Whether nothing follows in the whole log: then what is left is a torn end, no damage."""
        if following is not None:
            return False
        window = Window(self.log, self.files)
        later = [file for file in self.log.files if file.base_offset > self.file.base_offset and file.size >= 8]
        return not any(window.load(file.base_offset, file.base_offset + 8).any() for file in later)

    def _holds_bytes(self, start: int, stop: int | None) -> bool:
        end = self.file.end if stop is None else stop
        window = Window(self.log, self.files)
        return any(window.load(at, min(at + WINDOW_SIZE, end)).any() for at in range(start, end, WINDOW_SIZE))

    def _next_record(self, start: int) -> int | None:
        """Address of the first right record at or behind `start` in this file."""
        window = Window(self.log, self.files)
        while start + HEADER_V4.size <= self.file.end:
            stop = min(start + WINDOW_SIZE, self.file.end)
            buffer = window.load(start, stop)
            candidates = find_records(buffer, start) if buffer.any() else np.empty(0, np.int64)
            for position in candidates.tolist():
                if self._is_right(start + int(position)):
                    return start + int(position)
            if stop == self.file.end:
                return None
            start = stop - HEADER_V4.size + 1
        return None

    def _is_right(self, place: int) -> bool:
        """Whether the record at `place`, whose magic and PHYSICALOFFSET fit, lies in the file and adds up."""
        window = Window(self.log, self.files)
        size = int.from_bytes(window.load(place, place + 4).tobytes(), "big", signed=True)
        if size < HEADER_V4.size or place + size > self.file.end:
            return False
        record = decode(window.load(place, place + size), np.zeros(1, np.int64), np.array([size]))
        return FLAWS[record.flaws[0]] is Flaw.NONE
