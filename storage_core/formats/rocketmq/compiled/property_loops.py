"""The properties of many messages, each message searched once: some of them by their names, or all pairs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from numba import njit, types

from storage_core.compiled.calls import copy, differ, position_of
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
    """Where the properties of these names lie in each message, [0, 0) where it has none. Shape (len(names), n)."""
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
    """Names but `hidden`, values, and the first pair of each message and the end, shape (n + 1,); None when a name
    repeats.
    """
    starts, sizes = positions(starts), positions(sizes)
    size = int(sizes.sum())
    most = size // SHORTEST_PAIR + len(sizes) + 1
    offsets, name_offsets, value_offsets = (np.empty(count, np.int32) for count in (len(sizes) + 1, most, most))
    names, values = pa.allocate_buffer(size), pa.allocate_buffer(size)
    count = _property_pairs(
        buffer, starts, sizes, np.frombuffer((hidden or "").encode(), np.uint8), np.frombuffer(names, np.uint8),
        name_offsets, np.frombuffer(values, np.uint8), value_offsets, offsets,
    )  # fmt: skip
    if count == OUTSIDE:
        raise ValueError("properties lie outside of their buffer")
    if count == REPEATED:
        return None
    return _binary(names, name_offsets, count), _binary(values, value_offsets, count), offsets


def _binary(data: pa.Buffer, offsets: Numbers, count: int) -> pa.BinaryArray:
    return pa.BinaryArray.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets[: count + 1]), data])


@njit(inline="always")
def find_properties(
    buffer: Bytes, at: int, stop: int, names: Bytes, bounds: Positions, row: int, begins: Positions, ends: Positions
) -> None:
    """Fills `begins` and `ends` of one row: the properties of these names in [at, stop), [0, 0) where there is none."""
    count = len(bounds) - 1
    for number in range(count):
        begins[number, row], ends[number, row] = 0, 0
    while at < stop:
        end = position_of(buffer, at, stop, PAIR_END)
        for number in range(count):
            name, size = bounds[number], bounds[number + 1] - bounds[number]
            value = at + size + 1
            if value < end and buffer[value - 1] == NAME_END and differ(buffer, at, names, name, size) == 0:
                begins[number, row], ends[number, row] = value, end
        at = end + 1


@njit(
    types.boolean(BYTES, POSITIONS, POSITIONS, BYTES, POSITIONS, OUT_POSITIONS_OF_ALL, OUT_POSITIONS_OF_ALL),
    nogil=True,
    cache=True,
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
