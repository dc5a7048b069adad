"""AMQP 0-9-1 property lists: bytes ⇄ values, and the spans of many lists at once.

`field_table` handles the field tables inside. Source: rabbitmq.md 6.4.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct as Packer
from typing import Any

import numpy as np
import numpy.typing as npt

from storage_core.compiled.loading import CompiledLoops
from storage_core.errors import FormatError
from storage_core.formats.layout import Bytes, Mask, Positions, values_at
from storage_core.formats.rabbitmq.amqp import field_table

SHORT, TABLE, OCTET, LONG = "shortstr", "table", "octet", "longlong"
FIELDS = (
    ("content_type", SHORT),
    ("content_encoding", SHORT),
    ("headers", TABLE),
    ("delivery_mode", OCTET),
    ("priority", OCTET),
    ("correlation_id", SHORT),
    ("reply_to", SHORT),
    ("expiration", SHORT),
    ("message_id", SHORT),
    ("timestamp", LONG),
    ("type", SHORT),
    ("user_id", SHORT),
    ("app_id", SHORT),
    ("cluster_id", SHORT),
)
"""The fields in wire order; the flag of the first one is bit 15."""
SPARE_BITS = 0x0003
CLASS_BASIC, PROTOCOL = 60, "rabbit_framing_amqp_0_9_1"
"""The class of contents with property lists, and the protocol that defines their encoding."""
MOST_SHORT = 255
"""Length of the longest short string, in bytes."""
TRANSIENT_MODE, PERSISTENT_MODE = 1, 2
"""Values of `delivery_mode`."""

_FLAGS = Packer(">H")
_SIZE = Packer(">I")
_LONG = Packer(">Q")
FLAGS_SIZE = _FLAGS.size
_WIDTHS = {SHORT: (1, 0), TABLE: (_SIZE.size, 0), OCTET: (0, 1), LONG: (0, _LONG.size)}
"""Bytes of a value's length prefix, and bytes of a value that has none."""

_loops = CompiledLoops("storage_core.formats.rabbitmq.compiled.term_loops")


@dataclass(frozen=True)
class FieldSpans:
    """One field of the lists that have it: their row numbers, ascending, and the half-open spans of the value.

    The span of a shortstr or a table excludes its length prefix.
    """

    rows: npt.NDArray[np.int64]
    starts: Positions
    stops: Positions


@dataclass(frozen=True)
class PropertySpans:
    """The spans of the fields of n property lists; `ok[i]` is true if list i holds all fields its flags announce."""

    fields: dict[str, FieldSpans]
    ok: Mask


def locate(buffer: Bytes, starts: Positions, stops: Positions) -> PropertySpans:
    """Finds the fields of the property lists [start, stop) of `buffer`. Never raises."""
    if (loops := _loops.after()) is not None:
        return _located_by(loops, buffer, starts, stops)
    flags = values_at(buffer, ">u2", starts).astype(np.int64)
    ok: Mask = (starts >= 0) & (starts <= stops) & (stops <= len(buffer))
    ok &= (stops - starts >= _FLAGS.size) & (flags & SPARE_BITS == 0)
    flags[~ok] = 0
    position = starts + _FLAGS.size
    found = {}
    used, common = (int(fold.reduce(flags)) if len(flags) else 0 for fold in (np.bitwise_or, np.bitwise_and))
    every_row = np.arange(len(flags))
    for index, (name, kind) in enumerate(FIELDS):
        bit = 1 << (15 - index)
        if not used & bit:
            continue
        everywhere = bool(common & bit)
        rows = every_row if everywhere else np.flatnonzero(flags & bit)
        start = position if everywhere else position[rows]
        if kind == SHORT:
            size = values_at(buffer, "u1", start).astype(np.int64)
            start = start + 1
        elif kind == TABLE:
            size = values_at(buffer, ">u4", start).astype(np.int64)
            start = start + _SIZE.size
        else:
            size = np.full(len(rows), 1 if kind == OCTET else _LONG.size, np.int64)
        limit = stops if everywhere else stops[rows]
        stop = start + size
        beyond = stop > limit
        if beyond.any():
            ok[rows[beyond]] = False
            stop = np.minimum(stop, limit)
            start = np.minimum(start, stop)
        found[name] = FieldSpans(rows, start, stop)
        if everywhere:
            position = stop.copy()
        else:
            position[rows] = stop
    return PropertySpans(found, ok)


