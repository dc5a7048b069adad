"""Walks `basic_message` terms in lockstep, in any encoding of their parts.

`basic_message` finds terms of one layout at once; `decoded_lists` handles property lists that a broker keeps decoded.
Source: rabbitmq.md 6.3.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from storage_core.arrays import as_array
from storage_core.formats.layout import Bytes, Positions
from storage_core.formats.rabbitmq.amqp import decoded_lists, properties
from storage_core.formats.rabbitmq.binary_columns import placed
from storage_core.formats.rabbitmq.erlang import external_term as et
from storage_core.formats.rabbitmq.erlang.binary_lists import binaries, binary_or_pieces
from storage_core.formats.rabbitmq.erlang.cursor import Cursor
from storage_core.formats.rabbitmq.erlang.simple_terms import spelled_atom
from storage_core.formats.rabbitmq.message import message_container
from storage_core.formats.rabbitmq.message.message_spans import MessageSpans, joined, nothing_noted


@dataclass(frozen=True)
class Spelling:
    """The constant bytes between the variable parts, in one of the two encodings of atoms."""

    tag: int
    head: bytes
    kind: bytes
    decoded: bytes
    content: bytes
    none: bytes
    protocol: bytes
    true: bytes
    false: bytes


def _spelling(tag: int) -> Spelling:
    atom = partial(spelled_atom, tag)
    tuples, binary = bytes((et.SMALL_TUPLE,)), bytes((et.BINARY,))
    content = tuples + b"\6" + atom("content") + bytes((et.SMALL_INTEGER, properties.CLASS_BASIC))
    return Spelling(
        tag,
        bytes((et.VERSION,)) + tuples + b"\6" + atom("basic_message") + tuples + b"\4" + atom("resource") + binary,
        atom("exchange") + binary,
        content + tuples,
        content + atom("none") + binary,
        atom("none"),
        atom(properties.PROTOCOL),
        atom("true"),
        atom("false"),
    )


SPELLING = _spelling(et.ATOM)
_SPELLINGS = (SPELLING, _spelling(et.SMALL_ATOM_UTF8))
_BINARY = bytes((et.BINARY,))
ID_HEAD = _BINARY + message_container.ID_SIZE.to_bytes(4, "big")


def is_decoded(term: bytes) -> bool:
    """Whether a term may have a decoded property list."""
    return any(spelling.decoded in term for spelling in _SPELLINGS)


def locate(buffer: Bytes, starts: Positions, stops: Positions, id_size: int) -> MessageSpans:
    """The parts of the terms [start, stop) of `buffer`, whose ids have `id_size` or 16 bytes. Never raises."""
    spans = _locate(buffer, starts, stops, _SPELLINGS[0], id_size)
    others = np.flatnonzero(~spans.known)
    if not len(others):
        return spans
    second = _locate(buffer, starts[others], stops[others], _SPELLINGS[1], id_size)
    return joined([(np.flatnonzero(spans.known), spans.some(spans.known)), (others, second)])


def _locate(buffer: Bytes, starts: Positions, stops: Positions, spelling: Spelling, id_size: int) -> MessageSpans:
    cursor = Cursor(buffer, starts, stops)
    cursor.expect(spelling.head)
    cursor.counted(">u4")
    cursor.expect(spelling.kind)
    exchange = cursor.counted(">u4")
    keys = binaries(cursor)
    listed = _Lists.next(cursor, spelling)
    body_starts, body_stops, pieces = binary_or_pieces(cursor)
    cursor.ok &= cursor.number("u1") == et.BINARY
    id_starts, id_stops = cursor.counted(">u4")
    # A quorum queue omits the id, except for dead letters.
    cursor.ok &= (id_stops - id_starts == id_size) | (id_stops - id_starts == message_container.ID_SIZE)
    persistent = cursor.at(f"S{len(spelling.true)}", cursor.position) == spelling.true
    false = cursor.at(f"S{len(spelling.false)}", cursor.position) == spelling.false
    cursor.ok &= persistent | false
    cursor.move(np.where(persistent, len(spelling.true), len(spelling.false)))
    ok = cursor.ok & (cursor.position == stops)
    # The last piece of a body comes first.
    pieces = pieces.backwards()
    relisted, _, added, _, priority, deliveries = nothing_noted(len(ok))
    return MessageSpans(
        ok, *exchange, keys, listed.starts, listed.stops, body_starts, body_stops, id_starts, persistent, pieces,
        relisted, listed.made, added, listed.ttl, priority, deliveries,
    )  # fmt: skip


@dataclass(frozen=True)
class _Lists:
    """The property lists of n contents: as spans or, where `made` is not null, encoded from what the broker keeps
    decoded; and the times to live that it has decoded, in ms, -1 if there is none.
    """

    starts: Positions
    stops: Positions
    made: pa.BinaryArray
    ttl: npt.NDArray[np.int64]

    @classmethod
    def next(cls, cursor: Cursor, spelling: Spelling) -> _Lists:
        """Reads the lists; advances to the body."""
        count = len(cursor.position)
        has_decoded = cursor.at(f"S{len(spelling.decoded)}", cursor.position) == spelling.decoded
        has_decoded &= cursor.ok
        nothing, ttl = pa.nulls(count, pa.binary()), np.full(count, -1)
        if not has_decoded.any():
            cursor.expect(spelling.content)
            spans = cursor.counted(">u4")
            cursor.expect(spelling.protocol)
            return cls(*spans, nothing, ttl)
        (starts, stops), rows, others = (
            np.zeros((2, count), np.int64),
            np.flatnonzero(has_decoded),
            np.flatnonzero(~has_decoded),
        )
        decoded = Cursor(cursor.buffer, cursor.position[rows] + len(spelling.decoded) - 1, cursor.stop[rows])
        made, ttl[rows] = decoded_lists.walk(decoded, spelling.tag)
        # A broker that has decoded a list also keeps the original bytes, unless it has changed the list.
        changed = decoded.at(f"S{len(spelling.none)}", decoded.position) == spelling.none
        ends, whole = cursor.position.copy(), cursor.ok.copy()
        whole[rows], ends[rows] = decoded.ok, decoded.position
        original, rewritten = rows[~changed], rows[changed]
        for part, heads in (
            (others, (spelling.content,)),
            (original, (_BINARY,)),
            (rewritten, (spelling.none, spelling.none)),
        ):
            inner = Cursor(cursor.buffer, ends[part], cursor.stop[part])
            for head in heads:
                inner.expect(head)
            if part is not rewritten:
                starts[part], stops[part] = inner.counted(">u4")
                inner.expect(spelling.protocol)
            whole[part] &= inner.ok
            ends[part] = inner.position
        cursor.ok &= whole
        cursor.position = ends
        lists = placed([(rewritten, made.filter(as_array(changed)))], count)
        return cls(starts, stops, lists, ttl)
