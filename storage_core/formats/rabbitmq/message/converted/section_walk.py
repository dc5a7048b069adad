"""Reads many contents published over AMQP 1.0 at once: columns of their properties, and the spans of their bodies.

Those in an unusual form, such as with a list or map as a header, or with a footer after data sections, are left to
`amqp_content`, one by one, which returns the same for all others; `annotation_walk` reads annotations.
Source: rabbitmq.md 8, docs/format/rabbitmq-streams.md 6.1.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from storage_core.arrays import as_array, as_mask, as_scalar
from storage_core.formats.layout import Bytes, Mask, Positions, values_at
from storage_core.formats.rabbitmq.amqp import section_values, sections
from storage_core.formats.rabbitmq.amqp.section_cursor import (
    LISTS,
    MAPS,
    Elements,
    Rows,
    next_section,
    opened,
    pairs_in,
)
from storage_core.formats.rabbitmq.binary_columns import counted, digits, joined
from storage_core.formats.rabbitmq.erlang import external_term as et
from storage_core.formats.rabbitmq.erlang.binary_lists import MOST_PIECES, ItemSpans
from storage_core.formats.rabbitmq.erlang.cursor import Cursor, Steps
from storage_core.formats.rabbitmq.erlang.simple_terms import SimpleTerms, spelled_atom
from storage_core.formats.rabbitmq.message.converted import amqp_content, annotation_walk, container_view
from storage_core.formats.rabbitmq.message.converted.converted_contents import Converted
from storage_core.formats.spans import gather

_MOST_LISTED, _MOST_APPLIED = 13, 64
_SHORT_UTF8, _SHORT_SYMBOL, _SHORT_BINARY = section_values.UTF8[0], section_values.SYMBOL[0], section_values.BINARY[0]
_ALLOWED = {
    **dict.fromkeys(
        container_view.IDS,
        (_SHORT_UTF8, *section_values.ULONG, section_values.UUID, *section_values.BINARY),
    ),
    "reply_to": (_SHORT_UTF8,), "app_id": (_SHORT_UTF8,), "user_id": (_SHORT_BINARY,),
    "content_type": (_SHORT_UTF8, _SHORT_SYMBOL), "content_encoding": (_SHORT_UTF8, _SHORT_SYMBOL),
    "timestamp": (section_values.TIMESTAMP,),
}  # fmt: skip
"""Constructors of fields that are supported here, besides that of null."""


def walk(cursor: Cursor, tag: int) -> Converted:
    """Reads the contents at the cursor's positions, whose atoms have this tag, and advances past them. Rows with a
    content of another kind are not ok, and their results are undefined.
    """
    cursor.expect(bytes((et.SMALL_TUPLE, 7)) + spelled_atom(tag, amqp_content.TAG))
    noted = annotation_walk.walk(cursor, tag)
    cursor.expect(bytes((et.BINARY,)))
    start, stop = cursor.counted(">u4")
    for _ in range(2):
        place = SimpleTerms.next(cursor)
        cursor.ok &= place.is_constant_or_number | (place.tags == et.NIL)
    (at, known), (code, coded) = (SimpleTerms.next(cursor).numbers() for _ in range(2))
    cursor.ok &= known & coded & (at <= stop - start)
    inside = Cursor(cursor.buffer, start, stop)
    inside.ok &= cursor.ok
    found = Converted(len(start))
    found.add_headers(*noted)
    take_properties(inside, found)
    take_applied(inside, found)
    take_bodies(inside, found, start + at, code)
    cursor.ok &= inside.ok
    return found


def take_properties(cursor: Cursor, found: Converted) -> None:
    """Adds the fields of the properties section if it is the next one; advances past it."""
    rows = next_section(cursor, sections.PROPERTIES)
    if not len(rows):
        return
    inner, counts = opened(cursor, rows, LISTS)
    inner.ok &= counts <= _MOST_LISTED
    for number, (some, each) in enumerate(inner.rounds(counts)):
        elements = Elements(each)
        name = container_view.PROPERTY_LIST[number] if number < len(container_view.PROPERTY_LIST) else None
        if name is not None:
            each.ok &= _take_field(found, name, rows[some], elements, each)
    cursor.ok[rows] &= inner.ok & (inner.position == inner.stop)


def _take_field(found: Converted, name: str, rows: Rows, elements: Elements, cursor: Cursor) -> Mask:
    """Adds one field of some rows; returns which of them have one that is supported here."""
    right: Mask = np.isin(elements.codes, (sections.NULL, *_ALLOWED[name]))
    taken = right & cursor.ok & (elements.codes != sections.NULL)
    if name == "timestamp":
        at = np.flatnonzero(taken)
        seconds = section_values.seconds(cursor.buffer, elements.starts[at])
        found.add(name, rows[at], as_array(seconds.astype(np.int64)))
        return right
    is_number = np.isin(elements.codes, section_values.ULONG)
    if name in container_view.IDS:
        taken &= ~_take_odd_ids(found, name, rows, elements, taken)
    at = np.flatnonzero(taken & ~is_number)
    starts, stops = elements.starts[at], elements.stops[at]
    if name == "reply_to":
        starts, left = _queues(cursor.buffer, starts, stops)
        right[at[left]] = False
    found.add(name, rows[at], gather(cursor.buffer, starts, stops))
    at = np.flatnonzero(taken & is_number)
    if len(at):
        found.add(name, rows[at], digits(_ulongs(cursor.buffer, elements.codes[at], elements.starts[at])))
    return right


def _take_odd_ids(found: Converted, name: str, rows: Rows, elements: Elements, taken: Mask) -> Mask:
    """Adds ids that are uuids, and ids that are binaries, which become headers; returns which ids these are."""
    uuids: Mask = taken & (elements.codes == section_values.UUID)
    at = np.flatnonzero(uuids)
    if len(at):
        found.add(name, rows[at], section_values.uuids(elements.buffer, elements.starts[at]))
    binaries = taken & np.isin(elements.codes, section_values.BINARY)
    at = np.flatnonzero(binaries)
    if len(at):
        header = container_view.IDS[name]
        values = counted(gather(elements.buffer, elements.starts[at], elements.stops[at]), ">u4")
        found.add_headers(rows[at], joined(bytes((len(header),)) + header + b"x", values))
    odd: Mask = uuids | binaries
    return odd


def _queues(buffer: Bytes, starts: Positions, stops: Positions) -> tuple[Positions, Mask]:
    """Where the queue names in addresses begin, and other texts; and which ones are escaped and left to others."""
    head, texts = container_view.REPLY_QUEUE, gather(buffer, starts, stops)
    addressed = as_mask(pc.starts_with(texts, head))
    escaped = as_mask(pc.match_substring(texts, container_view.ESCAPE))
    return starts + len(head) * addressed, addressed & escaped


def _ulongs(buffer: Bytes, codes: Rows, starts: Positions) -> npt.NDArray[np.uint64]:
    whole, small, _ = section_values.ULONG
    wide = values_at(buffer, ">u8", starts).astype(np.uint64)
    return np.where(codes == whole, wide, np.where(codes == small, values_at(buffer, "u1", starts), np.uint64(0)))


def take_applied(cursor: Cursor, found: Converted) -> None:
    """Adds the application properties as headers if their section is the next one; advances past it."""
    rows = next_section(cursor, sections.APPLICATION_PROPERTIES)
    if not len(rows):
        return
    inner, counts = opened(cursor, rows, MAPS)
    owners, (key_starts, key_stops, *value) = pairs_in(inner, counts, _MOST_APPLIED, _SHORT_UTF8)
    values, right = section_values.header_values(cursor.buffer, *value)
    inner.ok[owners[~right]] = False
    cursor.ok[rows] &= inner.ok & (inner.position == inner.stop)
    names = counted(gather(cursor.buffer, key_starts, key_stops), "u1")
    found.add_headers(rows[owners], joined(names, values))


def take_bodies(cursor: Cursor, found: Converted, places: Positions, codes: Rows) -> None:
    """Adds the bodies: the bytes of data sections; for others all sections, which begin at `places`."""
    encoded = np.isin(codes, (sections.SEQUENCE, sections.VALUE)) & (cursor.position == places)
    found.body_starts, found.body_stops = places.copy(), cursor.stop.copy()
    whole, steps = np.zeros(len(codes), bool), Steps(len(codes))
    rows = np.flatnonzero(codes == sections.DATA)
    for _ in range(MOST_PIECES):
        data = Cursor(cursor.buffer, cursor.position[rows], cursor.stop[rows])
        data.ok &= cursor.ok[rows]
        here = next_section(data, sections.DATA)
        data, rows = Cursor(cursor.buffer, data.position[here], data.stop[here]), rows[here]
        if not len(rows):
            break
        element = Elements(data)
        data.ok &= np.isin(element.codes, section_values.BINARY)
        steps.add(rows[data.ok], element.starts[data.ok], element.stops[data.ok])
        whole[rows] = data.ok & (data.position == data.stop)
        cursor.position[rows], rows = data.position, rows[data.ok & (data.position < data.stop)]
    owners, (starts, stops) = steps.joined(2)
    firsts = np.flatnonzero(np.diff(owners, prepend=-1))
    found.body_starts[owners[firsts]] = starts[firsts]
    found.body_stops[owners[firsts]] = starts[firsts] + np.bincount(owners, stops - starts)[owners[firsts]].astype(int)
    several = np.bincount(owners, minlength=len(codes))[owners] > 1
    found.pieces = ItemSpans(owners[several], starts[several], stops[several])
    cursor.ok &= encoded | whole
    at = np.flatnonzero(encoded)
    found.add("type", at, pa.repeat(as_scalar(container_view.ENCODED), len(at)))
