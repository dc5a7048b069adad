"""Builds encoded rows from binary columns: numbers and lengths as bytes, the parts of a row concatenated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from storage_core.arrays import NO_BYTES, as_array, as_mask, as_scalar
from storage_core.formats.spans import offsets_of

Numbers = npt.NDArray[np.int64]


def fixed(values: npt.NDArray[np.generic]) -> pa.BinaryArray:
    """The bytes of each element of a numpy array, as a binary array."""
    width = values.dtype.itemsize
    offsets = np.arange(0, width * len(values) + 1, width, dtype=np.int32)
    return pa.BinaryArray.from_buffers(
        pa.binary(), len(values), [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(values))]
    )


def lengths(array: pa.Array) -> Numbers:
    """Length of each element of a binary or string array, 0 for null."""
    found: Numbers = np.diff(offsets_of(array)).astype(np.int64)
    if array.null_count:
        found[as_mask(array.is_null())] = 0
    return found


def joined(*parts: pa.Array | bytes) -> pa.BinaryArray:
    """Concatenates the parts of each row; a part given as bytes is the same in every row."""
    arguments = [as_scalar(part) if isinstance(part, bytes) else part for part in parts]
    return pc.binary_join_element_wise(*arguments, NO_BYTES)


def where(mask: npt.NDArray[np.bool_], array: pa.Array) -> pa.BinaryArray:
    """The elements where `mask` is true, empty elsewhere."""
    return array if mask.all() else pc.if_else(as_array(mask), array, NO_BYTES)


def counted(array: pa.Array, dtype: str) -> pa.BinaryArray:
    """Prefixes each element with its length as `dtype`; null stays null."""
    return joined(fixed(lengths(array).astype(dtype)), array)


def listed(items: pa.BinaryArray, rows: Numbers, row_count: int) -> pa.BinaryArray:
    """Concatenates the items of each row; `rows`, ascending, holds the row of each item."""
    offsets = np.searchsorted(rows, np.arange(row_count + 1)).astype(np.int32)
    return pc.binary_join(pa.ListArray.from_arrays(as_array(offsets), items), NO_BYTES)


def listed_parts(parts: Sequence[tuple[Numbers, pa.BinaryArray]], row_count: int) -> pa.BinaryArray:
    """Concatenates the items of each row, those of earlier parts first; a part is (rows, items)."""
    rows = np.concatenate([each for each, _ in parts])
    order = np.argsort(rows, kind="stable")
    items = pa.concat_arrays([items for _, items in parts]).take(as_array(order))
    return listed(items, rows[order], row_count)


def placed(parts: Sequence[tuple[Numbers, pa.Array]], row_count: int) -> pa.Array:
    """Merges arrays of some rows each into one array of all rows: the last element given for a row, null if none is."""
    places, count = np.full(row_count, -1), 0
    for rows, _ in parts:
        places[rows] = count + np.arange(len(rows))
        count += len(rows)
    return pa.concat_arrays([array for _, array in parts]).take(as_array(places, places < 0))


def digits(numbers: npt.NDArray[np.integer[Any]]) -> pa.BinaryArray:
    """Each number as text."""
    return pc.cast(as_array(numbers), pa.string()).cast(pa.binary())
