"""The term that holds a message since RabbitMQ 3.13, a container `mc`: its parts, and the properties as delivered.

`basic_message`, `amqp_content` or `mqtt_content` handles the content, by the protocol that the message was published
over. Source: rabbitmq.md 8.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from storage_core.errors import FormatError
from storage_core.formats.rabbitmq.amqp import properties, sections
from storage_core.formats.rabbitmq.amqp.field_table import Item

TAG, LEGACY, AMQP, MQTT = "mc", "mc_amqpl", "mc_amqp", "mc_mqtt"
PROTOCOLS = (LEGACY, AMQP, MQTT)
EXCHANGE, ROUTING_KEYS, ID, DEATHS, TTL, DELIVERIES = "x", "rk", "id", "deaths", "ttl", "delivery_count"
TIMESTAMP, RECEIVED, DURABLE, PRIORITY, COPIES, ACQUIRED = "ts", "rts", "d", "p", "bcc", "acquired_count"
BINDING_KEYS, CORRELATION = "binding_keys", "correlation_id"
UNDEFINED = "undefined"
ID_SIZE, PARTS = 16, 4
_RECEIVED_HEADER = b"timestamp_in_ms"


@dataclass(frozen=True)
class Container:
    """The parts of one container. `annotations` are those recorded by the broker: atoms are text, other keys bytes."""

    protocol: str
    content: Any
    annotations: Mapping[Any, Any]
    exchange: bytes
    routing_keys: tuple[bytes, ...]
    id: bytes
    persistent: bool


def is_container(value: Any) -> bool:
    """Whether a term is a container."""
    return isinstance(value, tuple) and len(value) == PARTS and value[0] == TAG


def parse(value: tuple[Any, ...], id_size: int = ID_SIZE) -> Container:
    """The parts of a container. Raises FormatError if its protocol is unknown, or if it lacks what a queue needs: with
    an `id_size` of 0 it may lack an id.
    """
    _, protocol, content, annotations = value
    if protocol not in PROTOCOLS:
        raise FormatError(0, f"a message of the protocol {protocol!r:.40}, which no release has")
    if not isinstance(annotations, dict):
        raise FormatError(0, "the container has no annotations")
    exchange, keys, message_id = (annotations.get(name) for name in (EXCHANGE, ROUTING_KEYS, ID))
    if not isinstance(exchange, bytes):
        raise FormatError(0, "the container names no exchange")
    if not isinstance(keys, list) or not all(isinstance(key, bytes) for key in keys):
        raise FormatError(0, "the routing keys are not a list of binaries")
    if message_id is None and not id_size:
        message_id = b""
    elif not isinstance(message_id, bytes) or len(message_id) != ID_SIZE:
        raise FormatError(0, "the id is not 16 bytes")
    persistent = annotations.get(DURABLE, "true") == "true"
    return Container(protocol, content, annotations, exchange, tuple(keys), message_id, persistent)


def delivered(stored: Mapping[str, Any], annotations: Mapping[Any, Any]) -> bytes:
    """The property list that a consumer receives: stored values and the broker's annotations, headers sorted by name.

    A value that is None is absent. Raises FormatError for values that do not fit a property list.
    """
    values = dict(stored)
    values["headers"] = _headers(values.get("headers") or [], annotations) or values.get("headers")
    try:
        timestamp = annotations.get(TIMESTAMP)
        values["timestamp"] = sections.seconds(timestamp) if isinstance(timestamp, int) else None
        if TTL in annotations:
            ttl = annotations[TTL]
            values["expiration"] = str(ttl).encode() if isinstance(ttl, int) else None
        if values.get("priority") is None and annotations.get(PRIORITY, UNDEFINED) != UNDEFINED:
            values["priority"] = annotations[PRIORITY]
        if values.get("delivery_mode") is None and annotations.get(DURABLE, "true") == "true":
            values["delivery_mode"] = properties.PERSISTENT_MODE
        return properties.encode(values)
    except (ValueError, TypeError) as error:
        raise FormatError(0, f"an annotation of the broker is not a property: {error}") from None


def _headers(stored: list[Item], annotations: Mapping[Any, Any]) -> list[Item]:
    """Annotations `x-…`, then the stored headers and the deaths; the first header of a name is kept."""
    found: list[Item] = [(name, *plain(letter, value)) for name, letter, value in stored]
    deaths = annotations.get(DEATHS)
    if deaths is not None:
        found = [item for item in found if item[0] != b"x-death"]
        found.append((b"x-death", "A", [("F", _death(*death)) for death in _deaths(deaths)]))
    noted = [_noted(name, value) for name, value in annotations.items() if isinstance(name, bytes)]
    unique: dict[bytes, Item] = {}
    for item in [*filter(None, noted), *found]:
        unique.setdefault(item[0], item)
    return [unique[name] for name in sorted(unique)]


def plain(letter: str, value: Any) -> tuple[str, Any]:
    """A header as a broker writes it after decoding it: `l` for both letters of a long, also in nested values."""
    if letter == "F":
        return letter, [(name, *plain(kind, inner)) for name, kind, inner in value]
    if letter == "A":
        return letter, [plain(kind, inner) for kind, inner in value]
    return ("l" if letter == "L" else letter), value


def _noted(name: bytes, value: Any) -> Item | None:
    """An annotation as a header; None for one that stays inside the broker."""
    if value in ("true", "false") and name.startswith(b"x-"):
        return name, "t", value == "true"
    if isinstance(value, int) and (name.startswith(b"x-") or name == _RECEIVED_HEADER):
        return name, "l", value
    return (name, "S", value) if isinstance(value, bytes) and name.startswith(b"x-") else None


def _deaths(deaths: Any) -> list[tuple[Any, Any]]:
    """Pairs of key and record, the latest death first: stored as a list since 3.13.3, before as a record with a map."""
    if isinstance(deaths, list):
        return [pair for pair in deaths if isinstance(pair, tuple) and len(pair) == 2]
    try:
        _, _, _, records = deaths
        return sorted(records.items(), key=lambda pair: pair[1][4]["last_time"])[::-1]
    except (ValueError, TypeError, KeyError, IndexError, AttributeError):
        raise FormatError(0, "the deaths of the message are not as expected") from None


def _death(key: Any, record: Any) -> list[Item]:
    """One table of `x-death`."""
    try:
        (queue, reason), (_, exchange, keys, count, noted) = key, record
        table: list[Item] = [
            (b"count", "l", count),
            (b"reason", "S", reason if isinstance(reason, bytes) else str(reason).encode()),
            (b"queue", "S", queue),
            (b"time", "T", noted["first_time"] // 1000),
            (b"exchange", "S", exchange),
            (b"routing-keys", "A", [("S", routing_key) for routing_key in keys]),
        ]
        ttl = noted.get("ttl")
    except (ValueError, TypeError, KeyError):
        raise FormatError(0, "a death of the message is not as expected") from None
    return table if ttl is None else [(b"original-expiration", "S", str(ttl).encode()), *table]
