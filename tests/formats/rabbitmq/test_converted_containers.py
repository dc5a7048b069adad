"""Batches of containers that arrived by AMQP 1.0 and MQTT: each one found is the same as when it is decoded alone."""

from __future__ import annotations

import random
from functools import partial
from typing import Any

import pytest

from storage_core.formats.rabbitmq.amqp import sections
from storage_core.formats.rabbitmq.erlang.external_term import Atom
from storage_core.formats.rabbitmq.message import basic_message, container_walk
from tests.rabbitmq import amqp10_random
from tests.rabbitmq.amqp10 import counted, listed, section
from tests.rabbitmq.amqp10_stored import container, content_of
from tests.rabbitmq.containers import death, harmed, more_noted, plain_death, same_alone, with_small_atoms

pytestmark = pytest.mark.usefixtures("either_loops")

check = partial(same_alone, container_walk.locate)
NULL = b"\x40"
DATA = section(0x75, counted(0xA0, b"body"))
VALUE = section(0x77, counted(0xA1, b"text"))
TEXTS = b"", b"\xff", b"text", b"n" * 255, b"/queues/q", b"/queues/a%20b", b"/queues/", "é".encode(), b"a/+/b", b"\0"
NOTED = (
    b"x-opt-jms-dest", b"x-opt-jms-msg-type", b"x-", b"other", b"x-exchange", b"x-routing-key", b"x-" + b"n" * 300,
    b"x-basic-type", b"x-cc", b"text", b"x-opt-deaths",
)  # fmt: skip
USERS = b"a", b"b", b"", b"k" * 256, b"x-reply-to-topic"


def noted(r: random.Random) -> dict[Any, Any]:
    """Annotations, also of a time to live and a priority; rarely with values that no node writes."""
    found: dict[str | bytes, Any] = {"d": Atom(r.choice(("true", "true", "false")))}
    if r.random() < 0.3:
        found["p"] = r.choice((0, 4, 9, 255, 300, Atom("undefined")))
    if r.random() < 0.3:
        found["ttl"] = r.choice((0, 60_000, 1 << 40, Atom("undefined"), -1))
    if r.random() < 0.5:
        found["ts"] = 1_700_000_000_000 + r.randrange(10**6)
    if r.random() < 0.2:
        found |= {"binding_keys": r.choice(([b"#.q"], [], [b"a", b""])), "correlation_id": r.choice((b"", b"id", 5))}
    if r.random() < 0.2:
        found |= more_noted(r)
    return {Atom(name) if isinstance(name, str) else name: value for name, value in found.items()}


def by_amqp(r: random.Random) -> bytes:
    """A container of simple values, as most publishers send them, or of any values."""
    if r.random() < 0.2:
        return container("mc_amqp", content_of(amqp10_random.message(r, 20, 0.05)), noted(r))
    message = b""
    if r.random() < 0.4:
        pairs = [(counted(0xA3, r.choice(NOTED)), r.choice(amqp10_random.PLAIN)(r)) for _ in range(r.randrange(4))]
        message += section(0x72, listed(0xC1, [each for pair in pairs for each in pair]))
    if r.random() < 0.8:
        field = partial(counted, 0xA1)
        text = r.choice(TEXTS)
        makers = [
            r.choice((field(text), amqp10_random.ulong(r), amqp10_random.uuid(r))), counted(0xA0, text), field(text),
            field(text), field(text),
            r.choice((field(text), amqp10_random.ulong(r), amqp10_random.uuid(r), counted(0xA0, text))),
            r.choice((field, partial(counted, 0xA3)))(text), counted(0xA3, text), amqp10_random.timestamp(r),
            amqp10_random.timestamp(r), field(text), amqp10_random.uint(r), field(text),
        ]  # fmt: skip
        fields = [each if r.random() < 0.6 else NULL for each in makers][: r.choice((0, 1, 7, 10, 11, 13))]
        message += section(0x73, listed(0xC0, fields, r.random() < 0.2) if fields else b"\x45")
    if r.random() < 0.7:
        pairs = [(counted(0xA1, r.choice(TEXTS)), r.choice(amqp10_random.PLAIN)(r)) for _ in range(r.randrange(5))]
        pairs += [(counted(0xA1, b"u"), amqp10_random.ulong(r))] * r.randrange(2)
        message += section(0x74, listed(0xC1, [each for pair in pairs for each in pair], r.random() < 0.2))
    large = section(0x75, counted(0xA0, b"b" * 300))
    message += r.choice((DATA, DATA, VALUE, DATA * r.randrange(1, 5), large, section(0x76, b"\x45") * 2))
    return container("mc_amqp", content_of(message), noted(r))


