"""A piece of a plan of quorum queues: where its messages lie, read and turned into batches wherever it is sent.

Leaves to `snapshot` how pieces are cut, to the classic engine's `batch_builder` the rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from storage_core.formats.rabbitmq.erlang import external_term as et
from storage_core.rabbitmq.disk.damage import Damage
from storage_core.rabbitmq.disk.span_reader import SpanReader
from storage_core.rabbitmq.index.entries import MISSING, PERSISTENT, Entries, flagged
from storage_core.rabbitmq.index.partition_entries import PartitionEntries
from storage_core.rabbitmq.quorum.rows import QuorumColumns
from storage_core.rabbitmq.read.batch_builder import BatchBuilder, RowContext
from storage_core.rabbitmq.read.message_batch import MessageBatch, TermSpans, decode_batch
from storage_core.rabbitmq.read.partition import rows
from storage_core.store import ScanPartition


@dataclass(frozen=True)
class QuorumPartition(ScanPartition):
    """Messages in the order of delivery, and the damages that PERMISSIVE shows beside them. `vhosts` go with the
    queues of the context.
    """

    context: RowContext
    vhosts: tuple[str, ...]
    entries: PartitionEntries
    damages: tuple[Damage, ...]

    def __reduce__(self) -> tuple[Any, ...]:
        """Neighbours are alike, so packed entries take few bytes on their way into a task."""
        return QuorumPartition, (self.context, self.vhosts, self.entries.packed(), self.damages)

    @property
    def estimated_bytes(self) -> int:
        """Bytes of message terms."""
        return self.entries.record_bytes

    @property
    def estimated_rows(self) -> int:
        """Messages, of which a filter may leave fewer."""
        return self.entries.count

    @property
    def file_count(self) -> int:
        """Files that hold the messages."""
        return len(self.context.files)

    def read(self) -> Iterator[pa.RecordBatch]:
        """The rows in batches. Raises CorruptionError (FAILFAST), DataLossError when files vanished or shrank."""
        context = self.context
        columns = QuorumColumns(self.vhosts, context.store, context.queues, context.files)
        return rows(BatchBuilder(context, columns), self.entries, _read, self.damages, "log entries")


def _read(reader: SpanReader, entries: Entries) -> MessageBatch:
    """Reads and decodes the messages of entries."""
    lost = flagged(entries, MISSING)
    # One byte more: the place of the version byte, which a message inside of an entry does not have.
    position = np.where(lost, 0, entries["position"] - 1)
    stop = np.where(lost, 0, entries["position"] + entries["length"])
    buffer, starts = reader.load(entries["file"].astype(np.int64), position, stop)
    stops = starts + (stop - position)
    buffer[starts[~lost]] = et.VERSION
    reason = "its entry is not in the raft log any more"
    reasons = dict.fromkeys(np.flatnonzero(lost).tolist(), reason)
    nothing = np.zeros(len(entries), bool)
    terms = TermSpans(buffer, starts, stops, ~lost, nothing, 0)
    batch = decode_batch(entries, terms, reasons, nothing, nothing.copy())
    persistent = np.where(batch.messages.ok & batch.messages.persistent, PERSISTENT, 0).astype(np.uint8)
    return replace(batch, entries=entries.replaced(flags=entries["flags"] | persistent))
