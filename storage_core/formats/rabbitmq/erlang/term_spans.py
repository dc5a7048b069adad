"""Locates the parts of one external term without decoding them: its end, the elements of a tuple, list or map.

Source: the "External Term Format" chapter of Erlang's ERTS reference.
"""

from __future__ import annotations

import struct

from storage_core.errors import FormatError
from storage_core.formats.rabbitmq.erlang import external_term as et

_U16, _U32 = struct.Struct(">H"), struct.Struct(">I")
_FIXED = {et.SMALL_INTEGER: 2, et.INTEGER: 5, et.NEW_FLOAT: 9, et.FLOAT_TEXT: 32, et.NIL: 1}
_SMALL = {et.SMALL_ATOM: 2, et.SMALL_ATOM_UTF8: 2, et.SMALL_BIG: 3}
_SHORT = {et.ATOM: 3, et.ATOM_UTF8: 3, et.STRING: 3}
_LONG = {et.BINARY: 5, et.LARGE_BIG: 6, et.BIT_BINARY: 6}
_NODE_TAILS = {103: 9, 88: 12, 102: 5, 89: 8, 120: 12, 101: 5}
_REFERENCES = {114: 1, 90: 4}


def end_of(data: bytes, at: int) -> int:
    """The position after the term at `at`, which has no version byte. Raises FormatError if it is cut or unknown."""
    try:
        pending = 1
        while pending:
            pending -= 1
            at, more = _step(data, at)
            pending += more
    except (struct.error, IndexError):
        raise FormatError(at, "the term is cut") from None
    if at > len(data):
        raise FormatError(at, "the term is cut")
    return at


def _step(data: bytes, at: int) -> tuple[int, int]:
    """The position after one tag and its own bytes, and the number of terms that belong to it."""
    tag = data[at]
    if tag in _FIXED:
        return at + _FIXED[tag], 0
    if tag in _SMALL:
        return at + _SMALL[tag] + data[at + 1], 0
    if tag in _SHORT:
        return at + _SHORT[tag] + int(_U16.unpack_from(data, at + 1)[0]), 0
    if tag in _LONG:
        return at + _LONG[tag] + int(_U32.unpack_from(data, at + 1)[0]), 0
    if tag == et.SMALL_TUPLE:
        return at + 2, data[at + 1]
    count = int(_U32.unpack_from(data, at + 1)[0]) if tag in {et.LARGE_TUPLE, et.LIST, et.MAP} else 0
    if count > len(data):
        raise FormatError(at, f"{count} elements in {len(data) - at} bytes")
    if tag == et.LARGE_TUPLE:
        return at + 5, count
    if tag == et.LIST:
        return at + 5, count + 1
    if tag == et.MAP:
        return at + 5, 2 * count
    if tag in _NODE_TAILS:
        return end_of(data, at + 1) + _NODE_TAILS[tag], 0
    if tag in _REFERENCES:
        words = int(_U16.unpack_from(data, at + 1)[0])
        return end_of(data, at + 3) + _REFERENCES[tag] + 4 * words, 0
    raise FormatError(at, f"unknown term tag {tag}")


def elements(data: bytes, at: int) -> list[tuple[int, int]]:
    """Spans of the elements of the small tuple at `at`. Raises FormatError if there is none."""
    if at + 2 > len(data) or data[at] != et.SMALL_TUPLE:
        raise FormatError(at, "a tuple expected")
    found = []
    start = at + 2
    for _ in range(data[at + 1]):
        stop = end_of(data, start)
        found.append((start, stop))
        start = stop
    return found


def atom_at(data: bytes, at: int) -> bytes:
    """The name of the atom at `at`, in its own encoding; empty for any other term."""
    tag = data[at]
    if tag in {et.ATOM, et.ATOM_UTF8}:
        return data[at + 3 : at + 3 + int(_U16.unpack_from(data, at + 1)[0])]
    return data[at + 2 : at + 2 + data[at + 1]] if tag in {et.SMALL_ATOM, et.SMALL_ATOM_UTF8} else b""


def items(data: bytes, at: int) -> list[tuple[int, int]]:
    """Spans of the elements of the proper list, or of the keys and values of the map, at `at`. Raises FormatError."""
    if data[at : at + 1] == bytes((et.NIL,)):
        return []
    if data[at : at + 1] not in {bytes((et.LIST,)), bytes((et.MAP,))} or at + 5 > len(data):
        raise FormatError(at, "a list or map expected")
    is_map = data[at] == et.MAP
    found, start = [], at + 5
    for _ in range(int(_U32.unpack_from(data, at + 1)[0]) << is_map):
        stop = end_of(data, start)
        found.append((start, stop))
        start = stop
    if not is_map and data[start : start + 1] != bytes((et.NIL,)):
        raise FormatError(start, "the list has a tail")
    return found
