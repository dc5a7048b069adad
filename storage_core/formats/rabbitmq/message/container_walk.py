"""Walks containers in lockstep, whatever the lengths of their parts.

`container_shape` finds those published over AMQP 0-9-1 at once if the lengths of names are the same; `delivered_lists`
determines which of their property lists a node delivers unchanged. `section_walk` and `mqtt_walk` read the contents of
the others. Source: rabbitmq.md 8.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pyarrow as pa

from storage_core.arrays import as_mask
from storage_core.formats.columns import masked
from storage_core.formats.layout import Bytes, Mask, Positions, values_at
from storage_core.formats.rabbitmq.amqp import properties
from storage_core.formats.rabbitmq.amqp.properties import MOST_SHORT
from storage_core.formats.rabbitmq.binary_columns import counted, fixed, joined, listed_parts, placed
from storage_core.formats.rabbitmq.erlang import binary_lists
from storage_core.formats.rabbitmq.erlang import external_term as et
from storage_core.formats.rabbitmq.erlang.binary_lists import NO_ITEMS, ItemSpans, binary_or_pieces
from storage_core.formats.rabbitmq.erlang.cursor import Cursor, Steps
from storage_core.formats.rabbitmq.erlang.simple_terms import SimpleTerms, spelled_atom
from storage_core.formats.rabbitmq.message import deaths, message_container
from storage_core.formats.rabbitmq.message.converted import mqtt_walk, section_walk
from storage_core.formats.rabbitmq.message.converted.converted_contents import MOST_PRIORITY, Converted, Rows
from storage_core.formats.rabbitmq.message.deaths import Deaths
from storage_core.formats.rabbitmq.message.delivered_lists import Noted, as_stored
from storage_core.formats.rabbitmq.message.message_spans import UNDEFINED, MessageSpans
from storage_core.formats.rabbitmq.message.message_spans import joined as joined_spans
from storage_core.formats.spans import gather

_MOST_PAIRS, _MOST_NAME = 32, 8


def _code(name: str) -> int:
    """An atom of at most eight bytes as a number: its bytes, big-endian."""
    return int.from_bytes(name.encode(), "big")


_EXCHANGE, _KEYS, _ID, _TIMESTAMP, _RECEIVED, _DURABLE, _PRIORITY, _TTL, _COPIES = (
    _code(name)
    for name in (
        message_container.EXCHANGE, message_container.ROUTING_KEYS, message_container.ID, message_container.TIMESTAMP,
        message_container.RECEIVED, message_container.DURABLE, message_container.PRIORITY, message_container.TTL,
        message_container.COPIES,
    )
)  # fmt: skip
_UNKNOWN, _DEATHS, _DELIVERED, _ACQUIRED, _HEADER, _BINDINGS, _CORRELATION = range(-1, -8, -1)
_LONG_NAMES = {
    message_container.DEATHS: _DEATHS, message_container.DELIVERIES: _DELIVERED,
    message_container.ACQUIRED: _ACQUIRED, message_container.BINDING_KEYS: _BINDINGS,
    message_container.CORRELATION: _CORRELATION,
}  # fmt: skip
_HEADER_PREFIX = b"x-"
"""Prefix of the names of annotations that become headers."""
_NUMBERS = frozenset({_TIMESTAMP, _RECEIVED, _TTL, _PRIORITY, _DELIVERED, _ACQUIRED})
_UNDEFINED = {_TTL: UNDEFINED, _PRIORITY: -1}
"""Names whose values may be the atom `undefined` instead of a number, and the number that stands for it."""


def locate(buffer: Bytes, starts: Positions, stops: Positions, id_size: int) -> MessageSpans:
    """The parts of the terms [start, stop) of `buffer`, whose ids have `id_size` bytes, 0 in a queue whose messages
    need none. Never raises.
    """
    found = _located(buffer, starts, stops, id_size, et.SMALL_ATOM_UTF8)
    known = found.known
    others = np.flatnonzero(~known)
    if not len(others):
        return found
    second = _located(buffer, starts[others], stops[others], id_size, et.ATOM)
    return joined_spans([(np.flatnonzero(known), found.some(known)), (others, second)])


def _located(buffer: Bytes, starts: Positions, stops: Positions, id_size: int, tag: int) -> MessageSpans:
    """The parts of terms whose atoms have this tag."""
    cursor = Cursor(buffer, starts, stops)
    cursor.expect(
        bytes((et.VERSION, et.SMALL_TUPLE, message_container.PARTS)) + spelled_atom(tag, message_container.TAG)
    )
    contents = _Contents(cursor, tag)
    cursor.ok &= cursor.number("u1") == et.MAP
    pairs = cursor.number(">u4")
    cursor.ok &= pairs <= _MOST_PAIRS
    walk = _Walk(buffer, len(starts))
    for rows, pair in cursor.rounds(pairs):
        walk.take_pair(rows, pair)
    ok = cursor.ok & (cursor.position == stops) & walk.has_keys & (walk.exchange[0] > 0)
    if id_size:
        ok &= walk.id_at > 0
    added, right = walk.added(ok)
    ok &= right
    noted, exchange, (key_rows, keys) = walk.noted, walk.exchange, walk.keys.joined(2)
    stored, relisted = as_stored(
        buffer, contents.list_starts, contents.list_stops, ok & contents.has_list, noted, as_mask(added.is_valid())
    )
    made = contents.made(ok, noted)
    relisted |= as_mask(made.is_valid())
    return MessageSpans(
        stored | relisted, exchange[0], exchange[1], ItemSpans(key_rows, *keys), contents.list_starts,
        contents.list_stops, contents.body_starts, contents.body_stops, walk.id_at, noted.persistent, contents.pieces(),
        relisted, made, added, noted.ttl, noted.priority, walk.deliveries,
    )  # fmt: skip


class _Contents:
    """The contents at the positions of a cursor, which is advanced past them: the spans of property lists, for rows
    that have one, and of bodies.
    """

    def __init__(self, cursor: Cursor, tag: int) -> None:
        count = len(cursor.position)
        self.list_starts, self.list_stops, self.body_starts, self.body_stops = np.zeros((4, count), np.int64)
        self._pieces = [(np.arange(count), NO_ITEMS)]
        self._converted: list[tuple[Rows, Converted]] = []
        atoms = {name: spelled_atom(tag, name) for name in message_container.PROTOCOLS}
        by = {name: cursor.at(f"S{len(atom)}", cursor.position) == atom for name, atom in atoms.items()}
        self.has_list: Mask = by[message_container.LEGACY]
        cursor.ok &= np.logical_or.reduce([*by.values()])
        for name, chosen in by.items():
            rows = np.flatnonzero(chosen & cursor.ok)
            if not len(rows):
                continue
            inner = Cursor(cursor.buffer, cursor.position[rows], cursor.stop[rows])
            inner.move(len(atoms[name]))
            if name == message_container.LEGACY:
                self._take_legacy(inner, rows, tag)
            else:
                found = (section_walk if name == message_container.AMQP else mqtt_walk).walk(inner, tag)
                self.body_starts[rows], self.body_stops[rows] = found.body_starts, found.body_stops
                self._converted.append((rows, found))
                self._pieces.append((rows, found.pieces))
            cursor.ok[rows], cursor.position[rows] = inner.ok, inner.position

    def _take_legacy(self, cursor: Cursor, rows: Rows, tag: int) -> None:
        atom, number = partial(spelled_atom, tag), bytes((et.SMALL_INTEGER, properties.CLASS_BASIC))
        head = bytes((et.SMALL_TUPLE, 6)) + atom("content") + number + atom("none") + bytes((et.BINARY,))
        cursor.expect(head)
        self.list_starts[rows], self.list_stops[rows] = cursor.counted(">u4")
        cursor.expect(atom(properties.PROTOCOL))
        self.body_starts[rows], self.body_stops[rows], pieces = binary_or_pieces(cursor)
        # The last piece of a body comes first.
        self._pieces.append((rows, pieces.backwards()))

    def pieces(self) -> ItemSpans:
        """The pieces of bodies that are stored in several."""
        return binary_lists.joined(self._pieces)

    def made(self, ok: Mask, noted: Noted) -> pa.BinaryArray:
        """The property lists built for `ok` rows without one; null for other rows, and for those that only `decode`
        supports.
        """
        fits, parts = ok & (noted.priority <= MOST_PRIORITY), []
        for rows, converted in self._converted:
            if len(chosen := np.flatnonzero(fits[rows])):
                parts.append((rows[chosen], converted.lists(chosen, noted.some(rows[chosen]))))
        return placed(parts, len(ok)) if parts else pa.nulls(len(ok), pa.binary())


class _Walk:
    """Collects the annotations of `count` containers, pair by pair."""

    def __init__(self, buffer: Bytes, count: int) -> None:
        self.buffer = buffer
        self.exchange = np.zeros((2, count), np.int64)
        self.id_at, self.has_keys, self.keys = np.zeros(count, np.int64), np.zeros(count, bool), Steps(count)
        nothing = np.full((4, count), -1)
        self.deliveries = nothing[3]
        self.has_deaths, self.deaths = np.zeros(count, bool), list[Deaths]()
        self.headers: list[tuple[Rows, pa.BinaryArray]] = []
        self.noted = Noted(nothing[0], nothing[1], nothing[2], np.ones(count, bool))

    def take_pair(self, rows: Rows, cursor: Cursor) -> None:
        """Reads the next pair of each of `rows`, which are ascending, at the cursor's positions; advances past it."""
        key = SimpleTerms.next(cursor)
        names = _names(key)
        cursor.ok &= names != _UNKNOWN
        dying = np.flatnonzero(cursor.ok & (names == _DEATHS))
        inner = Cursor(cursor.buffer, cursor.position[dying], cursor.stop[dying])
        value = SimpleTerms.next(cursor)
        if len(dying):
            found = deaths.walk(inner)
            self.deaths += [replace(each, rows=rows[dying[each.rows]]) for each in found]
            self.has_deaths[rows[dying]] = True
            cursor.ok[dying], cursor.position[dying] = inner.ok, inner.position
        for name in np.unique(names[cursor.ok]).tolist():
            chosen = names == name
            if name == _HEADER:
                cursor.ok[chosen] &= self._take_headers(rows, key, value, chosen & cursor.ok)[chosen]
            elif name != _DEATHS:
                cursor.ok[chosen] &= self._take(name, rows, value, chosen)[chosen]

    def _take_headers(self, rows: Rows, key: SimpleTerms, value: SimpleTerms, chosen: Mask) -> Mask:
        """Adds annotations that become headers; returns which of them are of a kind supported here."""
        numbers, counted_right = value.numbers()
        is_boolean = value.is_named("true") | value.is_named("false")
        right: Mask = value.is_binary | counted_right | value.is_list | is_boolean
        kinds = ((value.is_binary, "S"), (counted_right, "l"), (is_boolean, "t"))
        for mask, letter in kinds:
            at = np.flatnonzero(chosen & mask)
            if not len(at):
                continue
            if letter == "S":
                texts = counted(gather(value.buffer, value.starts[at], value.stops[at]), ">u4")
            elif letter == "l":
                texts = fixed(numbers[at].astype(">i8"))
            else:
                texts = fixed(value.is_named("true")[at].astype("u1"))
            names = counted(gather(key.buffer, key.starts[at], key.stops[at]), "u1")
            self.headers.append((rows[at], joined(names, letter.encode(), texts)))
        return right

    def added(self, ok: Mask) -> tuple[pa.BinaryArray, Mask]:
        """The tables of headers that the broker recorded for the rows that are `ok`, null if there are none; and which
        rows have no headers that only `decode` supports.
        """
        dead, right = np.flatnonzero(ok & self.has_deaths), np.ones(len(ok), bool)
        parts = list(self.headers)
        if len(dead):
            made, right[dead] = deaths.headers(self.buffer, [each.of(dead) for each in self.deaths], len(dead))
            parts.append((dead, made))
        if not parts:
            return pa.nulls(len(ok), pa.binary()), right
        has = np.zeros(len(ok), bool)
        has[np.concatenate([rows for rows, _ in parts])] = True
        return masked(listed_parts(parts, len(ok)), has), right

    def _take(self, name: int, rows: Rows, value: SimpleTerms, chosen: Mask) -> Mask:
        """Stores the values of `name` in the rows `chosen`; returns which of them are valid."""
        right: Mask = np.zeros(len(rows), bool)
        at = rows[chosen]
        if name == _EXCHANGE:
            self.exchange[0, at], self.exchange[1, at] = value.starts[chosen], value.stops[chosen]
            right = value.is_binary
        elif name == _KEYS:
            mine = chosen[value.item_rows]
            self.keys.add(rows[value.item_rows[mine]], value.item_starts[mine], value.item_stops[mine])
            right = value.is_list & ~self.has_keys[rows]
            self.has_keys[at] = True
        elif name == _ID:
            self.id_at[at] = value.starts[chosen]
            right = value.is_binary & (value.sizes == message_container.ID_SIZE)
        elif name == _CORRELATION:
            right = value.is_binary
        elif name in (_COPIES, _BINDINGS):
            right = value.is_list
        elif name == _DURABLE:
            is_true = value.is_named("true")
            self.noted.persistent[at] = is_true[chosen]
            right = is_true | value.is_named("false")
        elif name in _NUMBERS:
            numbers, right = value.numbers()
            self._note(name, at, np.where(right, numbers, _UNDEFINED.get(name, -1))[chosen])
            right |= value.is_named(message_container.UNDEFINED) & (name in _UNDEFINED)
        return right

    def _note(self, name: int, at: Rows, numbers: Rows) -> None:
        if name == _TIMESTAMP:
            self.noted.seconds[at] = numbers // 1000
        elif name == _TTL:
            self.noted.ttl[at] = numbers
        elif name == _PRIORITY:
            self.noted.priority[at] = numbers
        elif name == _DELIVERED:
            self.deliveries[at] = numbers


def _names(key: SimpleTerms) -> Rows:
    """The names of keys: codes of short atoms, negative numbers for others."""
    words = key.words()
    found = np.where(key.is_atom & (key.sizes <= _MOST_NAME) & (words >= 0), words, _UNKNOWN)
    for name, code in _LONG_NAMES.items():
        found[key.is_named(name)] = code
    begins = values_at(key.buffer, f"S{len(_HEADER_PREFIX)}", key.starts) == _HEADER_PREFIX
    found[key.is_binary & begins & (key.sizes >= len(_HEADER_PREFIX)) & (key.sizes <= MOST_SHORT)] = _HEADER
    return found
