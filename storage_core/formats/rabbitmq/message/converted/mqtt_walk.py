"""Reads many contents published over MQTT at once: columns of their properties, and the spans of their bodies.

Those whose payload is in pieces, or that have very many properties, are left to `mqtt_content`, one by one, which
returns the same for all others. Source: rabbitmq.md 8.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage_core.arrays import as_array, as_numbers
from storage_core.formats.layout import Mask
from storage_core.formats.rabbitmq.amqp.properties import MOST_SHORT, TRANSIENT_MODE
from storage_core.formats.rabbitmq.binary_columns import counted, digits, joined
from storage_core.formats.rabbitmq.erlang import external_term as et
from storage_core.formats.rabbitmq.erlang.binary_lists import ListHeads
from storage_core.formats.rabbitmq.erlang.cursor import Cursor, Steps
from storage_core.formats.rabbitmq.erlang.simple_terms import SimpleTerms, spelled_atom
from storage_core.formats.rabbitmq.message.converted import mqtt_content
from storage_core.formats.rabbitmq.message.converted.converted_contents import Converted, Rows
from storage_core.formats.spans import gather

_MOST_PROPERTIES, _MOST_PAIRS, _MOST_EXPIRY = 16, 64, 1 << 32
_PAIR = bytes((et.SMALL_TUPLE, 2, et.BINARY))
_FIELDS: dict[str, tuple[str, Callable[[bytes], bool]]] = {
    mqtt_content.CONTENT_TYPE: ("content_type", mqtt_content.is_short_ascii),
    mqtt_content.CORRELATION: ("correlation_id", mqtt_content.is_short_text),
}
"""The field that a property becomes, and the condition for that."""
_TEXTS = (*_FIELDS, mqtt_content.RESPONSE)


def walk(cursor: Cursor, tag: int) -> Converted:
    """Reads the contents at the cursor's positions, whose atoms have this tag, and advances past them. Rows with a
    content of another kind are not ok, and their results are undefined.
    """
    cursor.expect(bytes((et.SMALL_TUPLE, 9)) + spelled_atom(tag, mqtt_content.TAG))
    retain, qos, topic, duplicate, packet, payload = (SimpleTerms.next(cursor) for _ in range(6))
    level, known = qos.numbers()
    cursor.ok &= known & (level <= 1) & payload.is_binary & topic.is_binary
    cursor.ok &= retain.is_constant_or_number & duplicate.is_constant_or_number & packet.is_constant_or_number
    found = Converted(len(level))
    found.body_starts, found.body_stops = payload.starts, payload.stops
    found.add("delivery_mode", np.arange(len(level)), as_array(TRANSIENT_MODE + level))
    cursor.ok &= cursor.number("u1") == et.MAP
    counts = cursor.number(">u4")
    cursor.ok &= counts <= _MOST_PROPERTIES
    headers = _Headers()
    for rows, inner in cursor.rounds(counts):
        _take_property(inner, rows, found, headers)
    cursor.ok &= SimpleTerms.next(cursor).is_constant_or_number
    for each in (*headers.first, *headers.others):
        found.add_headers(*each)
    return found


class _Headers:
    """Names and values of some rows; in each row, the first of several with one name counts."""

    def __init__(self) -> None:
        self.first: list[tuple[Rows, pa.BinaryArray]] = []
        self.others: list[tuple[Rows, pa.BinaryArray]] = []


def _take_property(cursor: Cursor, rows: Rows, found: Converted, headers: _Headers) -> None:
    """Reads the next property of each of `rows` and advances past it."""
    key = SimpleTerms.next(cursor)
    known = {name: key.is_named(name) for name in mqtt_content.PROPERTIES}
    cursor.ok &= np.logical_or.reduce([*known.values()])
    users = np.flatnonzero(known[mqtt_content.USER] & cursor.ok)
    pairs = Cursor(cursor.buffer, cursor.position[users], cursor.stop[users])
    value = SimpleTerms.next(cursor)
    if len(users):
        headers.others.append(_user_properties(pairs, rows[users]))
        cursor.ok[users], cursor.position[users] = pairs.ok, pairs.position
    for name in _TEXTS:
        cursor.ok &= value.is_binary | ~known[name]
        at = np.flatnonzero(known[name] & cursor.ok)
        if len(at):
            _take_texts(name, rows[at], gather(cursor.buffer, value.starts[at], value.stops[at]), found, headers)
    numbers, is_number = value.numbers()
    cursor.ok &= is_number | ~known[mqtt_content.FORMAT]
    cursor.ok &= (is_number & (numbers < _MOST_EXPIRY)) | ~known[mqtt_content.EXPIRY]
    at = np.flatnonzero(known[mqtt_content.EXPIRY] & cursor.ok)
    found.add("expiration", rows[at], digits(numbers[at] * 1000))


def _take_texts(name: str, rows: Rows, texts: pa.BinaryArray, found: Converted, headers: _Headers) -> None:
    """Adds a property whose values are texts, as a field or a header."""
    if name == mqtt_content.RESPONSE:
        for place, letter in mqtt_content.AS_KEY.items():
            texts = pc.replace_substring(texts, place, letter)
        headers.first.append((rows, _headers(mqtt_content.REPLY_TOPIC, texts)))
        return
    field, is_right = _FIELDS[name]
    right = _checked(texts, is_right)
    found.add(field, rows[right], texts.filter(as_array(right)))
    if name == mqtt_content.CORRELATION:
        others = _headers(mqtt_content.CORRELATION_HEADER, texts.filter(as_array(~right)))
        headers.first.append((rows[~right], others))


def _headers(name: bytes, texts: pa.BinaryArray) -> pa.BinaryArray:
    """The texts as headers of this name."""
    return joined(bytes((len(name),)) + name + b"S", counted(texts, ">u4"))


def _user_properties(cursor: Cursor, rows: Rows) -> tuple[Rows, pa.BinaryArray]:
    """Reads the lists of pairs at the cursor's positions as headers, with the row of each; advances past them."""
    heads = ListHeads.next(cursor, _MOST_PAIRS)
    steps = Steps(len(rows))
    for left, each in cursor.rounds(heads.counts):
        each.expect(_PAIR)
        name = each.counted(">u4")
        each.ok &= each.number("u1") == et.BINARY
        value = each.counted(">u4")
        kept = each.ok & (name[1] - name[0] <= MOST_SHORT)
        steps.add(left[kept], *(column[kept] for column in (*name, *value)))
    heads.end(cursor)
    owners, (name_starts, name_stops, starts, stops) = steps.joined(4)
    names = counted(gather(cursor.buffer, name_starts, name_stops), "u1")
    return rows[owners], joined(names, b"S", counted(gather(cursor.buffer, starts, stops), ">u4"))


def _checked(texts: pa.BinaryArray, is_right: Callable[[bytes], bool]) -> Mask:
    """Which of the texts are right; each distinct text is checked once."""
    encoded = texts.dictionary_encode()
    verdicts = np.array([is_right(text) for text in encoded.dictionary.to_pylist()], bool)
    found: Mask = verdicts[as_numbers(encoded.indices)]
    return found
