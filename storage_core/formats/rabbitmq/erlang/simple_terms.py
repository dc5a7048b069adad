"""Reads the next term of many rows at once: atoms, binaries, integers and lists of binaries.

Source: the "External Term Format" chapter of Erlang's ERTS reference.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from storage_core.formats.layout import Mask, values_at
from storage_core.formats.rabbitmq.erlang import external_term as et
from storage_core.formats.rabbitmq.erlang.binary_lists import binaries
from storage_core.formats.rabbitmq.erlang.cursor import Cursor

_WORD = 8
MOST_NUMBER = 7
"""Bytes of the largest number that is supported."""


class SimpleTerms:
    """The tags of n terms, and the spans of their bytes, without a length prefix and without a number's sign.

    For lists also the items, whose rows are `item_rows`, ascending; a list's own span is empty.
    """

    def __init__(self, cursor: Cursor) -> None:
        self.buffer, self.tags = cursor.buffer, cursor.number("u1")
        heads, at = _HEAD_SIZES[self.tags], cursor.position
        self.sizes = _FIXED_SIZES[self.tags].copy()
        for width, kind in ((1, "u1"), (2, ">u2"), (4, ">u4")):
            rows = np.flatnonzero(heads == width)
            self.sizes[rows] = values_at(self.buffer, kind, at[rows])
        self.starts = at + heads + (self.tags == et.SMALL_BIG)
        self.stops = self.starts + self.sizes

    @classmethod
    def next(cls, cursor: Cursor) -> SimpleTerms:
        """Reads the terms and advances past them; rows with a term of another kind are not ok."""
        found = cls(cursor)
        found._move(cursor)
        return found

    def _move(self, cursor: Cursor) -> None:
        self.is_list = (self.tags == et.LIST) | (self.tags == et.NIL)
        cursor.ok &= _KNOWN[self.tags]
        rows = np.flatnonzero(self.is_list)
        before = cursor.position
        cursor.position = self.stops
        self.item_rows = self.item_starts = self.item_stops = rows[:0]
        if len(rows):
            inner = Cursor(cursor.buffer, before[rows] - 1, cursor.stop[rows])
            items = binaries(inner)
            self.item_rows, self.item_starts, self.item_stops = rows[items.rows], items.starts, items.stops
            cursor.ok[rows] &= inner.ok
            cursor.position[rows] = inner.position
        cursor.ok &= cursor.position <= cursor.stop

    @property
    def is_atom(self) -> Mask:
        """Which terms are atoms."""
        found: Mask = _IS_ATOM[self.tags]
        return found

    @property
    def is_binary(self) -> Mask:
        """Which terms are binaries."""
        found: Mask = self.tags == et.BINARY
        return found

    def is_named(self, name: str) -> Mask:
        """Which terms are the atom `name`."""
        text = name.encode()
        found: Mask = self.is_atom & (self.sizes == len(text))
        found &= values_at(self.buffer, f"S{len(text)}", self.starts) == text
        return found

    @property
    def is_constant_or_number(self) -> Mask:
        """Which terms are true, false or undefined, or a number that `numbers` supports."""
        return self.numbers()[1] | self.is_named("true") | self.is_named("false") | self.is_named("undefined")

    def words(self) -> npt.NDArray[np.int64]:
        """The first bytes of each term, at most eight, as a big-endian number."""
        size = np.clip(self.sizes, 1, _WORD)
        at = np.minimum(self.starts, len(self.buffer) - _WORD)
        words = values_at(self.buffer, ">u8", at) << _bits(self.starts - at)
        found: npt.NDArray[np.int64] = np.where(self.sizes > 0, words >> _bits(_WORD - size), 0).astype(np.int64)
        return found

    def integers(self) -> tuple[npt.NDArray[np.int64], Mask]:
        """Each term as an integer, and which terms are integers of at most seven bytes."""
        small, wide, big = (self.tags == tag for tag in (et.SMALL_INTEGER, et.INTEGER, et.SMALL_BIG))
        found = np.where(wide, values_at(self.buffer, ">i4", self.starts), values_at(self.buffer, "u1", self.starts))
        at = np.minimum(self.starts, len(self.buffer) - _WORD)
        words = values_at(self.buffer, "<u8", at) >> _bits(self.starts - at)
        size = np.clip(self.sizes, 0, MOST_NUMBER)
        words &= (np.uint64(1) << _bits(size)) - np.uint64(1)
        negative = values_at(self.buffer, "u1", self.starts - 1) != 0
        signed = words.astype(np.int64)
        found = np.where(big, np.where(negative, -signed, signed), found)
        return found, small | wide | (big & (self.sizes <= MOST_NUMBER))

    def numbers(self) -> tuple[npt.NDArray[np.int64], Mask]:
        """Each term as an integer, and which terms are such integers and not negative."""
        found, whole = self.integers()
        return found, whole & (found >= 0)


def spelled_atom(tag: int, name: str) -> bytes:
    """The bytes of an atom with this tag and an ASCII name."""
    return bytes((tag,)) + len(name).to_bytes(int(_HEAD_SIZES[tag]), "big") + name.encode()


def _bits(size: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
    return (np.clip(size, 0, _WORD - 1) * 8).astype(np.uint64)


def _table(sizes: dict[int, int]) -> npt.NDArray[np.int64]:
    """A table of numbers by tag, zero for all other tags."""
    found = np.zeros(256, np.int64)
    found[[*sizes]] = [*sizes.values()]
    return found


_ATOM_TAGS = (et.SMALL_ATOM_UTF8, et.SMALL_ATOM, et.ATOM, et.ATOM_UTF8)
_IS_ATOM = _table(dict.fromkeys(_ATOM_TAGS, 1)).astype(bool)
_HEAD_SIZES = _table(dict(zip(_ATOM_TAGS, (1, 1, 2, 2), strict=True)) | {et.BINARY: 4, et.SMALL_BIG: 1})
"""Bytes of the length field, by tag."""
_FIXED_SIZES = _table({et.SMALL_INTEGER: 1, et.INTEGER: 4})
_KNOWN = (_HEAD_SIZES + _FIXED_SIZES + _table({et.LIST: 1, et.NIL: 1})).astype(bool)
