"""One message as AMQP 1.0 sections: the spans of each section and each of its values, and the values themselves.

`container_view` and, for streams, `delivered` convert them to AMQP 0-9-1 as a node does; `section_shapes` and
`section_cursor` handle many messages at once. Source: docs/format/rabbitmq-streams.md 6.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

from storage_core.errors import FormatError

HEADER, DELIVERY_ANNOTATIONS, MESSAGE_ANNOTATIONS, PROPERTIES = 0x70, 0x71, 0x72, 0x73
APPLICATION_PROPERTIES, DATA, SEQUENCE, VALUE, FOOTER = 0x74, 0x75, 0x76, 0x77, 0x78
SECTIONS = range(HEADER, FOOTER + 1)
BODIES = (DATA, SEQUENCE, VALUE)
SYMBOLS = {
    b"amqp:header:list": HEADER, b"amqp:delivery-annotations:map": DELIVERY_ANNOTATIONS,
    b"amqp:message-annotations:map": MESSAGE_ANNOTATIONS, b"amqp:properties:list": PROPERTIES,
    b"amqp:application-properties:map": APPLICATION_PROPERTIES, b"amqp:data:binary": DATA,
    b"amqp:amqp-sequence:list": SEQUENCE, b"amqp:amqp-value:*": VALUE, b"amqp:footer:map": FOOTER,
}  # fmt: skip
"""The alternative, symbolic form of descriptors."""
DESCRIBED = 0
NULL, TRUE, FALSE, UINT_0, ULONG_0, LIST_0 = 0x40, 0x41, 0x42, 0x43, 0x44, 0x45
LIST_8, MAP_8, LIST_32, MAP_32 = 0xC0, 0xC1, 0xD0, 0xD1
ARRAY_8, ARRAY_32 = 0xE0, 0xF0
LISTS, MAPS, ARRAYS = (LIST_0, LIST_8, LIST_32), (MAP_8, MAP_32), (ARRAY_8, ARRAY_32)
MOST_NESTED = 32

Value = tuple[str, Any]
"""A type and a value: bytes for texts, the elements of a list or array, the pairs of a map, None if described."""

FIXED_SIZES = {0x4: 0, 0x5: 1, 0x6: 2, 0x7: 4, 0x8: 8, 0x9: 16}
LENGTH_SIZES = {0xA: 1, 0xB: 4, 0xC: 1, 0xD: 4, 0xE: 1, 0xF: 4}
"""Bytes of a value, or of its length prefix, by the high half of its constructor."""
NUMBERS = {
    0x50: ("ubyte", ">B"), 0x51: ("byte", ">b"), 0x52: ("uint", ">B"), 0x53: ("ulong", ">B"), 0x54: ("int", ">b"),
    0x55: ("long", ">b"), 0x56: ("boolean", ">?"), 0x60: ("ushort", ">H"), 0x61: ("short", ">h"),
    0x70: ("uint", ">I"), 0x71: ("int", ">i"), 0x72: ("float", ">f"), 0x80: ("ulong", ">Q"), 0x81: ("long", ">q"),
    0x82: ("double", ">d"), 0x83: ("timestamp", ">q"),
}  # fmt: skip
TEXTS = {
    0xA0: "binary", 0xB0: "binary", 0xA1: "utf8", 0xB1: "utf8", 0xA3: "symbol", 0xB3: "symbol", 0x98: "uuid",
    0x73: "char", 0x74: "decimal32", 0x84: "decimal64", 0x94: "decimal128",
}  # fmt: skip
CONSTANTS: dict[int, tuple[str, Any]] = {
    NULL: ("null", None), TRUE: ("boolean", True), FALSE: ("boolean", False), UINT_0: ("uint", 0),
    ULONG_0: ("ulong", 0),
}  # fmt: skip

DECIMALS = frozenset({"decimal32", "decimal64", "decimal128"})
WIDTHLESS = "array of values without bytes"
"""Nodes since 4.3 do not look inside such an array."""
LETTERS = {
    "utf8": "S", "symbol": "S", "char": "S", "uuid": "S", "long": "l", "int": "I", "uint": "i", "short": "s",
    "ushort": "u", "byte": "b", "ubyte": "B", "double": "d", "float": "f", "boolean": "t", "binary": "x",
    "timestamp": "T", "null": "V", "decimal32": "x", "decimal64": "x", "decimal128": "x",
}  # fmt: skip
"""Type letters of AMQP 0-9-1 field tables, by the AMQP 1.0 type of a value."""


@dataclass(frozen=True)
class Element:
    """One value: its constructor at `start`, its bytes [value, stop) without the length prefix."""

    code: int
    start: int
    value: int
    stop: int


@dataclass(frozen=True)
class Section:
    """One section: its descriptor's number, its whole span, its value, and the elements of a list or map value."""

    code: int
    start: int
    stop: int
    value: Element
    inner: tuple[Element, ...]


