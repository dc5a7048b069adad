"""Checks the properties of many messages, and makes what a store keeps of them, in one pass each.

The rules are documented at the numpy twins in `property_pairs`. No loop reads or writes outside the arrays that it is
given, and the columns whose addresses and lengths it is given.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from numba import njit, types

from storage_core.arrays import as_mask
from storage_core.compiled.calls import copy_from, differ, int32_at, int64_at
from storage_core.compiled.span_loops import (
    BYTES,
    NUMBERS,
    NUMBERS_OF_ALL,
    OUT_BYTES,
    OUT_NUMBERS,
    OUT_POSITIONS,
    OUT_POSITIONS_OF_ALL,
    POSITIONS,
    POSITIONS_OF_ALL,
    Numbers,
)
from storage_core.formats.layout import Bytes, Mask, Positions
from storage_core.formats.rocketmq.properties import KEYS, NAME_END, PAIR_END, TAGS, UNIQ_KEY
from storage_core.formats.spans import data_of, offsets_of

MASKS_OF_ALL = types.Array(types.boolean, 2, "C", readonly=True)
OWN = (KEYS, TAGS, UNIQ_KEY)
OWN_NAMES = np.frombuffer("".join(OWN).encode(), np.uint8)
OWN_BOUNDS = np.cumsum([0, *map(len, OWN)], dtype=np.int64)
KEYS_WORD, TAGS_WORD, UNIQ_KEY_WORD = (int.from_bytes(name.encode(), "big") for name in OWN)
SPACE, HASH_SIGN, NOT_ASCII, LOWEST = 0x20, ord("#"), 0x80, np.int32(-(1 << 31))
MOST = 0x7FFFFFFF


def look(names: pa.StringArray, values: pa.StringArray, known: Sequence[str]) -> tuple[bool, list[bool]]:
    """`PairColumn.look`. Raises ValueError if a text lies outside its column."""
    bounds = np.cumsum([0, *(len(name.encode()) for name in known)], dtype=np.int64)
    texts, found = np.frombuffer("".join(known).encode(), np.uint8), np.zeros(len(known), bool)
    columns = data_of(names), offsets_of(names), data_of(values), offsets_of(values)
    plain = _look(*columns, texts, bounds, found)
    if plain < 0:
        raise ValueError("a text lies outside of its column")
    return plain > 0, found.tolist()


def stored(
    names: pa.StringArray, values: pa.StringArray, bounds: Numbers, texts: Sequence[pa.StringArray], before: Numbers
) -> tuple[pa.BinaryArray, Positions, Numbers, Positions] | None:
    """The parts of `property_pairs.Stored`; None if the twin in numpy must make them.

    `texts`: those of KEYS, TAGS and UNIQ_KEY; `before`: the hash of each message's topic and `#`.
    """
    count, columns = len(before), (*texts, names, values)
    starts = np.array([offsets_of(column) for column in texts], np.int32).reshape(len(OWN), count + 1)
    valid = np.array([as_mask(column.is_valid()) for column in texts], bool).reshape(len(OWN), count)
    sizes = sum(int(offsets_of(column)[-1]) - int(offsets_of(column)[0]) for column in columns)
    most = sizes + 2 * len(names) + (len(OWN_NAMES) + 2 * len(OWN)) * count
    out, offsets = np.empty(min(most, MOST), np.uint8), np.empty(count + 1, np.int32)
    begins, ends = (np.empty((len(OWN), count), np.int64) for _ in range(2))
    data = [data_of(column) for column in columns]
    size = _write_pairs(
        data[-2], offsets_of(names), offsets_of(values), np.ascontiguousarray(bounds, np.int32),
        np.array([each.ctypes.data for each in data], np.int64), np.array([len(each) for each in data], np.int64),
        starts, valid, OWN_NAMES.ctypes.data, OWN_BOUNDS, out, offsets, begins, ends,
    )  # fmt: skip
    if size < 0:
        return None
    counts, codes = np.empty(count, np.int64), np.empty(count, np.int64)
    hashes = np.empty(count + int(((ends[0] - begins[0] + 1) // 2).sum()), np.int32)
    total = _hash_all(out, begins, ends, np.ascontiguousarray(before, np.int32), counts, hashes, codes)
    if total < 0:
        return None
    parts = [None, pa.py_buffer(offsets), pa.py_buffer(out[:size])]
    return pa.BinaryArray.from_buffers(pa.binary(), count, parts), counts, hashes[:total], codes


@njit(types.int64(BYTES, NUMBERS, BYTES, NUMBERS, BYTES, POSITIONS, types.boolean[::1]), nogil=True, cache=True)
def _look(
    names: Bytes, name_bounds: Numbers, values: Bytes, value_bounds: Numbers, known: Bytes, known_bounds: Positions,
    found: Mask,
) -> int:  # fmt: skip
    """1 if all can be stored unchanged, 0 if not; -1 if a text lies outside its column."""
    bad = False
    for pair in range(len(name_bounds) - 1):
        name, name_stop = np.int64(name_bounds[pair]), np.int64(name_bounds[pair + 1])
        value, value_stop = np.int64(value_bounds[pair]), np.int64(value_bounds[pair + 1])
        if not 0 <= name <= name_stop <= len(names) or not 0 <= value <= value_stop <= len(values):
            return -1
        bad |= name == name_stop or value == value_stop
        for at in range(name, name_stop):
            bad |= names[at] == NAME_END or names[at] == PAIR_END
        for at in range(value, value_stop):
            bad |= values[at] == NAME_END or values[at] == PAIR_END
        for number in range(len(found)):
            own, size = known_bounds[number], known_bounds[number + 1] - known_bounds[number]
            if size == name_stop - name and differ(names, name, known, own, size) == 0:
                found[number] = True
    return 0 if bad else 1


@njit(inline="always")
def _number_of(names: Bytes, at: int, size: int) -> int:
    """The index of a name in OWN; -1 for any other name."""
    if size == 4:
        word = int32_at(names, at)
        return 0 if word == KEYS_WORD else 1 if word == TAGS_WORD else -1
    return 2 if size == 8 and int64_at(names, at) == UNIQ_KEY_WORD else -1


@njit(inline="always")
def _put(out: Bytes, at: int, first: int, name: int, size: int, value: int, value_size: int) -> int:
    """Writes a pair, given by addresses, of the message that begins at `first`. Returns its end, -1 without room."""
    if at + size + value_size + 2 > len(out):
        return -1
    if at > first:
        out[at] = PAIR_END
        at += 1
    copy_from(out, at, name, size)
    out[at + size] = NAME_END
    copy_from(out, at + size + 1, value, value_size)
    return at + size + 1 + value_size


@njit(
    types.int64(
        BYTES, NUMBERS, NUMBERS, NUMBERS, POSITIONS, POSITIONS, NUMBERS_OF_ALL, MASKS_OF_ALL, types.int64, POSITIONS,
        OUT_BYTES, OUT_NUMBERS, OUT_POSITIONS_OF_ALL, OUT_POSITIONS_OF_ALL,
    ),
    nogil=True,
    cache=True,
)  # fmt: skip
def _write_pairs(
    names: Bytes, name_bounds: Numbers, value_bounds: Numbers, bounds: Numbers, addresses: Positions,
    lengths: Positions, starts: Numbers, valid: Mask, own_address: int, own_bounds: Positions, out: Bytes,
    offsets: Numbers, begins: Positions, ends: Positions,
) -> int:  # fmt: skip
    """Returns the number of bytes written; -1 if they do not fit, or a text lies outside its column.

    `addresses` and `lengths`: of the texts of OWN, of all names and all values. `begins` and `ends`: the position in
    `out` of the last value of each of OWN, [0, 0) if a message has none.
    """
    at = 0
    own, pairs = len(valid), min(len(name_bounds), len(value_bounds)) - 1
    for row in range(len(bounds) - 1):
        offsets[row] = first = at
        begins[:, row] = ends[:, row] = 0
        start, stop = int(bounds[row]), int(bounds[row + 1])
        if not 0 <= start <= stop <= pairs:
            return -1
        # The pairs are followed by those of OWN that are not among them.
        for pair in range(start, stop + own):
            number, column = pair - stop, own + 1
            name, size, value, value_stop = own_address, 0, 0, 0
            if number >= 0:
                if begins[number, row] or not valid[number, row]:
                    continue
                name, size = name + own_bounds[number], own_bounds[number + 1] - own_bounds[number]
            else:
                name, size = int(name_bounds[pair]), int(name_bounds[pair + 1]) - int(name_bounds[pair])
                value, value_stop = int(value_bounds[pair]), int(value_bounds[pair + 1])
                if not 0 <= name <= name + size <= len(names):
                    return -1
                number = _number_of(names, name, size)
                name += addresses[own]
            if pair >= stop or (0 <= number < own - 1 and valid[number, row]):
                column, value, value_stop = number, int(starts[number, row]), int(starts[number, row + 1])
            if not 0 <= value <= value_stop <= lengths[column]:
                return -1
            at = _put(out, at, first, name, size, addresses[column] + value, value_stop - value)
            if at < 0:
                return -1
            if number >= 0:
                begins[number, row], ends[number, row] = at - (value_stop - value), at
    offsets[len(bounds) - 1] = at
    return at


@njit(inline="always")
def _hash(data: Bytes, start: int, stop: int, before: int) -> tuple[np.int32, bool]:
    """Java's hash of ASCII text after a prefix with the hash `before`, and whether the text is ASCII."""
    value, seen, at = np.uint32(before), np.uint32(0), start
    while at + 4 <= stop:
        # Four steps of 31 * hash + byte at once, so that none waits for another.
        one, two, three, four = (
            np.uint32(data[at]),
            np.uint32(data[at + 1]),
            np.uint32(data[at + 2]),
            np.uint32(data[at + 3]),
        )
        part = np.uint32(one * np.uint32(29791) + two * np.uint32(961) + three * np.uint32(31) + four)
        value = np.uint32(value * np.uint32(923521) + part)
        seen |= one | two | three | four
        at += 4
    while at < stop:
        value = np.uint32(value * np.uint32(31) + np.uint32(data[at]))
        seen |= np.uint32(data[at])
        at += 1
    return np.int32(value), bool(seen < NOT_ASCII)


