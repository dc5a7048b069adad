"""Cuts a read into partitions: ranges of queues between addresses of the log, or spans of the log itself.

Half-open arithmetic over what the queues' entries say; the partitions read the rows. Each byte of the log belongs to
one slice, so it is read once, whatever the number of queues.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from storage_core.files.file_chain import FileChain
from storage_core.files.window import OpenFiles
from storage_core.formats.layout import Positions
from storage_core.rocketmq.disk.consume_queue import ConsumeQueue
from storage_core.rocketmq.disk.directory import Listing
from storage_core.rocketmq.read.log_partition import LogPartition, LogSpan
from storage_core.rocketmq.read.queue_partition import QueuePartition, QueueRanges
from storage_core.rocketmq.read.selection import QueueRange, SelectedQueue, log_selection
from storage_core.rocketmq.recovery.queue_ranges import ServedQueues
from storage_core.store import ScanPartition, ScanRequest

SLICE_SIZE = 64 << 20
SAMPLES = 20_000
MOST_QUEUES_TO_ALIGN = 1_000


# -- reading through the queues


def queue_partitions(
    request: ScanRequest,
    served: ServedQueues,
    selected: Sequence[SelectedQueue],
    looked_up: tuple[list[QueueRange], npt.NDArray[np.int32]] | None,
    store_name: str,
    files: OpenFiles,
) -> list[ScanPartition]:
    """Partitions that together hold each selected message once.

    `looked_up` are the parts of the selected queues that are left after a lookup and the number of the queue of each;
    None without a lookup.
    """
    whole = looked_up is None and len(selected) == len(served.infos) and all(queue.is_whole for queue in selected)
    parts, owners = looked_up or ([queue.on_disk for queue in selected], np.arange(len(selected), dtype=np.int32))
    verdict = served.verdict
    weights = whole_log(verdict.log_start, verdict.log_end) if whole else sampled(parts, files)
    count = partition_count(request, weights.total, sum(len(part) for part in parts))
    slice_count = -(-max(count, -(-weights.total // SLICE_SIZE)) // count) * count
    slices = [replace(ranges, queue=owners[ranges.queue]) for ranges in sliced(parts, weights.cuts(slice_count), files)]
    groups = grouped(slices, count, request.max_records_per_partition)
    share = weights.total // max(len(groups), 1)
    queues = tuple(queue.queue for queue in selected)
    renumbered = np.ones(len(queues), bool)
    for number in np.unique(owners).tolist():
        renumbered[number] = served.is_renumbered(queues[number], files)
    base = QueuePartition(
        log=served.listing.log,
        log_start=verdict.log_start,
        log_end=verdict.log_end,
        queues=queues,
        renumbered=renumbered,
        request=request,
        store_name=store_name,
    )
    partitions: list[ScanPartition] = [narrowed(replace(base, slices=group, weight=share)) for group in groups]
    return partitions + _log_only_partitions(base, served, selected)


def _log_only_partitions(
    base: QueuePartition, served: ServedQueues, selected: Sequence[SelectedQueue]
) -> list[ScanPartition]:
    """Partitions for entries that are in no queue file, when some of them are selected."""
    table = np.array([queue.in_log for queue in selected], np.int64).reshape(-1, 2)
    if not (table[:, 1] > table[:, 0]).any():
        return []
    wanted = QueueRanges(np.arange(len(table), dtype=np.int32), table[:, 0], table[:, 1])
    return [
        replace(
            base,
            wanted=wanted,
            verdict=replace(served.verdict, replays=(replay,)),
            renumbered=np.ones(len(base.queues), bool),
            weight=replay.stop - replay.start,
        )
        for replay in served.verdict.replays
    ]


def narrowed(partition: QueuePartition) -> QueuePartition:
    """The same partition with only the queues that its slices touch, so that it travels light."""
    used = np.unique(np.concatenate([ranges.queue for ranges in partition.slices]))
    if len(used) == len(partition.queues):
        return partition
    number = np.zeros(len(partition.queues), np.int32)
    number[used] = np.arange(len(used))
    slices = tuple(QueueRanges(number[ranges.queue], ranges.start, ranges.stop) for ranges in partition.slices)
    queues = tuple(partition.queues[index] for index in used)
    return replace(partition, queues=queues, renumbered=partition.renumbered[used], slices=slices)


@dataclass(frozen=True)
class Weights:
    """How selected bytes are spread over the log: addresses, ascending, and the bytes up to and with each."""

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
    """Every byte of the log counts the same."""
    return Weights(np.array([start, stop]), np.array([0.0, stop - start]))


def sampled(parts: Sequence[QueueRange], files: OpenFiles) -> Weights:
    """What a narrow selection weighs, from a bounded number of its own entries."""
    most = max(2, min(256, SAMPLES // max(len(parts), 1)))
    physical_offsets, sizes = [], []
    for part in parts:
        count = len(part)
        if not count:
            continue
        queue_offsets = np.unique(np.linspace(part.start, part.stop - 1, min(most, count)).astype(np.int64))
        entries = [part.queue.entries(files, at, at + 1)[0] for at in queue_offsets.tolist()]
        physical_offsets.append(np.array([int(entry["physical_offset"]) for entry in entries], np.int64))
        sizes.append(np.array([int(entry["size"]) for entry in entries], np.float64) * count / len(queue_offsets))
    if not physical_offsets:
        return Weights(np.empty(0, np.int64), np.empty(0))
    at, size = np.concatenate(physical_offsets), np.concatenate(sizes)
    order = np.argsort(at, kind="stable")
    return Weights(at[order], np.cumsum(size[order]))


def sliced(parts: Sequence[QueueRange], cuts: Positions, files: OpenFiles) -> list[QueueRanges]:
    """The queue offsets of each part between neighbouring cuts; one slice more than there are cuts."""
    edges = np.empty((len(parts), len(cuts) + 2), np.int64)
    for row, part in enumerate(parts):
        stop = max(part.start, part.stop)
        edges[row, 0], edges[row, -1] = part.start, stop
        if len(cuts):
            edges[row, 1:-1] = part.queue.lower_bounds(files, part.start, stop, cuts)
    slices = []
    for column in range(edges.shape[1] - 1):
        starts, stops = edges[:, column], edges[:, column + 1]
        filled = np.flatnonzero(stops > starts)
        slices.append(QueueRanges(filled.astype(np.int32), starts[filled], stops[filled]))
    return slices


def capped(slices: Sequence[QueueRanges], most: int) -> list[QueueRanges]:
    """The same slices with at most `most` messages each; larger ones are divided queue by queue."""
    out: list[QueueRanges] = []
    for part in slices:
        if int((part.stop - part.start).sum()) <= most:
            out.append(part)
            continue
        pieces: list[tuple[int, int, int]] = []
        room = most
        for queue, start, stop in zip(part.queue.tolist(), part.start.tolist(), part.stop.tolist(), strict=True):
            while start < stop:
                step = min(room, stop - start)
                pieces.append((queue, start, start + step))
                start, room = start + step, room - step
                if not room:
                    out.append(_ranges(pieces))
                    pieces, room = [], most
        if pieces:
            out.append(_ranges(pieces))
    return out


def _ranges(pieces: list[tuple[int, int, int]]) -> QueueRanges:
    queue, start, stop = zip(*pieces, strict=True)
    return QueueRanges(np.array(queue, np.int32), np.array(start, np.int64), np.array(stop, np.int64))


def grouped(slices: Sequence[QueueRanges], count: int, most: int | None) -> list[tuple[QueueRanges, ...]]:
    """Neighbouring slices put into about `count` groups of at most `most` messages; empty slices are left out."""
    filled = [part for part in slices if len(part.queue)]
    if most is not None:
        filled = capped(filled, most)
    per_group = max(1, -(-len(filled) // max(count, 1)))
    groups: list[list[QueueRanges]] = []
    held = 0
    for part in filled:
        size = int((part.stop - part.start).sum())
        if not groups or len(groups[-1]) >= per_group or (most is not None and held + size > most):
            groups.append([])
            held = 0
        groups[-1].append(part)
        held += size
    return [tuple(group) for group in groups]


def partition_count(request: ScanRequest, total: int, rows: int) -> int:
    """How many partitions a read of `total` bytes and `rows` messages gets."""
    count = max(request.min_partitions, -(-total // max(request.max_bytes_per_partition, 1)), 1)
    if request.max_records_per_partition is not None:
        count = max(count, -(-rows // request.max_records_per_partition))
    return max(1, min(count, rows)) if rows else 1


# -- reading the log alone


def log_partitions(request: ScanRequest, listing: Listing, store_name: str) -> list[ScanPartition]:
    """Partitions that together hold each record of the log once."""
    log = listing.log
    total = sum(file.size for file in log.files)
    count = max(request.min_partitions, -(-total // request.max_bytes_per_partition))
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
    """The log in at least `pieces` spans of like size, each inside one file.

    Cuts are moved to where some queue says that a record begins, so that nothing inside a body is taken for one.
    """
    total = sum(file.size for file in log.files)
    step = max(1, -(-total // max(pieces, 1)))
    spans: list[LogSpan] = []
    for file in log.files:
        start, at_record = file.base_offset, True
        while start < file.end:
            stop = start + step
            known = None if stop >= file.end else _record_at(stop, file.end, queues, files)
            following = min(stop, file.end) if known is None else known
            spans.append(LogSpan(start, following, at_record))
            start, at_record = following, known is not None
    return spans


def _record_at(address: int, end: int, queues: Sequence[ConsumeQueue], files: OpenFiles) -> int | None:
    """The first address from `address` on at which a queue says that a record begins; None when none does."""
    best = None
    for queue in queues:
        if not queue.chain.files:
            continue
        stop = queue.valid_stop(files)
        at = int(queue.lower_bounds(files, queue.start, stop, np.array([address]))[0])
        if at < stop:
            physical_offset = queue.physical_offset(files, at)
            if address <= physical_offset < end and (best is None or physical_offset < best):
                best = physical_offset
    return best
