"""Cuts a read into partitions: ranges of queues between addresses of the log, or spans of the log itself.

Half-open arithmetic over what the queues' units say; the rows of a partition are read by `queue_scan` and `log_scan`.
Each byte of the log belongs to one slice, so it is read once, whatever the number of queues.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from storage_core.files.file_chain import FileChain
from storage_core.files.window import OpenFiles
from storage_core.formats.layout import Positions
from storage_core.rocketmq.consumequeue import ConsumeQueue
from storage_core.rocketmq.log_scan import LogSpan
from storage_core.rocketmq.queue_scan import Ranges

SLICE_SIZE = 64 << 20
SAMPLES = 20_000


@dataclass(frozen=True)
class Bounds:
    """The selected ordinals [start, stop) of one queue that lie in its files.

    `last_place`: no record of the queue's units lies behind this address; -1 when that is not known.
    """

    queue: ConsumeQueue
    start: int
    stop: int
    last_place: int = -1

    def __len__(self) -> int:
        return max(0, self.stop - self.start)


@dataclass(frozen=True)
class Weights:
    """How selected bytes are spread over the log: addresses, ascending, and the bytes up to and with each."""

    places: Positions
    cumulative: npt.NDArray[np.float64]

    @property
    def total(self) -> int:
        """All selected bytes, estimated."""
        return int(self.cumulative[-1]) if len(self.cumulative) else 0

    def cuts(self, count: int) -> Positions:
        """`count - 1` addresses that divide the selected bytes evenly."""
        if not len(self.places):
            return np.empty(0, np.int64)
        return np.interp(self.total * np.arange(1, count) / count, self.cumulative, self.places).astype(np.int64)


def whole_log(start: int, stop: int) -> Weights:
    """Every byte of the log counts the same."""
    return Weights(np.array([start, stop]), np.array([0.0, stop - start]))


def sampled(bounds: Sequence[Bounds], files: OpenFiles) -> Weights:
    """What a narrow selection weighs, out of a bounded number of its own units."""
    each = max(2, min(256, SAMPLES // max(len(bounds), 1)))
    places, sizes = [], []
    for bound in bounds:
        count = len(bound)
        if not count:
            continue
        ordinals = np.unique(np.linspace(bound.start, bound.stop - 1, min(each, count)).astype(np.int64))
        units = [bound.queue.units(files, ordinal, ordinal + 1)[0] for ordinal in ordinals.tolist()]
        places.append(np.array([int(unit["physical_offset"]) for unit in units], np.int64))
        sizes.append(np.array([int(unit["size"]) for unit in units], np.float64) * count / len(ordinals))
    if not places:
        return Weights(np.empty(0, np.int64), np.empty(0))
    at, size = np.concatenate(places), np.concatenate(sizes)
    order = np.argsort(at, kind="stable")
    return Weights(at[order], np.cumsum(size[order]))


def sliced(bounds: Sequence[Bounds], cuts: Positions, files: OpenFiles) -> list[Ranges]:
    """The selected ordinals of each queue between neighbouring cuts; as many slices as there are cuts, and one."""
    edges = np.empty((len(bounds), len(cuts) + 2), np.int64)
    for row, bound in enumerate(bounds):
        edges[row, 0], edges[row, -1] = bound.start, max(bound.start, bound.stop)
        if len(cuts):
            edges[row, 1:-1] = bound.queue.lower_bounds(files, bound.start, max(bound.start, bound.stop), cuts)
    slices = []
    for column in range(edges.shape[1] - 1):
        start, stop = edges[:, column], edges[:, column + 1]
        filled = np.flatnonzero(stop > start)
        slices.append(Ranges(filled.astype(np.int32), start[filled], stop[filled]))
    return slices


def capped(slices: Sequence[Ranges], most: int) -> list[Ranges]:
    """The same slices with at most `most` messages each; larger ones are divided queue by queue."""
    out: list[Ranges] = []
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


def _ranges(pieces: list[tuple[int, int, int]]) -> Ranges:
    queue, start, stop = zip(*pieces, strict=True)
    return Ranges(np.array(queue, np.int32), np.array(start, np.int64), np.array(stop, np.int64))


def grouped(slices: Sequence[Ranges], count: int, most: int | None) -> list[tuple[Ranges, ...]]:
    """Neighbouring slices put into about `count` groups of at most `most` messages; empty slices are left out."""
    filled = [part for part in slices if len(part.queue)]
    if most is not None:
        filled = capped(filled, most)
    per_group = max(1, -(-len(filled) // max(count, 1)))
    groups: list[list[Ranges]] = []
    held = 0
    for part in filled:
        size = int((part.stop - part.start).sum())
        if not groups or len(groups[-1]) >= per_group or (most is not None and held + size > most):
            groups.append([])
            held = 0
        groups[-1].append(part)
        held += size
    return [tuple(group) for group in groups]


def partition_count(total: int, rows: int, minimum: int, max_bytes: int, max_rows: int | None) -> int:
    """How many partitions a read of `total` bytes and `rows` messages gets."""
    count = max(minimum, -(-total // max(max_bytes, 1)), 1)
    if max_rows is not None:
        count = max(count, -(-rows // max_rows))
    return max(1, min(count, rows)) if rows else 1


def log_spans(log: FileChain, pieces: int, queues: Sequence[ConsumeQueue], files: OpenFiles) -> list[LogSpan]:
    """The log in at least `pieces` spans of like size, each inside of one file.

    Cuts are moved to where some queue says that a record begins, so that nothing inside of a body is taken for one.
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
    """The first address at or behind `address` at which a queue says that a record begins; None when none does."""
    best = None
    for queue in queues:
        low, high = queue.chain.start // 20, queue.chain.stop // 20
        if low >= high:
            continue
        high = low + queue.valid_count(files)
        at = int(queue.lower_bounds(files, low, high, np.array([address]))[0])
        if at < high:
            place = int(queue.units(files, at, at + 1)[0]["physical_offset"])
            if address <= place < end and (best is None or place < best):
                best = place
    return best
