"""AMQP 1.0 messages for tests, encoded in every way that the standard allows, and sub-batches of all compressions."""

from __future__ import annotations

import gzip
import random
import struct
from typing import Any

import pyarrow as pa

SNAPPY_STREAM = b"\xff\x06\x00\x00sNaPpY"


def _framed_snappy(data: bytes) -> bytes:
    block = pa.Codec("snappy").compress(data, asbytes=True)
    pieces = [(0, block), (1, b"")]
    return SNAPPY_STREAM + b"".join(
        bytes((kind,)) + (len(body) + 4).to_bytes(3, "little") + bytes(4) + body for kind, body in pieces
    )


COMPRESSIONS = {
    0: bytes, 1: gzip.compress, 2: _framed_snappy,
    3: lambda data: pa.Codec("lz4").compress(data, asbytes=True),
    4: lambda data: pa.Codec("zstd").compress(data, asbytes=True),
}  # fmt: skip


def sub_batch(kind: int, count: int, plain: bytes) -> bytes:
    """A sub-batch entry whose records are `plain`."""
    body = COMPRESSIONS[kind](plain)
    return struct.pack(">BHII", 0x80 | kind << 4, count, len(plain), len(body)) + body


def counted(code: int, data: bytes) -> bytes:
    """A value with its length in one byte, or in four if needed."""
    if len(data) < 256:
        return bytes((code, len(data))) + data
    return bytes((code + 0x10,)) + len(data).to_bytes(4, "big") + data


def listed(code: int, values: list[bytes], wide: bool = False) -> bytes:
    """A list (0xC0) or map (0xC1)."""
    body = b"".join(values)
    if not wide and len(body) < 255 and len(values) < 256:
        return bytes((code, len(body) + 1, len(values))) + body
    return struct.pack(">BII", code + 0x10, len(body) + 4, len(values)) + body


def section(code: int, value: bytes) -> bytes:
    """A section."""
    return bytes((0, 0x53, code)) + value


Kind = dict[str, Any]


def random_kind(draw: random.Random) -> Kind:
    """The traits that all messages of one publisher share."""
    return {
        "annotations": draw.sample(
            ["x-exchange", "x-routing-key", "x-basic-delivery-mode", "x-basic-priority", "x-basic-expiration", "x-opt"],
            draw.randrange(7),
        ),
        "properties": [draw.choices((None, "text", "odd"), (8, 11, 1))[0] for _ in range(draw.choice((0, 7, 10, 13)))],
        "headers": [(f"h{i}", draw.choice(_HEADERS)) for i in range(draw.randrange(6))],
        "applied": draw.sample(["x-basic-type", "x-basic-app-id"], draw.randrange(3)),
        "body": draw.choice(("data", "data", "data", "value", "two", "none")),
        "head": [draw.choice(makers) for makers in _HEAD][: draw.choice((1, 2, 3, 5, 5))]
        if draw.random() < 0.4
        else [],
        "noted": [(key, draw.choice(_HEADERS)) for key in draw.sample(_NOTED, draw.choice((0, 0, 1, 2, 4)))],
        "wide": draw.random() < 0.2,
    }


def _text(draw: random.Random, most: int = 12) -> bytes:
    return "".join(draw.choice("abcdé") for _ in range(draw.randrange(most))).encode()


_HEADERS: list[Any] = [
    lambda d: counted(0xA1, _text(d)), lambda d: counted(0xA1, _text(d, 400)), lambda d: counted(0xA3, b"sym"),
    lambda d: counted(0xA0, d.randbytes(5)), lambda d: b"\x55" + d.randbytes(1), lambda d: b"\x81" + d.randbytes(8),
    lambda d: b"\x54" + d.randbytes(1), lambda d: b"\x71" + d.randbytes(4), lambda d: b"\x52" + d.randbytes(1),
    lambda d: b"\x70" + d.randbytes(4), lambda d: b"\x43", lambda d: b"\x61" + d.randbytes(2),
    lambda d: b"\x60" + d.randbytes(2), lambda d: b"\x51" + d.randbytes(1), lambda d: b"\x50" + d.randbytes(1),
    lambda d: b"\x72" + struct.pack(">f", d.random()), lambda d: b"\x82" + struct.pack(">d", d.random()),
    lambda d: d.choice((b"\x41", b"\x42")), lambda d: b"\x56" + bytes((d.randrange(2),)), lambda d: b"\x40",
    lambda d: b"\x83" + d.randbytes(8), lambda d: b"\x80" + d.randbytes(8), lambda d: b"\x98" + d.randbytes(16),
    lambda d: listed(0xC0, [b"\x41"]),
]  # fmt: skip


_NULL: Any = lambda d: b"\x40"  # noqa: E731
_HEAD: list[list[Any]] = [
    [lambda d: b"\x41", lambda d: b"\x42", lambda d: d.choice((b"\x41", b"\x42")), _NULL],
    [_NULL, lambda d: b"\x50" + d.randbytes(1)],
    [_NULL, lambda d: b"\x70" + d.randbytes(4), lambda d: b"\x52" + d.randbytes(1), lambda d: b"\x43"],
    [lambda d: b"\x41"],
    [lambda d: b"\x43"],
]
"""Durable, priority, time to live, first acquirer and delivery count."""
_NOTED = [
    "x-h",
    "x-a",
    "h1",
    "x-cc",
    "x-death",
    "x-opt-deaths",
    "x-opt-rabbitmq-received-time",
    "x-basic-type",
    "x-big",
]


def random_message(draw: random.Random, kind: Kind) -> bytes:
    """A random message of a kind."""
    parts = [section(0x70, listed(0xC0, [make(draw) for make in kind["head"]]))] if kind["head"] else []
    noted = [each for key, make in kind["noted"] for each in (counted(0xA3, key.encode()), make(draw))]
    for key in kind["annotations"]:
        number = key.endswith(("mode", "priority"))
        noted += [counted(0xA3, key.encode()), b"\x50" + draw.randbytes(1) if number else counted(0xA1, _text(draw))]
    if noted:
        parts.append(section(0x72, listed(0xC1, noted, kind["wide"])))
    if kind["properties"]:
        fields = [_property(draw, index, how) for index, how in enumerate(kind["properties"])]
        parts.append(section(0x73, listed(0xC0, fields, kind["wide"])))
    pairs = [(key, make(draw)) for key, make in kind["headers"]]
    pairs += [(key, counted(0xA1, _text(draw))) for key in kind["applied"]]
    if pairs:
        flat = [each for key, value in pairs for each in (counted(0xA1, key.encode()), value)]
        parts.append(section(0x74, listed(0xC1, flat, kind["wide"])))
    body = draw.randbytes(draw.choice((0, 5, 20, 300)))
    parts += {
        "data": [section(0x75, counted(0xA0, body))],
        "value": [section(0x77, counted(0xA1, _text(draw)))],
        "two": [section(0x75, counted(0xA0, body)), section(0x75, counted(0xA0, b"last"))],
        "none": [],
    }[kind["body"]]
    return b"".join(parts)


def _property(draw: random.Random, index: int, how: str | None) -> bytes:
    if how is None:
        return b"\x40"
    if index == 9 or index == 8:
        return b"\x83" + draw.randbytes(8)
    if how == "odd":
        ids = (b"\x53\x07", b"\x98" + draw.randbytes(16), counted(0xA0, b"\1\2"), counted(0xA1, _text(draw, 900)))
        return draw.choice(ids) if index in {0, 5} else counted(0xA1, _text(draw, 600))
    return counted(0xA0 if index == 1 else 0xA3 if index in {6, 7} else 0xA1, _text(draw))
