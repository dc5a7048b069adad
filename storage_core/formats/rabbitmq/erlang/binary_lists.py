"""Reads lists of binaries in many terms at once, in lockstep by a cursor.

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
"""The most pieces of a body that are read."""


@dataclass(frozen=True)
class ItemSpans:
    """The spans of the items of many rows; `rows`, ascending, holds the row of each item."""

    rows: _Rows
    starts: Positions
    stops: Positions

    def some(self, mask: Mask) -> ItemSpans:
        """The items of the rows in `mask`, with the rows renumbered."""
        kept = mask[self.rows]
        return ItemSpans((np.cumsum(mask) - 1)[self.rows[kept]], self.starts[kept], self.stops[kept])

    def backwards(self) -> ItemSpans:
        """The items with those of each row in reverse order."""
        order = len(self.rows) - 1 - np.argsort(self.rows[::-1], kind="stable")
        return ItemSpans(self.rows, self.starts[order], self.stops[order])


NO_ITEMS = ItemSpans(*np.empty((3, 0), np.int64))


def joined(parts: Sequence[tuple[_Rows, ItemSpans]]) -> ItemSpans:
    """Merges the items of several parts; a part is the row numbers in the result and the items."""
    rows = np.concatenate([numbers[items.rows] for numbers, items in parts])
    order = np.argsort(rows, kind="stable")
    spans = (np.concatenate([getattr(items, name) for _, items in parts])[order] for name in ("starts", "stops"))
    return ItemSpans(rows[order], *spans)


@dataclass(frozen=True)
class ListHeads:
    """The heads of the lists at the positions of a cursor, which is advanced past them: the number of items of each,
    and which have an end after the items, which an empty list lacks.
    """

    counts: _Rows
    has_end: Mask

    @classmethod
    def next(cls, cursor: Cursor, most: int) -> ListHeads:
        """Reads the heads; rows with any other term, or with more items than `most`, are not ok."""
        tags = cursor.number("u1")
        has_end = tags == et.LIST
        cursor.ok &= has_end | (tags == et.NIL)
        counts = np.where(has_end & cursor.ok, cursor.at(">u4", cursor.position), 0).astype(np.int64)
        cursor.move(np.where(has_end, 4, 0))
        cursor.ok &= counts <= most
        return cls(counts, has_end)

    def end(self, cursor: Cursor) -> None:
        """Advances past the ends of the lists."""
        cursor.ok &= ~self.has_end | (cursor.at("u1", cursor.position) == et.NIL)
        cursor.move(self.has_end.astype(np.int64))


def binaries(cursor: Cursor) -> ItemSpans:
    """Reads a list of binaries in each row and advances past it."""
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
    """Reads lists of binaries, nearly all of which have one item, and advances past them.

    Returns the span of the item, empty for an empty list. For a list of several items that span is only as long as all
    of them together; their own spans are returned as well.
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
