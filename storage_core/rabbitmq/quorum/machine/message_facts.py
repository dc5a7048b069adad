"""What the machine of a quorum queue looks at in a message when it comes.

Source: docs/format/rabbitmq-quorum.md 7 and 10.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from storage_core.errors import FormatError
from storage_core.formats.rabbitmq.erlang import external_term as et
from storage_core.formats.rabbitmq.message import message_container, properties

_EXPIRATION = 1 + [name for name, _ in properties.FIELDS].index("expiration")
_NORMAL_PRIORITY = 4
_DELIVERIES = "delivery_count"
_BODIES = {message_container.LEGACY: 5, message_container.AMQP: 2, message_container.MQTT: 6}
"""Which part of a content a node counts as its body, by protocol."""
_MARKS = tuple(
    bytes((len(name),)) + name.encode() for name in (message_container.TTL, message_container.PRIORITY, _DELIVERIES)
)
"""How the names of annotations that count are spelled, in each kind of atom."""


@dataclass(frozen=True)
class MessageFacts:
    """The size of its body, its own time to live in ms, whether its priority is a high one, and how often it was
    delivered before it came here.
    """

    size: int
    ttl: int | None = None
    high: bool = False
    deliveries: int = 0

    @property
    def plain(self) -> bool:
        """Whether there is nothing but the size."""
        return self.ttl is None and not self.high and not self.deliveries


def message_facts(term: bytes) -> MessageFacts:
    """The facts of an encoded message; none of one that cannot be decoded, which a read tells."""
    try:
        return facts_of(et.decode(term))
    except FormatError:
        return MessageFacts(0)


def sized_facts(term: bytes, size: int) -> MessageFacts:
    """The facts of an encoded container whose size the command says; it is decoded only where more may count."""
    if not any(mark in term for mark in _MARKS):
        return MessageFacts(size)
    found = message_facts(term)
    return MessageFacts(size, found.ttl, found.high, found.deliveries)


def facts_of(message: Any) -> MessageFacts:
    """The facts of a decoded message; a node counts 0 bytes of what is none."""
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
    return MessageFacts(_size_of(content[5]), ttl)


def _of_container(protocol: Any, content: Any, annotations: Any) -> MessageFacts:
    noted = annotations if isinstance(annotations, dict) else {}
    ttl, priority, deliveries = (
        value if isinstance(value, int) else None
        for value in map(noted.get, (message_container.TTL, message_container.PRIORITY, _DELIVERIES))
    )
    at = _BODIES.get(protocol)
    body = content[at] if at is not None and isinstance(content, tuple) and len(content) > at else None
    return MessageFacts(_size_of(body), ttl, (priority or 0) > _NORMAL_PRIORITY, deliveries or 0)


def _size_of(body: Any) -> int:
    """Bytes of a binary, or of the fragments of a body; 0 for anything else."""
    fragments = body if isinstance(body, list) else [body]
    return sum(len(fragment) for fragment in fragments if isinstance(fragment, bytes))
