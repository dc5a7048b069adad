"""A partition of a plan: entries with their positions, which are read and turned into batches wherever it is sent.

`partitioning` cuts the partitions, `batch_builder` builds the rows.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from storage_core.rabbitmq.disk.damage import Damage
from storage_core.rabbitmq.disk.span_reader import SpanReader
from storage_core.rabbitmq.index.entries import Entries
from storage_core.rabbitmq.index.partition_entries import CHUNK_ROWS, PartitionEntries
from storage_core.rabbitmq.read.batch_builder import BatchBuilder, RowContext
from storage_core.rabbitmq.read.message_batch import MessageBatch, read_batch
from storage_core.store import Mode, ScanPartition

FIRST_BATCH_ROWS, BATCH_ROWS, BATCH_BYTES = 512, CHUNK_ROWS, 4 << 20


@dataclass(frozen=True)
class QueuePartition(ScanPartition):
    """Messages of one store in delivery order, and the damage that PERMISSIVE mode returns along with them."""

    context: RowContext
    entries: PartitionEntries
    damages: tuple[Damage, ...]
    verify_crc: bool

    def __reduce__(self) -> tuple[Any, ...]:
        """Packs the entries as tightly as possible: millions of them go through Spark's driver into each task."""
        return QueuePartition, (self.context, self.entries.packed(), self.damages, self.verify_crc)

    @property
    def estimated_bytes(self) -> int:
        """Total bytes of the records."""
        return self.entries.record_bytes

    @property
    def estimated_rows(self) -> int:
        """Number of entries; a filter may leave fewer rows."""
        return self.entries.count

    @property
    def file_count(self) -> int:
        """Files that hold the messages."""
        return len(self.context.files)

    def files(self) -> Sequence[str]:
        """Files that hold the messages."""
        return [f"{self.context.root}/{path}" for path in self.context.files]

    def read(self) -> Iterator[pa.RecordBatch]:
        """The rows in batches. Raises CorruptionError (FAILFAST), and DataLossError when files vanished or shrank."""

        def read(reader: SpanReader, entries: Entries) -> MessageBatch:
            return read_batch(reader, entries, self.verify_crc)

        return rows(BatchBuilder(self.context), self.entries, read, self.damages, "index records")


def rows(
    builder: BatchBuilder,
    entries: PartitionEntries,
    read: Callable[[SpanReader, Entries], MessageBatch],
    damages: Sequence[Damage],
    what: str,
) -> Iterator[pa.RecordBatch]:
    """The rows of a partition, built by `builder` from the messages that `read` returns. With PERMISSIVE, `damages`
    follow; with DROPMALFORMED, a line on stderr reports how many damaged messages or `what` were left out.
    """
    context = builder.context
    reader = SpanReader(context.root, list(context.files))
    try:
        for some in batches(entries):
            batch = builder.batch(read(reader, some))
            if batch.num_rows:
                yield batch
    finally:
        reader.close()
    if damages and context.mode is Mode.PERMISSIVE:
        yield builder.damage_rows(damages)
    left_out = builder.left_out + (len(damages) if context.mode is Mode.DROPMALFORMED else 0)
    if left_out:
        sys.stderr.write(f"mqstore: {context.root}: {left_out} damaged messages or {what} were left out\n")


def batches(entries: PartitionEntries) -> Iterator[Entries]:
    """The entries of each batch."""
    first_rows = FIRST_BATCH_ROWS
    for chunk in entries.chunks():
        for start, stop in batch_ranges(chunk["length"], first_rows):
            yield chunk[start:stop]
        first_rows = BATCH_ROWS


def batch_ranges(
    lengths: np.ndarray[tuple[int, ...], np.dtype[np.int64]], first_rows: int = FIRST_BATCH_ROWS
) -> Iterator[tuple[int, int]]:
    """Half-open ranges of rows: a small first batch, then as many rows as fit both limits, at least one each."""
    ends = np.cumsum(lengths)
    start, most = 0, first_rows
    while start < len(ends):
        before = int(ends[start - 1]) if start else 0
        stop = int(np.searchsorted(ends, before + BATCH_BYTES, side="right"))
        stop = max(start + 1, min(stop, start + most))
        yield start, stop
        start, most = stop, BATCH_ROWS
