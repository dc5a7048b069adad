"""The content of a container published over AMQP 1.0, a record `v1`: its property values and body for AMQP 0-9-1.

It holds the message annotations as terms, and the sections from the properties on as they were received.
Source: rabbitmq.md 8, docs/format/rabbitmq-streams.md 6.1.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NoReturn

from storage_core.errors import FormatError
from storage_core.formats.rabbitmq.amqp import sections
from storage_core.formats.rabbitmq.amqp.sections import Value
from storage_core.formats.rabbitmq.message.converted import container_view
from storage_core.formats.rabbitmq.message.converted.container_view import View

TAG = "v1"
_CONSTANTS: dict[str, Value] = {
    "true": ("boolean", True), "false": ("boolean", False), "undefined": ("null", None), "null": ("null", None),
}  # fmt: skip
_PLAIN: dict[str, type[Any]] = {
    "utf8": bytes, "symbol": bytes, "binary": bytes, "uuid": bytes, "float": float, "double": float,
    **dict.fromkeys(
        ("ubyte", "byte", "ushort", "short", "uint", "int", "ulong", "long", "timestamp", "char"), int
    ),
}  # fmt: skip
_RAW = {
    0x72: "float", 0x74: "decimal32", 0x82: "double", 0x84: "decimal64", 0x94: "decimal128",
    **dict.fromkeys(sections.ARRAYS, sections.WIDTHLESS),
}  # fmt: skip
"""Types that a node keeps as bytes, by constructor: decimals, non-finite numbers, and arrays without bytes."""


class RefusedError(FormatError):
    """A valid message that no node delivers to an AMQP 0-9-1 consumer."""


def converted(content: Any) -> tuple[dict[str, Any], bytes]:
    """Property values, None for those that a message lacks, and body. Raises FormatError, RefusedError."""
    if not isinstance(content, tuple) or len(content) != 7 or content[0] != TAG:
        raise FormatError(0, "the content is not as AMQP 1.0 leaves it")
    _, noted, stored, _, _, position, code = content
    if not isinstance(stored, bytes) or not isinstance(position, int) or not 0 <= position <= len(stored):
        raise FormatError(0, "the sections of the content are not as expected")
    if code not in sections.BODIES:
        raise FormatError(0, f"{code!r:.40} is not a section of a body")
    joined = code == sections.DATA
    found = sections.parse(stored if joined else stored[:position])
    view = View.of_sections(stored, found)
    if sections.last_of(found, sections.MESSAGE_ANNOTATIONS) is None:
        view = replace(view, noted=_pairs(noted, 0))
    pieces, encoded = [(position, len(stored))], True
    if joined:
        pieces, encoded = container_view.body_of(stored, found, _refuse)
    values = container_view.values_of(view, encoded, _refuse)
    return values, b"".join([stored[start:stop] for start, stop in pieces])


def _refuse(reason: str) -> NoReturn:
    raise RefusedError(0, f"{reason}, which no node delivers to AMQP 0-9-1")


def _pairs(terms: Any, depth: int) -> list[tuple[Value, Value]]:
    if not isinstance(terms, list) or not all(isinstance(each, tuple) and len(each) == 2 for each in terms):
        raise FormatError(0, "annotations that are not a list of pairs")
    return [(_value(key, depth), _value(value, depth)) for key, value in terms]


def _value(term: Any, depth: int) -> Value:
    """The value that a term represents."""
    if depth > sections.MOST_NESTED:
        raise FormatError(0, f"an annotation is nested deeper than {sections.MOST_NESTED}")
    if isinstance(term, str) and term in _CONSTANTS:
        return _CONSTANTS[term]
    if not isinstance(term, tuple) or len(term) < 2 or not isinstance(term[0], str):
        raise FormatError(0, "an annotation is not a value of AMQP 1.0")
    kind, inner = str(term[0]), term[-1]
    if len(term) == 2 and isinstance(inner, _PLAIN.get(kind, ())) and (kind != "uuid" or len(term[1]) == 16):
        return kind, inner
    if len(term) == 2 and kind == "map":
        return kind, _pairs(inner, depth + 1)
    if (kind, len(term)) in {("list", 2), ("array", 3)} and isinstance(inner, list):
        return kind, [_value(each, depth + 1) for each in inner]
    if kind == "described":
        return kind, None
    if (kind, len(term)) == ("as_is", 3) and isinstance(term[1], int) and term[1] in _RAW:
        return _RAW[term[1]], float("nan") if term[1] in {0x72, 0x82} else inner
    raise FormatError(0, f"an annotation is not a value of AMQP 1.0: {kind!r:.40}")
