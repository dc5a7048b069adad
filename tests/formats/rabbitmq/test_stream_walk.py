"""Stream messages walked through in lockstep: each one found is the same as when it is decoded alone."""

from __future__ import annotations

import random
from functools import partial

import numpy as np
import pytest

from storage_core.formats.rabbitmq.stream_queues import delivered, message_walk
from tests.rabbitmq import amqp10_random
from tests.rabbitmq.amqp10 import counted, listed, section
from tests.rabbitmq.containers import packed

pytestmark = pytest.mark.usefixtures("either_loops")

NULL = b"\x40"
DATA = section(0x75, counted(0xA0, b"body"))
HEADER = section(0x70, listed(0xC0, [b"\x41"]))
TEXTS = b"", b"\xff", b"text", b"n" * 255, b"/queues/q", b"/queues/a%20b", "é".encode(), b"\0"
NOTED = (
    b"x-exchange", b"x-routing-key", b"x-basic-type", b"x-a", b"x-opt-jms-dest", b"x-", b"other", b"x-" + b"n" * 250,
    b"x-cc", b"x-basic-priority", b"x-opt-rabbitmq-received-time",
)  # fmt: skip


def check(messages: list[bytes], of_3_13: bool = False) -> int:
    """Returns how many of the messages are found. Raises AssertionError if decoding one alone gives another result."""
    buffer, starts, stops = packed(messages)
    found = message_walk.walk(buffer, starts, stops, of_3_13)
    rows = np.flatnonzero(found.ok)
    content, raw = found.content, buffer.tobytes()
    for row, made in zip(rows.tolist(), found.property_lists().to_pylist(), strict=True):
        alone, begin = delivered.delivered(messages[row], of_3_13), int(starts[row])
        (span,) = alone.body
        key = alone.routing_key
        assert made == alone.properties
        assert raw[content.body_starts[row] : content.body_stops[row]] == messages[row][slice(*span)]
        for spans, wanted in ((found.exchange, alone.exchange), (found.routing_key, key)):
            assert raw[spans[0, row] : spans[1, row]] == messages[row][slice(*(wanted or (0, 0)))]
            assert wanted is None or spans[0, row] == begin + wanted[0]
        assert found.keyed[row] == (key is not None)
    return len(rows)


def message(r: random.Random) -> bytes:
    """A message of simple values, as nodes write them, or of any values."""
    if r.random() < 0.2:
        return amqp10_random.message(r, 20, 0.05, persistent=r.choice((True, False, None)))
    parts = [r.choice((b"\x41", b"\x42", NULL)), r.choice((b"\x50\4", b"\x50\xff", NULL))]
    parts += [r.choice((NULL, b"\x43", b"\x52\7", b"\x70" + bytes(3) + b"\1")), r.choice((b"\x41", NULL)), b"\x43"]
    made = section(0x70, listed(0xC0, parts[: r.randrange(6)], r.random() < 0.1)) if r.random() < 0.95 else b""
    if r.random() < 0.8:
        texts = [counted(r.choice((0xA1, 0xA3)), r.choice(TEXTS)), counted(0xA1, b"k")]
        names = NOTED[: r.choice((3, 8, 11))]
        pairs = [
            (counted(0xA3, r.choice(names)), r.choice((*texts, r.choice(amqp10_random.PLAIN)(r))))
            for _ in range(r.randrange(4))
        ]
        made += section(0x72, listed(0xC1, [part for pair in pairs for part in pair]))
    field = partial(counted, 0xA1)
    if r.random() < 0.8:
        text = r.choice(TEXTS)
        makers = [
            r.choice((field(text), amqp10_random.ulong(r), amqp10_random.uuid(r))), counted(0xA0, text), field(text),
            field(text), field(text), r.choice((field(text), counted(0xA0, text))), counted(0xA3, text),
            counted(0xA3, text), amqp10_random.timestamp(r), amqp10_random.timestamp(r), field(text),
        ]  # fmt: skip
        fields = [each if r.random() < 0.6 else NULL for each in makers][: r.choice((0, 1, 7, 10, 11))]
        made += section(0x73, listed(0xC0, fields, r.random() < 0.2) if fields else b"\x45")
    if r.random() < 0.7:
        pairs = [(field(r.choice(TEXTS)), r.choice(amqp10_random.PLAIN)(r)) for _ in range(r.randrange(5))]
        made += section(0x74, listed(0xC1, [part for pair in pairs for part in pair], r.random() < 0.2))
    value = section(0x77, r.choice((field(b"text"), b"\x41", listed(0xC0, [b"\x41"]))))
    return made + r.choice((DATA, DATA, DATA, section(0x75, counted(0xA0, b"b" * 300)), DATA * 2, value, b""))


