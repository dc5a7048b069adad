"""Reads many variable-length values of one buffer in lockstep: a position, a stop and an `ok` flag for each row.

Handles only bytes and lengths; the formats that move the cursor interpret the bytes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from storage_core.formats.layout import Bytes, Mask, Positions, values_at


class Cursor:
    """Rows [position, stop) of `buffer`. A row that does not match a request loses its `ok` and reads zeros or garbage.

    Nothing outside the buffer is ever read, so a row may be invalid for many steps before `ok` is checked.
    """

    def __init__(self, buffer: Bytes, starts: Positions, stops: Positions) -> None:
        self.buffer = buffer
        self.position = starts.astype(np.int64)
        self.stop = stops
        self.ok: Mask = (starts >= 0) & (starts <= stops) & (stops <= len(buffer))

    def rounds(self, counts: npt.NDArray[np.int64]) -> Iterator[tuple[npt.NDArray[np.int64], Cursor]]:
        """Yields, for k = 0, 1, … and until there are none, the rows (ascending) that are ok and have a count above k,
        with a cursor over them. That cursor's positions, and the rows that lose their `ok`, are carried over.
        """
        for number in itertools.count():
            rows = np.flatnonzero(self.ok & (counts > number))
            if not len(rows):
                return
            inner = Cursor(self.buffer, self.position[rows], self.stop[rows])
            yield rows, inner
            self.ok[rows], self.position[rows] = inner.ok, inner.position

    def at(self, dtype: str, positions: Positions) -> npt.NDArray[Any]:
        """One value of `dtype` at each position, in disk byte order; positions outside the buffer are clamped."""
        return values_at(self.buffer, dtype, positions)

    def expect(self, literal: bytes) -> None:
        """Requires the bytes of `literal`, whose last byte is not zero, and advances past them."""
        found = self.at(f"S{len(literal)}", self.position)
        self.ok &= found == literal
        self.move(len(literal))

    def move(self, size: int | npt.NDArray[np.int64]) -> None:
        """Advances by `size` bytes; rows that would leave their span are no longer ok."""
        self.position = self.position + size
        self.ok &= self.position <= self.stop

    def number(self, dtype: str) -> npt.NDArray[np.int64]:
        """Reads a number of `dtype` as int64 and advances past it."""
        values = self.at(dtype, self.position).astype(np.int64)
        self.move(np.dtype(dtype).itemsize)
        return values

    def counted(self, dtype: str) -> tuple[Positions, Positions]:
        """Reads a length of `dtype` and that many bytes; returns the span of the bytes and advances past them."""
        size = self.number(dtype)
        start = self.position
        self.move(size)
        return start, self.position


class Steps:
    """Collects items found in lockstep, the k-th of many rows at once, and puts them in the order (row, k)."""

    def __init__(self, row_count: int) -> None:
        self.row_count = row_count
        self.rows: list[npt.NDArray[np.int64]] = []
        self.columns: list[tuple[npt.NDArray[np.int64], ...]] = []

    def add(self, rows: npt.NDArray[np.int64], *columns: npt.NDArray[np.int64]) -> None:
        """Adds the next item of each of `rows`, which are ascending."""
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
    """`data` cut into pieces of `size` bytes, which divides its length; five times as fast as a loop of slices."""
    found: list[bytes] = np.frombuffer(data, f"V{size}").tolist() if data else []
    return found
