"""Containers that came by AMQP 0-9-1 however long their parts are, walked through in lockstep.

What `container_shape` finds at once where the lengths of names are the same. Which of the property lists a node
delivers as they are is `delivered_lists`'s. Source: rabbitmq.md 8.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from storage_core.formats.layout import Bytes, Mask, Positions
from storage_core.formats.rabbitmq.amqp import properties
from storage_core.formats.rabbitmq.erlang import external_term as et
from storage_core.formats.rabbitmq.erlang.binary_lists import binary_or_none
from storage_core.formats.rabbitmq.erlang.cursor import Cursor, Steps
from storage_core.formats.rabbitmq.erlang.simple_terms import SimpleTerms
from storage_core.formats.rabbitmq.message import message_container
from storage_core.formats.rabbitmq.message.delivered_lists import Noted, as_stored
from storage_core.formats.rabbitmq.message.message_spans import MessageSpans, joined

_MOST_PAIRS, _MOST_NAME = 32, 8


def _code(name: str) -> int:
    """An atom of at most eight bytes as a number: its bytes, high ones first."""
    return int.from_bytes(name.encode(), "big")


_EXCHANGE, _KEYS, _ID, _TIMESTAMP, _RECEIVED, _DURABLE, _PRIORITY, _TTL, _COPIES = (
    _code(name)
    for name in (
        message_container.EXCHANGE, message_container.ROUTING_KEYS, message_container.ID, message_container.TIMESTAMP,
        "rts", message_container.DURABLE, message_container.PRIORITY, message_container.TTL, "bcc",
    )
)  # fmt: skip
_NUMBERS = frozenset({_TIMESTAMP, _RECEIVED, _TTL, _PRIORITY})
_UNDEFINED = frozenset({_TTL, _PRIORITY})
"""Names whose values may be this atom instead of a number."""
Rows = npt.NDArray[np.int64]


def _head(tag: int, width: int) -> tuple[bytes, bytes]:
    """What stands before and after the property list, in one of the spellings of atoms."""

    def atom(name: str) -> bytes:
        return bytes((tag,)) + len(name).to_bytes(width, "big") + name.encode()

    begin = bytes((et.VERSION, et.SMALL_TUPLE, message_container.PARTS))
    begin += atom(message_container.TAG) + atom(message_container.LEGACY) + bytes((et.SMALL_TUPLE, 6))
    number = bytes((et.SMALL_INTEGER, properties.CLASS_BASIC))
    return begin + atom("content") + number + atom("none") + bytes((et.BINARY,)), atom(properties.PROTOCOL)


_HEADS = (_head(et.SMALL_ATOM_UTF8, 1), _head(et.ATOM, 2))


def locate(buffer: Bytes, starts: Positions, stops: Positions, id_size: int) -> MessageSpans:
    """The parts of the terms [start, stop) of `buffer`, whose ids have `id_size` bytes. Never raises."""
    found = _located(buffer, starts, stops, id_size, *_HEADS[0])
    known = found.ok | found.unsorted
    others = np.flatnonzero(~known)
    if not len(others):
        return found
    second = _located(buffer, starts[others], stops[others], id_size, *_HEADS[1])
    return joined([(np.flatnonzero(known), found.some(known)), (others, second)])


def _located(
    buffer: Bytes, starts: Positions, stops: Positions, id_size: int, before: bytes, after: bytes
) -> MessageSpans:
    cursor = Cursor(buffer, starts, stops)
    cursor.expect(before)
    listed = cursor.counted(">u4")
    cursor.expect(after)
    body = binary_or_none(cursor)
    cursor.ok &= cursor.number("u1") == et.MAP
    pairs = cursor.number(">u4")
    cursor.ok &= pairs <= _MOST_PAIRS
    walk = _Walk(cursor, id_size)
    for number in range(_MOST_PAIRS):
        rows = np.flatnonzero(cursor.ok & (pairs > number))
        if not len(rows):
            break
        walk.take_pair(rows)
    ok = cursor.ok & (cursor.position == stops) & walk.has_keys & (walk.exchange[0] > 0)
    if id_size:
        ok &= walk.id_at > 0
    stored, unsorted = as_stored(buffer, *listed, ok, walk.noted)
    noted, exchange, (key_rows, keys) = walk.noted, walk.exchange, walk.keys.joined(2)
    return MessageSpans(
        stored, exchange[0], exchange[1], key_rows, keys[0], keys[1], *listed, *body, walk.id_at, noted.persistent,
        unsorted, noted.ttl, noted.priority,
    )  # fmt: skip


class _Walk:
    """What the annotations of the rows of `cursor` say, pair by pair."""

    def __init__(self, cursor: Cursor, id_size: int) -> None:
        count = len(cursor.position)
        self.cursor, self.id_size = cursor, id_size
        self.exchange = np.zeros((2, count), np.int64)
        self.id_at, self.has_keys, self.keys = np.zeros(count, np.int64), np.zeros(count, bool), Steps(count)
        nothing = np.full((3, count), -1)
        self.noted = Noted(nothing[0], np.zeros(count, bool), nothing[1], nothing[2], np.ones(count, bool))

    def take_pair(self, rows: Rows) -> None:
        """The next pair of each of `rows`, which are ascending; moves after it."""
        cursor = Cursor(self.cursor.buffer, self.cursor.position[rows], self.cursor.stop[rows])
        key = SimpleTerms.next(cursor)
        cursor.ok &= key.is_atom & (key.sizes <= _MOST_NAME)
        names = key.words()
        value = SimpleTerms.next(cursor)
        for name in np.unique(names[cursor.ok]).tolist():
            chosen = names == name
            cursor.ok[chosen] &= self._take(name, rows, value, chosen)[chosen]
        self.cursor.ok[rows] = cursor.ok
        self.cursor.position[rows] = cursor.position

    def _take(self, name: int, rows: Rows, value: SimpleTerms, chosen: Mask) -> Mask:
        """Notes the values of `name` in the rows `chosen`; which of them are as they must be."""
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
        elif name == _ID and self.id_size:
            self.id_at[at] = value.starts[chosen]
            right = value.is_binary & (value.sizes == self.id_size)
        elif name == _COPIES:
            right = value.is_list
        elif name == _DURABLE:
            is_true = value.is_named("true")
            self.noted.persistent[at] = is_true[chosen]
            right = is_true | value.is_named("false")
        elif name in _NUMBERS:
            numbers, right = value.numbers()
            self._note(name, at, np.where(right, numbers, -1)[chosen])
            right |= value.is_named(message_container.UNDEFINED) & (name in _UNDEFINED)
        return right

    def _note(self, name: int, at: Rows, numbers: Rows) -> None:
        if name == _TIMESTAMP:
            self.noted.seconds[at] = numbers // 1000
        elif name == _TTL:
            self.noted.ttl[at], self.noted.expires[at] = numbers, True
        elif name == _PRIORITY:
            self.noted.priority[at] = numbers
