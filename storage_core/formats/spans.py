"""Spans and structs of a buffer, gathered in C++: variable-length bytes as Arrow arrays, fixed-size structs as numpy.

Their positions are up to the formats; this module only copies them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from storage_core.arrays import as_array, as_scalar, bytes_array, text_array
from storage_core.compiled.loading import CompiledLoops
from storage_core.errors import FormatError
from storage_core.formats.layout import Bytes, Positions

FEW = 6
GUESSED_SIZE = 100
HIGH_BITS = 0x8080808080808080

_loops = CompiledLoops("storage_core.compiled.span_loops")


@lru_cache(maxsize=64)
def _even_numbers(count: int) -> pa.Array:
    return as_array(np.arange(0, 2 * count, 2, dtype=np.int32))


def with_gaps(buffer: Bytes | pa.Buffer, starts: Positions, stops: Positions) -> pa.BinaryArray:
    """The spans [start, stop) as the even elements of an array whose odd elements are the gaps. No copy.

    Odd elements must never be read: if the spans are not ascending, their length is negative.
    """
    count = len(starts)
    offsets = np.empty(2 * count + 1, np.int32)
    offsets[0 : 2 * count : 2] = starts
    offsets[1 : 2 * count : 2] = stops
    offsets[2 * count] = len(buffer)
    return pa.BinaryArray.from_buffers(pa.binary(), 2 * count, [None, pa.py_buffer(offsets), _as_buffer(buffer)])


def gather(buffer: Bytes | pa.Buffer, starts: Positions, stops: Positions, size: int = 0) -> pa.BinaryArray:
    """Copies the spans [start, stop), which the caller has checked against the buffer, into one contiguous array.

    `size`: the total number of bytes, if the caller knows it.
    """
    if not len(starts):
        return bytes_array([])
    if len(starts) <= FEW:
        # The fixed cost of a gather equals that of copying eight spans one by one.
        view = memoryview(_as_buffer(buffer))
        spans = zip(starts.tolist(), stops.tolist(), strict=True)
        return bytes_array([view[start:stop] for start, stop in spans])
    if (loops := _loops.after(size or len(starts) * GUESSED_SIZE)) is not None:
        whole = np.frombuffer(buffer, np.uint8) if isinstance(buffer, pa.Buffer) else buffer
        return loops.gather(whole, starts, stops)
    return taken(buffer, starts, stops)


def taken(buffer: Bytes | pa.Buffer, starts: Positions, stops: Positions) -> pa.BinaryArray:
    """`gather` without compiled loops, for callers that were just refused them: the bytes are not counted twice."""
    return pc.take(with_gaps(buffer, starts, stops), _even_numbers(len(starts)), boundscheck=False)


def joined(columns: Sequence[pa.Array | pa.Scalar], count: int) -> pa.BinaryArray:
    """Binary or string columns of `count` elements, without nulls, concatenated row by row; a scalar is part of every
    row. The result must be shorter than 2 GiB.
    """
    if (loops := _loops.after(count * GUESSED_SIZE)) is not None:
        return loops.joined(columns, count)
    as_bytes = [column.cast(pa.binary()) for column in columns]
    return pc.binary_join_element_wise(*as_bytes, as_scalar(b""))


def structs_at(buffer: Bytes, dtype: np.dtype[Any], positions: Positions) -> npt.NDArray[Any]:
    """One `dtype` at each position of `buffer` (uint8). Shape (n,), disk byte order, a copy.

    Takes a fifth of the time of indexing a strided view. Raises FormatError if a struct does not lie inside the buffer:
    at the lowest position if that is negative, else at the highest.
    """
    if len(positions):
        low, high = int(positions.min()), int(positions.max())
        if low < 0 or high > len(buffer) - dtype.itemsize:
            worst = low if low < 0 else high
            raise FormatError(worst, f"{dtype.itemsize} bytes expected, the buffer holds {len(buffer)}")
    if len(positions) <= FEW:
        return (
            np.array([buffer[at : at + dtype.itemsize] for at in positions.tolist()], np.uint8).view(dtype).reshape(-1)
        )
    packed = gather(buffer, positions, positions + dtype.itemsize, len(positions) * dtype.itemsize)
    return np.frombuffer(packed.buffers()[2] or b"", dtype, len(positions))


def offsets_of(array: pa.Array) -> npt.NDArray[np.int32]:
    """The n + 1 offsets of a binary or string array into `data_of(array)`."""
    raw = array.buffers()[1]
    if raw is None:
        return np.zeros(1, np.int32)
    return np.frombuffer(raw, np.int32, len(array) + 1, array.offset * 4)


def data_of(array: pa.Array) -> Bytes:
    """The data bytes of a binary or string array, without a copy."""
    raw = array.buffers()[2]
    return np.empty(0, np.uint8) if raw is None else np.frombuffer(raw, np.uint8)


def holds_any(array: pa.Array, values: tuple[int, ...]) -> bool:
    """Whether the data of a binary or string array contains one of these bytes; bytes of null elements count too."""
    offsets = offsets_of(array)
    data = data_of(array)[int(offsets[0]) : int(offsets[-1])]
    return any(bool((data == value).any()) for value in values)


def text(array: pa.BinaryArray) -> pa.StringArray:
    """Bytes as UTF-8 text; malformed bytes become U+FFFD, as in Java's decoder."""
    if is_text(array):
        return array.view(pa.string())
    return text_array(None if value is None else value.decode("utf-8", "replace") for value in array.to_pylist())


def is_text(array: pa.BinaryArray) -> bool:
    """Whether every element is valid UTF-8."""
    if is_ascii(array):
        return True
    try:
        array.view(pa.string()).validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def first_malformed(array: pa.BinaryArray) -> int | None:
    """The number of the first element that is not valid UTF-8; None if all are."""
    if is_text(array):
        return None
    values = enumerate(array.to_pylist())
    return next((row for row, value in values if value is not None and not is_utf8(value)), None)


def is_utf8(value: bytes) -> bool:
    """Whether bytes are valid UTF-8."""
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def is_ascii(array: pa.BinaryArray) -> bool:
    """Whether no byte of the elements has its high bit set; many times faster than validating text."""
    offsets = offsets_of(array)
    data = data_of(array)[int(offsets[0]) : int(offsets[-1])]
    words = data[: len(data) & -8].view(np.uint64)
    return not (int(np.bitwise_or.reduce(words)) & HIGH_BITS) and not (data[len(words) * 8 :] & 0x80).any()


def _as_buffer(buffer: Bytes | pa.Buffer) -> pa.Buffer:
    return buffer if isinstance(buffer, pa.Buffer) else pa.py_buffer(buffer)
