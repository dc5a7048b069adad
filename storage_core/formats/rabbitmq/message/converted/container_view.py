"""Converts a message in AMQP 1.0 sections as a node does for an AMQP 0-9-1 consumer: as 4.3, where earlier ones differ.

Streams hold such sections with a header section, classic queues those published over AMQP 1.0. `message_container`
handles what the broker recorded in a container of the latter. Source: docs/format/rabbitmq-streams.md 6.1.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import isfinite
from typing import Any
from urllib.parse import unquote_to_bytes

from storage_core.formats.rabbitmq.amqp import sections
from storage_core.formats.rabbitmq.amqp.field_table import Item
from storage_core.formats.rabbitmq.amqp.properties import MOST_SHORT, PERSISTENT_MODE, TRANSIENT_MODE
from storage_core.formats.rabbitmq.amqp.sections import Section, Value

TYPE = b"x-basic-type"
HEADER_PREFIX, PROPERTY_PREFIX = b"x-", b"x-basic-"
"""Prefixes of the names of annotations that become headers, and of those among them that set a property instead."""
NOTED = {
    "delivery_mode": b"x-basic-delivery-mode", "priority": b"x-basic-priority", "expiration": b"x-basic-expiration",
}  # fmt: skip
"""Annotations that supply fields left unset by the header section."""
CC, RECEIVED, DEATHS = b"x-cc", b"x-opt-rabbitmq-received-time", b"x-opt-deaths"
NO_HEADERS = (b"x-routing-key", b"x-exchange", b"x-death")
"""Annotations that no consumer receives."""
PROPERTY_LIST = (
    "message_id", "user_id", None, None, "reply_to", "correlation_id", "content_type", "content_encoding", None,
    "timestamp", "app_id",
)  # fmt: skip
"""The fields of the section `properties` that a consumer receives, in order."""
IDS = {"message_id": b"x-message-id", "correlation_id": b"x-correlation-id"}
REPLY_QUEUE = b"/queues/"
"""Begins an AMQP 1.0 address; the rest is a queue name as in a URI. Nodes since 4.3 write a reply_to this way."""
ESCAPE = "%"
"""Begins an escape in such an address."""
LEFT_OUT_UNLESS_TEXT = frozenset({"reply_to", "app_id"})
"""Fields that a node omits if they are not utf8 or are too long."""
ENCODED = b"amqp-1.0"
"""The type of a message whose body is encoded sections."""

NOTHING: Value = ("null", None)

Refuse = Callable[[str], None]
"""Called with what no node delivers, where a node would fail. If it returns, everything else is still converted."""
_TEXTS = frozenset({"utf8", "symbol", "binary", "uuid"})
"""Types whose values are bytes in a node as well."""
_LEFT_OUT_UNLESS_RIGHT = frozenset({"user_id", "timestamp"})
_IN_NO_TABLE = frozenset({"uuid", "char"})
_RAW = frozenset({*sections.DECIMALS, sections.WIDTHLESS})
_BROKEN_ESCAPE = re.compile(ESCAPE.encode() + rb"(?![0-9A-Fa-f]{2})")
_DEATH = {
    b"queue": "utf8", b"reason": "symbol", b"count": "ulong", b"first-time": "timestamp", b"last-time": "timestamp",
    b"exchange": "utf8", b"routing-keys": "array",
}  # fmt: skip
"""The fields that a node writes for one death, after a `ttl` if there is one."""


@dataclass(frozen=True)
class View:
    """The parts of a message from which its property list is built."""

    header: list[Value]
    noted: list[tuple[Value, Value]]
    listed: list[Value]
    applied: list[tuple[Value, Value]]

    @classmethod
    def of_sections(cls, data: bytes, found: list[Section]) -> View:
        """The parts in the sections of `data`. Raises FormatError."""
        return cls(
            sections.values_in(data, found, sections.HEADER),
            sections.pairs_in(data, found, sections.MESSAGE_ANNOTATIONS),
            sections.values_in(data, found, sections.PROPERTIES),
            sections.pairs_in(data, found, sections.APPLICATION_PROPERTIES),
        )


def values_of(view: View, encoded: bool, refuse: Refuse) -> dict[str, Any]:
    """The values of the property list, None for those that a message lacks. `encoded`: the body is sections."""
    noted = [(key[1], value) for key, value in view.noted if key[0] == "symbol"]
    values, ids = _of_properties(view.listed, refuse)
    by_key = dict(reversed(noted))
    values |= _of_header(view.header, by_key, refuse)
    values["type"] = ENCODED if encoded else _short("type", by_key.get(TYPE, NOTHING), refuse)
    listed = [*_noted_headers(noted, refuse), *ids]
    for (kind, name), value in view.applied:
        if kind != "utf8" or len(name) > MOST_SHORT or _is_raw(value):
            continue
        if (typed := _typed(value, refuse)) is not None:
            listed.append((name, *typed))
    # The first of several with one name is kept.
    by_name = {item[0]: item for item in reversed(listed)}
    if by_name:
        headers = [by_name[name] for name in sorted(by_name)]
        values["headers"] = [
            (name, letter, _with_short_names(letter, inner, refuse)) for name, letter, inner in headers
        ]
    return values


def body_of(data: bytes, found: list[Section], refuse: Refuse) -> tuple[list[tuple[int, int]], bool]:
    """The spans of the body, which may be in pieces, and whether it is encoded sections."""
    bodies = [section for section in found if section.code in sections.BODIES]
    if not bodies:
        return [], False
    if bodies[0].code != sections.DATA:
        return [(bodies[0].start, len(data))], True
    if bodies[-1].code != sections.DATA:
        return [(section.start, section.stop) for section in bodies], True
    if any(section.code != sections.DATA for section in bodies):
        refuse("the body is data sections and others")
    texts = {code for code, kind in sections.TEXTS.items() if kind == "binary"}
    if any(section.code == sections.DATA and section.value.code not in texts for section in bodies):
        refuse("a data section holds no binary")
    return [(each.value.value, each.value.stop) for each in bodies if each.code == sections.DATA], False


def is_header(key: bytes) -> bool:
    """Whether a consumer receives the annotation `key` as a header of this name."""
    if key in {CC, DEATHS, *NO_HEADERS}:
        return False
    return key.startswith(HEADER_PREFIX) and not key.startswith(PROPERTY_PREFIX)


def _of_header(header: list[Value], noted: dict[bytes, Value], refuse: Refuse) -> dict[str, Any]:
    """Delivery mode, priority and expiration."""
    durable, priority, ttl = [*header, NOTHING, NOTHING, NOTHING][:3]
    known = {
        "delivery_mode": None if durable[0] != "boolean" else PERSISTENT_MODE if durable[1] else TRANSIENT_MODE,
        "priority": _octet("priority", priority, refuse),
        "expiration": str(ttl[1]).encode() if isinstance(ttl[1], int) else None,
    }
    for name, key in NOTED.items():
        if known[name] is None and key in noted:
            value = noted[key]
            known[name] = _short(name, value, refuse) if name == "expiration" else _octet(name, value, refuse)
    return known


def _octet(name: str, value: Value, refuse: Refuse) -> int | None:
    if isinstance(value[1], int) and value[0] != "boolean":
        return (sections.seconds(value[1]) if value[0] == "timestamp" else value[1]) & 255
    if value[1] is not None:
        refuse(f"the {name} is a {value[0]}")
    return None


def _of_properties(listed: list[Value], refuse: Refuse) -> tuple[dict[str, Any], list[Item]]:
    """The fields of the properties section, and headers for ids that do not become fields."""
    values: dict[str, Any] = {}
    ids: list[Item] = []
    for name, (kind, value) in zip(PROPERTY_LIST, listed, strict=False):
        if name is None or kind == "null":
            continue
        if name in _LEFT_OUT_UNLESS_RIGHT and not _is_tagged(kind, value):
            refuse(f"the {name} is a {kind}")
        elif name == "timestamp":
            values[name] = sections.seconds(value) if kind == "timestamp" else None
        elif name in LEFT_OUT_UNLESS_TEXT:
            values[name] = _queue_of(name, value) if kind == "utf8" and len(value) <= MOST_SHORT else None
        elif name == "user_id":
            values[name] = value if isinstance(value, bytes) and len(value) <= MOST_SHORT else None
        elif name not in IDS:
            values[name] = _short(name, (kind, value), refuse)
        elif kind == "uuid":
            values[name] = f"urn:uuid:{uuid.UUID(bytes=value)}".encode()
        elif kind == "ulong":
            values[name] = str(value).encode()
        elif kind == "binary" or (kind == "utf8" and len(value) > MOST_SHORT):
            ids.insert(0, (IDS[name], "x" if kind == "binary" else "S", value))
        elif kind == "utf8":
            values[name] = value
        else:
            refuse(f"the {name} is a {kind}")
    return values, ids


def _queue_of(name: str, text: bytes) -> bytes | None:
    """The text of a field; for a reply_to that is a queue's address, the queue, or None if its escapes are broken."""
    if name != "reply_to" or not text.startswith(REPLY_QUEUE):
        return text
    return None if _BROKEN_ESCAPE.search(text) else unquote_to_bytes(text.removeprefix(REPLY_QUEUE))


