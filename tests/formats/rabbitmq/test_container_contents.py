"""Messages in containers that arrived by AMQP 1.0 and MQTT. The snapshots hold what real nodes deliver of them."""

from __future__ import annotations

import random
from contextlib import suppress
from typing import Any

import pytest

from storage_core.errors import FormatError
from storage_core.formats.rabbitmq.amqp import properties, sections
from storage_core.formats.rabbitmq.erlang.external_term import Atom
from storage_core.formats.rabbitmq.message import basic_message
from storage_core.formats.rabbitmq.message.basic_message import Message, MessageError, Reach
from storage_core.formats.rabbitmq.stream_queues import delivered
from tests.rabbitmq import amqp10_random
from tests.rabbitmq.amqp10 import counted, listed, section
from tests.rabbitmq.amqp10_stored import container, content_of

DATA = section(0x75, counted(0xA0, b"body"))
NAN, DECIMAL, EMPTY_ARRAY = b"\x72\x7f\xc0\0\0", b"\x74abcd", b"\xe0\2\3\x41"
Values = dict[str, Any]


def annotated(*pairs: bytes) -> bytes:
    return section(0x72, listed(0xC1, list(pairs)))


def with_properties(*fields: bytes) -> bytes:
    return section(0x73, listed(0xC0, list(fields)))


def decoded(message: bytes, noted: dict[Any, Any] | None = None) -> Message:
    return basic_message.decode(container("mc_amqp", content_of(message), noted))


def values_of(message: bytes, noted: dict[Any, Any] | None = None) -> Values:
    return properties.decode(decoded(message, noted).properties)


def test_bodies() -> None:
    """Data sections are joined; a value and sequences are delivered as sections, with the footer."""
    footer = section(0x78, listed(0xC1, [counted(0xA3, b"x-f"), b"\x41"]))
    value, sequences = section(0x77, counted(0xA1, b"text")), section(0x76, b"\x45") * 2
    for parts, body, kind in (
        (DATA + section(0x75, counted(0xA0, b", two")) + footer, b"body, two", None),
        (value + footer, value + footer, b"amqp-1.0"),
        (sequences, sequences, b"amqp-1.0"),
        (DATA + value + footer, DATA + value, b"amqp-1.0"),
    ):
        for before in (b"", with_properties(counted(0xA1, b"id"))):
            found = decoded(before + parts)
            assert (found.body, properties.decode(found.properties).get("type")) == (body, kind)


def test_what_the_broker_noted_goes_before() -> None:
    death = (Atom("death"), b"ex", [b"k"], 2, {Atom("first_time"): 5_999, Atom("last_time"): 6_000})
    noted = {
        Atom("ttl"): Atom("undefined"), Atom("p"): 7, Atom("d"): Atom("false"), Atom("ts"): -1_500,
        Atom("deaths"): [((b"q", Atom("expired")), death)], b"x-a": b"noted",
    }  # fmt: skip
    message = (
        annotated(counted(0xA3, b"x-a"), b"\x41", counted(0xA3, b"x-basic-expiration"), counted(0xA1, b"5")) + DATA
    )
    found = values_of(message, noted)
    assert {name: found.get(name) for name in ("priority", "expiration", "delivery_mode", "timestamp")} == {
        "priority": 7, "expiration": None, "delivery_mode": None, "timestamp": (1 << 64) - 1,
    }  # fmt: skip
    assert [name for name, _, _ in found["headers"]] == [b"x-a", b"x-death"]
    assert found["headers"][0] == (b"x-a", "S", b"noted")


