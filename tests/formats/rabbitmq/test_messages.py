"""Message terms, property lists and headers: many at once equal one at a time; and the documented examples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage_core.errors import FormatError
from storage_core.formats.rabbitmq.amqp import field_table, headers, properties
from storage_core.formats.rabbitmq.erlang import external_term as et
from storage_core.formats.rabbitmq.message import basic_message
from storage_core.formats.rabbitmq.message.basic_message import Message, MessageError, Reach
from tests.reference.rabbitmq_records import header_text

HELLO = bytes.fromhex(
    "83680664000d62617369635f6d65737361676568046400087265736f757263656d000000012f64000865786368616e67656d00000000"
    "6c000000016d00000003712e616a6806640007636f6e74656e74613c6400046e6f6e656d00000003100002"
    "6400197261626269745f6672616d696e675f616d71705f305f395f316c000000016d0000000568656c6c6f6a"
    "6d000000108b4a261570ad3b4ac7c1ba8fb2e9ff7264000474727565"
)  # fmt: skip

SHORT = st.binary(max_size=20)
NUMBERS = {"b": (8, True), "B": (8, False), "s": (16, True), "u": (16, False), "I": (32, True), "i": (32, False),
           "l": (64, True), "L": (64, True), "T": (64, False)}  # fmt: skip


def number(letter: str) -> st.SearchStrategy[tuple[str, Any]]:
    bits, signed = NUMBERS[letter]
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    return st.tuples(st.just(letter), st.integers(low, high))


PLAIN = st.one_of(
    st.tuples(st.just("S"), st.one_of(SHORT, st.text(max_size=8).map(str.encode))),
    st.tuples(st.just("x"), SHORT),
    st.tuples(st.just("t"), st.booleans()),
    st.tuples(st.just("V"), st.none()),
    st.tuples(st.just("D"), st.tuples(st.integers(0, 255), st.integers(0, 2**32 - 1))),
    st.tuples(st.just("f"), st.floats(width=32, allow_nan=False)),
    st.tuples(st.just("d"), st.floats(allow_nan=False)),
    *map(number, NUMBERS),
)
NAMES = st.one_of(st.sampled_from([b"a", b"b", b""]), SHORT)


def nested(values: st.SearchStrategy[tuple[str, Any]]) -> st.SearchStrategy[tuple[str, Any]]:
    items = st.lists(st.tuples(NAMES, values).map(lambda pair: (pair[0], *pair[1])), max_size=3)
    return st.one_of(st.tuples(st.just("F"), items), st.tuples(st.just("A"), st.lists(values, max_size=3)))


VALUES = st.recursive(PLAIN, nested, max_leaves=6)
TABLES = st.lists(st.tuples(NAMES, VALUES).map(lambda pair: (pair[0], *pair[1])), max_size=6)
PROPERTIES = st.fixed_dictionaries(
    {},
    optional={
        name: {
            properties.SHORT: SHORT,
            properties.TABLE: TABLES,
            properties.OCTET: st.integers(0, 255),
            properties.LONG: st.integers(0, 2**64 - 1),
        }[kind]
        for name, kind in properties.FIELDS
    },
)
MESSAGES = st.builds(
    Message, SHORT, SHORT, st.lists(SHORT, max_size=3).map(tuple), PROPERTIES.map(properties.encode), SHORT,
    st.binary(min_size=16, max_size=16), st.booleans(),
)  # fmt: skip


def packed(parts: list[bytes]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """The parts in one buffer, with noise between them."""
    gap = b"\xff\x83\0"
    stops = np.cumsum([len(part) + len(gap) for part in parts]) if parts else np.empty(0, np.int64)
    starts = stops - [len(part) for part in parts]
    return np.frombuffer(b"".join(gap + part for part in parts) or b"\0", np.uint8), starts.astype(np.int64), stops


def modern(term: bytes) -> bytes:
    """The term as OTP 26 spells it: atoms with tag 119 and one length byte."""
    for name in (b"basic_message", b"resource", b"exchange", b"content", b"none", b"true", b"false",
                 b"rabbit_framing_amqp_0_9_1"):  # fmt: skip
        term = term.replace(b"d" + len(name).to_bytes(2, "big") + name, b"w" + bytes((len(name),)) + name)
    return term


def test_the_documented_term() -> None:
    assert len(HELLO) == 169
    message = basic_message.decode(HELLO)
    assert (message.vhost, message.exchange, message.routing_keys) == (b"/", b"", (b"q.a",))
    assert (message.properties.hex(), message.body, message.persistent) == ("100002", b"hello", True)
    assert basic_message.encode(message) == HELLO


@pytest.mark.parametrize(
    ("old", "new", "reach"),
    [
        (b"basic_message", b"basic_messagd", Reach.NOWHERE),
        (b"resource", b"resourcd", Reach.RECOVERY),
        (b"content", b"contenu", Reach.RECOVERY),
        (b"amqp_0_9_1", b"amqp_0_9_0", Reach.RECOVERY),
        (b"\x04true", b"\x04trud", Reach.FLAG),
        (b"content\x61\x3c", b"content\x61\x3d", Reach.CONSUMER),
    ],
)
def test_how_far_a_node_gets_with_a_damaged_term(old: bytes, new: bytes, reach: Reach) -> None:
    with pytest.raises(FormatError) as caught:
        basic_message.decode(HELLO.replace(old, new))
    assert getattr(caught.value, "reach", Reach.NOWHERE) is reach


@pytest.mark.parametrize(("old", "new"), [(b"exchange", b"exchangf"), (b"\0\4none", b"\0\4nond")])
def test_what_no_node_looks_at(old: bytes, new: bytes) -> None:
    assert basic_message.decode(HELLO.replace(old, new)) == basic_message.decode(HELLO)


def test_properties_of_another_protocol() -> None:
    """Those of AMQP 0-8 are encoded again; if decoded ones are stored beside them, these are encoded instead."""
    decoded = (et.Atom("P_basic"), *[et.UNDEFINED] * 4, 7, *[et.UNDEFINED] * 9)
    resource = (et.Atom("resource"), b"/", et.Atom("exchange"), b"")

    def listed(known: object, listed: bytes, protocol: str) -> str:
        content = (et.Atom("content"), 60, known, listed, et.Atom(protocol), [b"x"])
        term = et.encode((et.Atom("basic_message"), resource, [b"k"], content, bytes(16), True))
        return basic_message.decode(term).properties.hex()

    none = et.Atom("none")
    assert listed(none, b"\x10\0\2", "rabbit_framing_amqp_0_8") == "100002"
    assert listed(decoded, b"\x10\0\2", "another") == "080007"
    assert listed(decoded, b"\x10\0\2", basic_message.PROTOCOL) == "100002"
    with pytest.raises(MessageError, match="bytes of flags expected"):
        listed(none, b"", "rabbit_framing_amqp_0_8")
    with pytest.raises(MessageError, match="of protocol another, which no node supports"):
        listed(none, b"\x10\0\2", "another")


@given(st.lists(st.tuples(MESSAGES, st.booleans()), max_size=8))
@settings(max_examples=200, deadline=None)
def test_many_terms_at_once(drawn: list[tuple[Message, bool]]) -> None:
    terms = [modern(basic_message.encode(message)) if new else basic_message.encode(message) for message, new in drawn]
    buffer, starts, stops = packed(terms)
    spans = basic_message.locate(buffer, starts, stops)
    raw = buffer.tobytes()
    for row, ((message, _), term) in enumerate(zip(drawn, terms, strict=True)):
        assert basic_message.decode(term) == message
        assert spans.ok[row]
        assert raw[spans.exchange_starts[row] : spans.exchange_stops[row]] == message.exchange
        assert raw[spans.property_starts[row] : spans.property_stops[row]] == message.properties
        assert raw[spans.body_starts[row] : spans.body_stops[row]] == message.body
        assert raw[spans.id_starts[row] : spans.id_starts[row] + 16] == message.id
        assert spans.persistent[row] == message.persistent
        keys = np.flatnonzero(spans.keys.rows == row)
        assert tuple(raw[spans.keys.starts[k] : spans.keys.stops[k]] for k in keys) == message.routing_keys


@given(st.lists(MESSAGES, min_size=1, max_size=4), st.data())
@settings(max_examples=200, deadline=None)
def test_a_flipped_term_is_never_read_as_another(messages: list[Message], data: st.DataObject) -> None:
    """A term that the fast reader accepts is read by the slow one with the same parts."""
    terms = [bytearray(basic_message.encode(message)) for message in messages]
    row = data.draw(st.integers(0, len(terms) - 1))
    place = data.draw(st.integers(0, len(terms[row]) - 1))
    terms[row][place] ^= 1 << data.draw(st.integers(0, 7))
    buffer, starts, stops = packed([bytes(term) for term in terms])
    spans = basic_message.locate(buffer, starts, stops)
    if spans.ok[row]:
        slow = basic_message.decode(bytes(terms[row]))
        raw = buffer.tobytes()
        assert raw[spans.body_starts[row] : spans.body_stops[row]] == slow.body
        assert raw[spans.property_starts[row] : spans.property_stops[row]] == slow.properties


def test_unusual_spellings() -> None:
    """Several fragments in reverse order, and properties that the broker keeps decoded."""
    decoded = (
        et.Atom("P_basic"), *[et.UNDEFINED] * 2, [(b"k", et.Atom("longstr"), b"v"), (b"t", et.Atom("bool"), et.TRUE)],
        2, *[et.UNDEFINED] * 10,
    )  # fmt: skip
    content = (et.Atom("content"), 60, decoded, et.Atom("none"), et.Atom("none"), [b"lo", b"hel"])
    resource = (et.Atom("resource"), b"/", et.Atom("exchange"), b"x")
    term = et.encode((et.Atom("basic_message"), resource, [b"k"], content, bytes(16), True))
    message = basic_message.decode(term)
    assert message.body == b"hello"
    assert properties.decode(message.properties) == {
        "headers": [(b"k", "S", b"v"), (b"t", "t", True)], "delivery_mode": 2,
    }  # fmt: skip
    buffer, starts, stops = packed([term])
    assert not basic_message.locate(buffer, starts, stops).ok[0]


@given(st.lists(PROPERTIES, max_size=8))
@settings(max_examples=200, deadline=None)
def test_many_property_lists_at_once(drawn: list[dict[str, Any]]) -> None:
    lists = [properties.encode(values) for values in drawn]
    buffer, starts, stops = packed(lists)
    found = properties.locate(buffer, starts, stops)
    assert found.ok.all()
    raw = buffer.tobytes()
    for row, (values, data) in enumerate(zip(drawn, lists, strict=True)):
        assert properties.decode(data) == values
        for name, kind in properties.FIELDS:
            field = found.fields.get(name)
            place = np.flatnonzero(field.rows == row) if field is not None else []
            assert (len(place) == 1) == (name in values)
            if field is not None and len(place):
                span = raw[field.starts[place[0]] : field.stops[place[0]]]
                as_bytes = {
                    properties.SHORT: lambda value: value, properties.TABLE: field_table.encode,
                    properties.OCTET: lambda value: bytes((value,)),
                    properties.LONG: lambda value: value.to_bytes(8, "big"),
                }[kind]  # fmt: skip
                assert span == as_bytes(values[name])


def texts(items: list[field_table.Item]) -> dict[str, str]:
    return {name.decode("utf-8", "replace"): header_text(letter, value) for name, letter, value in items}


@given(st.lists(TABLES, max_size=6))
@settings(max_examples=200, deadline=None)
def test_headers_of_many_messages_at_once(tables: list[list[field_table.Item]]) -> None:
    encoded = [field_table.encode(items) for items in tables]
    for items, data in zip(tables, encoded, strict=True):
        assert field_table.decode(data) == items
    buffer, starts, stops = packed(encoded)
    spans = headers.locate(buffer, starts, stops)
    headers.check_nested(buffer, spans)
    assert spans.ok.all()
    rows = np.arange(len(tables)) * 2
    found = headers.to_map(buffer, spans, rows, 2 * len(tables))
    found.validate(full=True)
    expected: list[dict[str, str] | None] = [None] * (2 * len(tables))
    expected[::2] = [texts(items) for items in tables]
    assert [None if row is None else dict(row) for row in found.to_pylist()] == expected
    assert all(row is None or len(row) == len(dict(row)) for row in found.to_pylist())


@given(TABLES, st.data())
@settings(deadline=None)
def test_damaged_headers_are_seen(items: list[field_table.Item], data: st.DataObject) -> None:
    encoded = bytearray(field_table.encode(items) + b"\1a")
    if data.draw(st.booleans()):
        encoded[data.draw(st.integers(0, len(encoded) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    buffer, starts, stops = packed([bytes(encoded)])
    spans = headers.locate(buffer, starts, stops)
    headers.check_nested(buffer, spans)
    try:
        field_table.decode(bytes(encoded))
    except FormatError:
        assert not spans.ok[0]
    else:
        assert spans.ok[0]


@pytest.mark.parametrize(
    ("letter", "value", "text"),
    [
        ("S", b"h\xc3\xa9llo", "héllo"),
        ("I", -5, "-5"),
        ("d", -2.25, "-2.25"),
        ("t", True, "true"),
        ("V", None, "null"),
        ("D", (2, 314), "3.14"),
        ("D", (0, 7), "7"),
        ("D", (4, 7), "0.0007"),
        ("x", b"\0\xff\1", '"AP8B"'),
        ("F", [(b"k", "S", b"v"), (b"n", "F", [(b"z", "I", 1)])], '{"k":"v","n":{"z":1}}'),
        ("A", [("S", b"a"), ("I", 2), ("V", None)], '["a",2,null]'),
    ],
)
def test_texts_of_headers(letter: str, value: Any, text: str) -> None:
    assert header_text(letter, value) == text


def test_values_that_do_not_fit() -> None:
    with pytest.raises(ValueError, match="message_id: 256 bytes; the limit of a short string is 255"):
        properties.encode({"message_id": bytes(256)})
    with pytest.raises(ValueError, match="priority: 256 does not fit 8 bits"):
        properties.encode({"priority": 256})
    with pytest.raises(FormatError, match="bits 0 and 1 must be zero"):
        properties.decode(b"\0\1")


def test_golden_terms_are_spelled_again_as_they_were(tmp_path: Path) -> None:
    from storage_core.formats.rabbitmq.classic import message_file
    from tests.rabbitmq import golden

    data = (golden.unpack("s7_gc_clean", tmp_path) / golden.DEFAULT_VHOST / "msg_store_persistent/0.rdq").read_bytes()
    found = message_file.walk(np.frombuffer(data, np.uint8), 0, len(data))
    assert len(found.positions) == 4
    for position, size in zip(found.positions.tolist(), found.sizes.tolist(), strict=True):
        record = data[position : position + size]
        message = basic_message.decode(record[24:-1])
        assert message_file.encode(message.id, basic_message.encode(message)) == record
