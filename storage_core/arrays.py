"""Conversion of numpy arrays, bytes and texts to Arrow arrays, and back.

`pa.array`, `pa.scalar` and `to_numpy` load pandas if it is installed, which costs each process 60 MB and a third of a
second.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Mask = npt.NDArray[np.bool_]
LARGEST_OFFSET = 0x7FFFFFFF
NUMPY_TYPES = {pa.from_numpy_dtype(np.dtype(kind)): np.dtype(kind) for kind in np.typecodes["AllInteger"] + "fd"}
"""The types of numbers. `to_pandas_dtype` needs pandas in PyArrow before 24."""


def as_array(values: npt.NDArray[Any], mask: Mask | None = None) -> pa.Array:
    """Native-endian numbers or booleans as an array, null where `mask` is true. Contiguous numbers are not copied."""
    count = len(values)
    kind = pa.bool_() if values.dtype == bool else pa.from_numpy_dtype(values.dtype)
    data = _bits(values) if values.dtype == bool else pa.py_buffer(np.ascontiguousarray(values))
    valid = _bits(~mask) if mask is not None and mask.any() else None
    return pa.Array.from_buffers(kind, count, [valid, data])


def as_numbers(array: pa.Array) -> npt.NDArray[Any]:
    """The numbers of an array without nulls, not copied."""
    kind = NUMPY_TYPES[array.type]
    return np.frombuffer(array.buffers()[1] or b"", kind, len(array), array.offset * kind.itemsize)


def as_mask(found: pa.BooleanArray) -> Mask:
    """Booleans as a numpy array; null becomes false."""
    known = found.fill_null(_FALSE) if found.null_count else found
    bits = np.frombuffer(known.buffers()[1] or b"", np.uint8)
    return np.unpackbits(bits, count=known.offset + len(known), bitorder="little")[known.offset :].astype(bool)


def bytes_array(values: Sequence[bytes | memoryview | None]) -> pa.BinaryArray:
    """The values as a binary array. Raises ValueError when they are 2 GiB or more in total."""
    offsets = np.cumsum([0, *(0 if value is None else len(value) for value in values)])
    if offsets[-1] > LARGEST_OFFSET:
        raise ValueError("the values are larger than 2 GiB")
    present = np.array([value is not None for value in values], bool)
    valid = None if present.all() else _bits(present)
    data = bytearray().join(value for value in values if value is not None)
    buffers = [valid, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(data)]
    return pa.BinaryArray.from_buffers(pa.binary(), len(values), buffers)


def text_array(texts: Iterable[str | None]) -> pa.StringArray:
    """The same for texts."""
    return bytes_array([None if text is None else text.encode() for text in texts]).view(pa.string())


def as_scalar(value: bytes | str) -> pa.BinaryScalar | pa.StringScalar:
    """A scalar, for a value that is the same in every row."""
    return (text_array([value]) if isinstance(value, str) else bytes_array([value]))[0]


NO_BYTES = as_scalar(b"")
"""Fills a column of bytes."""


def _bits(values: Mask) -> pa.Buffer:
    return pa.py_buffer(np.packbits(values, bitorder="little"))


_FALSE = as_array(np.zeros(1, bool))[0]
