"""Reads and decodes the messages of entries: the spans of all parts in one buffer, and what is wrong with damaged rows.

`columns` builds the columns, `partition` decides which entries form a batch. Source: rabbitmq.md 6.1, 6.3, 6.4, 8.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from storage_core.errors import DataLossError, FormatError
from storage_core.formats.checksum import span_crcs
from storage_core.formats.layout import Bytes, Positions, values_at
from storage_core.formats.rabbitmq.amqp import headers, properties
from storage_core.formats.rabbitmq.amqp.headers import HeaderSpans
from storage_core.formats.rabbitmq.amqp.properties import PropertySpans
from storage_core.formats.rabbitmq.classic import journal, message_file, queue_v2, segment
from storage_core.formats.rabbitmq.erlang import external_term as et
from storage_core.formats.rabbitmq.message import basic_message
from storage_core.formats.rabbitmq.message.basic_message import MessageError, Reach
from storage_core.formats.rabbitmq.message.delivered_lists import relist
from storage_core.formats.rabbitmq.message.message_spans import MessageSpans, joined, whole_bodies
from storage_core.formats.spans import structs_at
from storage_core.rabbitmq.disk.span_reader import SpanReader
from storage_core.rabbitmq.index.entries import (
    ACKED,
    DIRTY,
    JOURNAL,
    MISSING,
    NOWHERE,
    OWN,
    SEGMENT,
    SHARED,
    Entries,
    flagged,
)

_HEAD_SIZES = np.zeros(5, np.int64)
_HEAD_SIZES[[SEGMENT, JOURNAL, SHARED, OWN]] = (
    segment.PUBLISH.size,
    journal.PUBLISH.size,
    message_file.HEAD.size,
    queue_v2.STORED.size,
)

_ID_END = message_file.HEAD.size - 4

_WITH_ID = {
    SEGMENT: segment.PUBLISH.dtype,
    JOURNAL: journal.PUBLISH.dtype,
    SHARED: message_file.HEAD.dtype,
}


@dataclass
class MessageBatch:
    """Decoded messages, one for each of `entries`. `reasons` states what is wrong with damaged rows, by row number.

    `absent` rows have no message at all: they are acknowledged, and their bytes were removed. `dropped` rows are those
    that a node's recovery drops without treating them as damaged. `terms` are the spans of the terms as they were read;
    `reach` states how far a node gets with a damaged row, if it gets anywhere.
    """

    entries: Entries
    buffer: Bytes
    messages: MessageSpans
    properties: PropertySpans
    header_rows: npt.NDArray[np.int64]
    headers: HeaderSpans
    reasons: dict[int, str]
    absent: npt.NDArray[np.bool_]
    dropped: npt.NDArray[np.bool_]
    terms: TermSpans | None = None
    reach: dict[int, Reach] = field(default_factory=dict)


def read_batch(
    reader: SpanReader, entries: Entries, verify_crc: bool, ids: npt.NDArray[np.void] | None = None
) -> MessageBatch:
    """Reads and decodes the messages of `entries`; `ids`, dtype V16, are the message ids that their records must have.

    Raises DataLossError when a file vanished or shrank, or when the record at an entry's position has another id.
    """
    lost = flagged(entries, MISSING)
    present = ~lost
    buffer, starts, stops = _loaded(reader, entries, present)
    if ids is not None:
        _check_ids(buffer, entries, present, starts, ids)
    reasons: dict[int, str] = {}
    absent = lost & flagged(entries, ACKED)
    for row in np.flatnonzero(lost & ~absent).tolist():
        reasons[row] = "its message is not in the message store"
    kinds = np.where(present, entries["kind"], np.uint8(NOWHERE))
    _check_headers(buffer, entries, kinds, starts, stops, reasons)
    term_starts = np.minimum(starts + _HEAD_SIZES[kinds], stops)
    term_stops = stops - (kinds == SHARED)
    dropped = np.zeros(len(entries), bool)
    dirty = flagged(entries, DIRTY) & ~flagged(entries, ACKED)
    _check_sums(buffer, kinds, starts, term_starts, term_stops, dirty | verify_crc, dirty, reasons, dropped)
    sound = present.copy()
    sound[list(reasons)] = False
    terms = TermSpans(buffer, term_starts, term_stops, sound, kinds == OWN)
    found = decode_batch(entries, terms, reasons, absent, dropped)
    dropped |= dirty & sound & found.messages.ok & ~found.messages.persistent
    return found


@dataclass(frozen=True)
class TermSpans:
    """The terms [start, stop) of `buffer`, shape (n,): which are `sound`, and which may end in zeros (`padded`)."""

    buffer: Bytes
    starts: Positions
    stops: Positions
    sound: npt.NDArray[np.bool_]
    padded: npt.NDArray[np.bool_]
    id_size: int = basic_message.ID_SIZE


def decode_batch(
    entries: Entries, terms: TermSpans, reasons: dict[int, str], absent: npt.NDArray[np.bool_],
    dropped: npt.NDArray[np.bool_],
) -> MessageBatch:  # fmt: skip
    """Decodes messages that were read; adds to `reasons` what is wrong with damaged ones."""
    sound = terms.sound
    reach: dict[int, Reach] = {}
    buffer, messages = _located(terms, reasons, reach)
    listed = properties.locate(buffer, messages.property_starts, messages.property_stops)
    table = listed.fields.get("headers", _NO_FIELD)
    found = headers.locate(buffer, table.starts, table.stops)
    headers.check_nested(buffer, found)
    good = listed.ok.copy()
    good[table.rows] &= found.ok
    for row in np.flatnonzero(sound & messages.ok & ~good).tolist():
        if row not in reasons:
            reasons[row], reach[row] = "its property list is malformed", Reach.CONSUMER
    return MessageBatch(entries, buffer, messages, listed, table.rows, found, reasons, absent, dropped, terms, reach)


def _check_ids(
    buffer: Bytes, entries: Entries, present: npt.NDArray[np.bool_], starts: Positions, ids: npt.NDArray[np.void]
) -> None:
    """Raises DataLossError when a record has another id. A queue's own store needs no check: nothing in it moves."""
    for kind, layout in _WITH_ID.items():
        rows = np.flatnonzero(present & (entries["kind"] == kind))
        found = np.ascontiguousarray(structs_at(buffer, layout, starts[rows])["id"])
        if (found.view("u8") != np.ascontiguousarray(ids[rows]).view("u8")).any():
            raise DataLossError("DataLossError: a message was moved while the store was read; read again")


