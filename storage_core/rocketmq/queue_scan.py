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
from storage_core.rocketmq.pull import UNITS_PER_PULL, jumped_over, jumped_over_fillers
from storage_core.rocketmq.recovery import Replay, Verdict, walk_from
from storage_core.rocketmq.row_builder import RowBuilder
from storage_core.rocketmq.row_filter import may_have_tag
from storage_core.rocketmq.rows import Found, Queues, joined
from storage_core.store import ScanPartition, ScanRequest

Flags = npt.NDArray[np.bool_]

FIRST_ROWS, ROWS = 1_000, 16_000
BATCH_SIZE = 5 << 20
GAP = 64 << 10


@dataclass(frozen=True)
class Ranges:
    """Half-open ranges of ordinals of several queues (indices into the partition's queues). Shape (n,) each."""

    queue: npt.NDArray[np.int32]
    start: Positions
    stop: Positions


@dataclass(frozen=True)
class QueueScan(ScanPartition):
    """Ranges of units that lie in queue files, in slices of bounded size; or parts of the log to dispatch anew.

    `wanted` gives the selected ordinals of every queue, for the replays. `rebuilt` marks queues whose ordinals
    need not equal QUEUEOFFSET.
    """

    log: FileChain
    log_start: int
    log_end: int
    queues: tuple[ConsumeQueue, ...]
    rebuilt: Flags
    request: ScanRequest
    store_name: str
    slices: tuple[Ranges, ...] = ()
    replays: tuple[Replay, ...] = ()
    wanted: Ranges | None = None
    verdict: Verdict | None = None
    weight: int = 0

    @property
    def estimated_bytes(self) -> int:
        """Bytes of log between the first and the last record."""
        return self.weight

    @property
    def estimated_rows(self) -> int:
        """Units in the slices; what a replay will append is not known before."""
        return sum(int((part.stop - part.start).sum()) for part in self.slices)

    @property
    def file_count(self) -> int:
        """Queue files of the slices, and at most so many files of the log as there are units."""
        starts, stops = ([getattr(part, name) for part in self.slices] for name in ("start", "stop"))
        per_file = max((queue.units_per_file for queue in self.queues), default=0) or 1
        spanned = [(stop - 1) // per_file - start // per_file + 1 for start, stop in zip(starts, stops, strict=True)]
        rows = self.estimated_rows
        return sum(int(each.sum()) for each in spanned) + min(len(self.log.files), rows or len(self.replays))

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
            for replay in self.replays:
                yield from self.replayed(files, replay, self.verdict, self.wanted)

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
        found = joined(parts)
        return found.take(log_order(found.places))

    def units(self, files: OpenFiles, index: int, start: int, stop: int) -> Found:
        """Units [start, stop) of one queue, without fillers, expired ones, and those a pull jumps over.

        Ordinals whose queue file is missing have no unit; a broker serves nothing for them.
        """
        queue = self.queues[index]
        parts = [
            self._units_of_file(files, index, first, max(start, first), min(stop, end))
            for first, end in queue.file_ordinals()
            if first < stop and end > start
        ]
        return parts[0] if len(parts) == 1 else joined(parts)

    def _units_of_file(self, files: OpenFiles, index: int, first: int, start: int, stop: int) -> Found:
        """Units [start, stop), all of the queue file that begins with unit `first`."""
        queue = self.queues[index]
        back = min(start - first, UNITS_PER_PULL)
        units = queue.units(files, start - back, stop)
        places, sizes = units["physical_offset"].astype(np.int64), units["size"].astype(np.int64)
        readable = self.readable(places, sizes)
        kept = (places >= self.log_start) & (sizes != BLANK_SIZE)
        if not readable.all():
            kept &= ~self._jumped(files, queue, first, start - back, places, readable)
        kept[:back] = False
        if self.request.tags is not None:
            kept &= may_have_tag(self.request.tags, queue.topic, units["tags_code"])
        ordinals = np.arange(start - back, stop)
        whole = bool(readable.all())
        found = Found(np.full(len(ordinals), index, np.int32), ordinals, places, sizes, whole)
        return found.part(back, len(found)) if kept[back:].all() else found.take(kept)

    def readable(self, places: Positions, sizes: Positions) -> Flags:
        """Whose record lies inside of one log file, below the end of the log (rocketmq.md 6.1)."""
        ends = places + sizes
        inside = (sizes > 0) & (places >= self.log_start) & (ends <= self.log_end)
        return inside & self.log.contains(places, ends)

    def _jumped(
        self, files: OpenFiles, queue: ConsumeQueue, first: int, start: int, places: Positions, readable: Flags
    ) -> Flags:
        """Readable units that a pull jumps over. A pull ends with a queue file, so one begins at unit `first`."""
        units = queue.units(files, first, start)
        before = units["physical_offset"].astype(np.int64)
        fine = self.readable(before, units["size"].astype(np.int64))
        all_places, all_readable = np.concatenate((before, places)), np.concatenate((fine, readable))
        return jumped_over(all_places, all_readable, self.log.file_size)[len(before) :]

    # -- units that only a dispatcher would write

    def replayed(self, files: OpenFiles, replay: Replay, verdict: Verdict, wanted: Ranges) -> Iterator[Found]:
        """Units that the dispatcher would append for the records of a replay, those that `wanted` selects."""
        dispatcher = Dispatcher(replay.tails, verdict.units_per_file)
        index = {(queue.topic, queue.queue_id): number for number, queue in enumerate(self.queues)}
        for key in replay.void:
            index.pop(key, None)
        for walk in walk_from(self.log, files, replay.start, replay.stop, verdict.rules):
            for stretch in walk:
                units = dispatcher.feed(stretch)
                numbers = np.array([index.get(key, -1) for key in units.keys], np.int32)[units.queue]
                kept = numbers >= 0
                kept &= (units.ordinals >= wanted.start[numbers]) & (units.ordinals < wanted.stop[numbers])
                found = Found(numbers, units.ordinals, units.places, units.sizes).take(kept)
                yield found.take(~self._jumped_fillers(found, verdict))

    def _jumped_fillers(self, found: Found, verdict: Verdict) -> Flags:
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
        found = builder.wanted(found)
        if not found.readable and not (readable := self.readable(found.places, found.sizes)).all():
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


def log_order(places: Positions) -> npt.NDArray[np.int64]:
    """The order of places in the log; the order of equal places stays.

    Where place and number fit into one integer these are sorted, which takes half the time of an argsort.
    """
    count = len(places)
    bits = count.bit_length()
    low, high = (int(places.min()), int(places.max())) if count else (0, 0)
    if (high - low).bit_length() + bits < 63:
        packed = np.sort((places - low) << bits | np.arange(count))
        return packed & ((1 << bits) - 1)
    return np.argsort(places, kind="stable")


def runs(places: Positions, sizes: Positions, log: FileChain) -> tuple[Positions, Positions, Positions]:
    """Spans to read for records in ascending order: what lies closer than GAP in one file is read at once.

    Returns starts and stops of the runs, and the run of each record.
    """
    ends = places + sizes
    if (places[1:] == ends[:-1]).all() and log.index_at(int(places[0])) == log.index_at(int(ends[-1]) - 1):
        return places[:1], ends[-1:], np.zeros(len(places), np.int64)
    ends = np.maximum.accumulate(ends)
    file = np.searchsorted(log.base_array, places, "right")
    fresh = np.empty(len(places), bool)
    fresh[0] = True
    fresh[1:] = (places[1:] - ends[:-1] > GAP) | (file[1:] != file[:-1])
    first = np.flatnonzero(fresh)
    last = np.append(first[1:], len(places)) - 1
    return places[first], ends[last], np.cumsum(fresh) - 1
