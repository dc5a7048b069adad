"""From records to the queues that serve them: which ordinals of which queues point to an address of the log.

A record names its queue and ordinal, and its light queues; each is looked at, and where the unit there is another's,
the queue is bisected. Which records are wanted is told by `lookup`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from storage_core.files.window import OpenFiles
from storage_core.formats.layout import Positions
from storage_core.formats.needles import find_all
from storage_core.formats.rocketmq.message import Messages
from storage_core.formats.rocketmq.properties import MULTI_DISPATCH, PropertyColumn
from storage_core.rocketmq.dispatch import queue_keys
from storage_core.rocketmq.index_files import Span
from storage_core.rocketmq.planning import Bounds
from storage_core.rocketmq.record_reader import RecordReader

NEAR = 16
CHUNK = 1 << 18


class UnitSearch:
    """Searches the selected ordinals of a store's queues. `bounds`: one element a queue."""

    def __init__(self, bounds: Sequence[Bounds], files: OpenFiles, records: RecordReader) -> None:
        self._bounds, self._files, self._records = bounds, files, records
        self._rows = {(bound.queue.topic, bound.queue.queue_id): row for row, bound in enumerate(bounds)}

    def units_of(self, places: Positions) -> list[tuple[int, Positions]]:
        """Queues (numbers in `bounds`) and ordinals of the units that point to records at ascending addresses."""
        found: list[tuple[int, Positions]] = []
        for first, messages in self._records.records(places):
            here = places[first : first + len(messages)]
            right = messages.flaws == 0
            if not right.all():
                found += [(row, self._anywhere(row, here[~right])) for row in range(len(self._bounds))]
            found += self._own(messages, here, np.flatnonzero(right))
            found += self._light(messages, here, np.flatnonzero(right))
        return found

    def _own(self, messages: Messages, places: Positions, right: npt.NDArray[np.intp]) -> list[tuple[int, Positions]]:
        keys, queue = queue_keys(messages)
        ordinals = messages.column("queue_offset")
        found = []
        for number, key in enumerate(keys):
            row = self._rows.get(key)
            if row is not None:
                mine = right[queue[right] == number]
                found.append((row, self._in_queue(row, places[mine], ordinals[mine])))
        return found

    def _light(self, messages: Messages, places: Positions, right: npt.NDArray[np.intp]) -> list[tuple[int, Positions]]:
        """The queues that a record names besides its own: queue 0, or the one of its own number (rocketmq.md 3.8)."""
        if not len(find_all(messages.buffer, MULTI_DISPATCH.encode())):
            return []
        properties = PropertyColumn(messages.buffer, messages.properties_start, messages.properties_size)
        lists = properties.values(MULTI_DISPATCH)
        own = messages.column("queue_id")
        wanted: dict[int, list[int]] = {}
        for row, names in enumerate(lists.to_pylist()):
            for name in set((names or "").split(",")) if row in right else ():
                for queue_id in {0, int(own[row])}:
                    if (name, queue_id) in self._rows:
                        wanted.setdefault(self._rows[name, queue_id], []).append(row)
        return [(row, self._anywhere(row, places[records])) for row, records in wanted.items()]

    def _in_queue(self, row: int, places: Positions, ordinals: Positions) -> Positions:
        """Ordinals of the units for records of this queue: the ones that they name, where these are theirs."""
        bound = self._bounds[row]
        inside = (ordinals >= bound.start) & (ordinals < bound.stop)
        named = np.full(len(ordinals), -1, np.int64)
        for index in np.flatnonzero(inside).tolist():
            unit = bound.queue.units(self._files, int(ordinals[index]), int(ordinals[index]) + 1)[0]
            named[index] = int(unit["physical_offset"])
        right = named == places
        if right.all():
            return ordinals
        return np.concatenate((ordinals[right], self._anywhere(row, places[~right])))

    def _anywhere(self, row: int, places: Positions) -> Positions:
        """Ordinals of the units of a queue that point to one of the ascending addresses.

        By bisection; where that does not find all, by looking at every unit.
        """
        bound = self._bounds[row]
        if not len(bound) or not len(places):
            return np.empty(0, np.int64)
        at = bound.queue.lower_bounds(self._files, bound.start, bound.stop, places)
        at = at[at < bound.stop]
        found = [o for o in np.unique(at).tolist() if int(bound.queue.offsets(self._files, o, o + 1)[0]) in places]
        if len(found) == len(places):
            return np.array(found, np.int64)
        everywhere = [np.empty(0, np.int64)]
        for start in range(bound.start, bound.stop, CHUNK):
            offsets = bound.queue.offsets(self._files, start, min(start + CHUNK, bound.stop))
            everywhere.append(start + np.flatnonzero(np.isin(offsets, places)))
        return np.concatenate(everywhere)


def pieces(
    bounds: Sequence[Bounds], spans: Sequence[Span], units: Sequence[tuple[int, Positions]], files: OpenFiles
) -> tuple[list[Bounds], npt.NDArray[np.int32]]:
    """The parts of queues whose records lie in some spans of the log, and some units; and the queue of each part.

    Parts do not overlap. They may hold a few units between those wanted.
    """
    edges = np.array(spans, np.int64).ravel()
    alone: dict[int, list[Positions]] = {}
    for row, ordinals in units:
        alone.setdefault(row, []).append(ordinals)
    parts: list[Bounds] = []
    owners: list[int] = []
    for row, bound in enumerate(bounds):
        found = [np.stack((each, each + 1), 1) for each in alone.get(row, ())]
        if len(bound) and len(edges) and _reaches(bound, int(edges[0]), files):
            found.append(bound.queue.lower_bounds(files, bound.start, bound.stop, edges).reshape(-1, 2))
        for start, stop in _joined(np.concatenate(found)) if found else ():
            parts.append(Bounds(bound.queue, start, stop))
            owners.append(row)
    return parts, np.array(owners, np.int32)


def _reaches(bound: Bounds, place: int, files: OpenFiles) -> bool:
    """Whether the last message of a range lies at or behind an address: one look instead of a bisection."""
    if 0 <= bound.last_place < place:
        return False
    return int(bound.queue.offsets(files, bound.stop - 1, bound.stop)[0]) >= place


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
