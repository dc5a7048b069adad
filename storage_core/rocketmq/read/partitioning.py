"""Cuts a read into partitions: ranges of queues between addresses of the log, or spans of the log itself.

Computes half-open ranges from the queue entries; the partitions read the rows. Each byte of the log belongs to one
slice, so it is read once, however many queues there are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from storage_core.files.ahead import side_by_side
from storage_core.files.file_chain import FileChain
from storage_core.files.open_files import OpenFiles
from storage_core.formats.layout import Positions
from storage_core.rocketmq.disk.consume_queue import ConsumeQueue
from storage_core.rocketmq.disk.directory import Listing
from storage_core.rocketmq.disk.log_walk import LogSpan
from storage_core.rocketmq.read.log_partition import LogPartition
from storage_core.rocketmq.read.queue_partition import QueuePartition
from storage_core.rocketmq.read.ranges import QueueRanges
from storage_core.rocketmq.read.selection import Selection, log_selection
from storage_core.rocketmq.recovery.queue_ranges import ServedQueues
from storage_core.rocketmq.recovery.queue_scan import NOTHING_SCANNED, ScannedEntries
from storage_core.rocketmq.recovery.verdict import Rules
from storage_core.store import ScanPartition, ScanRequest

SLICE_SIZE = 64 << 20
SAMPLES = 20_000
ENTRIES_PER_SAMPLE = 16
"""How many entries can be read at once in the time of a single one."""
MOST_QUEUES_TO_ALIGN = 1_000
NOWHERE: Positions = np.empty(0, np.int64)
FARTHEST = np.iinfo(np.int64).max


# -- reading through the queues


def queue_partitions(
    request: ScanRequest,
    served: ServedQueues,
    selection: Selection,
    looked_up: QueueRanges | None,
    store_name: str,
    files: OpenFiles,
) -> list[ScanPartition]:
    """Partitions that together hold each selected message once.

    `looked_up` are the parts of the selected queues that remain after a lookup; None without a lookup.
    """
    ranges = selection.on_disk if looked_up is None else looked_up
    verdict, queues = served.verdict, selection.queues
    whole = looked_up is None and selection.is_whole
    weights = whole_log(verdict.log_start, verdict.log_end) if whole else sampled(ranges, queues, files)
    pieces = _pieces(request, queues, ranges, weights, verdict.seen, files)
    base = QueuePartition(
        log=served.listing.log,
        log_start=verdict.log_start,
        log_end=verdict.log_end,
        queues=queues,
        request=request,
        store_name=store_name,
        bisects=verdict.rules is Rules.V5,
    )
    share = weights.total // max(len(pieces), 1)
    partitions: list[ScanPartition] = [
        narrowed(replace(base, ranges=piece, cuts=tuple(inner.tolist()), weight=share)) for piece, inner in pieces
    ]
    partitions += _log_only_partitions(base, served, selection)
    return partitions + _stale_partitions(base, served, selection, files)


def _pieces(
    request: ScanRequest,
    queues: Sequence[ConsumeQueue],
    ranges: QueueRanges,
    weights: Weights,
    seen: ScannedEntries,
    files: OpenFiles,
) -> list[tuple[QueueRanges, Positions]]:
    """The ranges of each partition, and the addresses at which it cuts them into slices when it reads them."""
    count = partition_count(request, weights.total, ranges.row_count)
    slice_count = max(1, -(-weights.total // (count * SLICE_SIZE)))
    cuts = weights.cuts(count * slice_count)
    most = request.max_records_per_partition or ranges.row_count
    pieces = []
    for number, wide in enumerate(ranges.cut(queues, cuts[slice_count - 1 :: slice_count], files, seen)):
        inner = cuts[number * slice_count : (number + 1) * slice_count - 1]
        pieces += [(piece, inner) for piece in wide.limited(most) if len(piece)]
    return pieces


def _log_only_partitions(base: QueuePartition, served: ServedQueues, selection: Selection) -> list[ScanPartition]:
    """Partitions for selected entries that are in no queue file, if there are any."""
    wanted = selection.in_log
    if not (wanted.stop > wanted.start).any():
        return []
    known = {key: served.verdict.queues[key] for key in selection.numbers}
    partitions: list[ScanPartition] = []
    for whole in served.verdict.replays:
        # The dispatcher handles each queue independently: a partition needs only the tails of its own queues.
        tails = {key: whole.tails[key] for key in known if key in whole.tails}
        verdict = replace(served.verdict, queues=known, replays=(replace(whole, tails=tails),), seen=NOTHING_SCANNED)
        partitions.append(replace(base, wanted=wanted, verdict=verdict, weight=whole.stop - whole.start))
    return partitions


def _stale_partitions(
    base: QueuePartition, served: ServedQueues, selection: Selection, files: OpenFiles
) -> list[ScanPartition]:
    """A partition for entries in queue files that follow entries which only the log has, if there are any."""
    ranges = selection.stale
    if not len(ranges):
        return []
    keys = [(base.queues[number].topic, base.queues[number].queue_id) for number in ranges.queue.tolist()]
    known = {key: served.verdict.queues[key] for key in keys}
    verdict = replace(served.verdict, queues=known, replays=(), seen=NOTHING_SCANNED)
    weight = sampled(ranges, base.queues, files).total
    return [narrowed(replace(base, ranges=ranges, verdict=verdict, weight=weight))]


def narrowed(partition: QueuePartition) -> QueuePartition:
    """The same partition with only the queues that its ranges touch, to keep it small when it is sent."""
    used = partition.ranges.queues
    if len(used) == len(partition.queues):
        return partition
    ranges = replace(partition.ranges, queue=np.searchsorted(used, partition.ranges.queue).astype(np.int32))
    queues = tuple(partition.queues[number] for number in used.tolist())
    return replace(partition, queues=queues, ranges=ranges)


@dataclass(frozen=True)
class Weights:
    """The distribution of selected bytes over the log: ascending addresses, and the bytes up to and including each."""

    physical_offsets: Positions
    cumulative: npt.NDArray[np.float64]

    @property
    def total(self) -> int:
        """All selected bytes, estimated."""
        return int(self.cumulative[-1]) if len(self.cumulative) else 0

    def cuts(self, count: int) -> Positions:
        """`count - 1` addresses that divide the selected bytes evenly."""
        if not len(self.physical_offsets):
            return np.empty(0, np.int64)
        return np.interp(self.total * np.arange(1, count) / count, self.cumulative, self.physical_offsets).astype(
            np.int64
        )


def whole_log(start: int, stop: int) -> Weights:
    """Weights in which every byte of the log counts the same."""
    return Weights(np.array([start, stop]), np.array([0.0, stop - start]))


def sampled(ranges: QueueRanges, queues: Sequence[ConsumeQueue], files: OpenFiles) -> Weights:
    """The weights of a narrow selection, estimated from a bounded number of its entries."""
    most = max(2, min(256, SAMPLES // max(len(ranges), 1)))
    physical_offsets, sizes = [], []
    filled = [(queues[number], start, stop) for number, start, stop in ranges if start < stop]
    path = filled[0][0].chain.files[0].path if filled else ""
    read = side_by_side(lambda part, own: _some_entries(*part, most, own), filled, files, path)
    for (_, start, stop), entries in zip(filled, read, strict=True):
        physical_offsets.append(entries["physical_offset"].astype(np.int64))
        sizes.append(entries["size"].astype(np.float64) * (stop - start) / len(entries))
    if not physical_offsets:
        return Weights(np.empty(0, np.int64), np.empty(0))
    at, size = np.concatenate(physical_offsets), np.concatenate(sizes)
    order = np.argsort(at, kind="stable")
    return Weights(at[order], np.cumsum(size[order]))


def _some_entries(queue: ConsumeQueue, start: int, stop: int, most: int, files: OpenFiles) -> npt.NDArray[Any]:
    """At most `most` entries, evenly spread over a range that is not empty."""
    if stop - start <= most:
        return queue.entries(files, start, stop)
    queue_offsets = np.unique(np.linspace(start, stop - 1, most).astype(np.int64))
    if stop - start <= most * ENTRIES_PER_SAMPLE:
        return queue.entries(files, start, stop)[queue_offsets - start]
    return np.concatenate([queue.entries(files, at, at + 1) for at in queue_offsets.tolist()])


def partition_count(request: ScanRequest, total: int, rows: int) -> int:
    """How many partitions a read of `total` bytes and `rows` messages gets."""
    count = request.partition_count(total)
    if request.max_records_per_partition is not None:
        count = max(count, -(-rows // request.max_records_per_partition))
    return max(1, min(count, rows)) if rows else 1


# -- reading the log alone


def log_partitions(request: ScanRequest, listing: Listing, store_name: str) -> list[ScanPartition]:
    """Partitions that together hold each record of the log once."""
    log = listing.log.disjoint
    total = sum(file.size for file in log.files)
    count = request.partition_count(total)
    queues = list(listing.queues.values())
    with OpenFiles() as files:
        spans = log_spans(log, count, queues if len(queues) <= MOST_QUEUES_TO_ALIGN else [], files)
    per_partition = max(1, -(-len(spans) // count))
    selection = log_selection(request)
    return [
        LogPartition(log, tuple(spans[at : at + per_partition]), selection, store_name)
        for at in range(0, len(spans), per_partition)
    ]


def log_spans(log: FileChain, pieces: int, queues: Sequence[ConsumeQueue], files: OpenFiles) -> list[LogSpan]:
    """The log in at least `pieces` spans of similar size, each inside one file.

    Cuts are moved to where a queue says that a record begins, so that no bytes inside a body are mistaken for a record.
    """
    total = sum(file.size for file in log.files)
    step = max(1, -(-total // max(pieces, 1)))
    cuts = np.concatenate([np.arange(file.base_offset + step, file.end, step) for file in log.files] or [NOWHERE])
    records = records_at(cuts, queues, files)
    spans: list[LogSpan] = []
    for file in log.files:
        inside = slice(*np.searchsorted(cuts, (file.base_offset, file.end)))
        known = np.where(records[inside] < file.end, records[inside], -1)
        starts = np.concatenate(([file.base_offset], np.where(known >= 0, known, cuts[inside])))
        at_record = np.concatenate(([True], known >= 0))
        stops = np.append(starts[1:], file.end)
        spans += [
            LogSpan(start, stop, is_record)
            for start, stop, is_record in zip(starts.tolist(), stops.tolist(), at_record.tolist(), strict=True)
            if start < stop
        ]
    return spans


def records_at(physical_offsets: Positions, queues: Sequence[ConsumeQueue], files: OpenFiles) -> Positions:
    """For each address (ascending) the first address at or after it at which a queue says that a record begins.

    Shape (n,); the largest int64 if no queue names one.
    """
    best = np.full(len(physical_offsets), FARTHEST)
    for queue in queues:
        if not queue.chain.files or not len(best):
            continue
        stop = queue.valid_stop(files)
        at = queue.lower_bounds(files, queue.start, stop, physical_offsets)
        rows = np.flatnonzero(at < stop)
        known = {one: queue.physical_offset(files, one) for one in np.unique(at[rows]).tolist()}
        begins = np.array([known[one] for one in at[rows].tolist()], np.int64)
        right = begins >= physical_offsets[rows]
        best[rows[right]] = np.minimum(best[rows[right]], begins[right])
    return best
