"""Erlang's external term format: bytes ⇄ Python values. The formats that hold a term interpret it.

Atoms are `Atom`, binaries `bytes`, strings (lists of small numbers) lists of ints, tuples, lists, maps and numbers
their Python counterparts; pids, ports, references and functions are kept as bytes, and so are keys of maps that hold a
list or a map. Source: the "External Term Format" chapter of Erlang's ERTS reference; rabbitmq.md 6.3 for which tags
occur.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from storage_core.errors import FormatError

VERSION = 131
COMPRESSED = 80
SMALL_INTEGER, INTEGER, FLOAT_TEXT, NEW_FLOAT = 97, 98, 99, 70
ATOM, SMALL_ATOM, ATOM_UTF8, SMALL_ATOM_UTF8 = 100, 115, 118, 119
SMALL_TUPLE, LARGE_TUPLE, MAP = 104, 105, 116
NIL, STRING, LIST, BINARY, BIT_BINARY = 106, 107, 108, 109, 77
SMALL_BIG, LARGE_BIG = 110, 111
MAX_DEPTH = 200
MAX_INFLATED_SIZE = 64 << 20

_U16 = struct.Struct(">H")
_U32 = struct.Struct(">I")
_I32 = struct.Struct(">i")
_F64 = struct.Struct(">d")


class Atom(str):
    """An atom. It compares equal to its name."""

    __slots__ = ()


@dataclass(frozen=True)
class Opaque:
    """A pid, port, reference, function, bit string or key of a map: only its bytes are kept, tag first."""

    raw: bytes


@dataclass(frozen=True)
class ImproperList:
    """A list whose tail is not a list."""

    items: tuple[Any, ...]
    tail: Any


UNDEFINED, TRUE, FALSE = Atom("undefined"), Atom("true"), Atom("false")


def decode(data: bytes | memoryview) -> Any:
    """The term of `data`, which starts with byte 131.

    Raises FormatError if it is truncated, malformed or followed by more bytes.
    """
    term, stop = decode_prefix(data)
    if stop != len(data):
        raise FormatError(stop, f"{len(data) - stop} bytes after the term")
    return term


def decode_prefix(data: bytes | memoryview) -> tuple[Any, int]:
    """The term at the start of `data` and the position after it."""
    raw = bytes(data)
    if not raw or raw[0] != VERSION:
        raise FormatError(0, "an external term starts with byte 131")
    if len(raw) > 1 and raw[1] == COMPRESSED:
        return _inflated(raw)
    reader = _Reader(raw, 1)
    term = _guarded(reader)
    return term, reader.position


def _inflated(raw: bytes) -> tuple[Any, int]:
    if len(raw) < 6:
        raise FormatError(len(raw), "the term is cut")
    size = int(_U32.unpack_from(raw, 2)[0])
    if size > MAX_INFLATED_SIZE:
        raise FormatError(2, f"a compressed term of {size} bytes; at most {MAX_INFLATED_SIZE} are read")
    worker = zlib.decompressobj()
    try:
        inner = worker.decompress(raw[6:], size + 1)
    except zlib.error as error:
        raise FormatError(6, f"a compressed term that does not inflate: {error}") from None
    if len(inner) != size:
        raise FormatError(6, f"a compressed term of {len(inner)} bytes that says {size}")
    reader = _Reader(inner, 0)
    return _guarded(reader), len(raw) - len(worker.unused_data)


def _guarded(reader: _Reader) -> Any:
    try:
        return reader.term(0)
    except (struct.error, IndexError):
        raise FormatError(reader.position, "the term is cut") from None


class _Reader:
    """Reads terms from `raw`; `position` is that of the next byte."""

    def __init__(self, raw: bytes, position: int) -> None:
        self.raw, self.position = raw, position

    def term(self, depth: int) -> Any:
        if depth > MAX_DEPTH:
            raise FormatError(self.position, f"terms nested deeper than {MAX_DEPTH}")
        tag = self.raw[self.position]
        read = _READERS.get(tag)
        if read is None:
            raise FormatError(self.position, f"unknown term tag {tag}")
        self.position += 1
        return read(self, depth)

    def take(self, size: int) -> bytes:
        start, stop = self.position, self.position + size
        if stop > len(self.raw):
            raise FormatError(start, f"{size} bytes wanted, {len(self.raw) - start} left")
        self.position = stop
        return self.raw[start:stop]

    def u8(self) -> int:
        value = self.raw[self.position]
        self.position += 1
        return value

    def u16(self) -> int:
        value = _U16.unpack_from(self.raw, self.position)[0]
        self.position += 2
        return cast("int", value)

    def u32(self) -> int:
        value = _U32.unpack_from(self.raw, self.position)[0]
        self.position += 4
        return cast("int", value)

    def checked(self, count: int, size: int = 1) -> int:
        """A number of elements of at least `size` bytes each. Raises FormatError if there is no room for them."""
        if size * count > len(self.raw) - self.position:
            raise FormatError(self.position, f"{count} elements in {len(self.raw) - self.position} bytes")
        return count

    def items(self, count: int, depth: int) -> list[Any]:
        return [self.term(depth + 1) for _ in range(self.checked(count))]


def _signed(reader: _Reader, _depth: int) -> int:
    return cast("int", _I32.unpack(reader.take(4))[0])


def _float(reader: _Reader, _depth: int) -> float:
    return cast("float", _F64.unpack(reader.take(8))[0])


def _old_float(reader: _Reader, _depth: int) -> float:
    start = reader.position
    try:
        return float(reader.take(31).rstrip(b"\0"))
    except ValueError:
        raise FormatError(start, "a float that is no number") from None


def _big(reader: _Reader, size: int) -> int:
    negative = reader.u8()
    value = int.from_bytes(reader.take(size), "little")
    return -value if negative else value


def _text(encoding: str, size: Callable[[_Reader], int]) -> Callable[[_Reader, int], Atom]:
    def read(reader: _Reader, _depth: int) -> Atom:
        start = reader.position
        try:
            return Atom(reader.take(size(reader)).decode(encoding))
        except UnicodeDecodeError:
            raise FormatError(start, "an atom that is not UTF-8") from None

    return read


def _list(reader: _Reader, depth: int) -> list[Any] | ImproperList:
    items = reader.items(reader.u32(), depth)
    tail = reader.term(depth + 1)
    return items if tail == [] else ImproperList(tuple(items), tail)


def _map(reader: _Reader, depth: int) -> dict[Any, Any]:
    found = {}
    for _ in range(reader.checked(reader.u32(), 2)):
        start = reader.position
        key = reader.term(depth + 1)
        stop = reader.position
        value = reader.term(depth + 1)
        try:
            found[key] = value
        except TypeError:
            found[Opaque(reader.raw[start:stop])] = value
    return found


def _opaque(size: int) -> Callable[[_Reader, int], Opaque]:
    """A reader of terms with a node name (an atom) between the tag and `size` bytes."""

    def read(reader: _Reader, depth: int) -> Opaque:
        start = reader.position - 1
        reader.term(depth + 1)
        reader.take(size)
        return Opaque(reader.raw[start : reader.position])

    return read


def _reference(tail: int) -> Callable[[_Reader, int], Opaque]:
    def read(reader: _Reader, depth: int) -> Opaque:
        start = reader.position - 1
        words = reader.u16()
        reader.term(depth + 1)
        reader.take(tail + 4 * words)
        return Opaque(reader.raw[start : reader.position])

    return read


def _function(reader: _Reader, _depth: int) -> Opaque:
    start = reader.position - 1
    reader.take(reader.u32() - 4)
    return Opaque(reader.raw[start : reader.position])


def _export(reader: _Reader, depth: int) -> Opaque:
    start = reader.position - 1
    reader.items(3, depth)
    return Opaque(reader.raw[start : reader.position])


def _bits(reader: _Reader, _depth: int) -> Opaque:
    start = reader.position - 1
    size = reader.u32()
    reader.take(1 + size)
    return Opaque(reader.raw[start : reader.position])


_READERS: dict[int, Callable[[_Reader, int], Any]] = {
    SMALL_INTEGER: lambda reader, _: reader.u8(),
    INTEGER: _signed,
    FLOAT_TEXT: _old_float,
    NEW_FLOAT: _float,
    SMALL_BIG: lambda reader, _: _big(reader, reader.u8()),
    LARGE_BIG: lambda reader, _: _big(reader, reader.u32()),
    ATOM: _text("latin-1", _Reader.u16),
    SMALL_ATOM: _text("latin-1", _Reader.u8),
    ATOM_UTF8: _text("utf-8", _Reader.u16),
    SMALL_ATOM_UTF8: _text("utf-8", _Reader.u8),
    SMALL_TUPLE: lambda reader, depth: tuple(reader.items(reader.u8(), depth)),
    LARGE_TUPLE: lambda reader, depth: tuple(reader.items(reader.u32(), depth)),
    NIL: lambda _reader, _depth: [],
    STRING: lambda reader, _: list(reader.take(reader.u16())),
    LIST: _list,
    BINARY: lambda reader, _: reader.take(reader.u32()),
    BIT_BINARY: _bits,
    MAP: _map,
    103: _opaque(9),  # pid
    88: _opaque(12),  # pid with a wide creation
    102: _opaque(5),  # port
    89: _opaque(8),  # port with a wide creation
    120: _opaque(12),  # port with a wide number
    101: _opaque(5),  # reference of one word
    114: _reference(1),
    90: _reference(4),
    112: _function,
    113: _export,
}


def encode(term: Any) -> bytes:
    """`term` as OTP 25 writes it: atoms in Latin-1 with tag 100, no compression. Raises TypeError for other values."""
    out = bytearray((VERSION,))
    _put(out, term)
    return bytes(out)


def _put(out: bytearray, term: Any) -> None:
    if isinstance(term, Atom):
        _put_atom(out, term)
    elif isinstance(term, bool):
        _put_atom(out, TRUE if term else FALSE)
    elif isinstance(term, int):
        _put_integer(out, term)
    elif isinstance(term, float):
        out.append(NEW_FLOAT)
        out += _F64.pack(term)
    elif isinstance(term, bytes | bytearray | memoryview):
        out.append(BINARY)
        out += _U32.pack(len(term))
        out += term
    elif isinstance(term, Opaque):
        out += term.raw
    else:
        _put_compound(out, term)


def _put_compound(out: bytearray, term: Any) -> None:
    if isinstance(term, tuple):
        out += bytes((SMALL_TUPLE, len(term))) if len(term) < 256 else bytes((LARGE_TUPLE,)) + _U32.pack(len(term))
        for item in term:
            _put(out, item)
    elif isinstance(term, list):
        _put_list(out, term, [])
    elif isinstance(term, ImproperList):
        _put_list(out, list(term.items), term.tail)
    elif isinstance(term, dict):
        out.append(MAP)
        out += _U32.pack(len(term))
        for key, value in term.items():
            _put(out, key)
            _put(out, value)
    else:
        raise TypeError(f"{type(term).__name__} is no Erlang term")


def _put_atom(out: bytearray, atom: Atom) -> None:
    try:
        name = atom.encode("latin-1")
        out.append(ATOM)
    except UnicodeEncodeError:
        name = atom.encode()
        out.append(ATOM_UTF8)
    out += _U16.pack(len(name))
    out += name


def _put_integer(out: bytearray, value: int) -> None:
    if 0 <= value < 256:
        out += bytes((SMALL_INTEGER, value))
    elif -(1 << 31) <= value < 1 << 31:
        out.append(INTEGER)
        out += _I32.pack(value)
    else:
        digits = abs(value).to_bytes((abs(value).bit_length() + 7) // 8, "little")
        head = bytes((SMALL_BIG, len(digits))) if len(digits) < 256 else bytes((LARGE_BIG,)) + _U32.pack(len(digits))
        out += head + bytes((value < 0,)) + digits


def _put_list(out: bytearray, items: list[Any], tail: Any) -> None:
    plain = tail == [] and 0 < len(items) < 65536
    if plain and all(type(item) is int and 0 <= item < 256 for item in items):
        out.append(STRING)
        out += _U16.pack(len(items))
        out += bytes(items)
        return
    if items:
        out.append(LIST)
        out += _U32.pack(len(items))
        for item in items:
            _put(out, item)
    if items and tail != []:
        _put(out, tail)
    else:
        out.append(NIL)
