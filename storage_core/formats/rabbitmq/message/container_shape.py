"""Finds containers with the same layout as a sample by comparing whole stretches of bytes.

Only those published over AMQP 0-9-1, without headers of the broker's own. `container_walk` finds containers whose part
lengths too few others share; `message_container` handles a single one. Source: rabbitmq.md 8.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from storage_core.errors import FormatError
from storage_core.formats.layout import Bytes, Mask, Positions, values_at
from storage_core.formats.rabbitmq.amqp import properties
from storage_core.formats.rabbitmq.erlang import external_term as et
from storage_core.formats.rabbitmq.erlang import term_layout
from storage_core.formats.rabbitmq.erlang.binary_lists import NO_ITEMS, ItemSpans
from storage_core.formats.rabbitmq.erlang.simple_terms import MOST_NUMBER
from storage_core.formats.rabbitmq.erlang.term_layout import Shape, stretch
from storage_core.formats.rabbitmq.erlang.term_spans import atom_at, elements, items
from storage_core.formats.rabbitmq.message import message_container
from storage_core.formats.rabbitmq.message.delivered_lists import Noted, as_stored
from storage_core.formats.rabbitmq.message.message_spans import UNDEFINED, MessageSpans

_Span = tuple[int, int]
_NAMES = [message_container.TAG.encode(), message_container.LEGACY.encode()]
_CONTENT = bytes((et.SMALL_INTEGER, properties.CLASS_BASIC))
_TIMES = (message_container.RECEIVED, message_container.TIMESTAMP)
_WITHOUT_SHAPE = frozenset({"", message_container.DEATHS, message_container.DELIVERIES})
"""Annotations that become headers or state more than a shape holds, including those whose name is not an atom."""
_MOST_TTL = 1 << 62


@dataclass(frozen=True)
class NotedPlaces:
    """What the broker recorded about the messages of a shape, or where. `timestamp`: the span of its bytes from the end
    of the body, little-endian. `ttl`, in ms: as in `Noted`. `priority`: the position of its byte. `persistent`: a list
    without a delivery mode gets one.
    """

    timestamp: _Span | None
    ttl: int
    priority: int | None
    persistent: bool

    def of(self, buffer: Bytes, ends: Positions) -> Noted:
        """What the broker recorded about the messages whose bodies end at `ends`."""
        count = len(ends)
        seconds = np.full(count, -1) if self.timestamp is None else _seconds(buffer, ends, self.timestamp)
        priority = np.full(count, -1)
        if self.priority is not None:
            priority = values_at(buffer, "u1", ends + self.priority).astype(np.int64)
        return Noted(seconds, np.full(count, self.ttl), priority, np.full(count, self.persistent))


@dataclass(frozen=True)
class ContainerShape:
    """The layout of containers whose parts around property list and body have the same lengths. Offsets count from the
    end of the body.
    """

    stretches: Shape
    exchange: _Span
    keys: tuple[_Span, ...]
    id_at: int
    noted: NotedPlaces

    def located(self, buffer: Bytes, starts: Positions, stops: Positions) -> tuple[MessageSpans, Mask]:
        """The parts of the terms, and which of the terms have this shape."""
        found = term_layout.locate(buffer, starts, stops, self.stretches)
        ends, count = found.body_stops, len(self.keys)
        places = [np.array([span[side] for span in self.keys], np.int64) for side in (0, 1)]
        keys = ItemSpans(np.repeat(np.arange(len(starts)), count), *((ends[:, None] + at).ravel() for at in places))
        noted = self.noted.of(buffer, ends)
        ok, relisted = as_stored(buffer, found.property_starts, found.property_stops, found.ok, noted)
        nothing = pa.nulls(len(starts), pa.binary())
        messages = MessageSpans(
            ok | relisted, ends + self.exchange[0], ends + self.exchange[1], keys, found.property_starts,
            found.property_stops, found.body_starts, ends, ends + self.id_at, noted.persistent, NO_ITEMS, relisted,
            nothing, nothing, noted.ttl, noted.priority, np.full(len(starts), -1),
        )  # fmt: skip
        return messages, found.ok


def shape_of(data: bytes, id_size: int) -> ContainerShape | None:
    """The shape of one container; None for any other term, and for a container that lacks a part or holds more than a
    shape can. The id may be missing if `id_size` is 0.
    """
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
        if data[fragment[0]] != et.BINARY or 2 * len(named) < len(pairs) or not _WITHOUT_SHAPE.isdisjoint(named):
            return None
        return _shape(data, content[3], fragment, named, id_size)
    except (FormatError, IndexError, KeyError, ValueError):
        return None


def _is_plain(data: bytes, content: list[_Span]) -> bool:
    """Whether a content holds its property list as bytes and its body as a list of pieces."""
    if len(content) != 6 or data[content[5][0]] != et.LIST:
        return False
    names = [atom_at(data, content[place][0]) for place in (0, 2, 4)]
    number, listed = (data[slice(*content[place])] for place in (1, 3))
    return (
        names == [b"content", b"none", properties.PROTOCOL.encode()] and number == _CONTENT and listed[0] == et.BINARY
    )


def _shape(data: bytes, listed: _Span, fragment: _Span, named: dict[str, _Span], id_size: int) -> ContainerShape | None:
    """The shape of a container with these annotations. Raises FormatError, ValueError, KeyError for a missing part."""
    body = fragment[1]
    exchange = _binary(data, named[message_container.EXCHANGE])
    keys = [_binary(data, item) for item in items(data, named[message_container.ROUTING_KEYS][0])]
    ids = [_binary(data, named[message_container.ID])] if message_container.ID in named else []
    if any(stop - start != message_container.ID_SIZE for start, stop in ids) or (id_size and not ids):
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


def _noted(data: bytes, named: dict[str, _Span], body: int) -> tuple[NotedPlaces, list[_Span]]:
    """The values of the annotations, and the spans of the numbers that vary between messages. Raises ValueError."""
    numbers = {name: _number(data, named[name]) for name in _TIMES if name in named}
    timestamp = numbers.get(message_container.TIMESTAMP)
    if timestamp is not None:
        timestamp = timestamp[0] - body, timestamp[1] - body
    free = [*numbers.values()]
    priority, priority_at = named.get(message_container.PRIORITY), None
    if priority is not None and data[priority[0]] == et.SMALL_INTEGER:
        free.append((priority[0] + 1, priority[1]))
        priority_at = priority[0] + 1 - body
    elif priority is not None and atom_at(data, priority[0]) != message_container.UNDEFINED.encode():
        raise ValueError
    ttl = -1
    if message_container.TTL in named:
        value = et.decode(bytes((et.VERSION,)) + data[slice(*named[message_container.TTL])])
        ttl = value if isinstance(value, int) else UNDEFINED
        if isinstance(value, int) and not 0 <= value < _MOST_TTL:
            raise ValueError
    durable = named.get(message_container.DURABLE)
    persistent = durable is None or atom_at(data, durable[0]) == b"true"
    return NotedPlaces(timestamp, ttl, priority_at, persistent), free


def _binary(data: bytes, span: _Span) -> _Span:
    """The span of the bytes of a binary. Raises ValueError for any other term."""
    if data[span[0]] != et.BINARY:
        raise ValueError
    return span[0] + 5, span[1]


def _number(data: bytes, span: _Span) -> _Span:
    """The span of the bytes of a number that needs more than four of them. Raises ValueError for any other term."""
    start, stop = span
    if data[start] != et.SMALL_BIG or data[start + 2] or stop - start - 3 > MOST_NUMBER:
        raise ValueError
    return start + 3, stop


def _seconds(buffer: Bytes, ends: Positions, span: _Span) -> npt.NDArray[np.int64]:
    """The milliseconds that the broker recorded, as whole seconds."""
    found = np.zeros(len(ends), np.int64)
    for place, at in enumerate(range(*span)):
        found |= values_at(buffer, "u1", ends + at).astype(np.int64) << 8 * place
    return found // 1000
