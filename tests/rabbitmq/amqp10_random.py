"""Random AMQP 1.0 messages that a node of RabbitMQ 4 stores, with values of every type wherever they are allowed."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable

from tests.rabbitmq.amqp10 import counted, listed, section

NULL, TRUE, FALSE = b"\x40", b"\x41", b"\x42"
Make = Callable[[random.Random], bytes]


def text(r: random.Random, most: int = 12) -> bytes:
    return "".join(r.choice("abcdé") for _ in range(r.randrange(most))).encode()


def utf8(r: random.Random) -> bytes:
    return counted(0xA1, text(r, r.choice((5, 5, 5, 400))))


def symbol(r: random.Random) -> bytes:
    return counted(0xA3, b"sym" * r.choice((1, 1, 90)))


def binary(r: random.Random) -> bytes:
    return counted(0xA0, r.randbytes(r.choice((0, 4, 300))))


def ulong(r: random.Random) -> bytes:
    return r.choice((b"\x44", b"\x53" + r.randbytes(1), b"\x80" + r.randbytes(8)))


def uuid(r: random.Random) -> bytes:
    return b"\x98" + r.randbytes(16)


def timestamp(r: random.Random) -> bytes:
    return b"\x83" + r.choice((r.randbytes(8), struct.pack(">q", r.randrange(-5000, 2_000_000_000_000))))


def ubyte(r: random.Random) -> bytes:
    return b"\x50" + r.randbytes(1)


def uint(r: random.Random) -> bytes:
    return r.choice((b"\x43", b"\x52" + r.randbytes(1), b"\x70" + r.randbytes(4)))


PLAIN: list[Make] = [
    utf8, symbol, binary, timestamp, ubyte, uint, lambda r: r.choice((TRUE, FALSE)), lambda _: NULL,
    lambda r: b"\x56" + bytes((r.randrange(2),)), lambda r: b"\x51" + r.randbytes(1),
    lambda r: b"\x60" + r.randbytes(2), lambda r: b"\x61" + r.randbytes(2), lambda r: b"\x54" + r.randbytes(1),
    lambda r: b"\x71" + r.randbytes(4), lambda r: b"\x55" + r.randbytes(1), lambda r: b"\x81" + r.randbytes(8),
    lambda r: b"\x72" + struct.pack(">f", r.uniform(-9, 9)), lambda r: b"\x82" + struct.pack(">d", r.uniform(-9, 9)),
]  # fmt: skip
"""Values that an AMQP 0-9-1 consumer receives wherever they occur."""
ODD: list[Make] = [
    uuid, lambda r: b"\x73\0\0\0" + bytes((r.randrange(256),)), lambda r: b"\x74" + r.randbytes(4),
    lambda r: b"\x84" + r.randbytes(8), lambda r: b"\x94" + r.randbytes(16), lambda _: b"\x72\x7f\xc0\0\0",
    lambda _: b"\x82\x7f\xf0\0\0\0\0\0\0",
]  # fmt: skip
"""Values that no AMQP 0-9-1 consumer receives."""


def array(r: random.Random) -> bytes:
    """An array, whose values share one constructor."""
    constructor, items = r.choice((
        (b"\xb1", [len(each := text(r)).to_bytes(4, "big") + each for _ in range(r.randrange(4))]),
        (b"\xa1", [bytes((len(each := text(r)),)) + each for _ in range(r.randrange(4))]),
        (b"\x71", [r.randbytes(4) for _ in range(r.randrange(4))]),
        (b"\x56", [bytes((r.randrange(2),)) for _ in range(r.randrange(4))]),
        (b"\xd0", [struct.pack(">II", 5, 1) + TRUE for _ in range(r.randrange(3))]),
    ))  # fmt: skip
    body = constructor + b"".join(items)
    wide = r.random() < 0.2
    head = struct.pack(">BII", 0xF0, 4 + len(body), len(items)) if wide else bytes((0xE0, 1 + len(body), len(items)))
    return head + body


def value(r: random.Random, odd: float = 0.0, depth: int = 0, in_list: bool = False) -> bytes:
    """Any value; with `odd` above 0 also values that make an AMQP 0-9-1 consumer fail."""
    if r.random() < odd:
        return r.choice(ODD)(r)
    how = r.random()
    if depth > 3 or how < 0.75:
        return r.choice(PLAIN)(r)
    if how < 0.85:
        items = [value(r, odd, depth + 1, True) for _ in range(r.randrange(4))]
        return listed(0xC0, items, r.random() < 0.2) if items else r.choice((b"\x45", listed(0xC0, [])))
    if how < 0.95:
        keys = [r.choice((utf8, symbol, binary))(r) if odd else counted(0xA1, text(r)) for _ in range(r.randrange(4))]
        pairs = [each for key in keys for each in (key, value(r, odd, depth + 1))]
        return listed(0xC1, pairs, r.random() < 0.2)
    if in_list:
        return ulong(r) if odd else NULL
    return r.choice((ulong, array))(r)


def deaths(r: random.Random) -> bytes:
    """The annotation in which a node records where a message died."""
    key = text(r)
    keys = b"\xb1" + len(key).to_bytes(4, "big") + key
    fields = [
        ("queue", counted(0xA1, text(r))), ("reason", counted(0xA3, b"expired")), ("count", b"\x53" + r.randbytes(1)),
        ("first-time", timestamp(r)), ("last-time", timestamp(r)), ("exchange", counted(0xA1, text(r))),
        ("routing-keys", bytes((0xE0, 1 + len(keys), 1)) + keys),
    ]  # fmt: skip
    if r.random() < 0.5:
        fields.insert(0, ("ttl", uint(r)))
    flat = [each for name, inner in fields for each in (counted(0xA3, name.encode()), inner)]
    body = listed(0xC1, flat, True)
    return struct.pack(">BII", 0xF0, 4 + len(body), 1) + body


KEYS = ["x-a", "x-b", "x-opt", "x-cc", "x-death", "x-é", "x-" + "k" * 280]
KNOWN: dict[str, Make] = {
    "x-basic-type": lambda r: counted(0xA1, text(r)), "x-opt-rabbitmq-received-time": timestamp,
    "x-opt-deaths": deaths, "x-basic-delivery-mode": ubyte, "x-basic-priority": ubyte,
    "x-basic-expiration": lambda r: counted(0xA1, b"%d" % r.randrange(10**8, 10**9)),
}  # fmt: skip
"""Annotations that a node understands. A value that it does not accept as an expiration is not stored."""


def annotations(r: random.Random, odd: float) -> bytes:
    """The section `message-annotations`."""
    pairs = []
    for key in r.sample(KEYS, r.choice((0, 1, 2, 5))):
        pairs += [counted(0xA3, key.encode()), value(r, odd)]
    for key in r.sample([*KNOWN], r.choice((0, 0, 1, 2))):
        right = key == "x-basic-expiration" or r.random() > odd
        pairs += [counted(0xA3, key.encode()), KNOWN[key](r) if right else value(r, odd)]
    return section(0x72, listed(0xC1, pairs, r.random() < 0.2))


def message_properties(r: random.Random, odd: float) -> bytes:
    """The section `properties`."""
    short: Make = lambda r: counted(0xA1, text(r))  # noqa: E731
    name: Make = lambda r: counted(0xA3, b"text/plain")  # noqa: E731
    identifier: Make = lambda r: r.choice((utf8, ulong, uuid, binary))(r)  # noqa: E731
    user: Make = lambda _: counted(0xA0, b"guest")  # noqa: E731
    makers = [identifier, user, short, utf8, utf8, identifier, name, name, timestamp, timestamp, utf8, uint, utf8]
    fields = []
    for index, make in enumerate(makers[: r.choice((1, 3, 7, 10, 13))]):
        if r.random() < 0.4:
            fields.append(NULL)
        elif index != 1 and r.random() < odd:
            fields.append(value(r, 0.3))
        else:
            fields.append(make(r))
    return section(0x73, listed(0xC0, fields, r.random() < 0.2))


def header(r: random.Random, persistent: bool | None) -> bytes:
    """The section `header`. `persistent` sets its first field; None picks true, false or null."""
    durable = r.choice((TRUE, FALSE, NULL)) if persistent is None else TRUE if persistent else FALSE
    ttl = r.choice((NULL, b"\x70" + r.randrange(10**8, 1 << 32).to_bytes(4, "big")))
    fields = [durable, r.choice((NULL, ubyte(r))), ttl, r.choice((NULL, TRUE)), r.choice((NULL, uint(r)))]
    return section(0x70, listed(0xC0, fields[: r.choice((1, 2, 3, 5))]))


def body(r: random.Random, size: int) -> bytes:
    """One or more data sections, a value, or sequences, and perhaps a footer."""
    footer = section(0x78, listed(0xC1, [counted(0xA3, b"x-sum"), TRUE])) if r.random() < 0.2 else b""
    how = r.random()
    if how < 0.7:
        pieces = r.choice((1, 1, 1, 2, 3))
        each = size // pieces
        parts = [(r.randbytes(20) * (each // 20 + 1))[:each] for _ in range(pieces)]
        return b"".join(section(0x75, counted(0xA0, part)) for part in parts) + footer
    if how < 0.9:
        return section(0x77, r.choice((value(r, 0.1), counted(0xA1, b"t" * size)))) + footer
    sequences = [listed(0xC0, [value(r), counted(0xA0, b"s" * size)]) for _ in range(r.randrange(1, 3))]
    return b"".join(section(0x76, each) for each in sequences) + footer


def message(r: random.Random, size: int, odd: float = 0.0, persistent: bool | None = None) -> bytes:
    """A message; with `odd` above 0 perhaps one that makes an AMQP 0-9-1 consumer fail."""
    parts = [header(r, persistent)] if persistent is not None or r.random() < 0.6 else []
    if r.random() < 0.1:
        parts.append(section(0x71, listed(0xC1, [counted(0xA3, b"x-hop"), TRUE])))
    if r.random() < 0.6:
        parts.append(annotations(r, odd))
    if r.random() < 0.7:
        parts.append(message_properties(r, odd))
    if r.random() < 0.6:
        pairs = [
            each
            for _ in range(r.randrange(5))
            for each in (counted(0xA1, text(r, r.choice((5, 5, 300)))), value(r, odd))
        ]
        parts.append(section(0x74, listed(0xC1, pairs, r.random() < 0.2)))
    return b"".join([*parts, body(r, size)])


def usual_message(r: random.Random, number: int) -> bytes:
    """A message as most clients send it: texts, numbers and times in its properties, and one body."""
    text: Callable[[bytes], bytes] = lambda data: counted(0xA1, data)  # noqa: E731
    fields = [
        r.choice((text(b"ID:%d" % number), b"\x80" + number.to_bytes(8, "big"))), counted(0xA0, b"guest"),
        text(b"/queues/x"), text(b"subject"), text(b"answers"), text(b"c%d" % number),
        counted(0xA3, b"application/json"), NULL, NULL,
        b"\x83" + (1_700_000_000_000 + number).to_bytes(8, "big"), text(b"group"),
    ]  # fmt: skip
    kept = [each if index == 1 or r.random() < 0.7 else NULL for index, each in enumerate(fields)]
    applied = [
        (b"tenant", text(b"t%d" % (number % 100))), (b"attempt", b"\x54" + bytes((number % 5,))),
        (b"total", b"\x81" + number.to_bytes(8, "big")), (b"paid", r.choice((TRUE, FALSE))),
    ]  # fmt: skip
    pairs = [part for name, value in r.sample(applied, r.randrange(5)) for part in (text(name), value)]
    body = r.choice((section(0x75, counted(0xA0, r.randbytes(300))), section(0x77, text(b"text"))))
    return header(r, True) + section(0x73, listed(0xC0, kept)) + section(0x74, listed(0xC1, pairs)) + body
