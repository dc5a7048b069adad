"""The facts of a message that the machine of a quorum queue uses when the message arrives.

Source: docs/format/rabbitmq-quorum.md 7 and 10.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from storage_core.errors import FormatError
from storage_core.formats.rabbitmq.amqp import properties
from storage_core.formats.rabbitmq.erlang import external_term as et
from storage_core.formats.rabbitmq.message import message_container

_EXPIRATION = 1 + [name for name, _ in properties.FIELDS].index("expiration")
NORMAL_PRIORITY = 4
"""The priority of a message that states none."""
_HEADERS = 1 + [name for name, _ in properties.FIELDS].index("headers")
_OF_A_HEADER = 100
_TOPIC, _MQTT_PROPERTIES = 3, 7
_COUNTED = ("Content-Type", "Response-Topic", "Correlation-Data")
"""MQTT properties whose values count."""
_BODIES = {message_container.LEGACY: 5, message_container.AMQP: 2, message_container.MQTT: 6}
"""The part of the content that a node counts as the body, by protocol."""
_COUNT = (message_container.TTL, message_container.PRIORITY, message_container.DELIVERIES)
_MARKS = tuple(bytes((len(name),)) + name.encode() for name in _COUNT)
"""The encoded names of the annotations that count; every kind of atom contains these bytes."""


@dataclass(frozen=True)
class MessageFacts:
    """A message's body size, its own time to live in ms, its priority, the number of deliveries before it arrived here,
    and the size of what a node counts as its metadata.
    """

    size: int
    ttl: int | None = None
    priority: int = NORMAL_PRIORITY
    deliveries: int = 0
    metadata: int = 0

    @property
    def plain(self) -> bool:
        """Whether the message has no facts except its size."""
        return self.ttl is None and self.priority == NORMAL_PRIORITY and not self.deliveries


def noted_facts(size: int, metadata: int, ttl: int, priority: int, deliveries: int) -> MessageFacts:
    """The facts of a message from the values that a broker noted; -1 for values that it did not note."""
    known = priority if priority >= 0 else NORMAL_PRIORITY
    return MessageFacts(size, ttl if ttl >= 0 else None, known, max(deliveries, 0), metadata)


def message_facts(term: bytes) -> MessageFacts:
    """The facts of an encoded message; empty if it cannot be decoded, which a read reports."""
    try:
        return facts_of(et.decode(term))
    except FormatError:
        return MessageFacts(0)


def sized_facts(term: bytes, size: int, metadata: int) -> MessageFacts:
    """The facts of an encoded container whose sizes the command states; decodes it only if more may count."""
    if not any(mark in term for mark in _MARKS):
        return MessageFacts(size, metadata=metadata)
    return replace(message_facts(term), size=size, metadata=metadata)


def facts_of(message: Any) -> MessageFacts:
    """The facts of a decoded message. Of other terms, a node counts the bytes of a binary, and 0 for the rest."""
    if message_container.is_container(message):
        return _of_container(*message[1:])
    if not isinstance(message, tuple) or len(message) != 6 or message[0] != "basic_message":
        return MessageFacts(len(message) if isinstance(message, bytes) else 0)
    content = message[3]
    if not isinstance(content, tuple) or len(content) != 6 or not isinstance(content[5], list):
        return MessageFacts(0)
    decoded = content[2]
    text = decoded[_EXPIRATION] if isinstance(decoded, tuple) and len(decoded) > _EXPIRATION else None
    ttl = int(text) if isinstance(text, bytes) and text.isdigit() else None
    return MessageFacts(_size_of(content[5]), ttl, metadata=_metadata_of(message_container.LEGACY, content))


def _of_container(protocol: Any, content: Any, annotations: Any) -> MessageFacts:
    noted = annotations if isinstance(annotations, dict) else {}
    ttl, priority, deliveries = (
        value if isinstance(value, int) else None
        for value in map(noted.get, (message_container.TTL, message_container.PRIORITY, message_container.DELIVERIES))
    )
    at = _BODIES.get(protocol)
    body = content[at] if at is not None and isinstance(content, tuple) and len(content) > at else None
    known = NORMAL_PRIORITY if priority is None else priority
    return MessageFacts(_size_of(body), ttl, known, deliveries or 0, _metadata_of(protocol, content))


def _metadata_of(protocol: Any, content: Any) -> int:
    """The bytes that a node of 4.3 counts in addition to the body, if the command does not state them."""
    try:
        if protocol == message_container.LEGACY:
            if isinstance(content[3], bytes):
                return len(content[3])
            headers = content[2][_HEADERS]
            return _OF_A_HEADER * len(headers) if isinstance(headers, list) else 0
        if protocol == message_container.AMQP:
            return _OF_A_HEADER if content[0] == "v1" and content[1] else 0
        if protocol == message_container.MQTT:
            return len(content[_TOPIC]) + sum(map(_size_of_property, content[_MQTT_PROPERTIES].items()))
    except (TypeError, IndexError, AttributeError):
        pass
    return 0


def _size_of_property(named: tuple[Any, Any]) -> int:
    name, value = named
    if name in _COUNTED:
        return len(value)
    return sum(len(key) + len(each) for key, each in value) if name == "User-Property" else 0


def _size_of(body: Any) -> int:
    """Bytes of a binary, or of the fragments of a body; 0 for anything else."""
    fragments = body if isinstance(body, list) else [body]
    return sum(len(fragment) for fragment in fragments if isinstance(fragment, bytes))
