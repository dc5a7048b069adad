"""Finds properties of many messages, searching each message once: some of them by their names, or all pairs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from numba import njit, types

from storage_core.compiled.calls import AT_ONCE, copy, differ, lowest_bit, places_of, position_of
from storage_core.compiled.span_loops import (
    BYTES,
    OUT_BYTES,
    OUT_NUMBERS,
    OUT_POSITIONS_OF_ALL,
    POSITIONS,
    Numbers,
    positions,
)
from storage_core.formats.layout import Bytes, Positions
from storage_core.formats.rocketmq.properties import NAME_END, PAIR_END

SHORTEST_PAIR = len("a\x01b\x02")
OUTSIDE, REPEATED = -1, -2


def property_spans(
    buffer: Bytes, starts: Positions, sizes: Positions, names: Sequence[str]
) -> tuple[Positions, Positions]:
    """Positions of the properties of these names in each message, [0, 0) if it has none. Shape (len(names), n)."""
    encoded = [name.encode() for name in names]
    bounds = np.cumsum([0, *map(len, encoded)])
    begins, ends = np.empty((len(names), len(starts)), np.int64), np.empty((len(names), len(starts)), np.int64)
    searched = np.frombuffer(b"".join(encoded), np.uint8)
    if not _property_spans(buffer, positions(starts), positions(sizes), searched, bounds, begins, ends):
        raise ValueError("properties lie outside of their buffer")
    return begins, ends


def property_pairs(
    buffer: Bytes, starts: Positions, sizes: Positions, hidden: str | None
) -> tuple[pa.BinaryArray, pa.BinaryArray, Numbers] | None:
    """Names, except `hidden`, and values of all pairs, and the first pair of each message and the end, shape (n + 1,);
    None if a name repeats.
    """
    starts, sizes = positions(starts), positions(sizes)
    size = int(sizes.sum())
    most = size // SHORTEST_PAIR + len(sizes) + 1
    offsets, name_offsets, value_offsets = (np.empty(count, np.int32) for count in (len(sizes) + 1, most, most))
    names, values = np.empty(size, np.uint8), np.empty(size, np.uint8)
    count = _property_pairs(
        buffer, starts, sizes, np.frombuffer((hidden or "").encode(), np.uint8), names, name_offsets, values,
        value_offsets, offsets,
    )  # fmt: skip
    if count == OUTSIDE:
        raise ValueError("properties lie outside of their buffer")
    if count == REPEATED:
        return None
    return _binary(names, name_offsets, count), _binary(values, value_offsets, count), offsets


def _binary(data: Bytes, offsets: Numbers, count: int) -> pa.BinaryArray:
    buffers = [None, pa.py_buffer(offsets[: count + 1]), pa.py_buffer(data)]
    return pa.BinaryArray.from_buffers(pa.binary(), count, buffers)


@njit(inline="always")
def _value_end(buffer: Bytes, at: int, start: int, stop: int, names: Bytes, name: int, size: int) -> int:
    """The end of the value, if a pair of this name begins at `at` in the properties [start, stop); 0 if not."""
    begins_pair = at == start or buffer[at - 1] == PAIR_END
    if not begins_pair or buffer[at + size] != NAME_END or differ(buffer, at, names, name, size) != 0:
        return 0
    end: int = position_of(buffer, at + size + 1, stop, PAIR_END)
    return end


@njit(inline="always")
def find_properties(
    buffer: Bytes, start: int, stop: int, names: Bytes, bounds: Positions, row: int, begins: Positions, ends: Positions
) -> None:
    """Fills `begins` and `ends` of one row: the properties of these names in [start, stop), [0, 0) if there is none.

    A pair may begin wherever the first byte of its name is followed, at the length of the name, by the end of a name.
    AT_ONCE positions are tested together, if that many bytes are left in the buffer.
    """
    for number in range(len(bounds) - 1):
        name, size, begin, end = bounds[number], bounds[number + 1] - bounds[number], 0, 0
        first, at, last = np.int64(names[name]), start, stop - size - 1
        while at < last:
            many = at + size + AT_ONCE <= len(buffer)
            places = places_of(buffer, at, first) & places_of(buffer, at + size, NAME_END) if many else np.uint64(1)
            while places:
                here = at + lowest_bit(places)
                places &= places - np.uint64(1)
                value_end = _value_end(buffer, here, start, stop, names, name, size) if here < last else 0
                if value_end > here + size + 1:
                    begin, end = here + size + 1, value_end
            at += AT_ONCE if many else 1
        begins[number, row], ends[number, row] = begin, end


@njit(
    types.boolean(BYTES, POSITIONS, POSITIONS, BYTES, POSITIONS, OUT_POSITIONS_OF_ALL, OUT_POSITIONS_OF_ALL),
    nogil=True,
    cache=True,
    _nrt=False,
)
def _property_spans(
    buffer: Bytes,
    starts: Positions,
    sizes: Positions,
    names: Bytes,
    bounds: Positions,
    begins: Positions,
    ends: Positions,
) -> bool:
    for row in range(len(starts)):
        at, stop = starts[row], starts[row] + max(sizes[row], 0)
        if at < stop and (at < 0 or stop > len(buffer)):
            return False
        find_properties(buffer, at, stop, names, bounds, row, begins, ends)
    return True


@njit(
    types.int64(BYTES, POSITIONS, POSITIONS, BYTES, OUT_BYTES, OUT_NUMBERS, OUT_BYTES, OUT_NUMBERS, OUT_NUMBERS),
    nogil=True,
    cache=True,
    _nrt=False,
)
def _property_pairs(
    buffer: Bytes,
    starts: Positions,
    sizes: Positions,
    hidden: Bytes,
    names: Bytes,
    name_offsets: Numbers,
    values: Bytes,
    value_offsets: Numbers,
    offsets: Numbers,
) -> int:
    count = 0
    name_offsets[0] = value_offsets[0] = offsets[0] = 0
    for row in range(len(starts)):
        at, stop = starts[row], starts[row] + max(sizes[row], 0)
        if at < stop and (at < 0 or stop > len(buffer)):
            return OUTSIDE
        while at < stop:
            end = position_of(buffer, at, stop, PAIR_END)
            middle = position_of(buffer, at, end, NAME_END)
            is_hidden = middle - at == len(hidden) and differ(buffer, at, hidden, 0, len(hidden)) == 0
            if at < middle and middle + 1 < end and not is_hidden:
                size, begin = middle - at, name_offsets[count]
                for pair in range(offsets[row], count):
                    other = name_offsets[pair]
                    if name_offsets[pair + 1] - other == size and differ(names, other, buffer, at, size) == 0:
                        return REPEATED
                copy(names, begin, buffer, at, size)
                copy(values, value_offsets[count], buffer, middle + 1, end - middle - 1)
                name_offsets[count + 1] = begin + size
                value_offsets[count + 1] = value_offsets[count] + end - middle - 1
                count += 1
            at = end + 1
        offsets[row + 1] = count
    return count
