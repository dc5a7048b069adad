"""Maps records to the queues that serve them: finds the queue entries that point to an address of the log.

A record names its queue, its queue offset and its light queues. The entry at that offset is read; if it belongs to
another record, the queue is bisected. `key_lookup` decides which records to look for.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from storage_core.files.open_files import OpenFiles
from storage_core.formats.byte_search import find_all
from storage_core.formats.layout import Positions
from storage_core.formats.rocketmq.message import Messages
from storage_core.formats.rocketmq.properties import MULTI_DISPATCH
from storage_core.rocketmq.disk.consume_queue import ConsumeQueue
from storage_core.rocketmq.disk.record_reader import RecordReader
from storage_core.rocketmq.index.index_files import Span
from storage_core.rocketmq.read.ranges import QueueRanges
from storage_core.rocketmq.read.selection import Selection
from storage_core.rocketmq.recovery.dispatch import queue_keys

NEAR = 16
CHUNK = 1 << 18


class QueueSearch:
    """Searches the parts of selected queues that are in their files."""

    def __init__(self, selection: Selection, files: OpenFiles, records: RecordReader) -> None:
        self._selection, self._files, self._records = selection, files, records

    def entries_of(self, physical_offsets: Positions) -> list[tuple[int, Positions]]:
        """Queues (by number) and queue offsets of the entries that point to records at ascending addresses."""
        entries: list[tuple[int, Positions]] = []
        for first, messages in self._records.records(physical_offsets):
            here = physical_offsets[first : first + len(messages)]
            right = messages.flaws == 0
            if not right.all():
                wrong = here[~right]
                entries += [(number, self._anywhere(number, wrong)) for number in range(len(self._selection.infos))]
            entries += self._own(messages, here, np.flatnonzero(right))
            entries += self._light(messages, here, np.flatnonzero(right))
        return entries

    def _own(
        self, messages: Messages, physical_offsets: Positions, right: npt.NDArray[np.intp]
    ) -> list[tuple[int, Positions]]:
        keys, queue = queue_keys(messages)
        queue_offsets = messages.column("queue_offset")
        entries = []
        for index, key in enumerate(keys):
            number = self._selection.numbers.get(key)
            if number is not None:
                mine = right[queue[right] == index]
                entries.append((number, self._in_queue(number, physical_offsets[mine], queue_offsets[mine])))
        return entries

    def _light(
        self, messages: Messages, physical_offsets: Positions, right: npt.NDArray[np.intp]
    ) -> list[tuple[int, Positions]]:
        """The same for queues named besides a record's own: queue 0, or that of its own number (rocketmq.md 3.8)."""
        if not len(find_all(messages.buffer, MULTI_DISPATCH.encode())):
            return []
        numbers = self._selection.numbers
        lists = messages.property_column().values(MULTI_DISPATCH)
        own = messages.column("queue_id")
        rows_by_queue: dict[int, list[int]] = {}
        for row, names in enumerate(lists.to_pylist()):
            for name in set((names or "").split(",")) if row in right else ():
                for queue_id in {0, int(own[row])}:
                    if (name, queue_id) in numbers:
                        rows_by_queue.setdefault(numbers[name, queue_id], []).append(row)
        return [(number, self._anywhere(number, physical_offsets[rows])) for number, rows in rows_by_queue.items()]

    def _in_queue(self, number: int, physical_offsets: Positions, queue_offsets: Positions) -> Positions:
        """Queue offsets of the entries for records of this queue: those they name, if the entries there are theirs."""
        queue, start, stop = self._part(number)
        inside = (queue_offsets >= start) & (queue_offsets < stop)
        named = np.full(len(queue_offsets), -1, np.int64)
        for index in np.flatnonzero(inside).tolist():
            named[index] = queue.physical_offset(self._files, int(queue_offsets[index]))
        right = named == physical_offsets
        if right.all():
            return queue_offsets
        return np.concatenate((queue_offsets[right], self._anywhere(number, physical_offsets[~right])))

    def _anywhere(self, number: int, physical_offsets: Positions) -> Positions:
        """Queue offsets of the entries of a queue that point to one of the ascending addresses.

        Bisects the queue; if that does not find all entries, reads every one.
        """
        queue, start, stop = self._part(number)
        if start >= stop or not len(physical_offsets):
            return np.empty(0, np.int64)
        at = queue.lower_bounds(self._files, start, stop, physical_offsets)
        at = np.unique(at[at < stop])
        here = [queue.physical_offset(self._files, queue_offset) for queue_offset in at.tolist()]
        at = at[np.isin(np.array(here, np.int64), physical_offsets)]
        if len(at) == len(physical_offsets):
            return at
        everywhere = [np.empty(0, np.int64)]
        for first in range(start, stop, CHUNK):
            offsets = queue.offsets(self._files, first, min(first + CHUNK, stop))
            everywhere.append(first + np.flatnonzero(np.isin(offsets, physical_offsets)))
        return np.concatenate(everywhere)

    def _part(self, number: int) -> tuple[ConsumeQueue, int, int]:
        ranges = self._selection.on_disk
        return self._selection.queues[number], int(ranges.start[number]), int(ranges.stop[number])


