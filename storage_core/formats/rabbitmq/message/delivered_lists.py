"""The property lists of many containers as a node delivers them: some as they are stored, others rewritten, with their
headers in another order or with what the broker recorded.

Publishers seldom sort their headers; a node that holds messages as containers does. `message_container` handles a
single list. Source: rabbitmq.md 8.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from storage_core.arrays import NO_BYTES, as_array, as_mask, as_numbers
from storage_core.errors import FormatError
from storage_core.formats.layout import Bytes, Mask, Positions, values_at
from storage_core.formats.rabbitmq.amqp import field_table, headers, properties
from storage_core.formats.rabbitmq.amqp.headers import HeaderSpans
from storage_core.formats.rabbitmq.amqp.properties import FieldSpans, PropertySpans
from storage_core.formats.rabbitmq.message import message_container
from storage_core.formats.rabbitmq.message.message_spans import UNDEFINED, MessageSpans
from storage_core.formats.spans import data_of, gather, offsets_of

_LENGTH_SIZE = 4
_EMPTY_LENGTH = np.zeros(_LENGTH_SIZE, np.uint8)
"""Room for the length of a table."""
_FLAGS = {name: 1 << (15 - index) for index, (name, _) in enumerate(properties.FIELDS)}
_KEPT = np.zeros(256, bool)
_KEPT[[ord(letter) for letter in "SIlbBsuiVTxtfdFA"]] = True
"""Header types that a node writes as it read them; for some of them this holds for most values only."""
_BOOLEAN = ord("t")
_EXPONENTS = {"f": (">u4", 0x7F800000), "d": (">u8", 0x7FF0000000000000)}
"""The bits that are all set in a non-finite number."""


@dataclass(frozen=True)
class Noted:
    """What a broker recorded about n messages. `seconds` of the timestamp, `ttl` in ms and `priority` are -1 if absent;
    `ttl` is UNDEFINED if the expiration is removed. A list without a delivery mode gets one if `persistent`.
    """

    seconds: npt.NDArray[np.int64]
    ttl: npt.NDArray[np.int64]
    priority: npt.NDArray[np.int64]
    persistent: Mask

    def some(self, rows: npt.NDArray[np.int64]) -> Noted:
        """The values of some of the messages."""
        return Noted(*(getattr(self, name)[rows] for name in Noted.__dataclass_fields__))


def as_stored(
    buffer: Bytes, starts: Positions, stops: Positions, ok: Mask, noted: Noted, adding: Mask | None = None
) -> tuple[Mask, Mask]:
    """Which of the `ok` property lists [start, stop) a node delivers unchanged, and which it delivers unchanged except
    for their headers, in another order or with `adding` ones, and for an expiration that it removes.
    """
    rows, stored, relisted = np.flatnonzero(ok), np.zeros(len(ok), bool), np.zeros(len(ok), bool)
    kept, same = _kept(buffer, starts[rows], stops[rows], noted if len(rows) == len(ok) else noted.some(rows))
    if adding is not None:
        same &= ~adding[rows]
    stored[rows], relisted[rows] = kept & same, kept & ~same
    return stored, relisted


def _kept(buffer: Bytes, starts: Positions, stops: Positions, noted: Noted) -> tuple[Mask, Mask]:
    """Which lists a node delivers unchanged except for header order and an expiration, and which without exception."""
    listed = properties.locate(buffer, starts, stops)
    ok = listed.ok.copy()
    flags = np.where(ok, values_at(buffer, ">u2", starts), 0)
    last = starts + properties.FLAGS_SIZE
    for field in listed.fields.values():
        last[field.rows] = field.stops
    ok &= last == stops
    ok &= ~noted.persistent | (flags & _FLAGS["delivery_mode"] != 0)
    ok &= (noted.priority < 0) | (flags & _FLAGS["priority"] != 0)
    ok &= (flags & _FLAGS["timestamp"] != 0) == (noted.seconds >= 0)
    if (timed := listed.fields.get("timestamp")) is not None:
        seconds = noted.seconds[timed.rows].astype(np.uint64)
        ok[timed.rows] &= seconds == values_at(buffer, ">u8", timed.starts)
    expires = flags & _FLAGS["expiration"] != 0
    ok &= (noted.ttl < 0) | expires
    if (noted.ttl >= 0).any():
        _check_expirations(buffer, listed, ok, noted)
    same = ~expires | (noted.ttl != UNDEFINED)
    if (table := listed.fields.get("headers")) is not None:
        kept, in_order = _tables(buffer, table)
        ok[table.rows] &= kept
        same[table.rows] &= in_order
    return ok, same


def _check_expirations(buffer: Bytes, listed: PropertySpans, ok: Mask, noted: Noted) -> None:
    """Clears `ok` for lists whose expiration is written differently from the recorded one."""
    field = listed.fields.get("expiration")
    if field is None:
        return
    chosen = np.flatnonzero((noted.ttl >= 0)[field.rows])
    rows = field.rows[chosen]
    texts = pc.cast(as_array(noted.ttl[rows]), pa.string()).cast(pa.binary())
    ok[rows] &= as_mask(pc.equal(gather(buffer, field.starts[chosen], field.stops[chosen]), texts))


def _tables(buffer: Bytes, table: FieldSpans) -> tuple[Mask, Mask]:
    """Which header tables have only values that are written as they were read, and which are sorted by name without
    duplicates.
    """
    spans = headers.locate(buffer, table.starts, table.stops)
    ok, in_order = spans.ok.copy(), np.ones(len(table.rows), bool)
    ok[spans.rows[~_KEPT[spans.letters]]] = False
    odd = (spans.letters == _BOOLEAN) & (values_at(buffer, "u1", spans.starts) > 1)
    for letter, (kind, bits) in _EXPONENTS.items():
        odd |= (spans.letters == ord(letter)) & (values_at(buffer, kind, spans.starts) & bits == bits)
    ok[spans.rows[odd]] = False
    for letter in headers.NESTED:
        items = np.flatnonzero(spans.letters == ord(letter))
        values, codes = headers.distinct_values(buffer, spans, items)
        kept = np.array([_is_kept(letter, value) for value in values], bool)
        ok[spans.rows[items[~kept[codes]]]] = False
    same = spans.rows[1:] == spans.rows[:-1]
    if same.any():
        names = gather(buffer, spans.name_starts, spans.name_stops)
        in_order[spans.rows[1:][same & ~as_mask(pc.less(names[:-1], names[1:]))]] = False
    return ok, in_order


def _is_kept(letter: str, value: bytes) -> bool:
    """Whether a table or an array is written as it was read."""
    try:
        written = message_container.plain(letter, field_table.decode_value(letter, value))
        return field_table.encode_value(*written)[1:] == value
    except (FormatError, ValueError):
        return False


def relist(buffer: Bytes, spans: MessageSpans) -> tuple[Bytes, MessageSpans]:
    """The messages with all lists in the returned buffer: those that are `relisted` or `made` follow the bytes of
    `buffer`, as a node delivers them.
    """
    rows, as_made = np.flatnonzero(spans.relisted), as_mask(spans.made.is_valid()) & ~spans.relisted
    starts, stops = spans.property_starts.copy(), spans.property_stops.copy()
    pieces, size = [buffer], len(buffer)
    if len(rows):
        lists = pc.coalesce(spans.made.take(as_array(rows)), gather(buffer, starts[rows], stops[rows]))
        added, dropping = spans.added.take(as_array(rows)).fill_null(NO_BYTES), spans.ttl[rows] == UNDEFINED
        made, bounds = _rewritten(lists, added, dropping)
        pieces.append(made)
        starts[rows], stops[rows] = size + bounds[:-1], size + bounds[1:]
        size += len(made)
    if as_made.any():
        lists = spans.made.filter(as_array(as_made))
        bounds = size + offsets_of(lists).astype(np.int64)
        pieces.append(data_of(lists)[: offsets_of(lists)[-1]])
        starts[as_made], stops[as_made] = bounds[:-1], bounds[1:]
    if len(pieces) == 1:
        return buffer, spans
    nothing = np.zeros(len(starts), bool), pa.nulls(len(starts), pa.binary())
    relisted = replace(spans, property_starts=starts, property_stops=stops, relisted=nothing[0], made=nothing[1])
    return np.concatenate(pieces), relisted


def with_sorted_headers(lists: pa.BinaryArray) -> pa.BinaryArray:
    """The lists with their headers sorted by name; the first of several with one name is kept."""
    whole, bounds = _rewritten(lists, pa.repeat(NO_BYTES, len(lists)), np.zeros(len(lists), bool))
    offsets = pa.py_buffer(bounds.astype(np.int32))
    return pa.BinaryArray.from_buffers(pa.binary(), len(lists), [None, offsets, pa.py_buffer(whole)])


def _rewritten(lists: pa.BinaryArray, added: pa.BinaryArray, dropping: Mask) -> tuple[Bytes, Positions]:
    """The concatenated lists with the headers of the tables `added`, and without the expiration where `dropping`; and
    where each list begins.
    """
    data, tables, limits = data_of(lists), data_of(added), offsets_of(lists).astype(np.int64)
    buffer = np.concatenate([data, tables, _EMPTY_LENGTH])
    starts, stops, count = limits[:-1], limits[1:], len(lists)
    listed, bounds = properties.locate(buffer, starts, stops), offsets_of(added) + np.int64(len(data))
    has_table = bounds[1:] > bounds[:-1]
    places = _place_of_headers(listed, starts)
    # The part before the headers, their length, the headers, and the part after them except an expiration.
    room = np.full(count, len(buffer) - len(_EMPTY_LENGTH))
    begins, ends = np.stack([starts, room, places, stops]), np.stack([places, room, stops, stops])
    table_starts, table_stops = places.copy(), places.copy()
    if (table := listed.fields.get("headers")) is not None:
        has_table[table.rows] = True
        table_starts[table.rows], table_stops[table.rows] = table.starts, table.stops
        ends[0, table.rows], begins[2, table.rows] = table.starts - _LENGTH_SIZE, table.stops
    ends[1] += _LENGTH_SIZE * has_table
    if (field := listed.fields.get("expiration")) is not None:
        chosen = dropping[field.rows]
        ends[2, field.rows[chosen]] = field.starts[chosen] - 1
        begins[3, field.rows[chosen]] = field.stops[chosen]
    own = headers.locate(buffer, table_starts, table_stops)
    items = _joined(headers.locate(buffer, bounds[:-1], bounds[1:]), own)
    order = _order(buffer, items)
    firsts = np.concatenate(([0], np.cumsum(np.bincount(items.rows[order], minlength=count) + len(begins))))
    places_of_pieces = np.stack([firsts[:-1], firsts[:-1] + 1, firsts[1:] - 2, firsts[1:] - 1])
    inner = np.ones(firsts[-1], bool)
    inner[places_of_pieces] = False
    piece_starts, piece_stops = np.empty((2, firsts[-1]), np.int64)
    piece_starts[places_of_pieces], piece_stops[places_of_pieces] = begins, ends
    piece_starts[inner], piece_stops[inner] = items.name_starts[order] - 1, items.stops[order]
    made = gather(buffer, piece_starts, piece_stops)
    offsets = offsets_of(made).astype(np.int64)
    whole = data_of(made)[: offsets[-1]].copy()
    _patch(whole, offsets[places_of_pieces], has_table, dropping)
    return whole, offsets[firsts]


def _patch(whole: Bytes, pieces: Positions, has_table: Mask, dropping: Mask) -> None:
    """Sets flags and table lengths; `pieces` are where the four pieces of lists begin, headers before the third."""
    first, length, after, _ = pieces
    whole[first[has_table]] |= _FLAGS["headers"] >> 8
    whole[first[dropping]] &= 0xFF ^ (_FLAGS["expiration"] >> 8)
    sizes = (after - length - _LENGTH_SIZE)[has_table]
    for place in range(_LENGTH_SIZE):
        whole[length[has_table] + place] = (sizes >> 8 * (_LENGTH_SIZE - 1 - place)) & 0xFF


def _place_of_headers(listed: PropertySpans, starts: Positions) -> Positions:
    """Where the header table would begin in a list that has none."""
    places = starts + properties.FLAGS_SIZE
    for name, _ in properties.FIELDS[: [name for name, _ in properties.FIELDS].index("headers")]:
        if (field := listed.fields.get(name)) is not None:
            places[field.rows] = field.stops
    return places


def _joined(first: HeaderSpans, second: HeaderSpans) -> HeaderSpans:
    """The items of both."""
    names = [name for name in HeaderSpans.__dataclass_fields__ if name != "ok"]
    columns = {name: np.concatenate([getattr(first, name), getattr(second, name)]) for name in names}
    return HeaderSpans(ok=second.ok, **columns)


def _order(buffer: Bytes, items: HeaderSpans) -> npt.NDArray[np.intp]:
    """The order of the items by table and name, with only the first of several with one name."""
    encoded = gather(buffer, items.name_starts, items.name_stops).dictionary_encode()
    names = encoded.dictionary.to_pylist()
    ranks = np.empty(len(names), np.int64)
    ranks[sorted(range(len(names)), key=names.__getitem__)] = np.arange(len(names))
    keys = items.rows * len(names) + ranks[as_numbers(encoded.indices)]
    order = np.argsort(keys, kind="stable")
    fresh = np.ones(len(order), bool)
    fresh[1:] = keys[order][1:] != keys[order][:-1]
    return order[fresh]
