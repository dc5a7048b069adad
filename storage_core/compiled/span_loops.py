"""Copies, checksums, hashes and compares spans, each in one pass over all messages.

No loop reads or writes outside the arrays that it is given.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from numba import njit, types

from storage_core.compiled.calls import CRC32_ADDRESS, copy, copy_from, crc32, differ

Bytes = npt.NDArray[np.uint8]
Positions = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
Numbers = npt.NDArray[np.int32]

BYTES = types.Array(types.uint8, 1, "C", readonly=True)
POSITIONS = types.Array(types.int64, 1, "C", readonly=True)
MASKS = types.Array(types.boolean, 1, "C", readonly=True)
OUT_POSITIONS, OUT_BYTES, OUT_NUMBERS = types.int64[::1], types.uint8[::1], types.int32[::1]
OUT_POSITIONS_OF_ALL, OUT_NUMBERS_OF_ALL = types.int64[:, ::1], types.int32[:, ::1]
POSITIONS_OF_ALL = types.Array(types.int64, 2, "C", readonly=True)
NUMBERS = types.Array(types.int32, 1, "C", readonly=True)
NUMBERS_OF_ALL = types.Array(types.int32, 2, "C", readonly=True)
LARGE = 1 << 20
"""Size in bytes from which `gather` allocates from Arrow's pool, which keeps pages for the next batch. For smaller
arrays numpy leaves less memory allocated to the process.
"""


def gather(buffer: Bytes, starts: Positions, stops: Positions) -> pa.BinaryArray:
    """Implements `spans.gather`."""
    starts, stops = positions(starts), positions(stops)
    offsets = np.empty(len(starts) + 1, np.int32)
    size = _add_up(starts, stops, len(buffer), offsets)
    if size < 0:
        raise ValueError("a span lies outside of its buffer, or all are larger than 2 GiB")
    packed = np.frombuffer(pa.allocate_buffer(size), np.uint8) if size >= LARGE else np.empty(size, np.uint8)
    _gather(buffer, starts, stops, packed)
    return pa.BinaryArray.from_buffers(pa.binary(), len(starts), [None, pa.py_buffer(offsets), pa.py_buffer(packed)])


def joined(columns: Sequence[pa.Array | pa.Scalar], count: int) -> pa.BinaryArray:
    """Implements `spans.joined`."""
    if not count:
        return pa.BinaryArray.from_buffers(pa.binary(), 0, [None, pa.py_buffer(bytes(4)), pa.py_buffer(b"")])
    addresses = np.empty(len(columns), np.int64)
    starts, sizes = np.empty((len(columns), count), np.int32), np.empty((len(columns), count), np.int32)
    for number, column in enumerate(columns):
        if isinstance(column, pa.Scalar):
            addresses[number], starts[number], sizes[number] = column.as_buffer().address, 0, len(column.as_buffer())
            continue
        _, offsets, data = column.buffers()
        bounds = np.frombuffer(offsets, np.int32, count + 1, column.offset * 4)
        addresses[number] = data.address if data else 0
        starts[number] = bounds[:-1]
        np.subtract(bounds[1:], bounds[:-1], out=sizes[number])
    offsets = np.empty(count + 1, np.int32)
    size = _add_up_all(sizes, offsets)
    if size < 0:
        raise ValueError("the joined columns are larger than 2 GiB")
    packed = pa.allocate_buffer(size)
    _join(addresses, starts, sizes, np.frombuffer(packed, np.uint8))
    return pa.BinaryArray.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), packed])


def crcs(buffer: Bytes, starts: npt.NDArray[Any], stops: npt.NDArray[Any]) -> npt.NDArray[np.uint32]:
    """CRC-32 of each span. Shape (n,)."""
    sums = np.empty(len(starts), np.uint32)
    if not _crcs(CRC32_ADDRESS, buffer, positions(starts), positions(stops), sums):
        raise ValueError("a span lies outside of its buffer")
    return sums


def equal(buffer: Bytes, starts: Positions, sizes: Positions, texts: Bytes, offsets: Positions, which: Numbers) -> Mask:
    """Implements `span_equals.KnownTexts.equal`; text i is [offsets[i], offsets[i + 1]) of `texts`."""
    same = np.empty(len(starts), bool)
    _equal(buffer, positions(starts), positions(sizes), texts, offsets, np.ascontiguousarray(which, np.int32), same)
    return same


def hashes_of_ascii(data: Bytes, offsets: Numbers, before: Numbers) -> Numbers | None:
    """Java's hash of text i, [offsets[i], offsets[i + 1]) of `data`, after `before[i]`; None if one is not ASCII."""
    hashes = np.empty(len(before), np.int32)
    return hashes if _hash_ascii(data, offsets, before, hashes) else None


