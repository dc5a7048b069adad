"""Converts a single stored message to what a node delivers to an AMQP 0-9-1 consumer.

Where the node would fail, more is returned: no message is lost to a reader. Source: docs/format/rabbitmq-streams.md 6.
"""

from __future__ import annotations

import uuid
from base64 import b64encode
from dataclasses import dataclass
from typing import Any

from storage_core.errors import FormatError
from storage_core.formats.rabbitmq.amqp import properties, sections
from storage_core.formats.rabbitmq.amqp.field_table import Item
from storage_core.formats.rabbitmq.amqp.properties import MOST_SHORT
from storage_core.formats.rabbitmq.amqp.sections import Section
from storage_core.formats.rabbitmq.message.converted import container_view
from storage_core.formats.rabbitmq.message.converted.container_view import View

EXCHANGE, ROUTING_KEY = b"x-exchange", b"x-routing-key"
EXPIRATION, DELIVERY_MODE, PRIORITY = b"x-basic-expiration", b"x-basic-delivery-mode", b"x-basic-priority"
TYPE, APP_ID = b"x-basic-type", b"x-basic-app-id"
ANNOTATIONS = {EXPIRATION: "expiration", DELIVERY_MODE: "delivery_mode", PRIORITY: "priority"}
PROPERTY_LIST = (
    "message_id", "user_id", None, None, "reply_to", "correlation_id", "content_type", "content_encoding", None,
    "creation_time",
)  # fmt: skip
"""The fields of the section `properties` that a consumer receives, in order."""
IDS = ("message_id", "correlation_id")
MOST_ID = 256


@dataclass(frozen=True)
class Delivered:
    """A message as it is delivered: `properties` is a property list, the others are spans [start, stop) of the stored
    bytes; `body` has one or more, in order. No exchange means the default exchange, whose name is empty; no routing key
    and no `copies`, the keys of the header CC, mean the queue's name.
    """

    exchange: tuple[int, int] | None
    routing_key: tuple[int, int] | None
    properties: bytes
    body: tuple[tuple[int, int], ...]
    copies: tuple[bytes, ...] = ()


def delivered(data: bytes, of_3_13: bool = False) -> Delivered:
    """The message whose sections are `data`, as a node of 3.13 or later delivers it if it has a header section or the
    node is known to be of such a release (`of_3_13`). Raises FormatError if it cannot be delivered to any consumer.
    """
    found = sections.parse(data)
    copies: tuple[bytes, ...] = ()
    if not of_3_13 and sections.last_of(found, sections.HEADER) is None:
        values, pieces = _values(data, found), [body(found)]
    else:
        values, pieces = _of_container(data, found)
        copies = _copies(data, found)
    try:
        listed = properties.encode(values)
    except ValueError as error:
        raise FormatError(0, str(error)) from None
    where = tuple(pieces) or ((0, 0),)
    return Delivered(_text_of(data, found, EXCHANGE), _text_of(data, found, ROUTING_KEY), listed, where, copies)


def _of_container(data: bytes, found: list[Section]) -> tuple[dict[str, Any], list[tuple[int, int]]]:
    """Property values and body of a message at a later node, with what that records as it reads one."""
    pieces, encoded = container_view.body_of(data, found, _leave_out)
    values = container_view.values_of(View.of_sections(data, found), encoded, _leave_out)
    ttl = values["expiration"]
    values["expiration"] = str(int(ttl)).encode() if ttl and ttl.removeprefix(b"+").isdigit() else ttl
    return values, pieces


def _copies(data: bytes, found: list[Section]) -> tuple[bytes, ...]:
    """The routing keys in the annotation of the header CC."""
    noted = sections.pairs_in(data, found, sections.MESSAGE_ANNOTATIONS)
    kind, keys = next((value for key, value in noted if key == ("symbol", container_view.CC)), container_view.NOTHING)
    return tuple(key for _, key in keys if isinstance(key, bytes)) if kind == "list" else ()


def _leave_out(_reason: str) -> None:
    """Ignores what no node delivers: no message is lost because of it."""


