"""From records to the queues that serve them: which entries of which queues point to an address of the log.

A record names its queue, its queue offset and its light queues. The entry there is looked at, and where it belongs to
another record, the queue is bisected. Which records are wanted is decided by `key_lookup`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from storage_core.files.window import OpenFiles
from storage_core.formats.byte_search import find_all
from storage_core.formats.layout import Positions
from storage_core.formats.rocketmq.message import Messages
from storage_core.formats.rocketmq.properties import MULTI_DISPATCH
from storage_core.rocketmq.disk.record_reader import RecordReader
from storage_core.rocketmq.index.index_files import Span
from storage_core.rocketmq.read.selection import QueueRange
from storage_core.rocketmq.recovery.dispatch import queue_keys

NEAR = 16
CHUNK = 1 << 18


class QueueSearch:
    """Searches selected ranges of a store's queues, one range a queue."""

    def __init__(self, ranges: Sequence[QueueRange], files: OpenFiles, records: RecordReader) -> None:
        self._ranges, self._files, self._records = ranges, files, records
        self._rows = {(part.queue.topic, part.queue.queue_id): row for row, part in enumerate(ranges)}

    def entries_of(self, physical_offsets: Positions) -> list[tuple[int, Positions]]:
        """Ranges (by number) and queue offsets of the entries that point to records at ascending addresses."""
        entries: list[tuple[int, Positions]] = []
        for first, messages in self._records.records(physical_offsets):
            here = physical_offsets[first : first + len(messages)]
            right = messages.flaws == 0
            if not right.all():
                entries += [(row, self._anywhere(row, here[~right])) for row in range(len(self._ranges))]
            entries += self._own(messages, here, np.flatnonzero(right))
            entries += self._light(messages, here, np.flatnonzero(right))
        return entries

    def _own(
        self, messages: Messages, physical_offsets: Positions, right: npt.NDArray[np.intp]
    ) -> list[tuple[int, Positions]]:
        keys, queue = queue_keys(messages)
        queue_offsets = messages.column("queue_offset")
        entries = []
        for number, key in enumerate(keys):
            row = self._rows.get(key)
            if row is not None:
                mine = right[queue[right] == number]
                entries.append((row, self._in_queue(row, physical_offsets[mine], queue_offsets[mine])))
        return entries

    def _light(
        self, messages: Messages, physical_offsets: Positions, right: npt.NDArray[np.intp]
    ) -> list[tuple[int, Positions]]:
        """The queues that a record names besides its own: queue 0, or the one of its own number (rocketmq.md 3.8)."""
        if not len(find_all(messages.buffer, MULTI_DISPATCH.encode())):
            return []
        lists = messages.property_column().values(MULTI_DISPATCH)
        own = messages.column("queue_id")
        wanted: dict[int, list[int]] = {}
        for row, names in enumerate(lists.to_pylist()):
            for name in set((names or "").split(",")) if row in right else ():
                for queue_id in {0, int(own[row])}:
                    if (name, queue_id) in self._rows:
                        wanted.setdefault(self._rows[name, queue_id], []).append(row)
        return [(row, self._anywhere(row, physical_offsets[records])) for row, records in wanted.items()]

    def _in_queue(self, row: int, physical_offsets: Positions, queue_offsets: Positions) -> Positions:
        """Queue offsets of the entries for records of this queue: the ones that they name, where these are theirs."""
        part = self._ranges[row]
        inside = (queue_offsets >= part.start) & (queue_offsets < part.stop)
        named = np.full(len(queue_offsets), -1, np.int64)
        for index in np.flatnonzero(inside).tolist():
            named[index] = part.queue.physical_offset(self._files, int(queue_offsets[index]))
        right = named == physical_offsets
        if right.all():
            return queue_offsets
        return np.concatenate((queue_offsets[right], self._anywhere(row, physical_offsets[~right])))

    def _anywhere(self, row: int, physical_offsets: Positions) -> Positions:
        """Queue offsets of the entries of a range that point to one of the ascending addresses.

        By bisection; where that does not find all, by looking at every entry.
        """
        part = self._ranges[row]
        if not len(part) or not len(physical_offsets):
            return np.empty(0, np.int64)
        at = part.queue.lower_bounds(self._files, part.start, part.stop, physical_offsets)
        at = np.unique(at[at < part.stop])
        here = [part.queue.physical_offset(self._files, queue_offset) for queue_offset in at.tolist()]
        at = at[np.isin(np.array(here, np.int64), physical_offsets)]
        if len(at) == len(physical_offsets):
            return at
        everywhere = [np.empty(0, np.int64)]
        for start in range(part.start, part.stop, CHUNK):
            offsets = part.queue.offsets(self._files, start, min(start + CHUNK, part.stop))
            everywhere.append(start + np.flatnonzero(np.isin(offsets, physical_offsets)))
        return np.concatenate(everywhere)


def pieces(
    ranges: Sequence[QueueRange], spans: Sequence[Span], entries: Sequence[tuple[int, Positions]], files: OpenFiles
) -> tuple[list[QueueRange], npt.NDArray[np.int32]]:
    """The parts of ranges whose records lie in some spans of the log, and some entries (range number, queue offsets);
    with each part the number of its range.

    Parts do not overlap. They may hold a few entries between those wanted.
    """
    edges = np.array(spans, np.int64).ravel()
    alone: dict[int, list[Positions]] = {}
    for row, queue_offsets in entries:
        alone.setdefault(row, []).append(queue_offsets)
    parts: list[QueueRange] = []
    owners: list[int] = []
    for row, whole in enumerate(ranges):
        wanted = [np.stack((queue_offsets, queue_offsets + 1), 1) for queue_offsets in alone.get(row, ())]
        if len(whole) and len(edges) and _reaches(whole, int(edges[0]), files):
            wanted.append(whole.queue.lower_bounds(files, whole.start, whole.stop, edges).reshape(-1, 2))
        for start, stop in _joined(np.concatenate(wanted)) if wanted else ():
            parts.append(QueueRange(whole.queue, start, stop))
            owners.append(row)
    return parts, np.array(owners, np.int32)


def _reaches(part: QueueRange, physical_offset: int, files: OpenFiles) -> bool:
    """Whether the last message of a range lies at an address or after it: one look instead of a bisection."""
    if 0 <= part.last_physical_offset < physical_offset:
        return False
    return part.queue.last_physical_offset(files, part.stop) >= physical_offset


def _joined(ranges: npt.NDArray[np.int64]) -> list[tuple[int, int]]:
    """Ranges [start, stop) in ascending order, those less than NEAR apart in one; empty ones are left out."""
    ranges = ranges[ranges[:, 1] > ranges[:, 0]]
    if not len(ranges):
        return []
    starts, stops = ranges[np.argsort(ranges[:, 0], kind="stable")].T
    reach = np.maximum.accumulate(stops)
    first = np.flatnonzero(np.append(True, starts[1:] - reach[:-1] > NEAR))
    last = np.append(first[1:], len(starts)) - 1
    return list(zip(starts[first].tolist(), reach[last].tolist(), strict=True))