def positions(array: npt.NDArray[Any]) -> Positions:
    """The same numbers in the form that the loops require."""
    return np.ascontiguousarray(array, np.int64)


@njit(types.int64(POSITIONS, POSITIONS, types.int64, OUT_NUMBERS), nogil=True, cache=True)
def _add_up(starts: Positions, stops: Positions, length: int, offsets: Numbers) -> int:
    at = 0
    offsets[0] = 0
    for row in range(len(starts)):
        if not 0 <= starts[row] <= stops[row] <= length:
            return -1
        at += stops[row] - starts[row]
        if at > 0x7FFFFFFF:
            return -1
        offsets[row + 1] = at
    return at


@njit(types.void(BYTES, POSITIONS, POSITIONS, OUT_BYTES), nogil=True, cache=True)
def _gather(buffer: Bytes, starts: Positions, stops: Positions, packed: Bytes) -> None:
    at = 0
    for row in range(len(starts)):
        size = stops[row] - starts[row]
        copy(packed, at, buffer, starts[row], size)
        at += size


@njit(types.int64(NUMBERS_OF_ALL, OUT_NUMBERS), nogil=True, cache=True)
def _add_up_all(sizes: Numbers, offsets: Numbers) -> int:
    at = 0
    offsets[0] = 0
    for row in range(sizes.shape[1]):
        for column in range(len(sizes)):
            at += sizes[column, row]
        if at > 0x7FFFFFFF:
            return -1
        offsets[row + 1] = at
    return at


@njit(types.void(POSITIONS, NUMBERS_OF_ALL, NUMBERS_OF_ALL, OUT_BYTES), nogil=True, cache=True)
def _join(addresses: Positions, starts: Numbers, sizes: Numbers, packed: Bytes) -> None:
    at = 0
    for row in range(sizes.shape[1]):
        for column in range(len(sizes)):
            size = sizes[column, row]
            copy_from(packed, at, addresses[column] + starts[column, row], size)
            at += size


@njit(types.boolean(types.int64, BYTES, POSITIONS, POSITIONS, types.uint32[::1]), nogil=True, cache=True)
def _crcs(address: int, buffer: Bytes, starts: Positions, stops: Positions, sums: npt.NDArray[np.uint32]) -> bool:
    for row in range(len(starts)):
        if not 0 <= starts[row] <= stops[row] <= len(buffer):
            return False
        sums[row] = crc32(address, buffer, starts[row], stops[row] - starts[row])
    return True


@njit(types.void(BYTES, POSITIONS, POSITIONS, BYTES, POSITIONS, NUMBERS, types.boolean[::1]), nogil=True, cache=True)
def _equal(
    buffer: Bytes,
    starts: Positions,
    sizes: Positions,
    texts: Bytes,
    offsets: Positions,
    which: Numbers,
    same: Mask,
) -> None:
    for row in range(len(starts)):
        text = offsets[which[row]]
        size = offsets[which[row] + 1] - text
        inside = 0 <= starts[row] <= len(buffer) - size
        same[row] = inside and sizes[row] == size and differ(buffer, starts[row], texts, text, size) == 0


@njit(types.boolean(BYTES, NUMBERS, NUMBERS, OUT_NUMBERS), nogil=True, cache=True)
def _hash_ascii(data: Bytes, offsets: Numbers, before: Numbers, hashes: Numbers) -> bool:
    for row in range(len(before)):
        start, stop = offsets[row], offsets[row + 1]
        if not 0 <= start <= stop <= len(data):
            return False
        value = np.uint32(before[row])
        for at in range(start, stop):
            if data[at] >= 0x80:
                return False
            value = np.uint32(value * np.uint32(31) + np.uint32(data[at]))
        hashes[row] = np.int32(value)
    return True
