"""The property lists of many containers as a node delivers them: which as they are stored, and the others whose headers
only come in another order, written anew.

Publishers seldom sort their headers; a node that holds messages as containers does. One list alone is
`message_container`'s. Source: rabbitmq.md 8.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from storage_core.arrays import as_array, as_mask, as_numbers
from storage_core.errors import FormatError
from storage_core.formats.layout import Bytes, Mask, Positions, values_at
from storage_core.formats.rabbitmq.amqp import field_table, headers, properties
from storage_core.formats.rabbitmq.amqp.headers import HeaderSpans
from storage_core.formats.rabbitmq.amqp.properties import FieldSpans, PropertySpans
from storage_core.formats.rabbitmq.message import message_container
from storage_core.formats.rabbitmq.message.message_spans import MessageSpans
from storage_core.formats.spans import data_of, gather, offsets_of

_LENGTH_SIZE = 4
_FLAGS = {name: 1 << (15 - index) for index, (name, _) in enumerate(properties.FIELDS)}
_KEPT = np.zeros(256, bool)
_KEPT[[ord(letter) for letter in "SIlbBsuiVTxtfdFA"]] = True
"""Types of headers that a node writes as it read them, some of them only most of their values."""
_BOOLEAN = ord("t")
_EXPONENTS = {"f": (">u4", 0x7F800000), "d": (">u8", 0x7FF0000000000000)}
"""The bits that are all set in a number that is not finite."""


@dataclass(frozen=True)
class Noted:
    """What a broker noted of n messages. `seconds` of the timestamp, `ttl` in ms and `priority` are -1 where there is
    none; nothing is said of the expiration where not `expires`. To a list without a delivery mode one is added where
    `persistent`.
    """

    seconds: npt.NDArray[np.int64]
    expires: Mask
    ttl: npt.NDArray[np.int64]
    priority: npt.NDArray[np.int64]
    persistent: Mask

    def some(self, rows: npt.NDArray[np.int64]) -> Noted:
        """That of some messages."""
        return Noted(*(getattr(self, name)[rows] for name in Noted.__dataclass_fields__))


def as_stored(buffer: Bytes, starts: Positions, stops: Positions, ok: Mask, noted: Noted) -> tuple[Mask, Mask]:
    """Which of the property lists [start, stop) that are `ok` a node delivers as they are, and which but for the order
    of their headers.
    """
    rows, stored, unsorted = np.flatnonzero(ok), np.zeros(len(ok), bool), np.zeros(len(ok), bool)
    kept, in_order = _kept(buffer, starts[rows], stops[rows], noted if len(rows) == len(ok) else noted.some(rows))
    stored[rows], unsorted[rows] = kept & in_order, kept & ~in_order
    return stored, unsorted


def _kept(buffer: Bytes, starts: Positions, stops: Positions, noted: Noted) -> tuple[Mask, Mask]:
    """Which lists a node delivers as they are but for the order of headers, and in which these are in order."""
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
    ok &= ~noted.expires | ((flags & _FLAGS["expiration"] != 0) == (noted.ttl >= 0))
    if noted.expires.any():
        _check_expirations(buffer, listed, ok, noted)
    in_order = np.ones(len(starts), bool)
    if (table := listed.fields.get("headers")) is not None:
        kept, in_order[table.rows] = _tables(buffer, table)
        ok[table.rows] &= kept
    return ok, in_order


def _check_expirations(buffer: Bytes, listed: PropertySpans, ok: Mask, noted: Noted) -> None:
    """Takes `ok` from the lists whose expiration is spelled otherwise than what was noted."""
    field = listed.fields.get("expiration")
    if field is None:
        return
    chosen = np.flatnonzero((noted.expires & (noted.ttl >= 0))[field.rows])
    rows = field.rows[chosen]
    texts = pc.cast(as_array(noted.ttl[rows]), pa.string()).cast(pa.binary())
    ok[rows] &= as_mask(pc.equal(gather(buffer, field.starts[chosen], field.stops[chosen]), texts))


def _tables(buffer: Bytes, table: FieldSpans) -> tuple[Mask, Mask]:
    """Which tables of headers have values only that are written as they were; and which are in the order of their
    names, each once.
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


def sorted_headers(buffer: Bytes, spans: MessageSpans) -> tuple[Bytes, MessageSpans]:
    """The messages with those that are `unsorted` made `ok`: their property lists as a node delivers them follow the
    bytes of `buffer` in the buffer that is given back.
    """
    rows = np.flatnonzero(spans.unsorted)
    if not len(rows):
        return buffer, spans
    starts, stops = spans.property_starts.copy(), spans.property_stops.copy()
    buffer, starts[rows], stops[rows] = _rewritten(buffer, starts[rows], stops[rows])
    ok, unsorted = spans.ok | spans.unsorted, np.zeros(len(spans.ok), bool)
    return buffer, replace(spans, ok=ok, unsorted=unsorted, property_starts=starts, property_stops=stops)


def _rewritten(buffer: Bytes, starts: Positions, stops: Positions) -> tuple[Bytes, Positions, Positions]:
    """The lists [start, stop), each with a table of headers, behind the bytes of `buffer`."""
    table = properties.locate(buffer, starts, stops).fields["headers"]
    items = headers.locate(buffer, table.starts, table.stops)
    order = _order(buffer, items)
    # What comes before the headers, each of them, and what comes after.
    bounds = np.concatenate(([0], np.cumsum(np.bincount(items.rows[order], minlength=len(starts)) + 2)))
    first, last = bounds[:-1], bounds[1:] - 1
    begins, ends = np.empty((2, bounds[-1]), np.int64)
    begins[first], ends[first] = starts, table.starts
    begins[last], ends[last] = table.stops, stops
    inner = np.ones(len(begins), bool)
    inner[first] = inner[last] = False
    begins[inner], ends[inner] = items.name_starts[order] - 1, items.stops[order]
    made = gather(buffer, begins, ends)
    offsets = offsets_of(made).astype(np.int64)
    whole = np.concatenate([buffer, data_of(made)[: offsets[-1]]])
    offsets += len(buffer)
    sizes = offsets[last] - offsets[first + 1]
    for place in range(_LENGTH_SIZE):
        whole[offsets[first + 1] - _LENGTH_SIZE + place] = (sizes >> 8 * (_LENGTH_SIZE - 1 - place)) & 0xFF
    return whole, offsets[bounds[:-1]], offsets[bounds[1:]]


def _order(buffer: Bytes, items: HeaderSpans) -> npt.NDArray[np.intp]:
    """The items by table and name, of several of one name the first."""
    encoded = gather(buffer, items.name_starts, items.name_stops).dictionary_encode()
    names = encoded.dictionary.to_pylist()
    ranks = np.empty(len(names), np.int64)
    ranks[sorted(range(len(names)), key=names.__getitem__)] = np.arange(len(names))
    keys = items.rows * len(names) + ranks[as_numbers(encoded.indices)]
    order = np.argsort(keys, kind="stable")
    fresh = np.ones(len(order), bool)
    fresh[1:] = keys[order][1:] != keys[order][:-1]
    return order[fresh]
