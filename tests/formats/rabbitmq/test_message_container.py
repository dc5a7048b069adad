"""Containers of RabbitMQ 3.13 and later. The terms are built here by the rules of its sources, not by a real node."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from storage_core.errors import FormatError
from storage_core.formats.rabbitmq.amqp import properties
from storage_core.formats.rabbitmq.classic import message_file, queue_v2
from storage_core.formats.rabbitmq.erlang import external_term as et
from storage_core.formats.rabbitmq.erlang.external_term import Atom
from storage_core.formats.rabbitmq.message import basic_message
from tests.rabbitmq import golden
from tests.reference import rabbitmq_records

ID = bytes(range(16))
Values = dict[str, Any]


def container(listed: bytes, body: bytes, noted: dict[Any, Any], protocol: str = "mc_amqpl", id_: bytes = ID) -> bytes:
    content = (Atom("content"), 60, Atom("none"), listed, Atom("rabbit_framing_amqp_0_9_1"), [body] if body else [])
    annotations = {Atom("x"): b"ex", Atom("rk"): [b"k", b"cc"], Atom("id"): id_, Atom("rts"): 1_700_000_000_123}
    return et.encode((Atom("mc"), Atom(protocol), content, {**annotations, **noted}))


def properties_of(values: Values, noted: dict[Any, Any]) -> Values:
    return properties.decode(basic_message.decode(container(properties.encode(values), b"b", noted)).properties)


def test_the_parts_of_a_message() -> None:
    listed = properties.encode({"content_type": b"text/plain", "delivery_mode": 2})
    found = basic_message.decode(container(listed, b"hello", {}))
    assert found == basic_message.Message(b"", b"ex", (b"k", b"cc"), listed, b"hello", ID, True)
    assert basic_message.decode(container(listed, b"", {Atom("d"): Atom("false")})).persistent is False


@pytest.mark.parametrize(
    ("values", "noted", "wanted"),
    [
        ({}, {}, {"delivery_mode": 2}),
        ({}, {Atom("d"): Atom("false")}, {}),
        ({"delivery_mode": 1}, {Atom("d"): Atom("false")}, {"delivery_mode": 1}),
        ({"timestamp": 77, "delivery_mode": 2}, {Atom("ts"): 77_000}, {"timestamp": 77, "delivery_mode": 2}),
        ({"expiration": b"060", "delivery_mode": 2}, {Atom("ttl"): 60}, {"expiration": b"60", "delivery_mode": 2}),
        ({"expiration": b"60", "delivery_mode": 2}, {Atom("ttl"): Atom("undefined")}, {"delivery_mode": 2}),
        ({}, {Atom("p"): 7}, {"delivery_mode": 2, "priority": 7}),
        ({"priority": 3}, {Atom("p"): 7}, {"delivery_mode": 2, "priority": 3}),
    ],
)
def test_properties_as_they_are_delivered(values: Values, noted: dict[Any, Any], wanted: Values) -> None:
    assert properties_of(values, noted) == wanted


def test_headers_are_sorted_and_annotations_go_before_them() -> None:
    stored = [(b"z", "L", 1), (b"a", "t", True), (b"x-who", "S", b"client"), (b"t", "F", [(b"i", "A", [("L", 2)])])]
    noted = {b"x-who": b"broker", b"x-count": 3, b"x-yes": Atom("true"), b"timestamp_in_ms": 9, b"other": b"no"}
    assert properties_of({"headers": stored}, noted)["headers"] == [
        (b"a", "t", True),
        (b"t", "F", [(b"i", "A", [("l", 2)])]),
        (b"timestamp_in_ms", "l", 9),
        (b"x-count", "l", 3),
        (b"x-who", "S", b"broker"),
        (b"x-yes", "t", True),
        (b"z", "l", 1),
    ]


def death(last: int, **more: int) -> tuple[Any, ...]:
    times = {Atom("first_time"): 5_999, Atom("last_time"): last, **{Atom(name): n for name, n in more.items()}}
    return (Atom("death"), b"ex", [b"k"], 2, times)


def test_deaths_of_both_kinds() -> None:
    old, new = (b"q1", Atom("expired")), (b"q2", Atom("rejected"))
    first = (Atom("deaths"), old, new, {old: death(10_000, ttl=60), new: death(20_000)})
    tables = [
        [name for name, _, _ in table] for _, table in properties_of({}, {Atom("deaths"): first})["headers"][0][2]
    ]
    assert tables[0] == [b"count", b"reason", b"queue", b"time", b"exchange", b"routing-keys"]
    assert tables[1][0] == b"original-expiration"
    listed = properties_of({}, {Atom("deaths"): [(new, death(20_000)), (old, death(10_000, ttl=60))]})
    assert listed == properties_of({}, {Atom("deaths"): first})
    assert listed["headers"][0][2][1][1] == [
        (b"original-expiration", "S", b"60"), (b"count", "l", 2), (b"reason", "S", b"expired"), (b"queue", "S", b"q1"),
        (b"time", "T", 5), (b"exchange", "S", b"ex"), (b"routing-keys", "A", [("S", b"k")]),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("term", "words"),
    [
        (container(b"\0\0", b"", {}, "mc_other"), "a message of the protocol 'mc_other', which no release has"),
        (container(b"\0\0", b"", {Atom("x"): 1}), "names no exchange"),
        (container(b"\0\0", b"", {Atom("rk"): b"k"}), "the routing keys are not a list"),
        (container(b"\0\0", b"", {}, id_=b"short"), "the id is not 16 bytes"),
        (container(b"\0\1", b"", {}), "bits 0 and 1 must be zero"),
        (container(b"\0\0", b"", {Atom("deaths"): (1, 2, 3, {4: 5})}), "the deaths of the message are not as expected"),
        (container(b"\0\0", b"", {Atom("deaths"): 1}), "the deaths of the message are not as expected"),
        (container(b"\0\0", b"", {Atom("deaths"): [(1, 2)]}), "a death of the message is not as expected"),
        (container(b"\0\0", b"", {Atom("p"): 999}), "an annotation of the broker is not a property"),
        (et.encode((Atom("mc"), Atom("mc_amqpl"), b"", [])), "the container has no annotations"),
        (
            et.encode((Atom("mc"), Atom("mc_amqpl"), b"", {Atom("x"): b"", Atom("rk"): [], Atom("id"): ID})),
            "the content",
        ),
    ],
)
def test_what_is_not_read_is_named(term: bytes, words: str) -> None:
    with pytest.raises(FormatError, match=words):
        basic_message.decode(term)


def as_container(term: bytes) -> bytes:
    """The same message as a later release would store it."""
    old = basic_message.decode(term)
    noted: dict[Any, Any] = {Atom("x"): old.exchange, Atom("rk"): list(old.routing_keys)}
    timestamp = properties.decode(old.properties).get("timestamp")
    if timestamp is not None:
        noted[Atom("ts")] = timestamp * 1000
    if not old.persistent:
        noted[Atom("d")] = Atom("false")
    return container(old.properties, old.body, noted, id_=old.id)


COLUMNS = ("queue", "sequenceId", "body", "exchange", "routingKeys", "contentType", "messageId", "priority", "guid")


def test_a_message_file_of_containers(tmp_path: Path) -> None:
    """A version 1 store after a crash, with its large messages as containers."""
    store = golden.unpack("s3_mixed_kill9", tmp_path) / golden.DEFAULT_VHOST
    before = golden.table(store, columns=COLUMNS)
    path = store / "msg_store_persistent" / "0.rdq"
    data = path.read_bytes()
    found = message_file.walk(np.frombuffer(data, np.uint8), 0, len(data))
    pieces = [data[at : at + size] for at, size in zip(found.positions.tolist(), found.sizes.tolist(), strict=True)]
    assert len(pieces) > 10
    path.write_bytes(b"".join(message_file.encode(piece[8:24], as_container(piece[24:-1])) for piece in pieces))
    assert golden.table(store, columns=COLUMNS).equals(before)


def test_the_own_store_of_a_version_2_queue_of_containers(tmp_path: Path) -> None:
    """Terms followed by zeros, as 4.x leaves them: the size is an estimate, the checksum is that of the term."""
    store = golden.unpack("s11_cqv2_clean", tmp_path) / golden.DEFAULT_VHOST
    before = golden.table(store, columns=COLUMNS)
    changed = 0
    for index in store.rglob("*.qi"):
        raw, old = bytearray(index.read_bytes()), index.with_suffix(".qs").read_bytes()
        own = bytearray(old[: queue_v2.HEADER.size])
        entries = np.frombuffer(raw, queue_v2.ENTRY.dtype, (len(raw) - 64) // 32, 64)
        for row in np.flatnonzero((entries["status"] == 1) & (entries["location"] == queue_v2.LOCATION_OWN)).tolist():
            start = 64 + 32 * row + 4
            position, size = (int.from_bytes(raw[start + a : start + b], "big") for a, b in ((0, 8), (8, 12)))
            term = as_container(old[position + 8 : position + 8 + size])
            stored = rabbitmq_records.stored_v2(term)
            padded = (len(term) + 7).to_bytes(4, "big") + stored[4:] + bytes(7)
            raw[start : start + 12] = len(own).to_bytes(8, "big") + (len(term) + 7).to_bytes(4, "big")
            own += padded
            changed += 1
        index.write_bytes(bytes(raw))
        index.with_suffix(".qs").write_bytes(bytes(own))
    assert changed > 100
    assert golden.table(store, columns=COLUMNS).equals(before)
