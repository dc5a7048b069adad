"""One partition of a read of the log alone: every valid record whose first byte is in its spans.

It reads no queue, abort file or checkpoint; inner batches are split into messages. Source of the rules: interface.md 4,
rocketmq.md 2.8.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from storage_core.files.file_chain import FileChain
from storage_core.files.open_files import OpenFiles
from storage_core.files.window import Window
from storage_core.formats.layout import Mask
from storage_core.formats.rocketmq.inner_batch import unwrapped
from storage_core.formats.rocketmq.message import BLANK, Messages, decode
from storage_core.formats.rocketmq.record_walk import Stop
from storage_core.rocketmq.disk.commit_log import WINDOW_SIZE, RecordRun
from storage_core.rocketmq.disk.log_walk import Gap, LogSpan, SpanWalk
from storage_core.rocketmq.read.batch_builder import FIRST_ROWS, ROWS, BatchBuilder, batch_bounds
from storage_core.rocketmq.read.columns import QueueEntries, Queues
from storage_core.rocketmq.read.selection import LogSelection
from storage_core.rocketmq.recovery.dispatch import queue_keys
from storage_core.store import ScanPartition


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

    def files(self) -> Sequence[str]:
        """The log files that contain the spans."""
        found = [self.log.file_at(span.start) for span in self.spans]
        return list(dict.fromkeys(file.path for file in found if file is not None))

    def read(self) -> Iterator[pa.RecordBatch]:
        """The rows in log order, in batches of at most 16,000 rows and 5 MiB of records. Raises CorruptionError."""
        builder = BatchBuilder(self.selection.request, Queues([]), self.log, self.store_name)
        rows = FIRST_ROWS
        with OpenFiles() as files:
            files.will_need(
                (file.path, span.start - file.base_offset, span.stop - file.base_offset)
                for span in self.spans
                if (file := self.log.file_at(span.start)) is not None
            )
            for span in self.spans:
                file = self.log.file_at(span.start)
                if file is None:
                    continue
                for item in SpanWalk(self.log, files, file, span, gaps_of_zeros=False):
                    if isinstance(item, Gap) and not _is_damage(item, self.log, files):
                        continue
                    for batch in self._batches(item, builder, rows):
                        rows = ROWS
                        yield batch
        builder.report()

    def _batches(self, item: RecordRun | Gap, builder: BatchBuilder, first_rows: int) -> Iterator[pa.RecordBatch]:
        if isinstance(item, Gap):
            size = item.stop - item.start
            entry = QueueEntries(np.zeros(1, np.int32), np.full(1, -1), np.array([item.start]), np.array([size]))
            batch = builder.damage(entry, [f"{size} bytes that hold no right record"])
            if batch is not None and batch.num_rows:
                yield batch
            return
        for start, stop in batch_bounds(item.sizes, first_rows):
            part = item.part(start, stop)
            messages, physical_offsets, sizes = part.messages, part.physical_offsets, part.sizes
            if (parts := unwrapped(messages, sizes, self.selection.request.verify_crc)) is not None:
                shown, physical_offsets = sizes[parts.rows], physical_offsets[parts.rows]
                messages, sizes = decode(parts.buffer, parts.starts, parts.sizes), parts.sizes
                messages.replace("total_size", np.arange(len(shown)), shown)
            selected = self.selected(messages)
            if not selected.all():
                messages, physical_offsets, sizes = messages.take(selected), physical_offsets[selected], sizes[selected]
            yield from builder.from_log(messages, physical_offsets, sizes)

    def selected(self, messages: Messages) -> Mask:
        """Which records the request selects by their own topic, queue id, offset and time."""
        selection, request = self.selection, self.selection.request
        mask = np.ones(len(messages), bool)
        if not selection.selects_everything:
            keys, queue = queue_keys(messages)
            bounds = np.array([selection.bounds(key) for key in keys], np.int64).reshape(-1, 2)[queue]
            offsets = messages.column("queue_offset")
            mask &= (offsets >= bounds[:, 0]) & (offsets < bounds[:, 1])
        if request.start_ms is not None:
            mask &= messages.column("store_ms") >= request.start_ms
        if request.stop_ms is not None:
            mask &= messages.column("store_ms") < request.stop_ms
        return mask


def _is_damage(gap: Gap, log: FileChain, files: OpenFiles) -> bool:
    """Whether bytes that hold no record are damage: neither zeros, nor a torn record at the end of the whole log."""
    if gap.reason not in (Stop.CORRUPT, Stop.TORN) or (not gap.followed and _ends_at(gap, log, files)):
        return False
    window = Window(log, files)
    return any(window.load(at, min(at + WINDOW_SIZE, gap.stop)).any() for at in range(gap.start, gap.stop, WINDOW_SIZE))


def _ends_at(gap: Gap, log: FileChain, files: OpenFiles) -> bool:
    """Whether no file after a gap holds any data."""
    window = Window(log, files)
    later = [file for file in log.files if file.base_offset >= gap.stop and file.size >= BLANK.size]
    return not any(window.load(file.base_offset, file.base_offset + BLANK.size).any() for file in later)