def _is_tagged(kind: str, value: Any) -> bool:
    """Whether a node holds the value as a pair of type and value."""
    return kind not in {"boolean", "array", "described", "compound"} and not _is_raw((kind, value))


def _is_raw(value: Value) -> bool:
    """Whether a node keeps the bytes of a value because Erlang has no equivalent."""
    return value[0] in _RAW or (isinstance(value[1], float) and not isfinite(value[1]))


def _short(name: str, value: Value, refuse: Refuse) -> bytes | None:
    kind, text = value
    if kind in _TEXTS and len(text) <= MOST_SHORT:
        return bytes(text)
    if kind != "null":
        refuse(f"the {name} is a {kind}" if kind not in _TEXTS else f"the {name} is longer than {MOST_SHORT} bytes")
    return None


def _noted_headers(noted: list[tuple[bytes, Value]], refuse: Refuse) -> Iterator[Item]:
    for key, value in noted:
        if key == RECEIVED and value[0] == "timestamp":
            yield b"timestamp_in_ms", "l", value[1]
        elif key == DEATHS and value[0] == "array" and value[1] and value[1][0][0] == "map":
            yield b"x-death", "A", [("F", table) for each in value[1] if (table := _death(each, refuse)) is not None]
        elif key == CC and (typed := _typed(value, refuse)) is not None:
            yield (b"CC", *typed)
        elif is_header(key) and len(key) <= MOST_SHORT and not _is_raw(value):
            typed = _typed(value, refuse)
            if typed is not None:
                yield (key, *typed)


