"""Lists of binaries in many terms at once, read in lockstep by a cursor.

Source: the "External Term Format" chapter of Erlang's ERTS reference.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from storage_core.formats.layout import Positions
from storage_core.formats.rabbitmq.erlang import external_term as et
from storage_core.formats.rabbitmq.erlang.cursor import Cursor, Steps

_ONE_ITEM = bytes((et.LIST, 0, 0, 0, 1, et.BINARY))


def binaries(cursor: Cursor) -> tuple[npt.NDArray[np.int64], Positions, Positions]:
    """A list of binaries: row, start and stop of each; moves after it."""
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
    return key_rows, starts, stops


def binary_or_none(cursor: Cursor) -> tuple[Positions, Positions]:
    """A list of one binary or none: its span; moves after it. A list of several is not ok."""
    empty = cursor.at("u1", cursor.position) == et.NIL
    single = cursor.at(f"S{len(_ONE_ITEM)}", cursor.position) == _ONE_ITEM
    cursor.ok &= empty | single
    sizes = np.where(single, cursor.at(">u4", cursor.position + len(_ONE_ITEM)), 0).astype(np.int64)
    starts = cursor.position + np.where(single, len(_ONE_ITEM) + 4, 0)
    stops = starts + sizes
    cursor.move(np.where(single, len(_ONE_ITEM) + 4 + sizes, 0))
    cursor.ok &= cursor.at("u1", cursor.position) == et.NIL
    cursor.move(1)
    return starts, stops