def parse(data: bytes) -> list[Section]:
    """The sections of a message. Raises FormatError if it is not an AMQP 1.0 message."""
    found, position = [], 0
    try:
        while position < len(data):
            found.append(_section(data, position))
            position = found[-1].stop
    except (IndexError, struct.error):
        raise FormatError(len(data), "the sections are cut") from None
    return found


def _section(data: bytes, position: int) -> Section:
    if data[position] != DESCRIBED:
        raise FormatError(position, f"a section begins with 0, here is {data[position]:#04x}")
    descriptor = element_at(data, position + 1)
    kind, number = value_of(data, descriptor)
    if kind == "symbol":
        number = SYMBOLS.get(number, number)
    if kind not in {"ulong", "symbol"} or number not in SECTIONS:
        raise FormatError(position + 1, f"no section of a message is described by {kind} {number!r}")
    value = element_at(data, descriptor.stop)
    return Section(number, position, value.stop, value, inner_of(data, value))


def inner_of(data: bytes, value: Element) -> tuple[Element, ...]:
    """The elements of a list or map; empty for any other value. Raises FormatError."""
    if value.code not in {LIST_8, MAP_8, LIST_32, MAP_32}:
        return ()
    width = 1 if value.code in {LIST_8, MAP_8} else 4
    count = int.from_bytes(data[value.value : value.value + width], "big")
    position, found = value.value + width, []
    if count > value.stop - position:
        raise FormatError(value.start, f"{count} values in {value.stop - position} bytes")
    for _ in range(count):
        element = element_at(data, position)
        found.append(element)
        position = element.stop
        if position > value.stop:
            raise FormatError(value.start, "a value reaches beyond its list")
    if position != value.stop:
        raise FormatError(value.start, f"{value.stop - position} bytes after the last value of a list")
    if value.code in MAPS and count % 2:
        raise FormatError(value.start, "a map with a key and no value")
    return tuple(found)


def element_at(data: bytes, position: int, depth: int = 0) -> Element:
    """The value whose constructor is at `position`. Raises FormatError."""
    code = data[position]
    if code == DESCRIBED:
        if depth > MOST_NESTED:
            raise FormatError(position, f"descriptions nested deeper than {MOST_NESTED}")
        descriptor = element_at(data, position + 1, depth + 1)
        inner = element_at(data, descriptor.stop, depth + 1)
        return Element(code, position, position + 1, inner.stop)
    return _sized(data, code, position, position + 1)


def _sized(data: bytes, code: int, position: int, start: int) -> Element:
    """The value of constructor `code` whose bytes, including a length prefix, begin at `start`. Raises FormatError."""
    category = code >> 4
    if category in FIXED_SIZES:
        stop = start + FIXED_SIZES[category]
    elif category in LENGTH_SIZES:
        width = LENGTH_SIZES[category]
        start += width
        stop = start + int.from_bytes(data[start - width : start], "big")
    else:
        raise FormatError(position, f"unknown constructor {code:#04x}")
    if stop > len(data) or start > len(data):
        raise FormatError(position, f"a value of {stop - start} bytes, {max(0, len(data) - start)} are there")
    return Element(code, position, start, stop)


