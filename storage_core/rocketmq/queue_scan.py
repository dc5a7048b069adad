"""One partition of a read through the queues: ranges of queues between two addresses of the log, read in log order.

Which ranges, and where they are cut, is planned by `snapshot`; what a row looks like is told by `row_builder`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from storage_core.files.file_chain import FileChain
from storage_core.files.window import OpenFiles, Window
from storage_core.formats.layout import Positions
from storage_core.formats.rocketmq.consumequeue import BLANK_SIZE
from storage_core.formats.rocketmq.message import Flaw, decode
from storage_core.rocketmq.consumequeue import ConsumeQueue
from storage_core.rocketmq.dispatch import Dispatcher
from storage_core.rocketmq.pull import LOOK_BACK, jumped_over, jumped_over_fillers
from storage_core.rocketmq.recovery import Mark, Verdict, walk_from
from storage_core.rocketmq.row_builder import RowBuilder
from storage_core.rocketmq.row_filter import may_have_tag
from storage_core.rocketmq.rows import Found, Queues
from storage_core.store import ScanPartition, ScanRequest

FIRST_ROWS, ROWS = 1_000, 16_000
BATCH_SIZE = 16 << 20
GAP = 64 << 10


@dataclass(frozen=True)
class Ranges:
    """Half-open ranges of ordinals of several queues (indices into the partition's queues). Shape (n,) each."""

    queue: npt.NDArray[np.int32]
    start: Positions
    stop: Positions


@dataclass(frozen=True)
class WalkSpan:
    """A part of the log whose units are in no queue file: the dispatcher's state where it begins, and its end."""

    mark: Mark
    stop: int


@dataclass(frozen=True)
class QueueScan(ScanPartition):
    """Ranges of units that lie in queue files, in slices of bounded size; or a span of the log to dispatch anew.

    `wanted` gives the selected ordinals of every queue, for the walked spans. `rebuilt` marks queues whose ordinals
    need not equal QUEUEOFFSET.
    """

    log: FileChain
    log_start: int
    log_end: int
    queues: tuple[ConsumeQueue, ...]
    rebuilt: npt.NDArray[np.bool_]
    request: ScanRequest
    store_name: str
    slices: tuple[Ranges, ...] = ()
    spans: tuple[WalkSpan, ...] = ()
    wanted: Ranges | None = None
    verdict: Verdict | None = None
    weight: int = 0

    @property
    def estimated_bytes(self) -> int:
        """Bytes of log between the first and the last record."""
        return self.weight

    def read(self) -> Iterator[pa.RecordBatch]:
        """The rows in log order, in batches of at most 16,000 rows and 16 MB. Raises CorruptionError."""
        queues = Queues([(queue.topic, queue.queue_id) for queue in self.queues])
        builder = RowBuilder(self.request, queues, self.rebuilt, self.log, self.store_name)
        with OpenFiles() as files:
            window = Window(self.log, files)
            rows = FIRST_ROWS
            for found in self._found(files):
                for batch in self._batches(found, builder, window, rows):
                    rows = ROWS
                    yield batch
        builder.report()

    def _found(self, files: OpenFiles) -> Iterator[Found]:
        for ranges in self.slices:
            yield self._sorted_units(files, ranges)
        if self.verdict and self.wanted:
            for span in self.spans:
                yield from self.walked(files, span, self.verdict, self.wanted)

    # -- units in queue files

    def _sorted_units(self, files: OpenFiles, ranges: Ranges) -> Found:
        """The units of several ranges in log order, so that each byte of the log is read once."""
        parts = [
            self.units(files, queue, start, stop)
            for queue, start, stop in zip(
                ranges.queue.tolist(), ranges.start.tolist(), ranges.stop.tolist(), strict=True
            )
            if stop > start
        ]
        if len(parts) == 1 and (np.diff(parts[0].places) >= 0).all():
            return parts[0]
        if not parts:
            none = np.empty(0, np.int64)
            return Found(np.empty(0, np.int32), none, none, none)
        found = Found(
            np.concatenate([part.queue for part in parts]),
            np.concatenate([part.ordinals for part in parts]),
            np.concatenate([part.places for part in parts]),
            np.concatenate([part.sizes for part in parts]),
        )
        return found.take(np.argsort(found.places, kind="stable"))

    def units(self, files: OpenFiles, index: int, start: int, stop: int) -> Found:
        """Units [start, stop) of one queue, without fillers, expired ones, and those a pull jumps over."""
        queue = self.queues[index]
        lead = 1 if start * 20 > queue.chain.start else 0
        units = queue.units(files, start - lead, stop)
        places, sizes = units["physical_offset"].astype(np.int64), units["size"].astype(np.int64)
        readable = self.readable(places, sizes)
        kept = (places >= self.log_start) & (sizes != BLANK_SIZE)
        if not readable.all():
            kept &= ~self._jumped(files, queue, start - lead, places, readable)
            kept &= self._on_disk(queue, start - lead, stop)
        kept[:lead] = False
        if self.request.tags is not None:
            kept &= may_have_tag(self.request.tags, queue.topic, units["tags_code"])
        ordinals = np.arange(start - lead, stop)
        found = Found(np.full(len(ordinals), index, np.int32), ordinals, places, sizes)
        return found if kept.all() else found.take(kept)

    def _on_disk(self, queue: ConsumeQueue, start: int, stop: int) -> npt.NDArray[np.bool_]:
        """Which ordinals have a unit in some file of the queue; a missing file's are served to nobody."""
        there = np.zeros(stop - start, bool)
        for file in queue.chain.files:
            low, high = max(file.base_offset // 20, start), min(file.end // 20, stop)
            if low < high:
                there[low - start : high - start] = True
        return there

    def readable(self, places: Positions, sizes: Positions) -> npt.NDArray[np.bool_]:
        """Whose record lies inside of one log file, below the end of the log (rocketmq.md 6.1)."""
        ends = places + sizes
        inside = (sizes > 0) & (places >= self.log_start) & (ends <= self.log_end)
        return inside & self.log.contains(places, ends)

    def _jumped(
        self, files: OpenFiles, queue: ConsumeQueue, start: int, places: Positions, readable: npt.NDArray[np.bool_]
    ) -> npt.NDArray[np.bool_]:
        """Readable units that a pull jumps over; looks back to where the pull before them began."""
        back = 0
        if not readable[0]:
            back = min(LOOK_BACK, start - queue.chain.start // 20)
            units = queue.units(files, start - back, start)
            before = units["physical_offset"].astype(np.int64)
            fine = self.readable(before, units["size"].astype(np.int64))
            begin = int(np.flatnonzero(fine)[-1]) + 1 if fine.any() else 0
            back -= begin
            places = np.concatenate((before[begin:], places))
            readable = np.concatenate((fine[begin:], readable))
        return jumped_over(places, readable, self.log.file_size)[back:]

    # -- units that only a dispatcher would write

    def walked(self, files: OpenFiles, span: WalkSpan, verdict: Verdict, wanted: Ranges) -> Iterator[Found]:
        """Units that the dispatcher would append for the records of a span, those that `wanted` selects."""
        dispatcher = Dispatcher(span.mark.tails, verdict.units_per_file)
        index = {(queue.topic, queue.queue_id): number for number, queue in enumerate(self.queues)}
        for walk in walk_from(self.log, files, span.mark.offset, span.stop, verdict.rules):
            for stretch in walk:
                units = dispatcher.feed(stretch)
                numbers = np.array([index.get(key, -1) for key in units.keys], np.int32)[units.queue]
                kept = numbers >= 0
                kept &= (units.ordinals >= wanted.start[numbers]) & (units.ordinals < wanted.stop[numbers])
                found = Found(numbers, units.ordinals, units.places, units.sizes).take(kept)
                yield found.take(~self._jumped_fillers(found, verdict))

    def _jumped_fillers(self, found: Found, verdict: Verdict) -> npt.NDArray[np.bool_]:
        jumped = np.zeros(len(found), bool)
        if not verdict.jumps_over_new_fillers:
            return jumped
        for number in np.unique(found.queue).tolist():
            queue = self.queues[number]
            bounds = verdict.queues[queue.topic, queue.queue_id]
            mine = found.queue == number
            jumped |= mine & jumped_over_fillers(
                found.ordinals, found.places, bounds.filler, bounds.first, self.log.file_size, verdict.units_per_file
            )
        return jumped

    # -- rows

    def _batches(self, found: Found, builder: RowBuilder, window: Window, first_rows: int) -> Iterator[pa.RecordBatch]:
        readable = self.readable(found.places, found.sizes)
        if not readable.all():
            lost = found.take(~readable)
            batch = builder.damage(lost, [Flaw.OUTSIDE.value] * len(lost))
            if batch is not None and batch.num_rows:
                yield batch
            found = found.take(readable)
        start, rows = 0, first_rows
        ends = np.cumsum(found.sizes)
        while start < len(found):
            before = int(ends[start - 1]) if start else 0
            stop = int(np.searchsorted(ends, before + BATCH_SIZE, "right"))
            stop = max(start + 1, min(stop, start + rows, len(found)))
            part = found.part(start, stop) if stop - start < len(found) else found
            batch = self._batch(part, builder, window)
            if batch is not None and batch.num_rows:
                yield batch
            start, rows = stop, ROWS

    def _batch(self, found: Found, builder: RowBuilder, window: Window) -> pa.RecordBatch | None:
        if not builder.needs_log:
            return builder.from_units(found)
        starts, stops, run = runs(found.places, found.sizes, self.log)
        buffer, places = window.load_runs(starts, stops)
        positions = found.places - starts[run] + places[run]
        kept = builder.filter.matching_bytes(buffer, positions, found.sizes, found.places)
        if kept is not None:
            positions, found = positions[kept], found.take(kept)
            if not len(found):
                return None
        return builder.from_queue(decode(buffer, positions, found.sizes), found)


def runs(places: Positions, sizes: Positions, log: FileChain) -> tuple[Positions, Positions, Positions]:
    """Spans to read for records in ascending order: what lies closer than GAP in one file is read at once.

    Returns starts and stops of the runs, and the run of each record.
    """
    ends = np.maximum.accumulate(places + sizes)
    file = np.searchsorted(log.base_array, places, "right")
    fresh = np.empty(len(places), bool)
    fresh[0] = True
    fresh[1:] = (places[1:] - ends[:-1] > GAP) | (file[1:] != file[:-1])
    first = np.flatnonzero(fresh)
    last = np.append(first[1:], len(places)) - 1
    return places[first], ends[last], np.cumsum(fresh) - 1
