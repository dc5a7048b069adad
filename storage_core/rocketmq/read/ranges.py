"""Ranges of several queues, cut at addresses of the log or at a number of messages. All are half-open."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from storage_core.files import system
from storage_core.files.ahead import side_by_side
from storage_core.files.open_files import OpenFiles
from storage_core.formats.layout import Positions
from storage_core.rocketmq.disk.consume_queue import ConsumeQueue
from storage_core.rocketmq.disk.entry_ranges import Span, even_bounds, read_ranges
from storage_core.rocketmq.recovery.queue_scan import NOTHING_SCANNED, ScannedEntries

SHORT = 4096
"""Ranges of up to this many entries are read whole, together with others, to find where they are cut."""
ENTRIES_AT_ONCE = 1 << 18
MOST_BOUNDS = 1 << 20


@dataclass(frozen=True)
class QueueRanges:
    """Half-open ranges of queue offsets of several queues, which are given by number. Arrays have shape (n,)."""

    queue: npt.NDArray[np.int32]
    start: Positions
    stop: Positions

    def __len__(self) -> int:
        return len(self.queue)

    def __iter__(self) -> Iterator[tuple[int, int, int]]:
        """Number of the queue, start and stop of each range."""
        return zip(self.queue.tolist(), self.start.tolist(), self.stop.tolist(), strict=True)

    @property
    def queues(self) -> Positions:
        """The numbers of the queues, each once, ascending."""
        # np.unique loads numpy's masked arrays, which takes as long as planning a small store.
        return np.flatnonzero(np.bincount(self.queue))

    @property
    def row_count(self) -> int:
        """The number of entries in all ranges."""
        return int(np.maximum(self.stop - self.start, 0).sum())

    def cut(
        self,
        queues: Sequence[ConsumeQueue],
        cuts: Positions,
        files: OpenFiles,
        seen: ScannedEntries = NOTHING_SCANNED,
    ) -> list[QueueRanges]:
        """The ranges between neighbouring addresses of `cuts`, which ascend; one element more than there are cuts.

        `seen`: known addresses of entries, which need not be read again.
        """
        edges = np.empty((len(cuts) + 2, len(self)), np.int64)
        edges[0], edges[-1] = self.start, np.maximum(self.start, self.stop)
        if len(cuts):
            spans = list(zip((queues[number] for number in self.queue.tolist()), *edges[[0, -1]].tolist(), strict=True))
            edges[1:-1] = _bounds(spans, edges[-1] - edges[0], cuts, files, seen)
        return [QueueRanges(self.queue, starts, stops).filled() for starts, stops in pairwise(edges)]

    def filled(self) -> QueueRanges:
        """The ranges that are not empty."""
        filled = np.flatnonzero(self.stop > self.start)
        return QueueRanges(self.queue[filled], self.start[filled], self.stop[filled])

    def limited(self, most: int) -> list[QueueRanges]:
        """The same ranges in pieces of at most `most` entries, divided queue by queue."""
        if self.row_count <= most:
            return [self]
        out: list[QueueRanges] = []
        pieces: list[tuple[int, int, int]] = []
        room = most
        for queue, start, stop in self:
            while start < stop:
                step = min(room, stop - start)
                pieces.append((queue, start, start + step))
                start, room = start + step, room - step
                if not room:
                    out.append(_ranges(pieces))
                    pieces, room = [], most
        return [*out, _ranges(pieces)] if pieces else out


def _ranges(pieces: list[tuple[int, int, int]]) -> QueueRanges:
    queue, start, stop = zip(*pieces, strict=True)
    return QueueRanges(np.array(queue, np.int32), np.array(start, np.int64), np.array(stop, np.int64))


def _bounds(
    spans: Sequence[Span], counts: Positions, cuts: Positions, files: OpenFiles, seen: ScannedEntries
) -> Positions:
    """Like `even_bounds`, but reads short ranges whole, and remote ones in parallel."""
    path = next((file.path for queue, _, _ in spans for file in queue.chain.files), "")
    if not system.is_local(path):
        alone = side_by_side(lambda span, own: span[0].lower_bounds(own, *span[1:], cuts), spans, files, path)
        return np.array(list(alone), np.int64).T
    bounds, alone_rows = np.empty((len(cuts), len(spans)), np.int64), list[int]()
    for first, stop in _together(counts, len(cuts)):
        if stop - first == 1:
            alone_rows.append(first)
        else:
            bounds[:, first:stop] = _lower_bounds(spans[first:stop], cuts, files, seen)
    bounds[:, alone_rows] = even_bounds(files, [spans[row] for row in alone_rows], cuts)
    return bounds


def _together(counts: Positions, cut_count: int) -> Iterator[tuple[int, int]]:
    """Rows [first, stop) to read together: neighbouring short ranges, or a long one alone."""
    first, entries = 0, 0
    for row, count in enumerate(counts.tolist()):
        full = count > SHORT or entries + count > ENTRIES_AT_ONCE or (row - first + 1) * cut_count > MOST_BOUNDS
        if row > first and full:
            yield first, row
            first, entries = row, 0
        entries = ENTRIES_AT_ONCE + 1 if count > SHORT else entries + count
    if first < len(counts):
        yield first, len(counts)


def _addresses(spans: Sequence[Span], ends: Positions, files: OpenFiles) -> Positions:
    """The addresses of all entries of the spans; `ends` says where each span ends in the result."""
    return read_ranges(files, spans, np.append(0, ends))["physical_offset"].astype(np.int64)


def _lower_bounds(spans: Sequence[Span], cuts: Positions, files: OpenFiles, seen: ScannedEntries) -> Positions:
    """The same for short ranges, which are all read at once."""
    starts, stops = np.array([span[1:] for span in spans], np.int64).T
    counts = stops - starts
    ends = np.cumsum(counts)
    parts = [seen.between(*span) for span in spans] if seen.count else [None]
    known = [part for part in parts if part is not None]
    offsets = np.concatenate(known) if len(known) == len(spans) else _addresses(spans, ends, files)
    column = np.repeat(np.arange(len(spans)), counts)
    # Addresses ascend within a queue; where damage breaks that, the largest one so far counts.
    falls = np.flatnonzero((offsets[1:] < offsets[:-1]) & (column[1:] == column[:-1]))
    for number in set(column[falls].tolist()):
        part = offsets[ends[number] - counts[number] : ends[number]]
        np.maximum.accumulate(part, out=part)
    reached = np.searchsorted(cuts, offsets, "right")
    table = np.bincount(reached * len(spans) + column, minlength=(len(cuts) + 1) * len(spans))
    below = np.cumsum(table.reshape(len(cuts) + 1, len(spans))[:-1], axis=0)
    bounds: Positions = starts + below
    return bounds


NO_RANGES = QueueRanges(np.empty(0, np.int32), np.empty(0, np.int64), np.empty(0, np.int64))