def value_of(data: bytes, element: Element) -> Value:
    """Type and value of an element that is not a list, map, array or described; for these, and for an unknown
    constructor, "compound" and their bytes, constructor included.
    """
    if element.code in NUMBERS:
        name, layout = NUMBERS[element.code]
        return name, struct.unpack_from(layout, data, element.value)[0]
    if element.code in CONSTANTS:
        return CONSTANTS[element.code]
    if element.code in TEXTS:
        return TEXTS[element.code], data[element.value : element.stop]
    return "compound", data[element.start : element.stop]


def whole_value(data: bytes, element: Element, depth: int = 0) -> Value:
    """Type and value of an element, including everything inside a list, map or array. Raises FormatError."""
    if element.code == DESCRIBED:
        return "described", None
    if element.code not in {*LISTS, *MAPS, *ARRAYS}:
        kind, value = value_of(data, element)
        return kind, int.from_bytes(value, "big") if kind == "char" else value
    if element.code in ARRAYS and _is_widthless(data, element):
        return WIDTHLESS, data[element.start : element.stop]
    if depth >= MOST_NESTED:
        raise FormatError(element.start, f"values nested deeper than {MOST_NESTED}")
    try:
        elements = _in_array(data, element) if element.code in ARRAYS else inner_of(data, element)
        inner = [whole_value(data, each, depth + 1) for each in elements]
    except (IndexError, struct.error):
        raise FormatError(element.start, "a list, map or array is cut") from None
    if element.code in MAPS:
        return "map", list(zip(inner[::2], inner[1::2], strict=True))
    return ("array" if element.code in ARRAYS else "list"), inner


def _is_widthless(data: bytes, array: Element) -> bool:
    last = array.stop - 1
    return last == array.value + (1 if array.code == ARRAY_8 else 4) and NULL <= data[last] <= LIST_0


def _in_array(data: bytes, array: Element) -> list[Element]:
    """The elements of an array, which share one constructor; nulls are one byte long, as a node reads them."""
    width = 1 if array.code == ARRAY_8 else 4
    count = int.from_bytes(data[array.value : array.value + width], "big")
    at = array.value + width
    code, position = data[at], at + 1
    if code == DESCRIBED:
        return [Element(DESCRIBED, at, position, array.stop)] * min(count, 1)
    if count > array.stop - position:
        raise FormatError(array.start, f"{count} values in {array.stop - position} bytes")
    found = []
    for _ in range(count):
        element = _sized(data, code, at, position)
        found.append(element)
        position = element.stop + (code == NULL)
    if position != array.stop:
        raise FormatError(array.start, "the values of an array end elsewhere than it does")
    return found


def last_of(found: list[Section], code: int) -> Section | None:
    """The last section of a kind."""
    return next((section for section in found[::-1] if section.code == code), None)


def pairs(data: bytes, found: list[Section], code: int) -> list[tuple[bytes, Value]]:
    """Keys and typed values of the last section of a kind, which holds a map."""
    last = last_of(found, code)
    if last is None:
        return []
    values = [value_of(data, element) for element in last.inner]
    return [(as_bytes(key[1]), value) for key, value in zip(values[::2], values[1::2], strict=False)]


def values_in(data: bytes, found: list[Section], code: int) -> list[Value]:
    """The values of the last section of a kind, which must be a list. Raises FormatError."""
    last = last_of(found, code)
    if last is None:
        return []
    if last.value.code not in LISTS:
        raise FormatError(last.start, "a section that should be a list is not one")
    return [whole_value(data, element) for element in last.inner]


def pairs_in(data: bytes, found: list[Section], code: int) -> list[tuple[Value, Value]]:
    """The pairs of the last section of a kind, which must be a map. Raises FormatError."""
    last = last_of(found, code)
    if last is None:
        return []
    if last.value.code not in MAPS:
        raise FormatError(last.start, "a section that should be a map is not one")
    values = [whole_value(data, element) for element in last.inner]
    return list(zip(values[::2], values[1::2], strict=True))


def seconds(ms: int) -> int:
    """Whole seconds of `ms`, rounded as by the node's division, as the unsigned 64 bits of a property."""
    return (ms // 1000 if ms >= 0 else -(-ms // 1000)) & ((1 << 64) - 1)


def as_bytes(value: Any) -> bytes:
    """The bytes of a text, or the digits of a number."""
    return value if isinstance(value, bytes) else str(value).encode()
