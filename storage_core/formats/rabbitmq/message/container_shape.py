"""Containers that are spelled like one of them, found as whole stretches of bytes; the property list as it is stored.

Only those that came by AMQP 0-9-1, and of these only rows whose list a node delivers as it is, or but for the order of
its headers: where what the broker noted says what the list says. The others are `message_container`'s, one by one.
Source: rabbitmq.md 8.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc

from storage_core.arrays import as_mask
from storage_core.errors import FormatError
from storage_core.formats.layout import Bytes, Mask, Positions, values_at
from storage_core.formats.rabbitmq.erlang import external_term as et
from storage_core.formats.rabbitmq.erlang import term_layout
from storage_core.formats.rabbitmq.erlang.term_layout import Shape, stretch
from storage_core.formats.rabbitmq.erlang.term_spans import atom_at, elements, items
from storage_core.formats.rabbitmq.message import field_table, headers, message_container, properties
from storage_core.formats.rabbitmq.message.message_spans import MessageSpans
from storage_core.formats.rabbitmq.message.properties import FieldSpans, PropertySpans
from storage_core.formats.spans import gather

_Span = tuple[int, int]
_FLAGS = {name: 1 << (15 - index) for index, (name, _) in enumerate(properties.FIELDS)}
_NAMES = [message_container.TAG.encode(), message_container.LEGACY.encode()]
_CONTENT = bytes((et.SMALL_INTEGER, properties.CLASS_BASIC))
_MOST_NUMBER = 7
"""Bytes of the largest number that is looked at."""
_KEPT = np.zeros(256, bool)
_KEPT[[ord(letter) for letter in "SIlbBsuiVTxtfdFA"]] = True
"""Types of headers that a node writes as it read them, some of them only most of their values."""
_BOOLEAN = ord("t")
_EXPONENTS = {"f": (">u4", 0x7F800000), "d": (">u8", 0x7FF0000000000000)}
"""The bits that are all set in a number that is not finite."""
_TIMES = ("rts", message_container.TIMESTAMP)
_TOLD_ALONE = frozenset({"", message_container.DEATHS, message_container.DELIVERIES})
"""Annotations, those without an atom for a name among them, that make headers or say more than a shape holds."""
_MOST_TTL = 1 << 62


@dataclass(frozen=True)
class Noted:
    """What the broker noted of the messages of a shape. `timestamp`: where its bytes lie, from the end of the body, the
    low one first. `ttl`, in ms: -1 for one that takes the expiration away; nothing is said of it without `expires`.
    `priority`: where its byte lies. `persistent`: a list without a delivery mode gets one.
    """

    timestamp: _Span | None
    expires: bool
    ttl: int
    priority: int | None
    persistent: bool


@dataclass(frozen=True)
class ContainerShape:
    """How containers are spelled whose parts around property list and body are equally long. Offsets are from the end
    of the body.
    """

    stretches: Shape
    exchange: _Span
    keys: tuple[_Span, ...]
    id_at: int
    noted: Noted

    def located(self, buffer: Bytes, starts: Positions, stops: Positions) -> tuple[MessageSpans, Mask]:
        """The parts of the terms that are spelled so and are delivered as they are stored; and which are spelled so."""
        found = term_layout.locate(buffer, starts, stops, self.stretches)
        ends, count = found.body_stops, len(self.keys)
        spans = [np.array([span[side] for span in self.keys], np.int64) for side in (0, 1)]
        key_starts, key_stops = ((ends[:, None] + at).ravel() for at in spans)
        ok, unsorted = found.ok.copy(), np.zeros(len(starts), bool)
        rows = np.flatnonzero(ok)
        as_stored, in_order = _delivered(
            buffer, found.property_starts[rows], found.property_stops[rows], ends[rows], self.noted
        )
        ok[rows], unsorted[rows] = as_stored & in_order, as_stored & ~in_order
        messages = MessageSpans(
            ok, ends + self.exchange[0], ends + self.exchange[1], np.repeat(np.arange(len(starts)), count), key_starts,
            key_stops, found.property_starts, found.property_stops, found.body_starts, ends, ends + self.id_at,
            np.full(len(starts), self.noted.persistent), unsorted, np.full(len(starts), self.noted.ttl),
            _priorities(buffer, ends, self.noted.priority),
        )  # fmt: skip
        return messages, found.ok


def shape_of(data: bytes, id_size: int) -> ContainerShape | None:
    """How one container is spelled; None for another term, and for one that says more than the list may."""
    try:
        whole = elements(data, 1)
        if len(whole) != message_container.PARTS or [atom_at(data, at) for at, _ in whole[:2]] != _NAMES:
            return None
        content = elements(data, whole[2][0])
        if not _is_plain(data, content) or whole[3][1] != len(data) or data[whole[3][0]] != et.MAP:
            return None
        (fragment,) = items(data, content[5][0])
        pairs = items(data, whole[3][0])
        named = {atom_at(data, key[0]).decode(): value for key, value in zip(pairs[::2], pairs[1::2], strict=True)}
        if data[fragment[0]] != et.BINARY or 2 * len(named) < len(pairs) or not _TOLD_ALONE.isdisjoint(named):
            return None
        return _shape(data, content[3], fragment, named, id_size)
    except (FormatError, IndexError, KeyError, ValueError):
        return None


def _is_plain(data: bytes, content: list[_Span]) -> bool:
    """Whether a content has its property list as bytes, and its body as a list of pieces."""
    if len(content) != 6 or data[content[5][0]] != et.LIST:
        return False
    names = [atom_at(data, content[place][0]) for place in (0, 2, 4)]
    number, listed = (data[slice(*content[place])] for place in (1, 3))
    return (
        names == [b"content", b"none", properties.PROTOCOL.encode()] and number == _CONTENT and listed[0] == et.BINARY
    )


def _shape(data: bytes, listed: _Span, fragment: _Span, named: dict[str, _Span], id_size: int) -> ContainerShape | None:
    """The shape of a container with these annotations. KeyError where a part is missing, FormatError, ValueError."""
    body = fragment[1]
    exchange = _binary(data, named[message_container.EXCHANGE])
    keys = [_binary(data, item) for item in items(data, named[message_container.ROUTING_KEYS][0])]
    ids = [_binary(data, named[message_container.ID])] if message_container.ID in named else []
    if [stop - start for start, stop in ids] != ([id_size] if id_size else []):
        return None
    noted, numbers = _noted(data, named, body)
    free = sorted([exchange, *keys, *ids, *numbers])
    stretches = Shape(
        stretch(data[: listed[0] + 1]),
        stretch(data[listed[1] : fragment[0] + 1]),
        stretch(data[body:], [(start - body, stop - body) for start, stop in free]),
    )
    moved = [(start - body, stop - body) for start, stop in (exchange, *keys)]
    return ContainerShape(stretches, moved[0], tuple(moved[1:]), ids[0][0] - body if ids else 0, noted)


def _noted(data: bytes, named: dict[str, _Span], body: int) -> tuple[Noted, list[_Span]]:
    """What the annotations say, and where the numbers lie that differ from message to message. ValueError."""
    numbers = {name: _number(data, named[name]) for name in _TIMES if name in named}
    timestamp = numbers.get(message_container.TIMESTAMP)
    if timestamp is not None:
        timestamp = timestamp[0] - body, timestamp[1] - body
    free = [*numbers.values()]
    priority, priority_at = named.get(message_container.PRIORITY), None
    if priority is not None and data[priority[0]] == et.SMALL_INTEGER:
        free.append((priority[0] + 1, priority[1]))
        priority_at = priority[0] + 1 - body
    elif priority is not None and atom_at(data, priority[0]) != b"undefined":
        raise ValueError
    expires, ttl = message_container.TTL in named, -1
    if expires:
        said = et.decode(bytes((et.VERSION,)) + data[slice(*named[message_container.TTL])])
        ttl = said if isinstance(said, int) else -1
        if isinstance(said, int) and not 0 <= said < _MOST_TTL:
            raise ValueError
    durable = named.get(message_container.DURABLE)
    persistent = durable is None or atom_at(data, durable[0]) == b"true"
    return Noted(timestamp, expires, ttl, priority_at, persistent), free


def _binary(data: bytes, span: _Span) -> _Span:
    """Where the bytes of a binary lie. ValueError for another term."""
    if data[span[0]] != et.BINARY:
        raise ValueError
    return span[0] + 5, span[1]


def _number(data: bytes, span: _Span) -> _Span:
    """Where the bytes of a number lie that takes more than four of them. ValueError for another term."""
    start, stop = span
    if data[start] != et.SMALL_BIG or data[start + 2] or stop - start - 3 > _MOST_NUMBER:
        raise ValueError
    return start + 3, stop


def _delivered(buffer: Bytes, starts: Positions, stops: Positions, ends: Positions, noted: Noted) -> tuple[Mask, Mask]:
    """Which property lists [start, stop) a node delivers as they are but for the order of headers, and of which these
    are in order. `ends` are the ends of the bodies.
    """
    listed = properties.locate(buffer, starts, stops)
    ok = listed.ok.copy()
    flags = np.where(ok, values_at(buffer, ">u2", starts), 0)
    last = starts + properties.FLAGS_SIZE
    for field in listed.fields.values():
        last[field.rows] = field.stops
    ok &= last == stops
    if noted.persistent:
        ok &= flags & _FLAGS["delivery_mode"] != 0
    if noted.priority is not None:
        ok &= flags & _FLAGS["priority"] != 0
    ok &= (flags & _FLAGS["timestamp"] != 0) == (noted.timestamp is not None)
    if noted.timestamp is not None and "timestamp" in listed.fields:
        field = listed.fields["timestamp"]
        ok[field.rows] &= _seconds(buffer, ends[field.rows], noted.timestamp) == values_at(buffer, ">u8", field.starts)
    if noted.expires:
        ok &= _expiring(buffer, listed, len(starts), noted.ttl)
    in_order = np.ones(len(starts), bool)
    if (table := listed.fields.get("headers")) is not None:
        kept, in_order[table.rows] = _tables(buffer, table)
        ok[table.rows] &= kept
    return ok, in_order


def _seconds(buffer: Bytes, ends: Positions, span: _Span) -> npt.NDArray[np.uint64]:
    """Whole seconds of the milliseconds that the broker noted."""
    found = np.zeros(len(ends), np.uint64)
    for place, at in enumerate(range(*span)):
        found |= values_at(buffer, "u1", ends + at).astype(np.uint64) << np.uint64(8 * place)
    return found // np.uint64(1000)


def _priorities(buffer: Bytes, ends: Positions, at: int | None) -> npt.NDArray[np.int64]:
    """The priorities whose bytes lie `at` the ends of the bodies; -1 for none."""
    if at is None:
        return np.full(len(ends), -1)
    return values_at(buffer, "u1", ends + at).astype(np.int64)


def _expiring(buffer: Bytes, listed: PropertySpans, count: int, ttl: int) -> Mask:
    """Which lists have the expiration `ttl`, in ms, or none where that is negative."""
    text = str(ttl).encode()
    field = listed.fields.get("expiration")
    found = np.zeros(count, bool)
    if field is not None:
        found[field.rows] = True
    if ttl < 0:
        return ~found
    if field is not None:
        same = field.stops - field.starts == len(text)
        found[field.rows] = same & (values_at(buffer, f"S{len(text)}", field.starts) == text)
    return found


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
