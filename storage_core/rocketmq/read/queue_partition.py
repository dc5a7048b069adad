"""One partition of a read through the queues: ranges of queues between two addresses of the log, read in log order.

`partitioning` decides which ranges, and where they are cut; `batch_builder` makes the rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from storage_core.files.file_chain import FileChain
from storage_core.files.open_files import OpenFiles
from storage_core.files.window import Window
from storage_core.formats.layout import Bytes, Mask, Positions
from storage_core.formats.rocketmq.consumequeue import (
    BLANK_SIZE,
    QUEUE_ENTRY,
    EntryRanges,
    LogBounds,
    in_log_order,
    log_order,
)
from storage_core.formats.rocketmq.message import Flaw
from storage_core.rocketmq.disk.consume_queue import ConsumeQueue
from storage_core.rocketmq.disk.entry_order import stand_in_order
from storage_core.rocketmq.disk.entry_ranges import read_ranges
from storage_core.rocketmq.read.batch_builder import FIRST_ROWS, ROWS, BatchBuilder, batch_bounds
from storage_core.rocketmq.read.columns import QueueEntries, Queues, joined
from storage_core.rocketmq.read.ranges import NO_RANGES, QueueRanges
from storage_core.rocketmq.read.row_filter import may_have_tag
from storage_core.rocketmq.recovery.pull_gaps import (
    ENTRIES_PER_PULL,
    first_pulled,
    jumped_over,
    jumped_over_fillers,
    left_open,
)
from storage_core.rocketmq.recovery.redispatch import redispatched
from storage_core.rocketmq.recovery.verdict import Verdict
from storage_core.store import ScanPartition, ScanRequest

GAP = 64 << 10
UNIT = QUEUE_ENTRY.size


@dataclass(frozen=True)
class QueuePartition(ScanPartition):
    """Ranges of entries in queue files, or entries that only the log has.

    `cuts` are the addresses at which the ranges are cut into slices of bounded size as they are read. For entries that
    only the log has, `verdict` holds the part of the log to dispatch again, and `wanted` the selected queue offsets of
    every queue; for stale entries `verdict` says where a broker start appends before them. `bisects`: whether
    the broker bisects for the first entry, as 5.x does.
    """

    log: FileChain
    log_start: int
    log_end: int
    queues: tuple[ConsumeQueue, ...]
    request: ScanRequest
    store_name: str
    ranges: QueueRanges = NO_RANGES
    cuts: tuple[int, ...] = ()
    wanted: QueueRanges | None = None
    verdict: Verdict | None = None
    weight: int = 0
    bisects: bool = False

    @property
    def estimated_bytes(self) -> int:
        """An estimate of the selected bytes, or the length of the part of the log that is dispatched again."""
        return self.weight

    @property
    def estimated_rows(self) -> int:
        """Entries in the ranges; how many will be dispatched again is not known in advance."""
        return self.ranges.row_count

    @property
    def file_count(self) -> int:
        """Queue files of the ranges, and files of the log, but at most as many of these as there are entries."""
        per_file = max((queue.entries_per_file for queue in self.queues), default=0) or 1
        spanned = (self.ranges.stop - 1) // per_file - self.ranges.start // per_file + 1
        replays = len(self.verdict.replays) if self.verdict else 0
        return int(spanned.sum()) + min(len(self.log.files), self.estimated_rows or replays)

    def files(self) -> Sequence[str]:
        """Files of the log and of the queues, whether a range touches them or not."""
        return [file.path for chain in (self.log, *(q.chain for q in self.queues)) for file in chain.files]

    def read(self) -> Iterator[pa.RecordBatch]:
        """The rows in log order, in batches of at most 16,000 rows and 5 MiB of records. Raises CorruptionError."""
        queues = Queues([(queue.topic, queue.queue_id) for queue in self.queues])
        with OpenFiles() as files:
            is_in_place = partial(self._is_in_place, files)
            builder = BatchBuilder(self.request, queues, self.log, self.store_name, is_in_place)
            window = Window(self.log, files)
            rows = FIRST_ROWS
            slices = self._entries(files)
            for entries in self._ahead(slices, files, window, builder) if window.announces_reads else slices:
                for batch in self._batches(entries, builder, window, rows):
                    rows = ROWS
                    yield batch
                del entries  # free them before the next slice is read
            builder.report()

    def _is_in_place(self, files: OpenFiles, entries: QueueEntries) -> Mask:
        """Which entries are right: those that a broker start appends and those that follow them; of the others, those
        that the queue file has in order.
        """
        if self.verdict is not None:
            return np.ones(len(entries), bool)
        right = np.zeros(len(entries), bool)
        for number in set(entries.queue.tolist()):
            own = entries.queue == number
            right[own] = stand_in_order(self.queues[number], files, entries.queue_offsets[own], self.log_end)
        return right

    def _ahead(
        self, slices: Iterator[QueueEntries], files: OpenFiles, window: Window, builder: BatchBuilder
    ) -> Iterator[QueueEntries]:
        """The same slices; the records of the next slice are requested before the current one is decoded."""
        files.will_need(
            (file.path, max(0, start * UNIT - file.base_offset), min(file.size, stop * UNIT - file.base_offset))
            for index, start, stop in self.ranges
            for file in self.queues[index].chain.files
            if start * UNIT < file.end and stop * UNIT > file.base_offset
        )
        before: QueueEntries | None = None
        for entries in slices:
            readable = self.readable(entries.physical_offsets, entries.sizes)
            if builder.needs_log and not self.request.predicates and readable.any():
                starts, stops, _ = runs(entries.physical_offsets[readable], entries.sizes[readable], self.log)
                window.will_need(starts, stops)
            if before is not None:
                yield before
            before = entries
        if before is not None:
            yield before

    def _entries(self, files: OpenFiles) -> Iterator[QueueEntries]:
        for ranges in self.slices(files):
            yield self._sorted_entries(files, ranges)
        yield from self.entries_in_log(files)

    # -- entries in queue files

    def slices(self, files: OpenFiles) -> list[QueueRanges]:
        """The ranges between neighbouring cuts, in the order of the log; empty ones are left out."""
        slices = self.ranges.cut(self.queues, np.array(self.cuts), files) if self.cuts else [self.ranges]
        return [ranges for ranges in slices if len(ranges)]

    def _sorted_entries(self, files: OpenFiles, ranges: QueueRanges) -> QueueEntries:
        """The entries of several ranges in log order, so that each byte of the log is read once."""
        plain = self._plain_entries(files, ranges)
        if plain is not None:
            return plain
        parts = [self.entries_on_disk(files, queue, start, stop) for queue, start, stop in ranges if stop > start]
        if len(parts) == 1 and (np.diff(parts[0].physical_offsets) >= 0).all():
            return parts[0]
        entries = joined(parts)
        return entries.take(log_order(entries.physical_offsets))

    def _plain_entries(self, files: OpenFiles, ranges: QueueRanges) -> QueueEntries | None:
        """The same in one step if each entry's record is in the log; None if one is not, or may not be."""
        if self.request.tags is not None:
            return None
        ranges, backs = ranges.filled(), []
        for number, start, stop in ranges:
            queue = self.queues[number]
            parts = [(first, end) for first, end in queue.file_queue_offsets() if first < stop and end > start]
            if sum(min(stop, end) - max(start, first) for first, end in parts) < stop - start or self._is_stale(queue):
                return None
            backs.append(min(start - parts[0][0], ENTRIES_PER_PULL))
        counts = ranges.stop - ranges.start + backs
        bounds = np.append(0, np.cumsum(counts))
        spans = [
            (self.queues[number], start - back, stop) for (number, start, stop), back in zip(ranges, backs, strict=True)
        ]
        entries = read_ranges(files, spans, bounds)
        log = LogBounds(self.log_start, self.log_end, self.log.base_array, self.log.end_array)
        read = EntryRanges(bounds, np.array(backs, np.int64), ranges.queue, ranges.start)
        found = in_log_order(entries, read, log)
        if found is None:
            return None
        numbers, queue_offsets, physical_offsets, sizes = found
        return QueueEntries(numbers, queue_offsets, physical_offsets, sizes, True)

    def _is_stale(self, queue: ConsumeQueue) -> bool:
        """Whether a queue has stale entries, after those that a broker start appends."""
        return self.verdict is not None and self.verdict.queues[queue.topic, queue.queue_id].stale is not None

    def entries_on_disk(self, files: OpenFiles, index: int, start: int, stop: int) -> QueueEntries:
        """Entries [start, stop) of one queue, without fillers, expired entries, and those that a pull jumps over.

        A missing queue file yields no entries; a broker serves nothing for it.
        """
        queue = self.queues[index]
        parts = [
            self._entries_of_file(files, index, first, max(start, first), min(stop, end))
            for first, end in queue.file_queue_offsets()
            if first < stop and end > start
        ]
        return parts[0] if len(parts) == 1 else joined(parts)

    def _entries_of_file(self, files: OpenFiles, index: int, first: int, start: int, stop: int) -> QueueEntries:
        """Entries [start, stop), all in the queue file that begins with queue offset `first`."""
        queue = self.queues[index]
        back = min(start - first, ENTRIES_PER_PULL)
        entries = self._started(files, queue, start - back, stop)
        physical_offsets, sizes = entries["physical_offset"].astype(np.int64), entries["size"].astype(np.int64)
        readable = bool(self.readable(physical_offsets, sizes).all())
        queue_offsets = np.arange(start - back, stop)
        numbers = np.full(len(queue_offsets), index, np.int32)
        own = QueueEntries(numbers, queue_offsets, physical_offsets, sizes, readable)
        if readable and self.request.tags is None and sizes.max(initial=0) < BLANK_SIZE:
            return own.take(slice(back, None))
        served = (physical_offsets >= self.log_start) & (sizes != BLANK_SIZE)
        if not readable:
            served &= ~self._jumped(files, queue, first, start - back, entries)
        served[:back] = False
        if self.request.tags is not None:
            served &= may_have_tag(self.request.tags, queue.topic, entries["tags_code"])
        return own.take(slice(back, None)) if served[back:].all() else own.take(served)

    def _started(self, files: OpenFiles, queue: ConsumeQueue, start: int, stop: int) -> npt.NDArray[Any]:
        """Entries [start, stop) of a queue file as a pull sees them after the broker start. The last record that this
        appends before stale entries stands for all of them: a pull gets that record, or jumps over all.
        """
        entries = queue.entries(files, start, stop)
        bounds = None if self.verdict is None else self.verdict.queues[queue.topic, queue.queue_id]
        if bounds is not None and bounds.stale is not None:
            appended = entries[max(bounds.disk_stop - start, 0) : max(bounds.stale.start - start, 0)]
            appended["physical_offset"], appended["size"] = bounds.stale.reach - 1, 1
        return entries

    def readable(self, physical_offsets: Positions, sizes: Positions) -> Mask:
        """Which records are inside one log file, below the end of the log (rocketmq.md 6.1)."""
        ends = physical_offsets + sizes
        in_order = self.log.holds_in_order(physical_offsets, ends)
        if in_order and physical_offsets[0] >= self.log_start and ends[-1] <= self.log_end:
            return np.ones(len(ends), bool)
        inside = (sizes > 0) & (physical_offsets >= self.log_start) & (ends <= self.log_end)
        return inside & self.log.contains(physical_offsets, ends)

    def answered(self, entries: npt.NDArray[Any]) -> tuple[Positions, Mask]:
        """Addresses of entries, and which entries a pull answers, including those of no length, which have no bytes."""
        physical_offsets, sizes = entries["physical_offset"].astype(np.int64), entries["size"].astype(np.int64)
        ends = physical_offsets + np.maximum(sizes, 0)
        inside = (physical_offsets >= self.log_start) & (ends <= self.log_end)
        return physical_offsets, inside & self.log.contains(physical_offsets, ends)

    def _jumped(self, files: OpenFiles, queue: ConsumeQueue, first: int, start: int, entries: npt.NDArray[Any]) -> Mask:
        """Which entries a pull jumps over. A pull ends with its queue file, so the next begins at entry `first`; in the
        first file, with the first entry that the broker does not consider expired.
        """
        both = np.concatenate((self._started(files, queue, first, start), entries))
        begin = 0
        if first == queue.start:
            whole = self._started(files, queue, first, first + queue.entries_per_file)
            used = np.flatnonzero(whole["size"])
            addresses = whole["physical_offset"][: used[-1] + 1 if len(used) else 0].astype(np.int64)
            begin = min(first_pulled(addresses, self.log_start, self.bisects, not first), len(both))
        jumped = jumped_over(*self.answered(both[begin:]), self.log.file_size)
        return np.concatenate((np.zeros(begin, bool), jumped))[start - first :]

    # -- entries that only the log has

    def entries_in_log(self, files: OpenFiles) -> Iterator[QueueEntries]:
        """The entries selected by `wanted` of those that a broker start would write; none when reading queue files."""
        verdict, wanted = self.verdict, self.wanted
        if verdict is None or wanted is None:
            return
        index = {(queue.topic, queue.queue_id): number for number, queue in enumerate(self.queues)}
        open_pulls: dict[int, tuple[int, int]] = {}
        for _, appended in redispatched(self.log, verdict, files):
            numbers = np.array([index.get(key, -1) for key in appended.keys], np.int32)[appended.queue]
            offsets = appended.queue_offsets
            selected = (numbers >= 0) & (offsets >= wanted.start[numbers]) & (offsets < wanted.stop[numbers])
            entries = QueueEntries(numbers, offsets, appended.physical_offsets, appended.sizes).take(selected)
            jumped = self._jumped_fillers(entries, verdict)
            for number in np.unique(entries.queue).tolist():
                if number not in open_pulls:
                    open_pulls[number] = self._open_pull(files, number, verdict)
                stop, floor = open_pulls[number]
                jumped |= (
                    (entries.queue == number) & (entries.queue_offsets < stop) & (entries.physical_offsets < floor)
                )
            yield entries.take(~jumped)

    def _open_pull(self, files: OpenFiles, index: int, verdict: Verdict) -> tuple[int, int]:
        """The queue offset and the address below which a pull jumps over appended entries, because of unreadable
        entries before them in the same queue file.
        """
        queue = self.queues[index]
        bounds = verdict.queues[queue.topic, queue.queue_id]
        disk_stop, per_file = bounds.disk_stop, verdict.entries_per_file
        first = disk_stop - disk_stop % per_file
        for start in (max(first, disk_stop - ENTRIES_PER_PULL), first):
            physical_offsets, answered = self.answered(queue.entries(files, start, disk_stop))
            if answered.all():
                return 0, 0
        stop, floor = left_open(physical_offsets, answered, self.log.file_size)
        return min(first + stop, first + per_file), floor

    def _jumped_fillers(self, entries: QueueEntries, verdict: Verdict) -> Mask:
        jumped = np.zeros(len(entries), bool)
        if not verdict.jumps_over_new_fillers:
            return jumped
        for number in np.unique(entries.queue).tolist():
            queue = self.queues[number]
            bounds = verdict.queues[queue.topic, queue.queue_id]
            mine = entries.queue == number
            jumped |= mine & jumped_over_fillers(
                entries.queue_offsets, entries.physical_offsets, bounds.filler, bounds.first, self.log.file_size,
                verdict.entries_per_file,
            )  # fmt: skip
        return jumped

    # -- rows

    def _batches(
        self, entries: QueueEntries, builder: BatchBuilder, window: Window, first_rows: int
    ) -> Iterator[pa.RecordBatch]:
        entries = self._selected(entries, builder)
        if not entries.readable and not (readable := self.readable(entries.physical_offsets, entries.sizes)).all():
            lost = entries.take(~readable)
            for start in range(0, len(lost), ROWS):
                part = lost.take(slice(start, start + ROWS))
                batch = builder.damage(part, [Flaw.OUTSIDE.value] * len(part))
                if batch is not None and batch.num_rows:
                    yield batch
            entries = entries.take(readable)
        for start, stop in batch_bounds(entries.sizes, first_rows):
            yield from self._rows(entries.take(slice(start, stop)), builder, window)

    def _selected(self, entries: QueueEntries, builder: BatchBuilder) -> QueueEntries:
        """The entries that satisfy the request's conditions on what entries state."""
        return builder.selected(entries)

    def _rows(self, entries: QueueEntries, builder: BatchBuilder, window: Window) -> Iterator[pa.RecordBatch]:
        if builder.needs_log:
            return builder.from_queue(*self._loaded(entries, window), entries)
        return iter((builder.from_entries(entries),))

    def _loaded(self, entries: QueueEntries, window: Window) -> tuple[Bytes, Positions]:
        """A buffer with the records of the entries, and the position of each in it."""
        starts, stops, run = runs(entries.physical_offsets, entries.sizes, self.log)
        buffer, run_positions = window.load_runs(starts, stops)
        shifts = run_positions - starts
        return buffer, entries.physical_offsets + (shifts if len(shifts) == 1 else shifts[run])


def runs(physical_offsets: Positions, sizes: Positions, log: FileChain) -> tuple[Positions, Positions, Positions]:
    """Spans to read for records in ascending order: records of one file with gaps up to GAP are read together.

    Returns starts and stops of the runs, and the run of each record.
    """
    ends = physical_offsets + sizes
    if (physical_offsets[1:] == ends[:-1]).all() and log.index_at(int(physical_offsets[0])) == log.index_at(
        int(ends[-1]) - 1
    ):
        return physical_offsets[:1], ends[-1:], np.zeros(len(physical_offsets), np.int64)
    ends = np.maximum.accumulate(ends)
    file = np.searchsorted(log.base_array, physical_offsets, "right")
    fresh = np.empty(len(physical_offsets), bool)
    fresh[0] = True
    fresh[1:] = (physical_offsets[1:] - ends[:-1] > GAP) | (file[1:] != file[:-1])
    first = np.flatnonzero(fresh)
    last = np.append(first[1:], len(physical_offsets)) - 1
    return physical_offsets[first], ends[last], np.cumsum(fresh) - 1
