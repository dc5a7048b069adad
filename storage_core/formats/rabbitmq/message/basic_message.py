"""The term that holds a message, `basic_message`: one term ⇄ its parts, and the spans of many terms at once.

`properties` handles the property lists inside, `message_container` the terms of RabbitMQ 3.13 and later.
Source: rabbitmq.md 6.3.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np

from storage_core.errors import FormatError
from storage_core.formats.layout import Bytes, Mask, Positions, values_at
from storage_core.formats.rabbitmq.amqp import properties
from storage_core.formats.rabbitmq.erlang import external_term as et
from storage_core.formats.rabbitmq.erlang import term_layout
from storage_core.formats.rabbitmq.erlang.binary_lists import NO_ITEMS, ItemSpans
from storage_core.formats.rabbitmq.erlang.term_layout import Shape, stretch
from storage_core.formats.rabbitmq.message import basic_walk, container_shape, container_walk, message_container
from storage_core.formats.rabbitmq.message.container_shape import ContainerShape
from storage_core.formats.rabbitmq.message.converted import amqp_content, mqtt_content
from storage_core.formats.rabbitmq.message.message_container import Container
from storage_core.formats.rabbitmq.message.message_spans import MessageSpans, Part, joined, nothing_noted

PROTOCOL = et.Atom(properties.PROTOCOL)
OLD_PROTOCOL = "rabbit_framing_amqp_0_8"
CLASS_BASIC = properties.CLASS_BASIC
ID_SIZE = message_container.ID_SIZE
"""Bytes of an id; the messages of quorum queues have none."""


class Reach(Enum):
    """How far a node gets with a malformed term."""

    NOWHERE = "its recovery already takes it for no message"
    OTHER_PROTOCOLS = "a consumer of AMQP 0-9-1 fails, one of another protocol may get it"
    RECOVERY = "whoever is to deliver it fails"
    FLAG = "its recovery fails where it asks whether the message is persistent, else it is delivered"
    CONSUMER = "it is delivered as it is"


class MessageError(FormatError):
    """A term that holds no valid message, but that a node processes to some extent."""

    def __init__(self, reason: str, reach: Reach = Reach.RECOVERY) -> None:
        super().__init__(0, reason)
        self.reach = reach


@dataclass(frozen=True)
class Message:
    """A message as it was published. `properties` is the property list as delivered, from the flags word on."""

    vhost: bytes
    exchange: bytes
    routing_keys: tuple[bytes, ...]
    properties: bytes
    body: bytes
    id: bytes
    persistent: bool


def decode(term: bytes, id_size: int = ID_SIZE) -> Message:
    """The parts of one term, in any encoding of its properties, fragments and atoms.

    Raises MessageError if a node gets further than recognising that it is not a message, else FormatError. The id has
    16 or `id_size` bytes: a quorum queue omits it. A container does not state its vhost, so `vhost` is empty.
    """
    value = et.decode(term)
    if message_container.is_container(value):
        return _contained(message_container.parse(value, id_size))
    if not isinstance(value, tuple) or len(value) != 6 or value[0] != "basic_message":
        raise FormatError(0, "the term is not a basic_message")
    _, resource, keys, content, message_id, persistent = value
    if not isinstance(message_id, bytes) or len(message_id) not in {id_size, ID_SIZE}:
        raise FormatError(0, "the id is not 16 bytes")
    exchange = _checked(resource, ("resource", bytes, object, bytes), "the exchange")
    if not isinstance(keys, list) or not all(isinstance(key, bytes) for key in keys):
        raise MessageError("the routing keys are not a list of binaries")
    listed, body = _content(content)
    if persistent not in {"true", "false"}:
        raise MessageError("the persistent flag is not a boolean", Reach.FLAG)
    return Message(exchange[1], exchange[3], tuple(keys), listed, body, message_id, persistent == "true")


def _contained(found: Container) -> Message:
    try:
        values, body = _converted(found)
        listed = message_container.delivered(values, found.annotations)
    except amqp_content.RefusedError as error:
        raise MessageError(error.reason, Reach.OTHER_PROTOCOLS) from None
    except FormatError as error:
        raise error if isinstance(error, MessageError) else MessageError(error.reason) from None
    return Message(b"", found.exchange, found.routing_keys, listed, body, found.id, found.persistent)


def _converted(found: Container) -> tuple[dict[str, Any], bytes]:
    """Property values and body, as a node converts them for AMQP 0-9-1."""
    if found.protocol == message_container.AMQP:
        return amqp_content.converted(found.content)
    if found.protocol == message_container.MQTT:
        return mqtt_content.converted(found.content)
    listed, body = _content(found.content)
    return properties.decode(listed), body


def _checked(value: Any, shape: tuple[Any, ...], what: str) -> tuple[Any, ...]:
    """`value` if it is a tuple of `shape`, whose elements are a type, for any value of that type, or an atom."""
    good = isinstance(value, tuple) and len(value) == len(shape)
    if good and all(isinstance(v, s) if isinstance(s, type) else v == s for v, s in zip(value, shape, strict=True)):
        return tuple(value)
    raise MessageError(f"{what} is not as expected")


def _content(content: Any) -> tuple[bytes, bytes]:
    """The property list, as a node delivers it, and the body."""
    _, number, decoded, listed, protocol, fragments = _checked(
        content, ("content", int, object, object, str, list), "the content"
    )
    if not all(isinstance(fragment, bytes) for fragment in fragments):
        raise MessageError("the payload is not a list of binaries")
    try:
        if isinstance(listed, bytes) and protocol == PROTOCOL:
            raw = listed
        elif isinstance(listed, bytes) and decoded == "none":
            if protocol != OLD_PROTOCOL:
                raise MessageError(f"the content is of protocol {protocol}, which no node supports")
            raw = properties.encode(properties.decode(listed))
        else:
            raw = properties.from_decoded(decoded)
    except FormatError as error:
        raise MessageError(error.reason) from None
    if number != CLASS_BASIC:
        raise MessageError(f"the content is of class {number}, not {CLASS_BASIC}", Reach.CONSUMER)
    return raw, b"".join(reversed(fragments))


def encode(message: Message) -> bytes:
    """The term as OTP 25 writes it, with the body as one fragment (none if it is empty)."""
    content = (
        et.Atom("content"),
        CLASS_BASIC,
        et.Atom("none"),
        message.properties,
        PROTOCOL,
        [message.body] if message.body else [],
    )
    resource = (et.Atom("resource"), message.vhost, et.Atom("exchange"), message.exchange)
    keys = list(message.routing_keys)
    return et.encode((et.Atom("basic_message"), resource, keys, content, message.id, message.persistent))


_SHAPES, _FEWEST_SHAPED = 4, 64
"""How many shapes are tried before the rest is walked, and the fewest terms that are worth one."""
_SAMPLES = 8
"""How many terms are sampled to find a shape."""


@dataclass(frozen=True)
class TermShape:
    """The layout of terms whose parts before the property list have the same lengths. Offsets count from a term's first
    byte, `id_at` from the end of its body.
    """

    stretches: Shape
    exchange: tuple[int, int]
    key_starts: Positions
    key_stops: Positions
    id_at: int
    persistent: bool

    def located(self, buffer: Bytes, starts: Positions, stops: Positions) -> tuple[MessageSpans, Mask]:
        """The parts of the terms, and which of the terms have this shape."""
        found, count = term_layout.locate(buffer, starts, stops, self.stretches), len(self.key_starts)
        keys = ((starts[:, None] + at).ravel() for at in (self.key_starts, self.key_stops))
        spans = MessageSpans(
            found.ok,
            starts + self.exchange[0],
            starts + self.exchange[1],
            ItemSpans(np.repeat(np.arange(len(starts)), count), *keys),
            found.property_starts,
            found.property_stops,
            found.body_starts,
            found.body_stops,
            found.body_stops + self.id_at,
            np.full(len(starts), self.persistent),
            NO_ITEMS,
            *nothing_noted(len(starts)),
        )
        return spans, found.ok


_LATEST: dict[int, TermShape | ContainerShape] = {}
"""The shape tried last, by size of ids: the terms of the next batch nearly always have it as well."""


def locate(buffer: Bytes, starts: Positions, stops: Positions, id_size: int = ID_SIZE) -> MessageSpans:
    """Finds the parts of the terms [start, stop) of `buffer`, whose ids have `id_size` bytes. Never raises.

    Containers are found only if their property list is delivered as it is stored, or if `delivered_lists` can rewrite
    it; the latter are marked.
    """
    rest = np.arange(len(starts))
    parts: list[Part] = []
    known = _LATEST.get(id_size)
    for _ in range(_SHAPES):
        if len(rest) < _FEWEST_SHAPED:
            break
        samples = (_shape_of(buffer, int(starts[row]), int(stops[row]), id_size) for row in rest[:_SAMPLES])
        shape = known or next((found for found in samples if found is not None), None)
        if shape is None:
            break
        _LATEST[id_size], known = shape, None
        found, fits = shape.located(buffer, *((starts, stops) if not parts else (starts[rest], stops[rest])))
        if fits.all() and not parts:
            return found
        parts.append((rest[fits], found.some(fits)))
        rest = rest[~fits]
    others = _spelled(buffer, starts[rest], stops[rest], id_size)
    return joined([*parts, (rest, others)]) if parts else others


def _shape_of(buffer: Bytes, start: int, stop: int, id_size: int) -> TermShape | ContainerShape | None:
    """The shape of one term; None if it is of no use for finding others."""
    term = buffer[start:stop].tobytes()
    if (contained := container_shape.shape_of(term, id_size)) is not None:
        return contained if _is_right(term, id_size) else None
    if basic_walk.is_decoded(term):
        return None
    sample = basic_walk.locate(buffer, np.array([start]), np.array([stop]), id_size)
    if not sample.ok[0] or sample.body_starts[0] == sample.body_stops[0]:
        return None
    listed, body = int(sample.property_starts[0]), int(sample.body_stops[0])
    listed_stop, body_start = int(sample.property_stops[0]), int(sample.body_starts[0])
    exchange = int(sample.exchange_starts[0]) - start, int(sample.exchange_stops[0]) - start
    key_starts, key_stops = sample.keys.starts - start, sample.keys.stops - start
    names = [exchange, *zip(key_starts.tolist(), key_stops.tolist(), strict=True)]
    id_at = int(sample.id_starts[0]) - body
    stretches = Shape(
        stretch(buffer[start : listed - 4].tobytes(), names),
        stretch(buffer[listed_stop : body_start - 4].tobytes()),
        stretch(buffer[body:stop].tobytes(), [(id_at, id_at + id_size)]),
    )
    return TermShape(stretches, exchange, key_starts, key_stops, id_at, bool(sample.persistent[0]))


def _is_right(term: bytes, id_size: int) -> bool:
    """Whether a term is valid, including the parts that a shape does not check."""
    try:
        decode(term, id_size)
    except FormatError:
        return False
    return True


def _spelled(buffer: Bytes, starts: Positions, stops: Positions, id_size: int) -> MessageSpans:
    """The parts of terms in any of the encodings, found step by step."""
    contained = values_at(buffer, "u1", starts + 2) == message_container.PARTS
    if not contained.any():
        return basic_walk.locate(buffer, starts, stops, id_size)
    walked = container_walk.locate(buffer, starts[contained], stops[contained], id_size)
    others = basic_walk.locate(buffer, starts[~contained], stops[~contained], id_size)
    return joined([(np.flatnonzero(contained), walked), (np.flatnonzero(~contained), others)])