def by_mqtt(r: random.Random) -> bytes:
    makers: dict[str, Any] = {
        "Content-Type": r.choice(TEXTS), "Correlation-Data": r.choice(TEXTS), "Response-Topic": r.choice(TEXTS),
        "Message-Expiry-Interval": r.choice((0, 60, 1 << 31, 1 << 33)), "Payload-Format-Indicator": 1,
        "User-Property": [(r.choice(USERS), b"v") for _ in range(r.randrange(4))],
    }  # fmt: skip
    chosen = {Atom(name): value for name, value in makers.items() if r.random() < 0.3}
    packet, time = r.choice((Atom("undefined"), 7, 70_000)), r.choice((Atom("undefined"), 1_700_000_000_000))
    message = (Atom("mqtt_msg"), Atom("false"), r.choice((0, 1)), b"a/b", Atom("false"), packet, b"body", chosen, time)
    return container("mc_mqtt", message, noted(r))


def test_what_is_found_is_what_decoding_gives() -> None:
    r, found, count = random.Random(17), 0, 0
    for _ in range(120):
        make = r.choice((by_amqp, by_mqtt, lambda r: r.choice((by_amqp, by_mqtt))(r)))
        terms = [make(r) for _ in range(r.choice((1, 30, 100)))]
        terms = [with_small_atoms(term) for term in terms] if r.random() < 0.5 else terms
        found, count = found + check(terms), count + len(terms)
        assert same_alone(basic_message.locate, terms) == check(terms)
        check([harmed(r, term) for term in terms])
    assert found > count // 2


@pytest.mark.parametrize("make", [by_amqp, by_mqtt])
def test_dead_letters(make: Any) -> None:
    r = random.Random(3)
    for _ in range(30):
        deaths = {Atom("deaths"): [plain_death(r) for _ in range(r.randrange(1, 3))], Atom("ttl"): Atom("undefined")}
        message = section(0x73, listed(0xC0, [counted(0xA1, b"id")])) + DATA
        assert check([container("mc_amqp", content_of(message), deaths)]) == 1
        check([container("mc_amqp", content_of(message), {Atom("deaths"): [death(r)]}), make(r)])


def test_each_kind_of_header_is_found() -> None:
    r = random.Random(4)
    for make in [*amqp10_random.PLAIN, amqp10_random.ulong]:
        for _ in range(4):
            message = section(0x74, listed(0xC1, [counted(0xA1, b"k"), make(r)])) + DATA
            assert check([container("mc_amqp", content_of(message))] * 9) == 9


@pytest.mark.parametrize(
    "before",
    [
        b"", section(0x73, b"\x45"), section(0x73, listed(0xC0, [counted(0xA1, b"id"), counted(0xA0, b"u")])),
        section(0x73, listed(0xC0, [NULL] * 4 + [counted(0xA1, b"/queues/q")], True)),
        section(0x73, listed(0xC0, [NULL] * 9 + [b"\x83" + bytes(8), counted(0xA1, b"g"), b"\x43", NULL])),
        section(0x73, listed(0xC0, [b"\x98" + bytes(range(240, 256))])),
        section(0x73, listed(0xC0, [counted(0xA0, b"id"), *[NULL] * 4, counted(0xA0, b"\0" * 300)])),
        section(0x72, listed(0xC1, [])), section(0x72, listed(0xC1, [counted(0xA3, b"x-exchange"), NULL])),
        section(0x74, listed(0xC1, [])), section(0x74, listed(0xC1, [counted(0xA1, b"k"), counted(0xA1, b"v" * 300)])),
    ],
)  # fmt: skip
def test_each_kind_of_content_is_found(before: bytes) -> None:
    for body in (DATA, DATA * 3, VALUE, section(0x76, b"\x45"), section(0x75, counted(0xA0, b"b" * 300))):
        assert check([container("mc_amqp", content_of(before + body))] * 9) == 9


