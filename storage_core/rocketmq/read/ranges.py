"""Ranges of several queues, cut at addresses of the log or at a number of messages. Half-open arithmetic."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from storage_core.files.ahead import side_by_side
from storage_core.files.window import OpenFiles
from storage_core.formats.layout import Positions
from storage_core.rocketmq.disk.consume_queue import ConsumeQueue


@dataclass(frozen=True)
class QueueRanges:
    """Half-open ranges of queue offsets of several queues, given by number. Shape (n,) each."""

    queue: npt.NDArray[np.int32]
    start: Positions
    stop: Positions

    def __len__(self) -> int:
        return len(self.queue)

    def __iter__(self) -> Iterator[tuple[int, int, int]]:
        """Number of the queue, start and stop of each range."""
        return zip(self.queue.tolist(), self.start.tolist(), self.stop.tolist(), strict=True)

    @property
    def row_count(self) -> int:
        """How many entries they hold."""
        return int(np.maximum(self.stop - self.start, 0).sum())

    def cut(self, queues: Sequence[ConsumeQueue], cuts: Positions, files: OpenFiles) -> list[QueueRanges]:
        """The ranges between neighbouring addresses of `cuts`, which ascend; one more than there are cuts."""
        edges = np.empty((len(self), len(cuts) + 2), np.int64)
        edges[:, 0], edges[:, -1] = self.start, np.maximum(self.start, self.stop)
        if len(cuts):
            path = next((file.path for queue in queues for file in queue.chain.files), "")
            bounds = side_by_side(lambda one, own: queues[one[0]].lower_bounds(own, *one[1:], cuts), self, files, path)
            for row, found in enumerate(bounds):
                edges[row, 1:-1] = found
        return [self._filled(edges[:, column], edges[:, column + 1]) for column in range(edges.shape[1] - 1)]

    def _filled(self, starts: Positions, stops: Positions) -> QueueRanges:
        filled = np.flatnonzero(stops > starts)
        return QueueRanges(self.queue[filled], starts[filled], stops[filled])

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


NO_RANGES = QueueRanges(np.empty(0, np.int32), np.empty(0, np.int64), np.empty(0, np.int64))
