"""Reads AMQP 1.0 sections of many messages at once: the next section, the contents of a list or map, the next value.

`sections` reads a single message. Source: docs/format/rabbitmq-streams.md 6.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from storage_core.formats.layout import values_at
from storage_core.formats.rabbitmq.amqp import section_values, sections
from storage_core.formats.rabbitmq.erlang.cursor import Cursor, Steps

Rows = npt.NDArray[np.int64]
_SIZES, _LENGTH_SIZES, _KNOWN = np.zeros(256, np.int64), np.zeros(256, np.int64), np.zeros(256, bool)
for _code in (*sections.NUMBERS, *sections.CONSTANTS, *sections.TEXTS):
    _KNOWN[_code] = True
    _SIZES[_code] = sections.FIXED_SIZES.get(_code >> 4, 0)
    _LENGTH_SIZES[_code] = sections.LENGTH_SIZES.get(_code >> 4, 0)
_DESCRIPTOR = bytes((sections.DESCRIBED, section_values.ULONG[1]))
DESCRIPTOR_SIZE = len(_DESCRIPTOR) + 1
LISTS, MAPS = dict(zip(sections.LISTS[1:], (1, 4), strict=True)), dict(zip(sections.MAPS, (1, 4), strict=True))
"""Bytes of the size and count fields, by constructor."""


class Elements:
    """The next value of many rows: its constructor, and the span of its bytes without the length prefix. Rows whose
    value is a list, a map or an array are not ok.
    """

    def __init__(self, cursor: Cursor) -> None:
        self.buffer, self.codes = cursor.buffer, cursor.number("u1")
        cursor.ok &= _KNOWN[self.codes]
        lengths, sizes = _LENGTH_SIZES[self.codes], _SIZES[self.codes].copy()
        for width, kind in ((1, "u1"), (4, ">u4")):
            rows = np.flatnonzero(lengths == width)
            sizes[rows] = values_at(cursor.buffer, kind, cursor.position[rows])
        cursor.move(lengths)
        self.starts = cursor.position
        cursor.move(sizes)
        self.stops = cursor.position


def section_codes(cursor: Cursor) -> Rows:
    """The number of each row's next section if its descriptor is a number of one byte, else 0."""
    here = cursor.at(f"S{len(_DESCRIPTOR)}", cursor.position) == _DESCRIPTOR
    here &= cursor.ok & (cursor.position + DESCRIPTOR_SIZE <= cursor.stop)
    return np.where(here, cursor.at("u1", cursor.position + len(_DESCRIPTOR)), 0).astype(np.int64)


def next_section(cursor: Cursor, code: int) -> Rows:
    """The rows whose next section has this number; advances those rows past its descriptor."""
    here = section_codes(cursor) == code
    cursor.move(np.where(here, DESCRIPTOR_SIZE, 0))
    return np.flatnonzero(here)


def opened(cursor: Cursor, rows: Rows, sizes: dict[int, int]) -> tuple[Cursor, Rows]:
    """A cursor over the contents of the lists or maps of some rows, and the counts of the values in them; advances past
    the lists or maps. `sizes`: LISTS or MAPS.
    """
    inner = Cursor(cursor.buffer, cursor.position[rows], cursor.stop[rows])
    codes = inner.number("u1")
    counts, right = np.zeros(len(rows), np.int64), codes == sections.LIST_0
    right &= sections.LIST_8 in sizes
    ends = inner.position.copy()
    for code, width in sizes.items():
        some = np.flatnonzero(codes == code)
        kind = "u1" if width == 1 else ">u4"
        ends[some] += width + values_at(cursor.buffer, kind, inner.position[some]).astype(np.int64)
        counts[some] = values_at(cursor.buffer, kind, inner.position[some] + width)
        inner.position[some] += 2 * width
        right[some] = True
    inner.ok &= right & (inner.position <= ends) & (ends <= inner.stop)
    inner.stop = np.minimum(ends, inner.stop)
    cursor.ok[rows] &= inner.ok
    cursor.position[rows] = inner.stop
    return inner, counts


def pairs_in(inner: Cursor, counts: Rows, most: int, key_code: int) -> tuple[Rows, list[Rows]]:
    """The pairs in maps that were opened, in order: the row of each pair, starts and stops of keys, constructors of
    values, starts and stops of values. Advances past the pairs. Rows with more than `most` pairs, or with a key of
    another constructor, are not ok.
    """
    inner.ok &= (counts <= 2 * most) & (counts % 2 == 0)
    steps = Steps(len(counts))
    for some, each in inner.rounds(counts // 2):
        key, value = Elements(each), Elements(each)
        each.ok &= key.codes == key_code
        columns = (key.starts, key.stops, value.codes, value.starts, value.stops)
        steps.add(some[each.ok], *(column[each.ok] for column in columns))
    return steps.joined(5)