@pytest.mark.parametrize(
    "message",
    [
        section(0x72, listed(0xC1, [counted(0xA3, b"x-a"), listed(0xC0, [b"\x41"])])) + DATA, DATA * 65,
        section(0x72, listed(0xC1, [counted(0xA3, b"x-a"), b"\x72\x3f\x80\0\0"])) + DATA,
        section(0x72, listed(0xC1, [counted(0xA3, b"x-cc"), listed(0xC0, [counted(0xA1, b"k")])])) + DATA,
        section(0x72, listed(0xC1, [counted(0xA3, b"x-basic-type"), counted(0xA1, b"t")])) + DATA,
        section(0x73, listed(0xC0, [b"\x52\1"])) + DATA,
        section(0x73, listed(0xC0, [NULL] * 14)) + DATA,
        section(0x73, listed(0xC0, [NULL] * 4 + [counted(0xA1, b"/queues/a%20b")])) + DATA,
        section(0x74, listed(0xC1, [counted(0xA1, b"k"), listed(0xC0, [b"\x41"])])) + DATA,
        section(0x74, listed(0xC1, [counted(0xA1, b"k"), b"\x82\x7f\xf0" + bytes(6)])) + DATA,
        section(0x74, listed(0xC1, [counted(0xA3, b"k"), b"\x41"])) + DATA,
        DATA + section(0x78, listed(0xC1, [])), section(0x75, counted(0xA1, b"text")),
    ],
)  # fmt: skip
def test_what_is_left_to_be_decoded_alone(message: bytes) -> None:
    assert check([container("mc_amqp", content_of(message))] * 3) == 0


def test_contents_that_say_otherwise_where_their_parts_are() -> None:
    """A node uses only the position and the number of the body."""
    size = len(DATA)
    for content in (
        (Atom("v1"), [], DATA, [], [], 99, 0x75), (Atom("v1"), [], DATA, [], [], 0, 0x79),
        (Atom("v1"), [], DATA, [], [], 0, 0x77), (Atom("v1"), [], VALUE, [], [], 2, 0x77),
        (Atom("v1"), [], section(0x75, counted(0xA1, b"text")), [], [], 0, 0x77),
        (Atom("v1"), [], b"\0", [], [], 0, 0x75), (Atom("v1"), [1], DATA, [], [], 0, 0x75),
        (Atom("v1"), [], DATA + b"\0\x53\x75\xb0\x7f\xff\xff\xff", [], [], 0, sections.DATA),
        (Atom("v1"), [], DATA, [], [], size, sections.DATA), (Atom("v1"), [], DATA, 5, 6, 0, sections.DATA),
    ):  # fmt: skip
        check([container("mc_amqp", content)] * 9)


def test_each_kind_of_annotation_is_found() -> None:
    r = random.Random(5)
    kinds = b"\x41", b"\x42", NULL, b"\x43", b"\x44", b"\x55\xff", b"\x83" + bytes(5) + b"\1\2\3", b"\x50\xff"
    for value in (*kinds, *(counted(kind, text) for kind in (0xA0, 0xA1, 0xA3) for text in (b"", b"v" * 300))):
        pairs = [counted(0xA3, b"x-a"), value, counted(0xA3, b"other"), value, counted(0xA3, b"x-opt-jms-dest"), value]
        applied = section(
            0x74, listed(0xC1, [counted(0xA1, b"x-a"), counted(0xA1, b"hidden"), counted(0xA1, b"z"), NULL])
        )
        terms = [container("mc_amqp", content_of(section(0x72, listed(0xC1, pairs)) + applied + DATA))] * 5
        assert check(terms) == check([with_small_atoms(term) for term in terms]) == 5
    assert check([by_amqp(r) for _ in range(200)]) > 100


@pytest.mark.parametrize(
    "mqtt_properties",
    [
        {}, {"Content-Type": b"text/plain"}, {"Content-Type": "é".encode()}, {"Correlation-Data": b"id"},
        {"Correlation-Data": b"\xff\0"}, {"Response-Topic": b"a/+/b"}, {"Message-Expiry-Interval": 60},
        {"User-Property": [(b"b", b"1"), (b"a", b"2"), (b"b", b"3"), (b"k" * 256, b"4")]}, {"User-Property": []},
        {"Payload-Format-Indicator": 1},
    ],
)  # fmt: skip
def test_each_kind_of_message_by_mqtt_is_found(mqtt_properties: dict[str, Any]) -> None:
    content = (
        Atom("mqtt_msg"), Atom("false"), 1, b"a/b", Atom("false"), Atom("undefined"), b"",
        {Atom(name): value for name, value in mqtt_properties.items()}, 1_700_000_000_000,
    )  # fmt: skip
    more = {Atom("binding_keys"): [b"#.q"], Atom("correlation_id"): b"id"}
    assert check([container("mc_mqtt", content, more)] * 9) == 9
