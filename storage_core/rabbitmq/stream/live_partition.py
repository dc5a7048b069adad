"""One partition of a micro-batch, read while a node may flush its journal and compact its message files.

Each record must have the id that the plan saw. If it does not, the message was moved: the index is read again and the
message is read from its current place. Source: docs/streaming.md "While a node writes".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from storage_core.errors import CorruptionError, DataLossError
from storage_core.rabbitmq.disk.span_reader import SpanReader
from storage_core.rabbitmq.index.entries import Entries, filtered, joined, new_entries
from storage_core.rabbitmq.index.partition_entries import EntryParts
from storage_core.rabbitmq.index.queue_directory import QueueFiles
from storage_core.rabbitmq.read.batch_builder import BatchBuilder
from storage_core.rabbitmq.read.message_batch import read_batch
from storage_core.rabbitmq.read.partition import QueuePartition, batch_ranges
from storage_core.store import ScanPartition

MOST_ATTEMPTS = 20

Ids = npt.NDArray[np.void]
Relocate = Callable[[tuple[str, ...]], list[tuple[int, QueueFiles]]]
"""Returns the current directories of the queues with these names, each with the number of its queue."""


@dataclass(frozen=True)
class LivePartition(ScanPartition):
    """The messages of `planned`, whose ids are `ids` (dtype V16). `relocate` is picklable."""

    planned: QueuePartition
    ids: bytes
    relocate: Relocate

    @property
    def estimated_bytes(self) -> int:
        """Total bytes of the records."""
        return self.planned.estimated_bytes

    @property
    def estimated_rows(self) -> int:
        """Number of messages."""
        return self.planned.estimated_rows

    @property
    def file_count(self) -> int:
        """Number of files that held the messages when they were planned."""
        return self.planned.file_count

    def read(self) -> Iterator[pa.RecordBatch]:
        """The rows in batches; messages that were acknowledged and removed since the plan are left out.

        Raises CorruptionError (FAILFAST), and DataLossError if messages move faster than they are read.
        """
        partition, ids, attempts = self.planned, np.frombuffer(self.ids, "V16"), 0
        while len(entries := partition.entries.as_one()):
            builder = BatchBuilder(partition.context)
            reader = SpanReader(partition.context.root, list(partition.context.files))
            done = 0
            try:
                for start, stop in batch_ranges(entries["length"]):
                    found = read_batch(reader, entries[start:stop], partition.verify_crc, ids[start:stop])
                    batch = builder.batch(found)
                    done = stop
                    attempts = 0
                    if batch.num_rows:
                        yield batch
                return
            except (DataLossError, CorruptionError) as error:
                attempts += 1
                moved, left = self._moved(partition, ids, done)
                stayed = len(left) == len(ids) - done and _places(moved) == _places(partition, done)
                if attempts == MOST_ATTEMPTS or (stayed and isinstance(error, CorruptionError)):
                    raise
                partition, ids = moved, left
            finally:
                reader.close()

    def _moved(self, partition: QueuePartition, ids: Ids, done: int) -> tuple[QueuePartition, Ids]:
        """The messages from number `done` on at their current places, in the same order."""
        entries, ids = partition.entries.as_one()[done:], ids[done:]
        wanted = _names(entries["queue"], entries["sequence_id"], ids)
        files: dict[str, int] = {}
        found: list[Entries] = [new_entries(0)]
        keys = [np.empty(0, wanted.dtype)]
        for number, queue in self.relocate(partition.context.queues):
            here = queue.served
            if not len(here):
                continue
            numbers = np.array([files.setdefault(path, len(files)) for path in queue.files], np.int32)
            queues = np.full(len(here), number, np.int32)
            found.append(here.replaced(file=numbers[here["file"]], queue=queues))
            keys.append(_names(queues, here["sequence_id"], queue.served_ids))
        there, key = joined(found), np.concatenate(keys)
        order = np.argsort(key, kind="stable")
        at = np.searchsorted(key[order], wanted)
        at[at == len(key)] = 0
        same = key[order][at] == wanted if len(key) else np.zeros(len(wanted), bool)
        moved = there[order[at[same]]] if len(key) else there
        context = replace(partition.context, files=tuple(files))
        return replace(partition, context=context, entries=EntryParts((moved,))), filtered(ids, same)


def _places(partition: QueuePartition, first: int = 0) -> list[tuple[str, int]]:
    """The file and the position of each message from number `first` on."""
    entries = partition.entries.as_one()[first:]
    files = (partition.context.files[number] for number in entries["file"].tolist())
    return list(zip(files, entries["position"].tolist(), strict=True))


def _names(queues: npt.NDArray[np.int32], sequence_ids: npt.NDArray[np.int64], ids: Ids) -> npt.NDArray[np.bytes_]:
    """Queue, sequence id and message id of each message as one sortable value."""
    made = np.zeros(len(ids), [("queue", ">i4"), ("sequence_id", ">i8"), ("id", "V16"), ("end", "u1")])
    made["queue"], made["sequence_id"], made["id"], made["end"] = queues, sequence_ids, ids, 1
    return made.view(f"S{made.itemsize}")
