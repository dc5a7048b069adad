"""Fixed-size layouts: a format is declared once, and its structs and numbers are read anywhere in a buffer.

`struct()` turns named fields into a numpy dtype, whose widths must add up to the declared size. The meaning of the
fields is up to the module that declares them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Positions = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Field:
    """One field of a struct: its name here, its type on disk (a numpy string such as `>i8`), its meaning."""

    name: str
    disk: str
    meaning: str
    offset: int

    @property
    def width(self) -> int:
        """Width on disk, in bytes."""
        return np.dtype(self.disk).itemsize

    @cached_property
    def memory(self) -> np.dtype[Any]:
        """The native-endian type of the decoded column."""
        return np.dtype(self.disk).newbyteorder("=")


@dataclass(frozen=True)
class Struct:
    """A fixed-size layout on disk."""

    name: str
    size: int
    fields: tuple[Field, ...]
    dtype: np.dtype[Any]

    def field(self, name: str) -> Field:
        """The field called `name`. Raises KeyError if there is none."""
        for field in self.fields:
            if field.name == name:
                return field
        raise KeyError(name)

    def all(self, buffer: Bytes) -> npt.NDArray[Any]:
        """Every whole struct of a buffer of consecutive structs, without a copy. Shape (len // size,)."""
        count = len(buffer) // self.size
        return buffer[: count * self.size].view(self.dtype)


def struct(name: str, *fields: tuple[str, str, str], size: int) -> Struct:
    """Declares a layout of fields (name, disk type, meaning); AssertionError at import when widths do not add up."""
    offset = 0
    placed = []
    for field_name, disk, meaning in fields:
        placed.append(Field(field_name, disk, meaning, offset))
        offset += np.dtype(disk).itemsize
    if offset != size:
        raise AssertionError(f"struct {name}: fields take {offset} bytes, declared {size}")
    return Struct(name, size, tuple(placed), np.dtype([(f.name, f.disk) for f in placed]))


def values_at(buffer: Bytes, dtype: str, positions: Positions) -> npt.NDArray[Any]:
    """One value of `dtype` at each position, in disk byte order; positions outside the buffer are clamped.

    For numbers and short texts. Shape (n,); zeros if the buffer is too short for one value.
    """
    kind = np.dtype(dtype)
    reach = len(buffer) - kind.itemsize
    if reach < 0:
        return np.zeros(len(positions), kind)
    view: npt.NDArray[Any] = np.ndarray((reach + 1,), kind, buffer, strides=(1,))
    if len(positions) and (positions.min() < 0 or positions.max() > reach):
        positions = np.clip(positions, 0, reach)
    return view[positions]