def _values(data: bytes, found: list[Section]) -> dict[str, Any]:
    """The values of the property list, as a node of 3.10 builds it."""
    annotations = sections.pairs(data, found, sections.MESSAGE_ANNOTATIONS)
    values: dict[str, Any] = {}
    headers: list[Item] = []
    for key, name in ANNOTATIONS.items():
        _put(values, headers, name, *_pop_first(annotations, key))
    ids = _listed(data, found, values, headers)
    applied = sections.pairs(data, found, sections.APPLICATION_PROPERTIES)
    for key, name in ((TYPE, "type"), (APP_ID, "app_id")):
        _put(values, headers, name, *_pop_first(applied, key))
    headers = ids + [_header(key, *value) for key, value in applied if value[0] != "compound"] + headers
    if headers:
        values["headers"] = headers
    return values


def _text_of(data: bytes, found: list[Section], key: bytes) -> tuple[int, int] | None:
    """The span of an annotation's text."""
    last = next((section for section in found[::-1] if section.code == sections.MESSAGE_ANNOTATIONS), None)
    listed = last.inner if last else ()
    for name, value in zip(listed[::2], listed[1::2], strict=False):
        if data[name.value : name.stop] == key:
            return (value.value, value.stop) if value.code in sections.TEXTS else None
    return None


def body(found: list[Section]) -> tuple[int, int]:
    """The span of the body: the last data section's bytes, the text of a value, or all sections of another kind."""
    parts = [section for section in found if section.code in {sections.DATA, sections.VALUE, sections.SEQUENCE}]
    if not parts:
        return 0, 0
    last = parts[-1]
    if last.code != sections.SEQUENCE and last.value.code in sections.TEXTS:
        return last.value.value, last.value.stop
    begin = len(parts)
    while begin and parts[begin - 1].code == last.code:
        begin -= 1
    return parts[begin].start, last.stop


def _pop_first(pairs: list[tuple[bytes, tuple[str, Any]]], key: bytes) -> tuple[str, Any]:
    """Removes and returns the first value of a key; null if there is none."""
    for index, (name, value) in enumerate(pairs):
        if name == key:
            del pairs[index]
            return value
    return "null", None


def _listed(data: bytes, found: list[Section], values: dict[str, Any], headers: list[Item]) -> list[Item]:
    """Puts the fields of the last properties section into `values`; returns headers that state the types of the ids."""
    ids: list[Item] = []
    listed = next((each for each in found[::-1] if each.code == sections.PROPERTIES), None)
    for name, element in zip(PROPERTY_LIST, listed.inner if listed else (), strict=False):
        kind, value = sections.value_of(data, element)
        if name is None or value is None:
            continue
        if name == "creation_time":
            values["timestamp"] = sections.seconds(value) if isinstance(value, int) else None
        elif name in IDS:
            _put_id(values, ids, name, kind, value)
        else:
            _put(values, headers, name, kind, value)
    return ids


def _put_id(values: dict[str, Any], ids: list[Item], name: str, kind: str, value: Any) -> None:
    header = b"x-" + name.replace("_", "-").encode()
    text = _text(kind, value)
    if (kind in {"binary", "utf8"} and len(text) > MOST_ID) or len(text) > MOST_SHORT:
        ids.insert(0, (header, "S", value if isinstance(value, bytes) else text))
        return
    values[name] = text
    if kind in {"uuid", "ulong", "binary"}:
        ids.insert(0, (header + b"-type", "S", kind.encode()))


def _text(kind: str, value: Any) -> bytes:
    if kind == "uuid":
        return str(uuid.UUID(bytes=value)).encode()
    return b64encode(value) if kind == "binary" else sections.as_bytes(value)


def _put(values: dict[str, Any], headers: list[Item], name: str, kind: str, value: Any) -> None:
    """Sets one field; a text that is too long for a property, and a number that fits none, becomes a header."""
    if value is None:
        return
    numeric = name in {"delivery_mode", "priority"}
    if numeric and kind in {"ubyte", "byte", "ushort", "uint", "ulong", "int", "long", "short"} and 0 <= value < 256:
        values[name] = value
    elif not numeric and len(sections.as_bytes(value)) <= MOST_SHORT:
        values[name] = sections.as_bytes(value)
    elif kind != "compound":
        headers.append(_header(b"x-" + name.replace("_", "-").encode(), kind, value))


def _header(key: bytes, kind: str, value: Any) -> Item:
    if kind == "ulong":
        return (key, "l", value) if value < 1 << 63 else (key, "S", str(value).encode())
    if kind == "timestamp":
        return key, "T", sections.seconds(value)
    if kind in {"uuid", "char"}:
        return key, "S", _text(kind, value) if kind == "uuid" else value.decode("utf-32-be", "replace").encode()
    return key, sections.LETTERS[kind], value
