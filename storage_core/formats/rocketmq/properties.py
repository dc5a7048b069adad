r"""A record's property bytes: one property of many messages, all pairs of many messages, and the slow way for one.

Text is `\x02`-separated `name \x01 value` pairs. Source of the rules: rocketmq.md 2.4 (4.9.1 and later): a piece
counts when it has at least 3 characters, its first 0x01 is not at its start and something follows it; of repeated
names the last wins and keeps the place of the first.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from storage_core.formats.layout import Bytes, Positions
from storage_core.formats.spans import data_of, gather, offsets_of, text

NAME_END, PAIR_END = 0x01, 0x02

KEYS = "KEYS"
TAGS = "TAGS"
UNIQ_KEY = "UNIQ_KEY"
MULTI_DISPATCH = "INNER_MULTI_DISPATCH"


def parse(data: bytes) -> dict[str, str]:
    """The pairs of one message, in stored order; the obvious way."""
    pairs: dict[str, str] = {}
    for piece in data.decode("utf-8", "replace").split("\x02"):
        name, separator, value = piece.partition("\x01")
        if name and separator and value:
            pairs[name] = value
    return pairs


def property_of(data: bytes, name: str) -> str | None:
    """One property of one message; None when it has none."""
    return parse(data).get(name)


@dataclass(frozen=True)
class Pairs:
    """Where the pairs of many messages lie in one buffer.

    `starts`, `middles` (the 0x01) and `stops` have one element a pair; pairs of message i are
    [offsets[i], offsets[i + 1]).
    """

    starts: Positions
    middles: Positions
    stops: Positions
    offsets: npt.NDArray[np.int32]


class PropertyColumn:
    """The property bytes of many messages, each with a 0x02 put before it, so that every pair begins with one.

    Built once for a batch; every question about its properties shares it.
    """

    def __init__(self, buffer: Bytes, starts: Positions, sizes: Positions) -> None:
        """`starts` and `sizes`: property bytes in `buffer`, shape (n,); never at position 0 unless empty."""
        filled = sizes > 0
        stops = np.where(filled, starts + sizes, 0)
        stops -= filled & (buffer[stops - 1] == PAIR_END)
        packed = gather(buffer, np.where(filled, starts - 1, 0), stops)
        self._offsets = offsets_of(packed)
        self._data = data_of(packed)
        # The byte before the properties (the low byte of their length) is ours in this fresh copy.
        self._data[self._offsets[:-1][filled]] = PAIR_END

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def row(self, index: int) -> dict[str, str]:
        """The pairs of one message."""
        return parse(self._data[self._offsets[index] : self._offsets[index + 1]].tobytes())

    def values(self, name: str) -> pa.StringArray:
        """One property of every message; null where a message has none."""
        found = self._pairs
        wanted = np.frombuffer(name.encode(), np.uint8)
        at = np.flatnonzero(self._marks == _mark(wanted[0], len(wanted)))
        if len(at):
            at = at[self._names_equal(at, wanted)]
        row = np.searchsorted(found.offsets, at, "right") - 1
        start, stop = np.zeros(len(self), np.int64), np.zeros(len(self), np.int64)
        # Of a repeated name the last assignment stays: the last wins.
        start[row] = found.middles[at] + 1
        stop[row] = found.stops[at]
        return with_nulls(text(gather(self._data, start, stop)), stop > 0)

    def pairs(self) -> pa.MapArray:
        """All pairs of every message as map<string, string>; empty, never null, where there are none."""
        found = self._pairs
        if self._repeats():
            rows = [list(self.row(index).items()) for index in range(len(self))]
            return pa.array(rows, pa.map_(pa.string(), pa.string()))
        names = text(gather(self._data, found.starts, found.middles))
        values = text(gather(self._data, found.middles + 1, found.stops))
        return pa.MapArray.from_arrays(pa.array(found.offsets), names, values)

    def _names_equal(self, at: npt.NDArray[np.intp], wanted: Bytes) -> npt.NDArray[np.bool_]:
        equal = np.ones(len(at), bool)
        starts = self._pairs.starts[at]
        for index, byte in enumerate(wanted.tolist()):
            equal &= self._data[starts + index] == byte
        return equal

    @cached_property
    def _marks(self) -> npt.NDArray[np.int32]:
        """First byte and length of each name: a cheap test before names are compared."""
        found = self._pairs
        return _mark(self._data[found.starts], found.middles - found.starts)

    @cached_property
    def _pairs(self) -> Pairs:
        data = self._data
        controls = np.flatnonzero(data <= PAIR_END)
        kinds = data[controls]
        if len(kinds) % 2 == 0 and (kinds[0::2] == PAIR_END).all() and (kinds[1::2] == NAME_END).all():
            separators, middles = controls[0::2], controls[1::2]
        else:
            separators, middles = controls[kinds == PAIR_END], controls[kinds == NAME_END]
        starts = separators + 1
        stops = np.append(separators[1:], len(data))
        before = np.searchsorted(separators, self._offsets)
        if len(middles) != len(starts) or (middles <= starts).any() or (middles + 1 >= stops).any():
            middles = np.append(middles, len(data))
            middles = middles[np.searchsorted(middles, starts)]
            right = (middles > starts) & (middles + 1 < stops)
            before = np.concatenate(([0], np.cumsum(right)))[before]
            starts, middles, stops = starts[right], middles[right], stops[right]
        return Pairs(starts, middles, stops, before.astype(np.int32))

    def _repeats(self) -> bool:
        """Whether some message has two pairs of one name."""
        offsets = self._pairs.offsets
        most = int(np.diff(offsets).max(initial=0))
        rows = np.repeat(np.arange(len(self), dtype=np.int32), np.diff(offsets))
        for distance in range(1, most):
            same = (self._marks[distance:] == self._marks[:-distance]) & (rows[distance:] == rows[:-distance])
            at = np.flatnonzero(same)
            if len(at) and pc.any(pc.equal(self._names(at), self._names(at + distance))).as_py():
                return True
        return False

    def _names(self, at: npt.NDArray[np.intp]) -> pa.BinaryArray:
        return gather(self._data, self._pairs.starts[at], self._pairs.middles[at])


def _mark(first: npt.ArrayLike, length: npt.ArrayLike) -> npt.NDArray[np.int32]:
    marks: npt.NDArray[np.int32] = np.asarray(first).astype(np.int32) | (np.asarray(length).astype(np.int32) << 8)
    return marks


def with_nulls(values: pa.StringArray, valid: npt.NDArray[np.bool_]) -> pa.StringArray:
    """The same values, null where `valid` is false."""
    if valid.all():
        return values
    bitmap = pa.py_buffer(np.packbits(valid, bitorder="little"))
    return pa.Array.from_buffers(values.type, len(values), [bitmap, *values.buffers()[1:]])