def pieces(
    selection: Selection, spans: Sequence[Span], entries: Sequence[tuple[int, Positions]], files: OpenFiles
) -> QueueRanges:
    """The parts of the selected queues whose records are in the given spans of the log, and the given entries (queue
    number, queue offsets).

    Parts do not overlap. They may hold a few entries between the requested ones. Without spans, only queues that have
    some of the entries are read.
    """
    ranges_by_queue: dict[int, list[npt.NDArray[np.int64]]] = {}
    for number, queue_offsets in entries:
        ranges_by_queue.setdefault(number, []).append(np.stack((queue_offsets, queue_offsets + 1), 1))
    edges = np.array(spans, np.int64).ravel()
    for number in _reaching(selection, int(edges[0]), files) if len(edges) else ():
        start, stop = int(selection.on_disk.start[number]), int(selection.on_disk.stop[number])
        bounds = selection.queues[number].span_bounds(files, start, stop, edges.reshape(-1, 2))
        ranges_by_queue.setdefault(number, []).append(bounds)
    parts = [
        (number, start, stop)
        for number in sorted(ranges_by_queue)
        for start, stop in _joined(np.concatenate(ranges_by_queue[number]))
    ]
    numbers, starts, stops = zip(*parts, strict=True) if parts else ((), (), ())
    return QueueRanges(np.array(numbers, np.int32), np.array(starts, np.int64), np.array(stops, np.int64))


def _reaching(selection: Selection, physical_offset: int, files: OpenFiles) -> list[int]:
    """The queues whose last selected message, or the one before it, as one entry may be damaged, is at or after an
    address: one read or two each, instead of a bisection.
    """
    on_disk, last = selection.on_disk, selection.last_physical_offsets
    near = np.flatnonzero((on_disk.start < on_disk.stop) & ((last < 0) | (last >= physical_offset))).tolist()
    stops = on_disk.stop[near].tolist()
    return [
        number
        for number, stop in zip(near, stops, strict=True)
        if any(
            selection.queues[number].last_physical_offset(files, end) >= physical_offset
            for end in range(stop, max(stop - 2, int(on_disk.start[number])), -1)
        )
    ]


def _joined(ranges: npt.NDArray[np.int64]) -> list[tuple[int, int]]:
    """Ranges [start, stop) in ascending order, merged if at most NEAR apart; empty ones are left out."""
    ranges = ranges[ranges[:, 1] > ranges[:, 0]]
    if not len(ranges):
        return []
    starts, stops = ranges[np.argsort(ranges[:, 0], kind="stable")].T
    reach = np.maximum.accumulate(stops)
    first = np.flatnonzero(np.append(True, starts[1:] - reach[:-1] > NEAR))
    last = np.append(first[1:], len(starts)) - 1
    return list(zip(starts[first].tolist(), reach[last].tolist(), strict=True))
