"""Converts many AMQP 1.0 values at once to values of AMQP 0-9-1 field tables.

`sections` reads a single value, `container_view` and `delivered` convert it. Source: docs/format/rabbitmq-streams.md 6.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from storage_core.arrays import NO_BYTES, as_scalar, bytes_array
from storage_core.formats.layout import Bytes, Mask, Positions, values_at
from storage_core.formats.rabbitmq.amqp import sections
from storage_core.formats.rabbitmq.binary_columns import fixed, joined, placed
from storage_core.formats.spans import gather

TIMESTAMP, BOOLEAN, FLOAT, DOUBLE, UUID, UBYTE = 0x83, 0x56, 0x72, 0x82, 0x98, 0x50
UTF8, SYMBOL, BINARY, ULONG = (0xA1, 0xB1), (0xA3, 0xB3), (0xA0, 0xB0), (0x80, 0x53, sections.ULONG_0)
UINT = (0x70, 0x52, sections.UINT_0)
"""The constructors of each type."""
_COPIED = {
    0x81: b"l", ULONG[0]: b"l", 0x71: b"I", 0x70: b"i", 0x61: b"s", 0x60: b"u", 0x51: b"b", 0x50: b"B", DOUBLE: b"d",
    FLOAT: b"f",
}  # fmt: skip
"""Numbers that have the same bytes in a field table, and their type letters there."""
_GROWN = {
    0x55: ("i1", b"l", ">i8"), ULONG[1]: ("u1", b"l", ">i8"), 0x54: ("i1", b"I", ">i4"), 0x52: ("u1", b"i", ">u4"),
}  # fmt: skip
_CONSTANT = {
    sections.NULL: b"V", sections.TRUE: b"t\1", sections.FALSE: b"t\0", sections.UINT_0: b"i\0\0\0\0",
    ULONG[2]: b"l" + bytes(8),
}  # fmt: skip
_TEXTS = {**dict.fromkeys((*UTF8, *SYMBOL), b"S"), **dict.fromkeys(BINARY, b"x")}
KNOWN = frozenset({*_COPIED, *_GROWN, *_CONSTANT, *_TEXTS, TIMESTAMP, BOOLEAN})
"""Constructors whose values `items` can convert."""
_URN = b"urn:uuid:00000000-0000-0000-0000-000000000000"
_DIGITS = np.flatnonzero(np.frombuffer(_URN, np.uint8) == ord("0"))
_HEX = np.frombuffer(b"0123456789abcdef", np.uint8)
_EXPONENTS = {FLOAT: 0x7F800000, DOUBLE: 0x7FF00000}
"""The bits of floats, and of the first half of doubles, that are all set in non-finite numbers."""


def items(buffer: Bytes, code: int, starts: Positions, stops: Positions) -> list[bytes | pa.Array]:
    """The parts, in order, of the type letter and value of headers; a part given as bytes is the same in all headers.

    The values have the constructor `code`; their bytes, without a length prefix, are at [start, stop).
    """
    if code in _CONSTANT:
        return [_CONSTANT[code]]
    if code in _TEXTS:
        return [_TEXTS[code], fixed((stops - starts).astype(">u4")), gather(buffer, starts, stops)]
    if code == TIMESTAMP:
        return [b"T", fixed(seconds(buffer, starts))]
    if code == BOOLEAN:
        return [b"t", fixed((values_at(buffer, "u1", starts) != 0).astype("u1"))]
    if code in _GROWN:
        narrow, letter, wide = _GROWN[code]
        return [letter, fixed(values_at(buffer, narrow, starts).astype(wide))]
    return [_COPIED[code], gather(buffer, starts, stops)]


def header_values(
    buffer: Bytes, codes: npt.NDArray[np.int64], starts: Positions, stops: Positions
) -> tuple[pa.BinaryArray, Mask]:
    """Type letters and values of headers, and which of them are of a kind supported here."""
    # Consumers receive a binary as text.
    for binary, text in zip(BINARY, UTF8, strict=True):
        codes = np.where(codes == binary, text, codes)
    right, parts = np.zeros(len(codes), bool), [(np.empty(0, np.int64), bytes_array([]))]
    for code in np.unique(codes).tolist():
        at = np.flatnonzero(codes == code)
        if code in KNOWN:
            right[at] = ~are_endless(buffer, code, starts[at])
            made = items(buffer, code, starts[at], stops[at])
            parts.append((at, joined(*made) if len(made) > 1 else pa.repeat(as_scalar(made[0]), len(at))))
    return placed(parts, len(codes)).fill_null(NO_BYTES), right


def seconds(buffer: Bytes, starts: Positions) -> npt.NDArray[Any]:
    """Whole seconds of the milliseconds at each position, as eight bytes."""
    ms = values_at(buffer, ">i8", starts).astype(np.int64)
    # Rounds towards zero, as the node's division does.
    found: npt.NDArray[Any] = ms // 1000 + ((ms < 0) & (ms % 1000 != 0))
    return found.astype(">i8")


def uuids(buffer: Bytes, starts: Positions) -> pa.BinaryArray:
    """The URNs of the uuids whose 16 bytes are at each position."""
    found = np.empty((len(starts), len(_URN)), np.uint8)
    found[:] = np.frombuffer(_URN, np.uint8)
    data = values_at(buffer, "V16", starts).view(np.uint8).reshape(-1, 16)
    found[:, _DIGITS] = _HEX[np.stack([data >> 4, data & 15], axis=2).reshape(-1, 32)]
    return fixed(found.view(f"V{len(_URN)}").ravel())


def are_endless(buffer: Bytes, code: int, starts: Positions) -> Mask:
    """Which values of the constructor `code` are non-finite floats."""
    if (bits := _EXPONENTS.get(code)) is None:
        return np.zeros(len(starts), bool)
    found: Mask = values_at(buffer, ">u4", starts) & bits == bits
    return found