def test_symbols_as_descriptors() -> None:
    message = b"\0" + counted(0xA3, b"amqp:data:binary") + counted(0xA0, b"body")
    assert decoded(message).body == b"body"
    with pytest.raises(FormatError, match="no section of a message is described by symbol b'amqp:other'"):
        sections.parse(message.replace(b"data:binary", b"other").replace(b"\xa3\x10", b"\xa3\x0a"))


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (annotated(counted(0xA3, b"x-u"), b"\x98" + bytes(16)) + DATA, "a header is a uuid, which no node delivers"),
        (annotated(counted(0xA3, b"x-l"), listed(0xC0, [b"\x44"])) + DATA, "a header is a ulong in a list"),
        (annotated(counted(0xA3, b"x-basic-priority"), counted(0xA1, b"high")) + DATA, "the priority is a utf8"),
        (with_properties(b"\x52\1") + DATA, "the message_id is a uint"),
        (with_properties(*[b"\x40"] * 6, counted(0xA3, b"a" * 256)) + DATA, "content_type is longer than 255 bytes"),
        (section(0x75, counted(0xA1, b"text")), "a data section holds no binary"),
        (DATA + section(0x77, b"\x41") + DATA, "the body is data sections and others"),
        (annotated(counted(0xA3, b"x-l"), listed(0xC0, [listed(0xC0, [NAN])])) + DATA, "a header is a float in a list"),
        (annotated(counted(0xA3, b"x-cc"), DECIMAL) + DATA, "a header is a decimal32"),
    ],
)
def test_what_no_node_delivers_to_this_consumer(message: bytes, words: str) -> None:
    """Tested with nodes of 4.0.5 and 4.3.6, whose process fails."""
    with pytest.raises(MessageError, match=words) as found:
        decoded(message)
    assert found.value.reach is Reach.OTHER_PROTOCOLS


def test_a_stream_and_a_queue_say_the_same() -> None:
    """The queue's container has the header section in its annotations, with no annotation for a true `durable`."""
    r = random.Random(11)
    for _ in range(400):
        message = amqp10_random.header(r, True) + amqp10_random.message(r, 30)
        if sections.parse(message)[1].code == sections.HEADER:
            continue
        stream, queue = delivered.delivered(message), decoded(message)
        assert b"".join(message[start:stop] for start, stop in stream.body) == queue.body
        ours, theirs = properties.decode(stream.properties), properties.decode(queue.properties)
        for name in ("delivery_mode", "priority", "expiration", "timestamp"):
            ours.pop(name, None)
            theirs.pop(name, None)
        assert ours == theirs


def test_what_is_left_out_of_a_stream() -> None:
    """A value that no node delivers is left out; the stream keeps the message."""
    message = section(0x70, listed(0xC0, [b"\x41"]))
    message += annotated(counted(0xA3, b"x-u"), b"\x98" + bytes(16), counted(0xA3, b"x-a"), b"\x41") + DATA
    found = delivered.delivered(message)
    assert properties.decode(found.properties) == {"delivery_mode": 2, "headers": [(b"x-a", "t", True)]}


def mqtt(property_map: dict[Any, Any], qos: Any = 1, payload: Any = b"body") -> bytes:
    message = (Atom("mqtt_msg"), Atom("false"), qos, b"a/b", Atom("false"), 1, payload, property_map, Atom("undefined"))
    return container("mc_mqtt", message)


@pytest.mark.parametrize(
    ("mqtt_properties", "wanted"),
    [
        ({}, {}),
        ({"Content-Type": b"text/plain"}, {"content_type": b"text/plain"}),
        ({"Content-Type": "é".encode()}, {}),
        ({"Correlation-Data": b"id"}, {"correlation_id": b"id"}),
        ({"Correlation-Data": b"\xff"}, {"headers": [(b"x-correlation-id", "S", b"\xff")]}),
        ({"Response-Topic": b"a/+/b"}, {"headers": [(b"x-reply-to-topic", "S", b"a.*.b")]}),
        ({"User-Property": [(b"b", b"1"), (b"a", b"2"), (b"b", b"3"), (b"k" * 256, b"4")]},
         {"headers": [(b"a", "S", b"2"), (b"b", "S", b"1")]}),
        ({"Message-Expiry-Interval": 60, "Payload-Format-Indicator": 1}, {"expiration": b"60000"}),
    ],
)  # fmt: skip
def test_messages_of_mqtt(mqtt_properties: dict[str, Any], wanted: Values) -> None:
    found = basic_message.decode(mqtt({Atom(name): value for name, value in mqtt_properties.items()}))
    assert (found.body, properties.decode(found.properties)) == (b"body", {"delivery_mode": 2, **wanted})


