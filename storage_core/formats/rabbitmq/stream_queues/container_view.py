"""What a node of 3.13 or later makes of a stored message that has a header section, for a consumer of AMQP 0-9-1.

Such nodes store one with every message that came by AMQP 0-9-1; one of 3.10 hands out no message that has it.
Source: docs/format/rabbitmq-streams.md 6.1.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

from storage_core.errors import FormatError
from storage_core.formats.rabbitmq.message.field_table import Item
from storage_core.formats.rabbitmq.stream_queues import sections
from storage_core.formats.rabbitmq.stream_queues.sections import Section

TYPE = b"x-basic-type"
NOTED = {
    "delivery_mode": b"x-basic-delivery-mode", "priority": b"x-basic-priority", "expiration": b"x-basic-expiration",
}  # fmt: skip
"""Annotations that say what the header section leaves open."""
CC, RECEIVED, DEATHS = b"x-cc", b"x-opt-rabbitmq-received-time", b"x-opt-deaths"
PROPERTY_LIST = (
    "message_id", "user_id", None, None, "reply_to", "correlation_id", "content_type", "content_encoding", None,
    "timestamp", "app_id",
)  # fmt: skip
"""The fields of the section `properties` that a consumer gets, in their order."""
IDS = {"message_id": b"x-message-id", "correlation_id": b"x-correlation-id"}
MOST_SHORT = 255


def values_of(data: bytes, found: list[Section]) -> dict[str, Any]:
    """The values of the property list of the message whose sections in `data` are `found`; a text that is too long for
    its property is left out, as by the node.
    """
    noted = sections.pairs(data, found, sections.MESSAGE_ANNOTATIONS)
    values, ids = _of_properties(data, found)
    values |= _of_header(data, found, dict(noted))
    listed = [*_noted_headers(noted), *ids]
    for key, value in sections.pairs(data, found, sections.APPLICATION_PROPERTIES):
        typed = _typed(*value)
        if typed is not None:
            listed.append((key, *typed))
    # Of several of one name the first is kept.
    by_name = {item[0]: item for item in reversed([item for item in listed if len(item[0]) <= MOST_SHORT])}
    if by_name:
        values["headers"] = [by_name[name] for name in sorted(by_name)]
    return values


def is_header(key: bytes) -> bool:
    """Whether a consumer gets the annotation `key` as a header of this name."""
    if key in {CC, RECEIVED, DEATHS, b"x-routing-key", b"x-exchange", b"x-death"}:
        return False
    return key.startswith(b"x-") and not key.startswith(b"x-basic-")


def _of_header(data: bytes, found: list[Section], noted: dict[bytes, tuple[str, Any]]) -> dict[str, Any]:
    """Delivery mode, priority, expiration and type."""
    values: dict[str, Any] = {}
    section = sections.last_of(found, sections.HEADER)
    said = [sections.value_of(data, each)[1] for each in section.inner[:3]] if section else []
    durable, priority, ttl = [*said, None, None, None][:3]
    values["delivery_mode"] = None if durable is None else 2 if durable else 1
    values["priority"], values["expiration"] = priority, None if ttl is None else str(ttl).encode()
    for name, key in NOTED.items():
        if values[name] is None and key in noted:
            values[name] = noted[key][1]
    values["expiration"] = _short(values["expiration"])
    for name in ("delivery_mode", "priority"):
        if not isinstance(values[name], int) or not 0 <= values[name] < 256:
            values[name] = None
    values["type"] = _short(noted.get(TYPE, ("null", None))[1])
    return values


def _of_properties(data: bytes, found: list[Section]) -> tuple[dict[str, Any], list[Item]]:
    """The fields of the last section of properties, and headers for ids that are none."""
    values: dict[str, Any] = {}
    ids: list[Item] = []
    section = sections.last_of(found, sections.PROPERTIES)
    for name, element in zip(PROPERTY_LIST, section.inner if section else (), strict=False):
        kind, value = sections.value_of(data, element)
        if name is None or value is None:
            continue
        if name == "timestamp":
            values[name] = sections.seconds(value) if isinstance(value, int) else None
        elif name not in IDS:
            values[name] = _short(value)
        elif kind == "uuid":
            values[name] = f"urn:uuid:{uuid.UUID(bytes=value)}".encode()
        elif kind == "ulong":
            values[name] = str(value).encode()
        elif isinstance(value, bytes) and (kind == "binary" or len(value) > MOST_SHORT):
            ids.insert(0, (IDS[name], "x" if kind == "binary" else "S", value))
        else:
            values[name] = _short(value)
    return values, ids


def _noted_headers(noted: list[tuple[bytes, tuple[str, Any]]]) -> Iterator[Item]:
    for key, value in noted:
        typed = _typed(*value)
        if typed is None:
            continue
        if key == CC:
            yield (b"CC", *typed)
        elif key == RECEIVED and value[0] == "timestamp":
            yield b"timestamp_in_ms", "l", value[1]
        elif is_header(key):
            yield (key, *typed)


def _typed(kind: str, value: Any, depth: int = 0) -> tuple[str, Any] | None:
    """A value as one of a field table, with the letter of its type; None for what a node cannot give. FormatError."""
    if kind == "compound":
        return _nested(value, depth + 1)
    if kind == "timestamp":
        return "T", sections.seconds(value)
    if kind == "binary":
        return "S", value
    if kind == "ulong":
        return "l", (value + (1 << 63)) % (1 << 64) - (1 << 63)
    letter = sections.LETTERS.get(kind)
    return None if letter is None or kind in {"uuid", "char", *sections.DECIMALS} else (letter, value)


def _nested(data: bytes, depth: int) -> tuple[str, Any] | None:
    """A list or map, whose constructor is the first byte of `data`, in `depth` - 1 others."""
    if depth > sections.MOST_NESTED:
        raise FormatError(0, f"a header is nested deeper than {sections.MOST_NESTED}")
    outer, elements = sections.nested(data)
    inner = [sections.value_of(data, each) for each in elements]
    if outer.code in sections.LISTS:
        return "A", [typed for typed in (_typed(*each, depth) for each in inner) if typed is not None]
    if outer.code not in sections.MAPS:
        return None
    pairs = ((key[1], _typed(*value, depth)) for key, value in zip(inner[::2], inner[1::2], strict=True))
    return "F", [(key, *typed) for key, typed in pairs if typed is not None and isinstance(key, bytes)]


def _short(value: Any) -> bytes | None:
    return value if isinstance(value, bytes) and len(value) <= MOST_SHORT else None
