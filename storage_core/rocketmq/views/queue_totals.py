"""Totals of queues: messages, bytes, first and last store time. Reads entries, and two records per queue."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from storage_core.files.open_files import OpenFiles
from storage_core.formats.layout import Positions
from storage_core.formats.rocketmq.consumequeue import BLANK_SIZE
from storage_core.rocketmq.disk.batch_queue import BatchQueue
from storage_core.rocketmq.disk.record_reader import store_ms_at
from storage_core.rocketmq.read.queue_partition import QueuePartition
from storage_core.rocketmq.read.selection import takes
from storage_core.rocketmq.read.snapshot import RocketSnapshot
from storage_core.rocketmq.recovery.pull_gaps import ENTRIES_PER_PULL
from storage_core.rocketmq.recovery.queue_ranges import ServedQueues
from storage_core.rocketmq.recovery.redispatch import redispatched_batches
from storage_core.store import Mode, QueueKey, ScanRequest

ENTRIES_AT_ONCE = 1 << 16
"""Entries of a queue that are summed at once, few enough for their columns to stay in a core's cache."""
WHOLE = 1 << 62

Columns = tuple[Positions, Positions]
"""Physical offsets and sizes of some entries."""


@dataclass
class QueueTotal:
    """Readable messages of one queue; `first` and `last` are physical offsets in the commit log, -1 for none in it."""

    messages: int = 0
    size: int = 0
    first: int = -1
    last: int = -1
    first_ms: int | None = None
    last_ms: int | None = None


def queue_totals(snapshot: RocketSnapshot, request: ScanRequest) -> dict[QueueKey, QueueTotal]:
    """Totals of the queues that a request selects; a queue without a readable message is absent."""
    # The log is not read, so no partition needs to be cut at its addresses.
    entries_only = ScanRequest(
        columns=("size",),
        topics=request.topics,
        topic_pattern=request.topic_pattern,
        assign=request.assign,
        mode=Mode.DROPMALFORMED,
        max_bytes_per_partition=WHOLE,
    )
    totals: dict[QueueKey, QueueTotal] = {}
    with OpenFiles() as files:
        for info in snapshot.served.infos:
            queue = snapshot.served.batched.get(key := (info.topic, info.queue_id))
            if queue is not None and takes(request, key):
                _add_batched(totals.setdefault(key, QueueTotal()), queue, info.start, files)
        _add_unlisted(totals, snapshot.served, files)
        for partition in snapshot.plan(entries_only):
            if isinstance(partition, QueuePartition):
                for number, columns in _by_queue(partition, files):
                    _add(totals, partition, number, columns)
        log = snapshot.served.listing.log
        for total in totals.values():
            total.first_ms = store_ms_at(log, files, total.first) if total.first >= 0 else total.first_ms
            total.last_ms = store_ms_at(log, files, total.last) if total.last >= 0 else total.last_ms
    return {key: total for key, total in totals.items() if total.messages}


def _add_batched(total: QueueTotal, queue: BatchQueue, start: int, files: OpenFiles) -> None:
    """Adds the entries of a batch queue, which state store times. Those before queue offset `start` do not count."""
    for entries in queue.every(files):
        entries = entries[entries["queue_offset"] >= start]
        if len(entries):
            total.first_ms = int(entries["store_ms"][0]) if total.first_ms is None else total.first_ms
            total.last_ms = int(entries["store_ms"][-1])
            total.messages += int(entries["count"].astype(np.int64).sum())
            total.size += int(entries["size"].astype(np.int64).sum())


def _add_unlisted(totals: dict[QueueKey, QueueTotal], served: ServedQueues, files: OpenFiles) -> None:
    """Adds the entries of batch queues that only the log has."""
    listed = {key: served.batched[key].stop(files) for key in served.verdict.batches}
    for run, entries in redispatched_batches(served.listing.log, served.verdict, files):
        store_ms = run.messages.column("store_ms")
        for number, key in enumerate(entries.keys):
            own = np.flatnonzero((entries.queue == number) & (entries.queue_offsets >= listed.get(key, WHOLE)))
            if len(own) and key in totals:
                total = totals[key]
                total.first_ms = int(store_ms[entries.rows[own[0]]]) if total.first_ms is None else total.first_ms
                total.last_ms = int(store_ms[entries.rows[own[-1]]])
                total.messages += int((entries.stops - entries.queue_offsets)[own].sum())
                total.size += int(entries.sizes[own].sum())


def _by_queue(partition: QueuePartition, files: OpenFiles) -> Iterator[tuple[int, Columns]]:
    """Pairs of a queue's number and some of its readable entries, in the order of the queue."""
    for number, start, stop in partition.ranges:
        for first, end in partition.queues[number].file_queue_offsets():
            for at in range(max(start, first), min(stop, end), ENTRIES_AT_ONCE):
                yield number, _on_disk(partition, files, number, first, at, min(at + ENTRIES_AT_ONCE, stop, end))
    for entries in partition.entries_in_log(files):
        for number in np.unique(entries.queue).tolist():
            mine = entries.take(entries.queue == number)
            yield number, _readable(partition, mine.physical_offsets, mine.sizes)


def _on_disk(partition: QueuePartition, files: OpenFiles, number: int, first: int, start: int, stop: int) -> Columns:
    """The readable entries among [start, stop), all in the queue file that begins with queue offset `first`."""
    if partition.verdict is None:
        # If every entry is readable, including those before, a pull jumps over none.
        back = min(start - first, ENTRIES_PER_PULL)
        entries = partition.queues[number].entries(files, start - back, stop)
        physical_offsets, sizes = entries["physical_offset"].astype(np.int64), entries["size"].astype(np.int64)
        if sizes.max() < BLANK_SIZE and partition.readable(physical_offsets, sizes).all():
            return physical_offsets[back:], sizes[back:]
    served = partition.entries_on_disk(files, number, start, stop)
    return _readable(partition, served.physical_offsets, served.sizes)


def _readable(partition: QueuePartition, physical_offsets: Positions, sizes: Positions) -> Columns:
    readable = partition.readable(physical_offsets, sizes)
    return physical_offsets[readable], sizes[readable]


def _add(totals: dict[QueueKey, QueueTotal], partition: QueuePartition, number: int, columns: Columns) -> None:
    physical_offsets, sizes = columns
    if not len(physical_offsets):
        return
    queue = partition.queues[number]
    total = totals.setdefault((queue.topic, queue.queue_id), QueueTotal())
    if not total.messages:
        total.first = int(physical_offsets[0])
    total.messages += len(physical_offsets)
    total.size += int(sizes.sum())
    total.last = int(physical_offsets[-1])
