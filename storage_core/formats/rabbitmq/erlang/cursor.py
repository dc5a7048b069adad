"""Many variable-length values of one buffer read in lockstep: a position, a stop and an `ok` for each row.

Knows bytes and lengths only; what stands at a position belongs to the formats that move the cursor.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from storage_core.formats.layout import Bytes, Mask, Positions, values_at


class Cursor:
    """Rows [position, stop) of `buffer`. A row that does not fit what is asked loses its `ok` and reads zeros or noise.

    Nothing outside the buffer is ever read, so a row may be wrong for many steps before anybody looks at `ok`.
    """

    def __init__(self, buffer: Bytes, starts: Positions, stops: Positions) -> None:
        self.buffer = buffer
        self.position = starts.astype(np.int64)
        self.stop = stops
        self.ok: Mask = (starts >= 0) & (starts <= stops) & (stops <= len(buffer))

    def rounds(self, counts: npt.NDArray[np.int64]) -> Iterator[tuple[npt.NDArray[np.int64], Cursor]]:
        """For 0, 1, … the rows that are ok and count more, ascending, until there are none, with a cursor of these:
        where that one is moved to, and which of its rows lose their `ok`, is taken over.
        """
        for number in itertools.count():
            rows = np.flatnonzero(self.ok & (counts > number))
            if not len(rows):
                return
            inner = Cursor(self.buffer, self.position[rows], self.stop[rows])
            yield rows, inner
            self.ok[rows], self.position[rows] = inner.ok, inner.position

    def at(self, dtype: str, positions: Positions) -> npt.NDArray[Any]:
        """One value of `dtype` at each position, in disk byte order; positions outside are moved inside."""
        return values_at(self.buffer, dtype, positions)

    def expect(self, literal: bytes) -> None:
        """The bytes of `literal`, whose last byte is not zero, stand here; moves after them."""
        found = self.at(f"S{len(literal)}", self.position)
        self.ok &= found == literal
        self.move(len(literal))

    def move(self, size: int | npt.NDArray[np.int64]) -> None:
        """Moves `size` bytes on; rows that would leave their span are not ok any more."""
        self.position = self.position + size
        self.ok &= self.position <= self.stop

    def number(self, dtype: str) -> npt.NDArray[np.int64]:
        """A number of `dtype` as int64; moves after it."""
        values = self.at(dtype, self.position).astype(np.int64)
        self.move(np.dtype(dtype).itemsize)
        return values

    def counted(self, dtype: str) -> tuple[Positions, Positions]:
        """A length of `dtype` and so many bytes: the span of the bytes; moves after them."""
        size = self.number(dtype)
        start = self.position
        self.move(size)
        return start, self.position


class Steps:
    """Items found in lockstep, the k-th of many rows at once, brought into the order (row, k)."""

    def __init__(self, row_count: int) -> None:
        self.row_count = row_count
        self.rows: list[npt.NDArray[np.int64]] = []
        self.columns: list[tuple[npt.NDArray[np.int64], ...]] = []

    def add(self, rows: npt.NDArray[np.int64], *columns: npt.NDArray[np.int64]) -> None:
        """The next item of each of `rows`, which are ascending."""
        self.rows.append(rows)
        self.columns.append(columns)

    def joined(self, width: int) -> tuple[npt.NDArray[np.int64], list[npt.NDArray[np.int64]]]:
        """Row of each item, ascending, and the `width` columns."""
        if not self.rows:
            return np.empty(0, np.int64), [np.empty(0, np.int64) for _ in range(width)]
        if len(self.rows) == 1:
            return self.rows[0], list(self.columns[0])
        rows = np.concatenate(self.rows)
        order = np.argsort(rows, kind="stable")
        return rows[order], [np.concatenate([step[i] for step in self.columns])[order] for i in range(width)]


def offsets_of_rows(rows: npt.NDArray[np.int64], row_count: int) -> npt.NDArray[np.int32]:
    """List offsets for items whose rows ascend. Shape (row_count + 1,)."""
    offsets = np.zeros(row_count + 1, np.int32)
    np.cumsum(np.bincount(rows, minlength=row_count), out=offsets[1:])
    return offsets


def pieces(data: bytes, size: int) -> list[bytes]:
    """`data` cut into pieces of `size` bytes, which divides its length; five times a loop of slices."""
    found: list[bytes] = np.frombuffer(data, f"V{size}").tolist() if data else []
    return found