def _loaded(reader: SpanReader, entries: Entries, present: npt.NDArray[np.bool_]) -> tuple[Bytes, Positions, Positions]:
    """Loads the records of the `present` entries. Returns the buffer and each record's span; (0, 0) for the others."""
    if present.all():
        position, length = entries["position"], entries["length"]
        buffer, starts = reader.load(entries["file"].astype(np.int64), position, position + length)
        return buffer, starts, starts + length
    starts, stops = np.zeros(len(entries), np.int64), np.zeros(len(entries), np.int64)
    rows = np.flatnonzero(present)
    position, length = entries["position"][rows], entries["length"][rows]
    buffer, loaded = reader.load(entries["file"][rows].astype(np.int64), position, position + length)
    starts[rows], stops[rows] = loaded, loaded + length
    return buffer, starts, stops


_NO_FIELD = properties.FieldSpans(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.int64))


def _check_headers(
    buffer: Bytes, entries: Entries, kinds: npt.NDArray[np.uint8], starts: Positions, stops: Positions,
    reasons: dict[int, str],
) -> None:  # fmt: skip
    """Checks that each record of the message store has the id and length that the store's table states, and ends with
    its marker.
    """
    rows = np.flatnonzero(kinds == SHARED)
    if not len(rows):
        return
    sizes = values_at(buffer, ">u8", starts[rows]).astype(np.int64) + message_file.OVERHEAD
    wrong = sizes != entries["length"][rows]
    wrong |= values_at(buffer, "u4", starts[rows] + _ID_END) != entries["id_end"][rows]
    unmarked = values_at(buffer, "u1", stops[rows] - 1) != message_file.MARKER
    for row in rows[wrong | unmarked].tolist():
        reasons[row] = "the record is not the one that the message store's index names here"


