"""AMQP 0-9-1 field tables, the `headers` of a message: bytes ⇄ typed items ⇄ a map of texts.

Items are (name, type letter, value) as in rabbitmq.md 6.4; the texts are defined in interface.md 32.
"""

from __future__ import annotations

import json
import struct
from base64 import b64encode
from math import isfinite
from struct import Struct as Packer
from typing import Any

from storage_core.errors import FormatError

Item = tuple[bytes, str, Any]
"""Name, type letter, value: bytes for S and x, (scale, number) for D, items for F, (type, value) pairs for A."""

NAMES = {
    "longstr": "S",
    "signedint": "I",
    "unsignedint": "i",
    "long": "l",
    "timestamp": "T",
    "short": "s",
    "unsignedshort": "u",
    "byte": "b",
    "unsignedbyte": "B",
    "bool": "t",
    "binary": "x",
    "float": "f",
    "double": "d",
    "decimal": "D",
    "void": "V",
    "table": "F",
    "array": "A",
}
"""Type letters by the type names that a node uses for decoded values."""

NUMBERS = {
    letter: Packer(layout)
    for letter, layout in {
        "b": ">b",
        "B": ">B",
        "s": ">h",
        "u": ">H",
        "I": ">i",
        "i": ">I",
        "l": ">q",
        "L": ">q",
        "T": ">Q",
        "f": ">f",
        "d": ">d",
    }.items()
}
_DECIMAL = Packer(">BI")
_SIZE = Packer(">I")
_MAX_DEPTH = 100


def decode(data: bytes) -> list[Item]:
    """The items of a table, given its bytes without the length prefix. Raises FormatError."""
    try:
        return _items(data, 0, len(data), 0)
    except (struct.error, IndexError):
        raise FormatError(len(data), "the table is cut") from None


def decode_value(letter: str, data: bytes) -> Any:
    """Decodes one value that fills all of `data`. Raises FormatError."""
    try:
        value, stop = _value(letter, data, 0, len(data), 0)
    except (struct.error, IndexError):
        raise FormatError(len(data), "the value is cut") from None
    if stop != len(data):
        raise FormatError(stop, f"{len(data) - stop} bytes after the value")
    return value


def _items(data: bytes, position: int, stop: int, depth: int) -> list[Item]:
    found: list[Item] = []
    while position < stop:
        start, position = position + 1, position + 1 + data[position]
        name = data[start:position]
        letter = chr(data[position])
        value, position = _value(letter, data, position + 1, stop, depth)
        found.append((name, letter, value))
    if position != stop:
        raise FormatError(stop, "an item reaches beyond its table")
    return found


def _value(letter: str, data: bytes, position: int, stop: int, depth: int) -> tuple[Any, int]:
    packer = NUMBERS.get(letter)
    if packer is not None:
        return packer.unpack_from(data, position)[0], position + packer.size
    if letter == "t":
        return data[position] != 0, position + 1
    if letter == "V":
        return None, position
    if letter == "D":
        return _DECIMAL.unpack_from(data, position), position + _DECIMAL.size
    if letter not in "SxFA":
        raise FormatError(position - 1, f"unknown field type {letter!r}")
    start = position + _SIZE.size
    end = start + _SIZE.unpack_from(data, position)[0]
    if end > stop:
        raise FormatError(position, f"a value of {end - start} bytes in a table that ends at {stop}")
    if letter in "Sx":
        return data[start:end], end
    if depth >= _MAX_DEPTH:
        raise FormatError(position, f"tables nested deeper than {_MAX_DEPTH}")
    return (_items if letter == "F" else _array)(data, start, end, depth + 1), end


def _array(data: bytes, position: int, stop: int, depth: int) -> list[Any]:
    found = []
    while position < stop:
        letter = chr(data[position])
        value, position = _value(letter, data, position + 1, stop, depth)
        found.append((letter, value))
    if position != stop:
        raise FormatError(stop, "an element reaches beyond its array")
    return found


def encode(items: list[Item]) -> bytes:
    """A table's bytes, without the length prefix. Raises ValueError for a name over 255 bytes or an unknown type."""
    parts = []
    for name, letter, value in items:
        if len(name) > 255:
            raise ValueError(f"a header name of {len(name)} bytes; the limit is 255")
        parts += [bytes((len(name),)), name, encode_value(letter, value)]
    return b"".join(parts)


def encode_value(letter: str, value: Any) -> bytes:
    """The bytes of the type letter and the value."""
    head = letter.encode()
    if letter in NUMBERS:
        try:
            return head + NUMBERS[letter].pack(value)
        except (struct.error, OverflowError) as error:
            raise ValueError(f"{value!r} is no value of type {letter}: {error}") from None
    if letter == "t":
        return head + bytes((bool(value),))
    if letter == "V":
        return head
    if letter == "D":
        return head + _DECIMAL.pack(*value)
    if letter in "Sx":
        if isinstance(value, int):
            raise ValueError(f"a number is no value of type {letter}")
        body = bytes(value)
    elif letter == "F":
        body = encode(value)
    elif letter == "A":
        body = b"".join([encode_value(inner, item) for inner, item in value])
    else:
        raise ValueError(f"unknown field type {letter!r}")
    return head + _SIZE.pack(len(body)) + body


def json_text(letter: str, value: Any) -> str:
    """A typed value as JSON text: binary as base64, decimal as a number, void and non-finite numbers as null."""
    if letter == "F":
        pairs = {name.decode("utf-8", "replace"): json_text(inner, item) for name, inner, item in value}
        return "{" + ",".join(f"{_quoted(name)}:{item}" for name, item in pairs.items()) + "}"
    if letter == "A":
        return "[" + ",".join(json_text(inner, item) for inner, item in value) + "]"
    if letter == "S":
        return _quoted(value.decode("utf-8", "replace"))
    if letter == "x":
        return _quoted(b64encode(value).decode())
    if letter == "D":
        return _decimal_text(*value)
    if letter in "fd":
        return repr(float(value)) if isfinite(value) else "null"
    if letter == "t":
        return "true" if value else "false"
    return "null" if letter == "V" else str(value)


def _decimal_text(scale: int, number: int) -> str:
    digits = str(number).rjust(scale + 1, "0")
    return f"{digits[:-scale]}.{digits[-scale:]}" if scale else digits


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def from_decoded(headers: list[Any]) -> list[Item]:
    """Items of a header list in the decoded form that a node keeps: {name, type name, value}. Raises FormatError."""
    found = []
    for header in headers:
        if not isinstance(header, tuple) or len(header) != 3 or not isinstance(header[0], bytes):
            raise FormatError(0, "a decoded header that is not {name, type, value}")
        name, kind, value = header
        found.append((name, *_from_decoded(kind, value)))
    return found


def _from_decoded(kind: Any, value: Any) -> tuple[str, Any]:
    letter = NAMES.get(kind) if isinstance(kind, str) else None
    if letter is None:
        raise FormatError(0, f"a decoded header of the unknown type {kind!r}")
    if letter == "t":
        return letter, value == "true"
    if letter == "V":
        return letter, None
    if letter == "F":
        return letter, from_decoded(value)
    if letter == "A":
        return letter, [_from_decoded(*item) for item in value]
    return letter, value
