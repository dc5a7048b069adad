"""Fixed-size layouts: a format is declared once here and gathered anywhere.

`struct()` turns named big-endian fields into a numpy dtype that must add up to the declared size. What the fields
mean for a message belongs to the page that declares them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from storage_core.errors import FormatError

Bytes = npt.NDArray[np.uint8]
Positions = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Field:
    """One field of a struct: its name here, its type on disk (a numpy string such as `>i8`), what it means."""

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
        """The field called `name`; KeyError when there is none."""
        for field in self.fields:
            if field.name == name:
                return field
        raise KeyError(name)

    def at(self, buffer: Bytes, positions: Positions) -> npt.NDArray[Any]:
        """Structs at scattered positions, still in disk byte order. Shape (n,).

        Raises FormatError when a struct would reach outside the buffer.
        """
        return structs_at(buffer, self.dtype, positions)

    def all(self, buffer: Bytes) -> npt.NDArray[Any]:
        """Every whole struct of a buffer that holds nothing else, without a copy. Shape (len // size,)."""
        count = len(buffer) // self.size
        return buffer[: count * self.size].view(self.dtype)

    def table(self) -> str:
        """The layout as a Markdown table, as the pages in `docs/format/` show it."""
        rows = [f"| {f.offset} | {f.width} | `{f.name}` | {f.meaning} |" for f in self.fields]
        return "\n".join(["| offset | width | field | meaning |", "|---|---|---|---|", *rows])


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


def structs_at(buffer: Bytes, dtype: np.dtype[Any], positions: Positions) -> npt.NDArray[Any]:
    """Gathers one `dtype` at each position of `buffer` (uint8). Shape (n,), disk byte order, a copy.

    Raises FormatError at the first position whose struct does not lie inside the buffer.
    """
    reach = len(buffer) - dtype.itemsize
    if len(positions):
        low, high = int(positions.min()), int(positions.max())
        if low < 0 or high > reach:
            worst = low if low < 0 else high
            raise FormatError(worst, f"{dtype.itemsize} bytes wanted, the buffer holds {len(buffer)}")
    elif reach < 0:
        return np.empty(0, dtype)
    view: npt.NDArray[Any] = np.ndarray((reach + 1,), dtype, buffer, strides=(1,))
    return view[positions]
