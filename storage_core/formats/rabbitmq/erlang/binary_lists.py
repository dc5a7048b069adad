"""Lists of binaries in many terms at once, read in lockstep by a cursor.

Source: the "External Term Format" chapter of Erlang's ERTS reference.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from storage_core.formats.layout import Mask, Positions
from storage_core.formats.rabbitmq.erlang import external_term as et
from storage_core.formats.rabbitmq.erlang.cursor import Cursor, Steps

_Rows = npt.NDArray[np.int64]
_ONE_ITEM = bytes((et.LIST, 0, 0, 0, 1, et.BINARY))
MOST_PIECES = 64
"""How many pieces of a body are looked at."""


@dataclass(frozen=True)
class ItemSpans:
    """Where the items of many rows lie: `rows`, ascending, say whose each is."""

    rows: _Rows
    starts: Positions
    stops: Positions

    def some(self, mask: Mask) -> ItemSpans:
        """Those of the rows of `mask`, numbered anew."""
        kept = mask[self.rows]
        return ItemSpans((np.cumsum(mask) - 1)[self.rows[kept]], self.starts[kept], self.stops[kept])

    def backwards(self) -> ItemSpans:
        """Those of each row from the last to the first."""
        order = len(self.rows) - 1 - np.argsort(self.rows[::-1], kind="stable")
        return ItemSpans(self.rows, self.starts[order], self.stops[order])


NO_ITEMS = ItemSpans(*np.empty((3, 0), np.int64))


def joined(parts: Sequence[tuple[_Rows, ItemSpans]]) -> ItemSpans:
    """Items of several parts as one, each with the rows that its own are."""
    rows = np.concatenate([numbers[items.rows] for numbers, items in parts])
    order = np.argsort(rows, kind="stable")
    spans = (np.concatenate([getattr(items, name) for _, items in parts])[order] for name in ("starts", "stops"))
    return ItemSpans(rows[order], *spans)


@dataclass(frozen=True)
class ListHeads:
    """The heads of the lists at the positions of a cursor, which is moved after them: how many items each has, and
    which have an end after these, which an empty list has not.
    """

    counts: _Rows
    has_end: Mask

    @classmethod
    def next(cls, cursor: Cursor, most: int) -> ListHeads:
        """Rows with another term, or with more items than `most`, are not ok."""
        tags = cursor.number("u1")
        has_end = tags == et.LIST
        cursor.ok &= has_end | (tags == et.NIL)
        counts = np.where(has_end & cursor.ok, cursor.at(">u4", cursor.position), 0).astype(np.int64)
        cursor.move(np.where(has_end, 4, 0))
        cursor.ok &= counts <= most
        return cls(counts, has_end)

    def end(self, cursor: Cursor) -> None:
        """Moves after the ends of the lists."""
        cursor.ok &= ~self.has_end | (cursor.at("u1", cursor.position) == et.NIL)
        cursor.move(self.has_end.astype(np.int64))


def binaries(cursor: Cursor) -> ItemSpans:
    """A list of binaries; moves after it."""
    steps = Steps(len(cursor.position))
    tags = cursor.at("u1", cursor.position)
    empty = tags == et.NIL
    cursor.ok &= empty | (tags == et.LIST)
    counts = np.where(empty | ~cursor.ok, 0, cursor.at(">u4", cursor.position + 1)).astype(np.int64)
    counts[counts > cursor.stop - cursor.position] = 0
    cursor.move(np.where(empty, 1, 5))
    rows = np.flatnonzero(counts > 0)
    while len(rows):
        inner = Cursor(cursor.buffer, cursor.position[rows], cursor.stop[rows])
        inner.ok &= inner.number("u1") == et.BINARY
        start, stop = inner.counted(">u4")
        cursor.ok[rows] &= inner.ok
        cursor.position[rows] = stop
        steps.add(rows[inner.ok], start[inner.ok], stop[inner.ok])
        counts[rows] -= 1
        rows = rows[inner.ok & (counts[rows] > 0)]
    listed = ~empty
    cursor.ok &= empty | (cursor.at("u1", cursor.position) == et.NIL)
    cursor.move(listed.astype(np.int64))
    key_rows, (starts, stops) = steps.joined(2)
    return ItemSpans(key_rows, starts, stops)


def binary_or_pieces(cursor: Cursor) -> tuple[Positions, Positions, ItemSpans]:
    """A list of binaries, of which nearly all have one: its span, an empty one of a list of none; moves after it. Of a
    list of several their spans, and one that is as long as all together.
    """
    empty = cursor.at("u1", cursor.position) == et.NIL
    single = cursor.at(f"S{len(_ONE_ITEM)}", cursor.position) == _ONE_ITEM
    sizes = np.where(single, cursor.at(">u4", cursor.position + len(_ONE_ITEM)), 0).astype(np.int64)
    starts = cursor.position + np.where(single, len(_ONE_ITEM) + 4, 0)
    items, several = NO_ITEMS, np.flatnonzero(~(empty | single))
    inner = Cursor(cursor.buffer, cursor.position[several], cursor.stop[several])
    if len(several):
        inner.ok &= cursor.ok[several] & (cursor.at(">u4", inner.position + 1) <= MOST_PIECES)
        found = binaries(inner)
        items = ItemSpans(several[found.rows], found.starts, found.stops)
        sizes[several] = np.bincount(found.rows, found.stops - found.starts, len(several)).astype(np.int64)
    stops = starts + sizes
    cursor.move(np.where(single, len(_ONE_ITEM) + 4 + sizes, 0))
    ended = cursor.at("u1", cursor.position) == et.NIL
    cursor.move(1)
    ended[several], cursor.position[several] = inner.ok, inner.position
    cursor.ok &= ended
    return starts, stops, items