@pytest.mark.parametrize(
    ("term", "words"),
    [
        (mqtt({}, qos=2), "the quality of service is 2"),
        (mqtt({}, qos=[1]), "the quality of service"),
        (mqtt({}, payload=[]), "the payload is not a binary"),
        (mqtt({Atom("Content-Type"): 5}), "the property Content-Type is not a binary"),
        (mqtt({Atom("User-Property"): [(b"a",)]}), "a user property is not a name and a value"),
        (mqtt({Atom("User-Property"): 1}), "the user properties are not a list"),
        (mqtt({Atom("Message-Expiry-Interval"): -1}), "the expiry is not a number of seconds"),
        (container("mc_mqtt", b""), "the content is not as MQTT leaves it"),
        (container("mc_amqp", b""), "the content is not as AMQP 1.0 leaves it"),
        (container("mc_amqp", (Atom("v1"), [], DATA, [], [], 99, 0x75)), "the sections of the content"),
        (container("mc_amqp", (Atom("v1"), [], DATA, [], [], 0, 0x79)), "121 is not a section of a body"),
        (container("mc_amqp", (Atom("v1"), [], b"\0", [], [], 0, 0x75)), "the sections are cut"),
        (container("mc_amqp", (Atom("v1"), [1], DATA, [], [], 0, 0x75)), "annotations that are not a list of pairs"),
        (
            container("mc_amqp", (Atom("v1"), [(1, 2)], DATA, [], [], 0, 0x75)),
            "an annotation is not a value of AMQP 1.0",
        ),
        (container("mc_other", b""), "a message of the protocol 'mc_other'"),
    ],
)
def test_what_is_not_as_it_should_be(term: bytes, words: str) -> None:
    with pytest.raises(FormatError, match=words):
        basic_message.decode(term)


def nested(depth: int) -> Any:
    value: Any = Atom("null")
    for _ in range(depth):
        value = (Atom("list"), [value])
    return value


def test_annotations_that_are_nested_deep() -> None:
    for depth in (40, 90):
        content = (Atom("v1"), [((Atom("symbol"), b"x-a"), nested(depth))], DATA, [], [], 0, 0x75)
        with pytest.raises(FormatError, match="nested deeper than 32"):
            basic_message.decode(container("mc_amqp", content))


def test_flipped_terms() -> None:
    """Decoding raises nothing but FormatError."""
    r = random.Random(12)
    property_map = {
        Atom("Content-Type"): b"text/plain", Atom("Correlation-Data"): b"id", Atom("Response-Topic"): b"a/b",
        Atom("User-Property"): [(b"a", b"1"), (b"b", b"2")], Atom("Message-Expiry-Interval"): 60,
    }  # fmt: skip
    noted = {Atom("ttl"): 5, Atom("ts"): 1_700_000_000_000, b"x-a": 5}
    terms = [container("mc_amqp", content_of(amqp10_random.message(r, 30, 0.1)), noted) for _ in range(60)]
    for number in range(20_000):
        data = bytearray(terms[number % 60] if number % 10 else mqtt(property_map))
        for _ in range(r.choice((1, 2, 5))):
            data[r.randrange(len(data))] = r.randrange(256)
        with suppress(FormatError):
            basic_message.decode(bytes(data))


@pytest.mark.parametrize("raw", [NAN, DECIMAL, EMPTY_ARRAY, b"\xf0\0\0\0\5\0\0\0\2\x40"])
def test_values_that_erlang_has_none_like_are_left_out(raw: bytes) -> None:
    """As in 4.3.6; 4.0.5 fails."""
    values = {b"x-a": raw, b"x-b": listed(0xC0, [raw, b"\x41"]), b"x-c": listed(0xC1, [counted(0xA1, b"k"), raw])}
    for code, kind in ((0x72, 0xA3), (0x74, 0xA1)):
        pairs = [part for key, value in values.items() for part in (counted(kind, key), value)]
        message = section(code, listed(0xC1, pairs)) + DATA
        assert values_of(message)["headers"] == [(b"x-b", "A", [("t", True)]), (b"x-c", "F", [])]


@pytest.mark.parametrize(
    ("stored", "given"),
    [(b"/queues/a%20b%C3%A9", "a bé".encode()), (b"/queues/", b""), (b"/queues/a%2", None), (b"queues/a", b"queues/a")],
)
def test_a_queue_that_is_an_address_to_reply_to(stored: bytes, given: bytes | None) -> None:
    found = values_of(with_properties(*[b"\x40"] * 4, counted(0xA1, stored)) + DATA)
    assert found.get("reply_to") == given
