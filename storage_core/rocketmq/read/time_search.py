"""Finds the first message of a queue at or after a time, as 5.3.3's LOWER search does: by store time, never by mtime.

Source of the rule: rocketmq.md 6.3, interface.md 13. It bisects: if store times step back, so does the result.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import chain

from storage_core.files.ahead import side_by_side
from storage_core.files.open_files import OpenFiles
from storage_core.formats.bisection import first_where
from storage_core.rocketmq.disk.commit_log import RecordRun
from storage_core.rocketmq.disk.consume_queue import ConsumeQueue
from storage_core.rocketmq.disk.record_reader import head_at
from storage_core.rocketmq.recovery.batch_queues import BatchEntries
from storage_core.rocketmq.recovery.dispatch import AppendedEntries
from storage_core.rocketmq.recovery.queue_ranges import ServedQueues
from storage_core.rocketmq.recovery.redispatch import redispatched, redispatched_batches
from storage_core.store import QueueInfo, QueueKey

UNKNOWN = -1
STEPS = 64


class TimeSearch:
    """Searches queues of one store by store time, with two small reads per step."""

    def __init__(self, served: ServedQueues, files: OpenFiles) -> None:
        self._served, self._files = served, files

    def offsets_at(self, queues: Sequence[QueueInfo], time_ms: int) -> list[int]:
        """For each queue the queue offset in [start, stop] that the search finds for `time_ms`."""
        offsets = []
        in_log: dict[QueueKey, int] = {}

        def search(info: QueueInfo, files: OpenFiles) -> tuple[int, int]:
            key = (info.topic, info.queue_id)
            start, bounds = info.start, self._served.verdict.queues.get(key)
            if (batched := self._served.batched.get(key)) is not None:
                start = batched.stop(files)
                found = batched.first_since(files, time_ms)
                if found is not None or bounds is None:
                    return start, start if found is None else found
            disk_stop = 0 if bounds is None else min(bounds.disk_stop, info.stop)
            searched = TimeSearch(self._served, files)
            return disk_stop, searched.lower_bound(self._served.files_of(key), start, disk_stop, time_ms)

        found = side_by_side(search, queues, self._files, self._served.listing.root)
        for row, (info, (disk_stop, at)) in enumerate(zip(queues, found, strict=True)):
            key = (info.topic, info.queue_id)
            if at >= disk_stop and disk_stop < info.stop:
                in_log[key] = row
            offsets.append(max(at, info.start))
        if in_log:
            firsts = self._first_in_log(in_log, time_ms)
            for key, row in in_log.items():
                offsets[row] = min(firsts.get(key, queues[row].stop), self._first_stale(key, time_ms))
        return offsets

    def lower_bound(self, queue: ConsumeQueue, start: int, stop: int, time_ms: int) -> int:
        """The queue offset in [start, stop] that the search finds for `time_ms` among the entries [start, stop)."""
        if start >= stop:
            return stop
        floor, ceiling = self._file_with(queue, start, stop, time_ms)
        if self._store_ms(queue, ceiling) < time_ms:
            return ceiling + 1
        if self._store_ms(queue, floor) > time_ms:
            return floor
        return self._bisect(queue, floor, ceiling, time_ms, start)

    def _first_in_log(self, queues: Collection[QueueKey], time_ms: int) -> dict[QueueKey, int]:
        """For each queue the first queue offset at or after the time, among the entries that are only in the log.

        Queues without such an entry are absent.
        """
        firsts: dict[QueueKey, int] = {}
        where = self._served.listing.log, self._served.verdict, self._files
        walks: list[Iterator[tuple[RecordRun, AppendedEntries | BatchEntries]]]
        walks = [redispatched(*where), redispatched_batches(*where)]
        for run, entries in chain.from_iterable(walks):
            late = run.messages.column("store_ms")[entries.rows] >= time_ms
            for number, queue_offset in zip(
                entries.queue[late].tolist(), entries.queue_offsets[late].tolist(), strict=True
            ):
                if entries.keys[number] in queues:
                    firsts.setdefault(entries.keys[number], queue_offset)
            if len(firsts) == len(queues):
                break
        return firsts

    def _first_stale(self, key: QueueKey, time_ms: int) -> int:
        """The same among the stale entries that follow these in a queue's file, or the queue's end."""
        bounds = self._served.verdict.queues.get(key)
        if bounds is None:
            return self._served.verdict.batches[key].stop
        if bounds.stale is None:
            return bounds.stop
        at = self.lower_bound(self._served.files_of(key), bounds.stale.start, bounds.stale.stop, time_ms)
        return at if at < bounds.stale.stop else bounds.stop

    def _file_with(self, queue: ConsumeQueue, start: int, stop: int, time_ms: int) -> tuple[int, int]:
        """First and last queue offset of the first queue file whose last message is not before the time."""
        files = [
            (max(first, start), min(end, stop) - 1)
            for first, end in queue.file_queue_offsets()
            if first < stop and end > start
        ]
        if not files:
            return start, stop - 1
        # File by file, as the broker does: if clocks step back, a bisection would end in another file.
        late = (file for file in files[:-1] if self._store_ms(queue, file[1]) >= time_ms)
        return next(late, files[-1])

    def _bisect(self, queue: ConsumeQueue, floor: int, ceiling: int, time_ms: int, start: int) -> int:
        low, high, right = floor, ceiling, ceiling + 1
        while low <= high:
            middle = (low + high) // 2
            store_ms = self._store_ms(queue, middle)
            if store_ms == UNKNOWN:
                return start
            if store_ms == time_ms:
                return self._first_equal(queue, floor, middle, time_ms)
            if store_ms > time_ms:
                high, right = middle - 1, middle
            else:
                low = middle + 1
        return right

    def _first_equal(self, queue: ConsumeQueue, floor: int, at: int, time_ms: int) -> int:
        """The first entry of the run of equal times that ends at `at`; at first step by step, as the broker does.

        If a job wrote a million messages with one time, that would take seconds; after the first steps the times
        before `at` are assumed to ascend.
        """
        nearest = max(floor, at - STEPS)
        while at > nearest and self._store_ms(queue, at - 1) == time_ms:
            at -= 1
        if at > nearest or at == floor:
            return at
        return first_where(floor, at, lambda queue_offset: self._store_ms(queue, queue_offset) >= time_ms)

    def _store_ms(self, queue: ConsumeQueue, queue_offset: int) -> int:
        """Store time of a message; UNKNOWN when its record cannot be read."""
        entry = queue.entries(self._files, queue_offset, queue_offset + 1)[0]
        head = None
        if int(entry["size"]) > 0:
            head = head_at(self._served.listing.log, self._files, int(entry["physical_offset"]))
        return UNKNOWN if head is None else head.store_ms
