"""The annotations of many messages published over AMQP 1.0: terms → headers.

Those that hold a property, a list or a map are left to `amqp_content`, one by one. Source: rabbitmq.md 8,
docs/format/rabbitmq-streams.md 6.1.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from storage_core.arrays import NO_BYTES, as_array
from storage_core.formats.layout import Bytes, Mask, Positions, values_at
from storage_core.formats.rabbitmq.amqp import sections
from storage_core.formats.rabbitmq.amqp.properties import MOST_SHORT
from storage_core.formats.rabbitmq.amqp.section_cursor import Rows
from storage_core.formats.rabbitmq.amqp.term_values import encode_values
from storage_core.formats.rabbitmq.binary_columns import counted, fixed, joined, placed
from storage_core.formats.rabbitmq.erlang import external_term as et
from storage_core.formats.rabbitmq.erlang.binary_lists import ListHeads
from storage_core.formats.rabbitmq.erlang.cursor import Cursor, Steps
from storage_core.formats.rabbitmq.erlang.simple_terms import SimpleTerms, spelled_atom
from storage_core.formats.rabbitmq.message.converted import container_view
from storage_core.formats.spans import gather

_MOST_NOTED = 32
_PAIR = bytes((et.SMALL_TUPLE, 2))
_KINDS = {
    kind: ord("S" if kind == "binary" else letter)
    for kind, letter in {**sections.LETTERS, "ulong": "l"}.items()
    if kind not in {"float", "double", "uuid", "char", *sections.DECIMALS}
}
"""Type letters by type name; a consumer receives a binary as text."""
_NOTHING, _BOOLEAN, _TIME = (_KINDS[kind] for kind in ("null", "boolean", "timestamp"))
_SAYING = (container_view.CC, container_view.RECEIVED, container_view.DEATHS)
"""Names of annotations that become more than a header of the same name."""


def walk(cursor: Cursor, tag: int) -> tuple[Rows, pa.BinaryArray]:
    """Reads the annotations at the cursor's positions, whose atoms have this tag, as items of tables, with the row of
    each; advances past them. Rows with an annotation that is not supported here are not ok.
    """
    heads = ListHeads.next(cursor, _MOST_NOTED)
    steps, head = Steps(len(heads.counts)), _PAIR + _PAIR + spelled_atom(tag, "symbol")
    for rows, each in cursor.rounds(heads.counts):
        each.expect(head)
        each.ok &= each.number("u1") == et.BINARY
        name = each.counted(">u4")
        letters, starts = _next_values(each)
        steps.add(rows[each.ok], *(column[each.ok] for column in (*name, letters, starts)))
    heads.end(cursor)
    owners, (name_starts, name_stops, letters, starts) = steps.joined(4)
    if not len(owners):
        return owners, pa.repeat(NO_BYTES, 0)
    shown, known = are_headers(cursor.buffer, name_starts, name_stops)
    values, right = _values(cursor.buffer, letters, starts)
    cursor.ok[owners[~(known & right)]] = False
    names = counted(gather(cursor.buffer, name_starts[shown], name_stops[shown]), "u1")
    items = joined(names, fixed(letters[shown].astype("u1")), values.filter(as_array(shown)))
    return owners[shown], items


def _next_values(cursor: Cursor) -> tuple[Rows, Positions]:
    """Letters of values, and where their terms begin; advances past them. Values of another kind are not ok."""
    typed = cursor.at(f"S{len(_PAIR)}", cursor.position) == _PAIR
    (letters, starts), ends = np.zeros((2, len(typed)), np.int64), cursor.position.copy()
    for rows in (np.flatnonzero(typed), np.flatnonzero(~typed)):
        each = Cursor(cursor.buffer, cursor.position[rows], cursor.stop[rows])
        if len(rows) and typed[rows[0]]:
            each.move(len(_PAIR))
            kind = SimpleTerms.next(each)
            for word, letter in _KINDS.items():
                letters[rows[kind.is_named(word)]] = letter
            # A node stores these as bare values, without a type.
            each.ok &= ~np.isin(letters[rows], (0, _NOTHING, _BOOLEAN))
            starts[rows] = each.position
            SimpleTerms.next(each)
        else:
            starts[rows] = each.position
            value = SimpleTerms.next(each)
            letters[rows] = np.where(value.is_named("undefined"), _NOTHING, _BOOLEAN)
        cursor.ok[rows] &= each.ok
        ends[rows] = each.position
    cursor.position = ends
    return letters, starts


def are_headers(buffer: Bytes, starts: Positions, stops: Positions) -> tuple[Mask, Mask]:
    """Which annotations of these names a consumer receives as headers, and which can have no effect other than that."""
    begins, inner = (
        values_at(buffer, f"S{len(text)}", starts) == text
        for text in (container_view.HEADER_PREFIX, container_view.PROPERTY_PREFIX)
    )
    sizes = stops - starts
    begins &= sizes >= len(container_view.HEADER_PREFIX)
    known: Mask = ~(inner & (sizes >= len(container_view.PROPERTY_PREFIX)))
    known &= ~are_among(buffer, starts, stops, _SAYING)
    shown = begins & known & (sizes <= MOST_SHORT) & ~are_among(buffer, starts, stops, container_view.NO_HEADERS)
    return shown, known


def are_among(buffer: Bytes, starts: Positions, stops: Positions, names: tuple[bytes, ...]) -> Mask:
    """Which of the spans are one of the names."""
    found: Mask = np.zeros(len(starts), bool)
    for name in names:
        found |= (stops - starts == len(name)) & (values_at(buffer, f"S{len(name)}", starts) == name)
    return found


def _values(buffer: Bytes, letters: Rows, starts: Positions) -> tuple[pa.BinaryArray, Mask]:
    """Values of headers without their letters, and which of them are of a kind supported here."""
    timed = letters == _TIME
    values, right = encode_values(buffer, np.where(timed, 0, letters), starts)
    if not timed.any():
        return values, right
    at, others = np.flatnonzero(timed), np.flatnonzero(~timed)
    ms, right[at] = SimpleTerms(Cursor(buffer, starts[at], np.full(len(at), len(buffer)))).numbers()
    times = fixed((ms // 1000).astype(">u8"))
    return placed([(at, times), (others, values.filter(as_array(~timed)))], len(letters)), right