def harmed(r: random.Random, data: bytes) -> bytes:
    if r.random() < 0.1:
        return data[: r.randrange(len(data) + 1)]
    changed = bytearray(data or b"\0")
    changed[r.randrange(len(changed))] = r.choice((r.randrange(256), 0x40, 0xA1, 0xFF, 0x75))
    return bytes(changed)


def test_what_is_found_is_what_decoding_gives() -> None:
    r, found, count = random.Random(7), 0, 0
    for _ in range(120):
        messages = [message(r) for _ in range(r.choice((1, 30, 100)))]
        found, count = found + check(messages), count + len(messages)
        check([harmed(r, each) for each in messages])
        check(messages, of_3_13=True)
    assert found > count // 4


@pytest.mark.parametrize(
    "middle",
    [
        b"", section(0x73, b"\x45"), section(0x73, listed(0xC0, [counted(0xA1, b"id"), counted(0xA0, b"u")])),
        section(0x73, listed(0xC0, [NULL] * 9 + [b"\x83" + bytes(5) + b"\1\2\3", counted(0xA1, b"g")])),
        section(0x73, listed(0xC0, [b"\x98" + bytes(range(16)), *[NULL] * 4, counted(0xA0, b"id")])),
        section(0x72, listed(0xC1, [counted(0xA3, b"x-exchange"), counted(0xA1, b"e")])),
        section(0x72, listed(0xC1, [counted(0xA3, b"x-routing-key"), counted(0xA1, b"k")])),
        section(0x72, listed(0xC1, [counted(0xA3, b"x-b"), b"\x41", counted(0xA3, b"other"), NULL])),
        section(0x72, listed(0xC1, [counted(0xA3, b"x-basic-type"), counted(0xA3, b"t")])),
        section(0x74, listed(0xC1, [counted(0xA1, b"b"), b"\x41", counted(0xA1, b"a"), b"\x54\5"])),
    ],
)  # fmt: skip
def test_each_kind_of_message_is_found(middle: bytes) -> None:
    for header in (HEADER, section(0x70, b"\x45"), section(0x70, listed(0xC0, [b"\x42", b"\x50\5", b"\x52\7"]))):
        for body in (DATA, section(0x77, counted(0xA1, b"text")), section(0x75, counted(0xA0, b"b" * 300))):
            assert check([header + middle + body] * 9) == 9
            assert check([middle + body] * 9, of_3_13=True) == 9


@pytest.mark.parametrize(
    "given",
    [
        DATA, HEADER, HEADER + DATA * 2, HEADER + DATA + section(0x78, listed(0xC1, [])),
        HEADER + section(0x76, b"\x45"),
        section(0x70, listed(0xC0, [b"\x56\1"])) + DATA, section(0x70, listed(0xC0, [NULL, b"\x60\0\5"])) + DATA,
        HEADER + section(0x72, listed(0xC1, [counted(0xA3, b"x-basic-priority"), b"\x50\5"])) + DATA,
        HEADER + section(0x72, listed(0xC1, [counted(0xA3, b"x-exchange"), b"\x41"])) + DATA,
        HEADER + section(0x72, listed(0xC1, [counted(0xA3, b"x-exchange"), counted(0xA1, b"e")] * 2)) + DATA,
        HEADER + section(0x77, listed(0xC0, [b"\x41"])), HEADER + DATA[:-1],
        HEADER + DATA + b"\0\x53\x75\xb0\x7f\xff\xff\xff",
    ],
)  # fmt: skip
def test_what_is_left_to_be_decoded_alone(given: bytes) -> None:
    assert check([given] * 9) == 0