@njit(inline="always")
def _of_key(value: np.int32) -> np.int32:
    """The hash under which a key is indexed."""
    return np.int32(0) if value == LOWEST else np.int32(abs(value))


@njit(
    types.int64(
        BYTES, POSITIONS_OF_ALL, POSITIONS_OF_ALL, NUMBERS, OUT_POSITIONS, OUT_NUMBERS, OUT_POSITIONS,
    ),
    nogil=True,
    cache=True,
)  # fmt: skip
def _hash_all(
    data: Bytes, begins: Positions, ends: Positions, before: Numbers, counts: Positions, hashes: Numbers,
    codes: Positions,
) -> int:  # fmt: skip
    """Returns the number of hashes; -1 if a text is not ASCII."""
    total, plain = 0, True
    for row in range(len(before)):
        first = total
        codes[row], is_ascii = _hash(data, begins[1, row], ends[1, row], np.int32(0))
        plain &= is_ascii
        if begins[2, row]:
            value, is_ascii = _hash(data, begins[2, row], ends[2, row], before[row])
            hashes[total] = _of_key(value)
            plain &= is_ascii
            total += 1
        word, stop = begins[0, row], ends[0, row]
        while word < stop:
            end = word
            while end < stop and data[end] != SPACE:
                end += 1
            if word < end:
                value, is_ascii = _hash(data, word, end, before[row])
                hashes[total] = _of_key(value)
                plain &= is_ascii
                total += 1
            word = end + 1
        counts[row] = total - first
        if not plain:
            return -1
    return total
