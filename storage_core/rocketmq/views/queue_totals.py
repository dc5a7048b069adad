"""Sums over queues: how many messages, how many bytes, from when to when. Reads entries, and two records a queue."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from storage_core.files.window import OpenFiles
from storage_core.rocketmq.disk.record_reader import store_ms_at
from storage_core.rocketmq.read.columns import QueueEntries
from storage_core.rocketmq.read.queue_partition import QueuePartition
from storage_core.rocketmq.read.snapshot import RocketSnapshot
from storage_core.store import Mode, QueueKey, ScanRequest


@dataclass
class QueueTotal:
    """Readable messages of one queue; `first` and `last` are physical offsets."""

    messages: int = 0
    size: int = 0
    first: int = -1
    last: int = -1
    first_ms: int | None = None
    last_ms: int | None = None


def queue_totals(snapshot: RocketSnapshot, request: ScanRequest) -> dict[QueueKey, QueueTotal]:
    """Totals of the queues that a request selects; a queue without a readable message is absent."""
    entries_only = ScanRequest(
        columns=("size",),
        topics=request.topics,
        topic_pattern=request.topic_pattern,
        assign=request.assign,
        mode=Mode.DROPMALFORMED,
    )
    totals: dict[QueueKey, QueueTotal] = {}
    with OpenFiles() as files:
        for partition in snapshot.plan(entries_only):
            if isinstance(partition, QueuePartition):
                for number, entries in _by_queue(partition, files):
                    _add(totals, partition, number, entries)
        for total in totals.values():
            total.first_ms, total.last_ms = (
                store_ms_at(snapshot.served.listing.log, files, physical_offset)
                for physical_offset in (total.first, total.last)
            )
    return totals


def _by_queue(partition: QueuePartition, files: OpenFiles) -> Iterator[tuple[int, QueueEntries]]:
    """Entries of one queue each, in its order; with the number of the queue."""
    for ranges in partition.slices(files):
        for number, start, stop in ranges:
            yield number, partition.entries_on_disk(files, number, start, stop)
    for entries in partition.entries_in_log(files):
        for number in np.unique(entries.queue).tolist():
            yield number, entries.take(entries.queue == number)


def _add(totals: dict[QueueKey, QueueTotal], partition: QueuePartition, number: int, entries: QueueEntries) -> None:
    entries = entries.take(partition.readable(entries.physical_offsets, entries.sizes))
    if not len(entries):
        return
    queue = partition.queues[number]
    total = totals.setdefault((queue.topic, queue.queue_id), QueueTotal())
    if not total.messages:
        total.first = int(entries.physical_offsets[0])
    total.messages += len(entries)
    total.size += int(entries.sizes.sum())
    total.last = int(entries.physical_offsets[-1])
