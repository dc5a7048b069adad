"""Walks stream messages in lockstep: those with a header section, as nodes since 3.13 write them, or all of such nodes.

For messages that share their layout with too few others for a shape: `section_shapes` is faster. `delivered` returns
the same for each message alone. Source: docs/format/rabbitmq-streams.md 6.1.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from storage_core.arrays import as_array
from storage_core.formats.layout import Bytes, Mask, Positions, values_at
from storage_core.formats.rabbitmq.amqp import section_values, sections
from storage_core.formats.rabbitmq.amqp.properties import PERSISTENT_MODE, TRANSIENT_MODE
from storage_core.formats.rabbitmq.amqp.property_columns import encode_properties
from storage_core.formats.rabbitmq.amqp.section_cursor import (
    DESCRIPTOR_SIZE,
    LISTS,
    MAPS,
    Elements,
    Rows,
    next_section,
    opened,
    pairs_in,
    section_codes,
)
from storage_core.formats.rabbitmq.binary_columns import counted, digits, joined
from storage_core.formats.rabbitmq.erlang.cursor import Cursor
from storage_core.formats.rabbitmq.message.converted import section_walk
from storage_core.formats.rabbitmq.message.converted.annotation_walk import are_among, are_headers
from storage_core.formats.rabbitmq.message.converted.converted_contents import Converted
from storage_core.formats.rabbitmq.message.delivered_lists import with_sorted_headers
from storage_core.formats.rabbitmq.stream_queues import delivered
from storage_core.formats.spans import gather

_MOST_HEADER_FIELDS, _MOST_NOTED = 5, 32
_SHORT = (section_values.UTF8[0], section_values.SYMBOL[0])


@dataclass(frozen=True)
class Walked:
    """The parts of n messages, valid only for those that are `ok`: spans of exchanges and routing keys, shape (2, n),
    which messages have a routing key, and the rest.
    """

    ok: Mask
    exchange: Positions
    routing_key: Positions
    keyed: Mask
    content: Converted

    def property_lists(self) -> pa.BinaryArray:
        """The property lists of the messages that are ok, as a node delivers them."""
        rows = np.flatnonzero(self.ok)
        return with_sorted_headers(encode_properties(self.content.columns(rows), len(rows)))


def walk(buffer: Bytes, starts: Positions, stops: Positions, of_3_13: bool = False) -> Walked:
    """Walks the messages [start, stop) of `buffer`. `of_3_13`: see `delivered`. Never raises."""
    cursor, count = Cursor(buffer, starts, stops), len(starts)
    content, noted = Converted(count), np.zeros((4, count), np.int64)
    keyed = np.zeros(count, bool)
    _take_header(cursor, content, of_3_13)
    _take_annotations(cursor, content, noted, keyed)
    section_walk.take_properties(cursor, content)
    section_walk.take_applied(cursor, content)
    _take_bodies(cursor, content)
    ok = cursor.ok.copy()
    ok[content.pieces.rows] = False
    return Walked(ok, noted[:2], noted[2:], keyed, content)


def _take_header(cursor: Cursor, content: Converted, of_3_13: bool) -> None:
    """Reads delivery mode, priority and time to live. Messages without the section are not ok unless `of_3_13`."""
    rows = next_section(cursor, sections.HEADER)
    if not of_3_13:
        here = np.zeros(len(cursor.ok), bool)
        here[rows] = True
        cursor.ok &= here
    inner, counts = opened(cursor, rows, LISTS)
    inner.ok &= counts <= _MOST_HEADER_FIELDS
    for number, (some, each) in enumerate(inner.rounds(counts)):
        value = Elements(each)
        each.ok &= _take_header_fields(content, number, rows[some], value, each.ok)
    cursor.ok[rows] &= inner.ok & (inner.position == inner.stop)


def _take_header_fields(content: Converted, number: int, rows: Rows, value: Elements, ok: Mask) -> Mask:
    """Adds one value of the header section; returns which rows have one that is supported here."""
    codes, absent = value.codes, value.codes == sections.NULL
    if number == 0:
        known = (codes == sections.TRUE) | (codes == sections.FALSE)
        at = np.flatnonzero(ok & known)
        modes = np.where(codes[at] == sections.TRUE, PERSISTENT_MODE, TRANSIENT_MODE)
        content.add("delivery_mode", rows[at], as_array(modes))
    elif number == 1:
        known = codes == section_values.UBYTE
        at = np.flatnonzero(ok & known)
        content.add("priority", rows[at], as_array(values_at(value.buffer, "u1", value.starts[at]).astype(np.int64)))
    elif number == 2:
        known = np.isin(codes, section_values.UINT)
        at = np.flatnonzero(ok & known)
        whole, small, _ = section_values.UINT
        wide = values_at(value.buffer, ">u4", value.starts[at]).astype(np.int64)
        narrow = np.where(codes[at] == small, values_at(value.buffer, "u1", value.starts[at]), 0)
        content.add("expiration", rows[at], digits(np.where(codes[at] == whole, wide, narrow)))
    else:
        known = ok
    found: Mask = known | absent
    return found


def _take_annotations(cursor: Cursor, content: Converted, noted: Positions, keyed: Mask) -> None:
    """Reads exchange, routing key, type and headers."""
    rows = next_section(cursor, sections.MESSAGE_ANNOTATIONS)
    if not len(rows):
        return
    inner, counts = opened(cursor, rows, MAPS)
    owners, (key_starts, key_stops, codes, starts, stops) = pairs_in(
        inner, counts, _MOST_NOTED, section_values.SYMBOL[0]
    )
    shown, right = are_headers(cursor.buffer, key_starts, key_stops)
    short, taken = np.isin(codes, _SHORT), np.zeros(len(owners), bool)
    for place, name in enumerate((delivered.EXCHANGE, delivered.ROUTING_KEY, delivered.TYPE)):
        mine = are_among(cursor.buffer, key_starts, key_stops, (name,))
        at = np.flatnonzero(mine)
        # If a name occurs twice, the first one counts; such messages are left to `delivered`.
        right[at] = short[at] & (np.bincount(owners[at], minlength=len(rows))[owners[at]] == 1)
        taken |= mine
        at = at[right[at]]
        if name == delivered.TYPE:
            content.add("type", rows[owners[at]], gather(cursor.buffer, starts[at], stops[at]))
        else:
            noted[2 * place, rows[owners[at]]], noted[2 * place + 1, rows[owners[at]]] = starts[at], stops[at]
            keyed[rows[owners[at]]] |= name == delivered.ROUTING_KEY
    at = np.flatnonzero(shown & ~taken)
    values, known = section_values.header_values(cursor.buffer, codes[at], starts[at], stops[at])
    right[at] &= known
    inner.ok[owners[~right]] = False
    cursor.ok[rows] &= inner.ok & (inner.position == inner.stop)
    names = counted(gather(cursor.buffer, key_starts[at], key_stops[at]), "u1")
    content.add_headers(rows[owners[at]], joined(names, values))


def _take_bodies(cursor: Cursor, content: Converted) -> None:
    """Reads the body: data sections, or a value section as a whole."""
    codes = section_codes(cursor)
    cursor.ok &= (codes == sections.DATA) | (codes == sections.VALUE)
    rows = np.flatnonzero(cursor.ok & (codes == sections.VALUE))
    value = Cursor(cursor.buffer, cursor.position[rows] + DESCRIPTOR_SIZE, cursor.stop[rows])
    Elements(value)
    section_walk.take_bodies(cursor, content, cursor.position.copy(), codes)
    cursor.ok[rows] &= value.ok & (value.position == value.stop)