def _located_by(loops: Any, buffer: Bytes, starts: Positions, stops: Positions) -> PropertySpans:
    """`locate`, by compiled loops."""
    flags, ok = loops.flags(buffer, starts, stops)
    used, common = (int(fold.reduce(flags)) if len(flags) else 0 for fold in (np.bitwise_or, np.bitwise_and))
    kinds = [(name, 1 << (15 - index), *_WIDTHS[kind]) for index, (name, kind) in enumerate(FIELDS)]
    kinds = [kind for kind in kinds if used & kind[1]]
    begins, ends, whole = loops.fields(buffer, starts, stops, flags, ok, [kind[1:] for kind in kinds])
    every_row = np.arange(len(flags))
    found = {}
    for (name, bit, *_), begin, end in zip(kinds, begins, ends, strict=True):
        if common & bit:
            found[name] = FieldSpans(every_row, begin, end)
        else:
            rows = np.flatnonzero(flags & bit)
            found[name] = FieldSpans(rows, begin[rows], end[rows])
    return PropertySpans(found, whole)


def decode(data: bytes) -> dict[str, Any]:
    """The fields of one property list by name: bytes, ints, and items for `headers`. Raises FormatError."""
    if len(data) < _FLAGS.size:
        raise FormatError(0, f"{_FLAGS.size} bytes of flags expected, {len(data)} are there")
    flags = _FLAGS.unpack_from(data)[0]
    if flags & SPARE_BITS:
        raise FormatError(0, f"flags {flags:#06x}: bits 0 and 1 must be zero")
    found: dict[str, Any] = {}
    position = _FLAGS.size
    for index, (name, kind) in enumerate(FIELDS):
        if flags & 1 << (15 - index):
            found[name], position = _field(data, position, name, kind)
    return found


def _field(data: bytes, position: int, name: str, kind: str) -> tuple[Any, int]:
    width = {SHORT: 1, TABLE: _SIZE.size, OCTET: 1, LONG: _LONG.size}[kind]
    head = data[position : position + width]
    if len(head) < width:
        raise FormatError(position, f"{name} is cut")
    number = int.from_bytes(head, "big")
    start = position + width
    if kind in {OCTET, LONG}:
        return number, start
    stop = start + number
    if stop > len(data):
        raise FormatError(position, f"{name} of {number} bytes, {len(data) - start} are there")
    value = data[start:stop]
    if kind == SHORT:
        return value, stop
    try:
        return field_table.decode(value), stop
    except FormatError as error:
        raise FormatError(start + error.position, error.reason) from None


def encode(values: dict[str, Any]) -> bytes:
    """Encodes the fields that are not None as one property list. Raises ValueError naming a field that does not fit."""
    flags, parts = 0, []
    for index, (name, kind) in enumerate(FIELDS):
        value = values.get(name)
        if value is None:
            continue
        flags |= 1 << (15 - index)
        if kind == SHORT:
            if len(value) > MOST_SHORT:
                raise ValueError(f"{name}: {len(value)} bytes; the limit of a short string is {MOST_SHORT}")
            parts += [bytes((len(value),)), bytes(value)]
        elif kind == TABLE:
            table = field_table.encode(value)
            parts += [_SIZE.pack(len(table)), table]
        else:
            width = 1 if kind == OCTET else _LONG.size
            if not 0 <= value < 1 << 8 * width:
                raise ValueError(f"{name}: {value} does not fit {8 * width} bits")
            parts.append(int(value).to_bytes(width, "big"))
    return _FLAGS.pack(flags) + b"".join(parts)


def from_decoded(record: Any) -> bytes:
    """The property list that a node delivers for a message with a decoded `P_basic` record. Raises FormatError."""
    if not isinstance(record, tuple) or len(record) != len(FIELDS) + 1 or record[0] != "P_basic":
        raise FormatError(0, "decoded properties that are not a P_basic record")
    values: dict[str, Any] = {}
    for (name, kind), value in zip(FIELDS, record[1:], strict=True):
        if value == "undefined":
            continue
        wanted: type[Any] = {SHORT: bytes, TABLE: list, OCTET: int, LONG: int}[kind]
        if not isinstance(value, wanted):
            raise FormatError(0, f"the decoded property {name} is a {type(value).__name__}")
        values[name] = field_table.from_decoded(value) if kind == TABLE else value
    try:
        return encode(values)
    except ValueError as error:
        raise FormatError(0, str(error)) from None
