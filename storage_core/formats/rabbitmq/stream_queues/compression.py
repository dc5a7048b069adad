"""The compressions of sub-batches, by number. Source: docs/format/rabbitmq-streams.md 4."""

from __future__ import annotations

import zlib

import pyarrow as pa

from storage_core.errors import FormatError

NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)
MOST_BYTES = 1 << 28
"""A client sends a few megabytes at most; a length beyond this is taken as invalid."""
_SNAPPY_STREAM = b"\xff\x06\x00\x00sNaPpY"
_SNAPPY_CHECKSUM = 4
_BY_ARROW = {LZ4: "lz4", ZSTD: "zstd"}


def decompress(kind: int, data: bytes, size: int) -> bytes:
    """Decompresses `data` to `size` bytes. Raises FormatError for invalid data, and for a kind that has no name."""
    if size > MOST_BYTES:
        raise FormatError(0, f"{size} bytes uncompressed are more than the {MOST_BYTES} that are read")
    try:
        found = _decompressed(kind, data, size)
    except (zlib.error, pa.ArrowException, OSError, ValueError) as error:
        raise FormatError(0, f"its bytes cannot be decompressed: {error}") from None
    if len(found) != size:
        raise FormatError(0, f"{len(found)} bytes come out of it, and its head says {size}")
    return found


def _decompressed(kind: int, data: bytes, size: int) -> bytes:
    if kind == GZIP:
        return zlib.decompressobj(wbits=31).decompress(data, size + 1)
    if kind == SNAPPY:
        return _framed_snappy(data, size) if data.startswith(_SNAPPY_STREAM) else _snappy(data, size)
    if kind in _BY_ARROW:
        return bytes(pa.Codec(_BY_ARROW[kind]).decompress(data, decompressed_size=size, asbytes=True))
    raise FormatError(0, f"compression {kind} is one of a user's own")


def _snappy(data: bytes, size: int) -> bytes:
    """Decompresses one block, which begins with its length."""
    length, shift = 0, 0
    for byte in data[:5]:
        length |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    if length > size:
        raise FormatError(0, f"{length} bytes come out of it, and its head says {size}")
    return bytes(pa.Codec("snappy").decompress(data, decompressed_size=length, asbytes=True))


def _framed_snappy(data: bytes, size: int) -> bytes:
    """Decompresses the framing format: pieces with a type, a three-byte length, and a checksum before the block."""
    parts, position, left = [], 0, size
    while position + 4 <= len(data):
        kind, length = data[position], int.from_bytes(data[position + 1 : position + 4], "little")
        body = data[position + 4 : position + 4 + length]
        if len(body) < length:
            raise FormatError(position, "a piece is cut")
        position += 4 + length
        if kind in {0, 1}:
            body = body[_SNAPPY_CHECKSUM:]
            part = _snappy(body, left) if kind == 0 else body
            parts.append(part)
            left -= len(part)
        elif kind < 0x80:
            raise FormatError(position, f"a piece of the unknown type {kind}")
    return b"".join(parts)