def _check_sums(
    buffer: Bytes, kinds: npt.NDArray[np.uint8], starts: Positions, term_starts: Positions, term_stops: Positions,
    wanted: npt.NDArray[np.bool_], dirty: npt.NDArray[np.bool_], reasons: dict[int, str],
    dropped: npt.NDArray[np.bool_],
) -> None:  # fmt: skip
    """Checks sizes and checksums in a version-2 queue's own store; recovery after an unclean stop drops what fails."""
    rows = np.flatnonzero((kinds == OWN) & wanted)
    if not len(rows):
        return
    heads = structs_at(buffer, queue_v2.STORED.dtype, starts[rows])
    begins, sizes = term_starts[rows], term_stops[rows] - term_starts[rows]
    good = heads["size"] == sizes
    at = np.flatnonzero(good & (heads["flags"] & queue_v2.FLAG_CHECKSUM != 0))
    good[at] = span_crcs(buffer, begins[at], sizes[at]) & queue_v2.CHECKSUM_MASK == heads["checksum"][at]
    # The checksum does not cover the zeros that may follow a term.
    for place in at[~good[at]].tolist():
        term = _unpadded(buffer[begins[place] : begins[place] + sizes[place]].data)
        good[place] = queue_v2.checksum(term) == int(heads["checksum"][place])
    for row in rows[~good].tolist():
        dropped[row] |= dirty[row]
        reasons[row] = "the stored message fails its checksum"


def _unpadded(term: memoryview) -> memoryview:
    """The term without the zeros that RabbitMQ 4 leaves behind a term whose length it only estimated."""
    if len(term) and term[-1] == 0:
        try:
            return term[: et.decode_prefix(term)[1]]
        except FormatError:
            return term
    return term


def _located(terms: TermSpans, reasons: dict[int, str], reach: dict[int, Reach]) -> tuple[Bytes, MessageSpans]:
    """Spans of all terms. Terms in an unusual encoding are re-encoded in the usual one and appended to the buffer."""
    buffer, starts, stops = terms.buffer, terms.starts, terms.stops
    buffer, spans = relist(*whole_bodies(buffer, basic_message.locate(buffer, starts, stops, terms.id_size)))
    unusual = np.flatnonzero(terms.sound & ~spans.ok)
    if not len(unusual):
        return buffer, spans
    extra, size = [], len(buffer)
    starts, stops = starts.copy(), stops.copy()
    for row in unusual.tolist():
        raw = buffer[int(starts[row]) : int(stops[row])].data
        try:
            message = basic_message.decode(bytes(_unpadded(raw) if terms.padded[row] else raw), terms.id_size)
            if not terms.id_size:
                message = replace(message, id=b"")
        except FormatError as error:
            reasons[row] = f"the message cannot be decoded: {error.reason}"
            if isinstance(error, MessageError):
                reach[row] = error.reach
            continue
        term = basic_message.encode(message)
        extra.append(np.frombuffer(term, np.uint8))
        starts[row], stops[row] = size, size + len(term)
        size += len(term)
    if not extra:
        return buffer, spans
    buffer = np.concatenate([buffer, *extra])
    spelled = basic_message.locate(buffer, starts[unusual], stops[unusual], terms.id_size)
    usual = np.ones(len(starts), bool)
    usual[unusual] = False
    return buffer, joined([(np.flatnonzero(usual), spans.some(usual)), (unusual, spelled)])