def _death(value: Value, refuse: Refuse) -> list[Item] | None:
    """One table of `x-death`."""
    pairs = value[1] if value[0] == "map" else []
    ttl = pairs[0][1] if pairs and pairs[0][0] == ("symbol", b"ttl") else None
    fields = pairs if ttl is None else pairs[1:]
    right = [key for key, _ in fields] == [("symbol", name) for name in _DEATH]
    right = right and [kind for _, (kind, _) in fields] == [*_DEATH.values()]
    if not right or (ttl is not None and (ttl[0] != "uint" or ttl[1] >> 32)):
        refuse("a death of the message is not as expected")
        return None
    queue, reason, count, first, _, exchange, keys = (inner for _, (_, inner) in fields)
    table: list[Item] = [
        (b"count", "l", _signed(count)), (b"reason", "S", reason), (b"queue", "S", queue),
        (b"time", "T", sections.seconds(first)), (b"exchange", "S", exchange),
        (b"routing-keys", "A", [("S", key[1]) for key in keys if key[0] == "utf8"]),
    ]  # fmt: skip
    return table if ttl is None else [(b"original-expiration", "S", str(ttl[1]).encode()), *table]


def _typed(value: Value, refuse: Refuse, listed: bool = False) -> tuple[str, Any] | None:
    """A value as one of a field table, with its type letter; None if it is refused. `listed`: in a list, where a node
    supports fewer types and omits none.
    """
    kind, inner = value
    if kind == "map":
        return "F", list(_table(inner, refuse, listed))
    if kind == "list" or (kind == "array" and not listed):
        kept = inner if listed else [each for each in inner if not _is_raw(each)]
        return "A", [typed for each in kept if (typed := _typed(each, refuse, True)) is not None]
    if kind == "ulong" and not listed:
        return "l", _signed(inner)
    if kind not in sections.LETTERS or kind in _IN_NO_TABLE or _is_raw(value):
        refuse(f"a header is a {kind}{' in a list' if listed else ''}")
        return None
    if kind == "timestamp":
        return "T", sections.seconds(inner)
    if kind == "binary":
        return "S", inner
    return sections.LETTERS[kind], inner


def _table(pairs: list[tuple[Value, Value]], refuse: Refuse, listed: bool) -> Iterator[Item]:
    for (kind, key), value in pairs:
        if not listed and (_is_raw((kind, key)) or _is_raw(value)):
            continue
        if kind not in _TEXTS:
            refuse(f"a name in a header is a {kind}")
        elif (typed := _typed(value, refuse)) is not None:
            yield (key, *typed)


def _with_short_names(letter: str, value: Any, refuse: Refuse) -> Any:
    """A header's value without the names in it that do not fit a field table."""
    if letter == "A":
        return [(kind, _with_short_names(kind, inner, refuse)) for kind, inner in value]
    if letter != "F":
        return value
    kept = []
    for name, kind, inner in value:
        if len(name) <= MOST_SHORT:
            kept.append((name, kind, _with_short_names(kind, inner, refuse)))
        else:
            refuse(f"a name in a header is longer than {MOST_SHORT} bytes")
    return kept


def _signed(number: int) -> int:
    """A number as the signed 64 bits that a node writes."""
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)
