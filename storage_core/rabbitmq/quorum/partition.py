"""One partition of a plan of quorum queues: the locations of its messages, read into batches wherever it is sent.

How partitions are cut belongs to `snapshot`. Building rows belongs to the classic engine's `batch_builder`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from storage_core.errors import FormatError
from storage_core.formats.layout import Bytes, Positions
from storage_core.formats.rabbitmq.erlang import external_term as et
from storage_core.formats.rabbitmq.message import message_container
from storage_core.rabbitmq.disk.damage import Damage
from storage_core.rabbitmq.disk.span_reader import SpanReader
from storage_core.rabbitmq.index.entries import MISSING, PERSISTENT, Entries, flagged
from storage_core.rabbitmq.index.partition_entries import EntryParts, PartitionEntries
from storage_core.rabbitmq.quorum.rows import QuorumColumns
from storage_core.rabbitmq.read.batch_builder import BatchBuilder, RowContext
from storage_core.rabbitmq.read.message_batch import MessageBatch, TermSpans, decode_batch
from storage_core.rabbitmq.read.partition import rows
from storage_core.store import ScanPartition


@dataclass(frozen=True)
class QuorumPartition(ScanPartition):
    """Messages in delivery order, and the damages that PERMISSIVE shows beside them. `vhosts` correspond to the queues
    of the context. `noted` are the annotations that consumers put on returned messages: the external term of a map, by
    queue number and raft index.
    """

    context: RowContext
    vhosts: tuple[str, ...]
    entries: PartitionEntries
    damages: tuple[Damage, ...]
    noted: dict[tuple[int, int], bytes] = field(default_factory=dict)

    def of(self, entries: Entries) -> QuorumPartition:
        """A partition of these entries, with their annotations."""
        noted = self.noted
        if noted:
            names = zip(entries["queue"].tolist(), entries["sequence_id"].tolist(), strict=True)
            noted = {name: noted[name] for name in names if name in noted}
        return replace(self, entries=EntryParts((entries,)), noted=noted)

    def __reduce__(self) -> tuple[Any, ...]:
        """Packs the entries, so that few bytes are sent to a task: neighbouring entries are alike."""
        return QuorumPartition, (self.context, self.vhosts, self.entries.packed(), self.damages, self.noted)

    @property
    def estimated_bytes(self) -> int:
        """Total bytes of the message terms."""
        return self.entries.record_bytes

    @property
    def estimated_rows(self) -> int:
        """Number of messages; a filter may leave fewer."""
        return self.entries.count

    @property
    def file_count(self) -> int:
        """Number of files that hold the messages."""
        return len(self.context.files)

    def read(self) -> Iterator[pa.RecordBatch]:
        """The rows in batches. Raises CorruptionError (FAILFAST), and DataLossError if files vanished or shrank."""
        context = self.context
        columns = QuorumColumns(self.vhosts, context.store, context.queues, context.files)
        read = partial(_read, self.noted)
        return rows(BatchBuilder(context, columns), self.entries, read, self.damages, "log entries")


def _read(noted: dict[tuple[int, int], bytes], reader: SpanReader, entries: Entries) -> MessageBatch:
    """Reads and decodes the messages of entries."""
    lost = flagged(entries, MISSING)
    # Reads one extra byte in front, as room for the version byte, which a message inside an entry does not have.
    position = np.where(lost, 0, entries["position"] - 1)
    stop = np.where(lost, 0, entries["position"] + entries["length"])
    buffer, starts = reader.load(entries["file"].astype(np.int64), position, stop)
    stops = starts + (stop - position)
    buffer[starts[~lost]] = et.VERSION
    reason = "its entry is not in the raft log any more"
    reasons = dict.fromkeys(np.flatnonzero(lost).tolist(), reason)
    if noted:
        buffer = _annotate(noted, entries, buffer, starts, stops, reasons)
    nothing = np.zeros(len(entries), bool)
    terms = TermSpans(buffer, starts, stops, ~lost, nothing, 0)
    batch = decode_batch(entries, terms, reasons, nothing, nothing.copy())
    persistent = np.where(batch.messages.ok & batch.messages.persistent, PERSISTENT, 0).astype(np.uint8)
    return replace(batch, entries=entries.replaced(flags=entries["flags"] | persistent))


def _annotate(
    noted: dict[tuple[int, int], bytes], entries: Entries, buffer: Bytes, starts: Positions, stops: Positions,
    reasons: dict[int, str],
) -> Bytes:  # fmt: skip
    """Appends messages with their consumers' annotations to the buffer, and updates their spans."""
    names = zip(entries["queue"].tolist(), entries["sequence_id"].tolist(), strict=True)
    added, end = [buffer], len(buffer)
    for row in [row for row, name in enumerate(names) if name in noted and stops[row] > starts[row]]:
        term = noted[int(entries["queue"][row]), int(entries["sequence_id"][row])]
        try:
            message = et.decode(buffer[starts[row] : stops[row]].tobytes())
        except FormatError:
            continue
        if not message_container.is_container(message) or not isinstance(message[3], dict):
            reasons.setdefault(
                row, "a consumer noted something on it, which is read of messages of 3.13 and later only"
            )
            continue
        whole = np.frombuffer(et.encode((*message[:3], {**message[3], **et.decode(term)})), np.uint8)
        added.append(whole)
        starts[row], stops[row] = end, end + len(whole)
        end += len(whole)
    return np.concatenate(added)
