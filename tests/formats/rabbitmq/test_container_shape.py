"""Containers found by their shape: each that is found has the parts that it has when it is decoded alone."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from storage_core.formats.layout import Bytes, Positions
from storage_core.formats.rabbitmq.erlang import external_term as et
from storage_core.formats.rabbitmq.erlang.external_term import Atom
from storage_core.formats.rabbitmq.message import basic_message, container_shape, properties
from storage_core.formats.rabbitmq.message.basic_message import Message

SECOND = 1_700_000_000
pytestmark = pytest.mark.usefixtures("either_loops")
VALUES: list[tuple[str, Any]] = [
    ("S", b"text"), ("S", b""), ("I", -5), ("l", 1 << 40), ("L", 7), ("t", True), ("t", False), ("b", -1), ("B", 200),
    ("s", -3), ("u", 5), ("i", 9), ("V", None), ("T", SECOND), ("x", b"\0\1"), ("d", 1.5), ("f", 2.0),
    ("A", [("S", b"q")]), ("F", [(b"in", "L", 3)]),
]  # fmt: skip
MORE: tuple[dict[Any, Any], ...] = (
    {}, {}, {}, {"d": False}, {"d": True}, {b"x-opt": b"v"}, {"deaths": []}, {"bcc": [b"also"]},
)  # fmt: skip


def container(listed: bytes, annotations: dict[Any, Any], body: list[bytes] | None = None) -> bytes:
    """One of AMQP 0-9-1; keys of annotations that are text are atoms."""
    pieces = [b"body"] if body is None else body
    content = Atom("content"), 60, Atom("none"), listed, Atom("rabbit_framing_amqp_0_9_1"), pieces
    noted = {Atom(key) if isinstance(key, str) else key: value for key, value in annotations.items()}
    return et.encode((Atom("mc"), Atom("mc_amqpl"), content, noted))


def noted(r: random.Random, more: dict[Any, Any]) -> dict[Any, Any]:
    """What a node notes of each message, and more."""
    return {"id": r.randbytes(16), "x": b"ex", "rk": [b"key"], "rts": SECOND * 1000 + r.randrange(10**6), **more}


def packed(terms: list[bytes]) -> tuple[Bytes, Positions, Positions]:
    stops = np.cumsum([len(term) for term in terms])
    return np.frombuffer(b"".join(terms), np.uint8), stops - [len(term) for term in terms], stops


def check(terms: list[bytes]) -> int:
    """How many of the terms are found; each of them has the parts that it has alone."""
    buffer, starts, stops = packed(terms)
    spans, raw = basic_message.locate(buffer, starts, stops), buffer.tobytes()
    for row in np.flatnonzero(spans.ok).tolist():
        keys = tuple(
            raw[start:stop]
            for key_row, start, stop in zip(spans.key_rows, spans.key_starts, spans.key_stops, strict=True)
            if key_row == row
        )
        exchange, listed, body = (
            raw[begin[row] : end[row]]
            for begin, end in (
                (spans.exchange_starts, spans.exchange_stops), (spans.property_starts, spans.property_stops),
                (spans.body_starts, spans.body_stops),
            )
        )  # fmt: skip
        own = raw[spans.id_starts[row] : spans.id_starts[row] + 16]
        found = Message(b"", exchange, keys, listed, body, own, bool(spans.persistent[row]))
        wanted = basic_message.decode(terms[row])
        assert found == (wanted if not wanted.vhost else Message(b"", *list(vars(wanted).values())[1:])), row
    return int(spans.ok.sum())


def random_terms(r: random.Random) -> list[bytes]:
    """Of a few publishers, some of them odd, and some flipped."""
    kinds = [
        {
            "delivery_mode": r.random() < 0.8, "headers": r.random() < 0.5, "ts": r.random() < 0.4,
            "p": r.random() < 0.3, "ttl": r.choice((None, None, 5000, 10**10, Atom("undefined"))),
            "x": r.randbytes(r.randrange(4)),
            "rk": [r.randbytes(r.randrange(1, 4)) for _ in range(r.choice((1, 1, 2)))],
            "more": r.choice(MORE),
        }
        for _ in range(r.choice((1, 1, 2, 3)))
    ]  # fmt: skip
    terms = [random_term(r, r.choice(kinds)) for _ in range(r.choice((64, 100, 200)))]
    if r.random() < 0.5:
        row = r.randrange(len(terms))
        flipped = bytearray(terms[row])
        flipped[r.randrange(len(flipped))] ^= 1 << r.randrange(8)
        terms[row] = bytes(flipped)
    if r.random() < 0.3:
        terms.insert(
            r.randrange(len(terms)), basic_message.encode(Message(b"/", b"e", (b"k",), b"\0\0", b"b", bytes(16), True))
        )
    return terms


def random_term(r: random.Random, kind: dict[str, Any]) -> bytes:
    values: dict[str, Any] = {"message_id": b"%d" % r.randrange(10**6)} if r.random() < 0.5 else {}
    more = dict(kind["more"])
    if kind["headers"]:
        items = [(r.choice((b"a", b"n", b"x-a", b"k\0", b"")), *r.choice(VALUES)) for _ in range(r.randrange(4))]
        unique = sorted({item[0]: item for item in items}.items())
        values["headers"] = [item for _, item in unique] if r.random() < 0.8 else items
    if kind["delivery_mode"] or r.random() < 0.1:
        values["delivery_mode"] = r.choice((1, 2))
    if kind["ts"]:
        more["ts"] = (SECOND + r.randrange(1000)) * 1000 + r.choice((0, 0, 0, 999))
        values["timestamp"] = more["ts"] // 1000 + (r.random() < 0.05)
    if kind["ttl"] is not None:
        more["ttl"] = kind["ttl"]
        if kind["ttl"] != "undefined" or r.random() < 0.1:
            values["expiration"] = b"%d" % kind["ttl"] if r.random() < 0.9 and kind["ttl"] != "undefined" else b"007"
    if kind["p"]:
        more["p"] = r.randrange(256)
        if r.random() < 0.9:
            values["priority"] = r.randrange(10)
    listed = properties.encode(values) + (b"\0" if r.random() < 0.02 else b"")
    body = [r.randbytes(r.randrange(1, 40))] if r.random() < 0.97 else []
    return container(listed, noted(r, {"x": kind["x"], "rk": kind["rk"], **more}), body)


def test_what_is_found_is_what_decoding_gives() -> None:
    r, found, count = random.Random(5), 0, 0
    for _ in range(150):
        terms = random_terms(r)
        found, count = found + check(terms), count + len(terms)
    assert found > count // 5


@pytest.mark.parametrize(
    ("values", "more"),
    [
        ({"delivery_mode": 2}, {}),
        ({"delivery_mode": 1, "content_type": b"text/plain", "message_id": b"1"}, {"d": False}),
        ({"delivery_mode": 2, "headers": [(b"a", "S", b"1"), (b"b", "I", 2)], "app_id": b"a"}, {}),
        ({"delivery_mode": 2, "timestamp": SECOND}, {"ts": SECOND * 1000}),
        ({"delivery_mode": 2, "expiration": b"60000", "priority": 3}, {"ttl": 60000, "p": 3}),
        ({"delivery_mode": 2}, {"p": Atom("undefined"), "ttl": Atom("undefined"), "bcc": [b"q"]}),
        ({}, {"d": False}),
    ],
)  # fmt: skip
def test_what_publishers_send_is_found(values: dict[str, Any], more: dict[str, Any]) -> None:
    r = random.Random(1)
    terms = [container(properties.encode(values), noted(r, more), [r.randbytes(1 + row)]) for row in range(100)]
    assert check(terms) == 100


@pytest.mark.parametrize(
    ("values", "more"),
    [
        ({}, {}),
        ({"delivery_mode": 2, "timestamp": SECOND}, {}),
        ({"delivery_mode": 2, "timestamp": SECOND}, {"ts": (SECOND + 1) * 1000}),
        ({"delivery_mode": 2}, {"ts": SECOND * 1000}),
        ({"delivery_mode": 2, "expiration": b"060"}, {"ttl": 60}),
        ({"delivery_mode": 2, "expiration": b"60"}, {"ttl": Atom("undefined")}),
        ({"delivery_mode": 2}, {"p": 3}),
        ({"delivery_mode": 2}, {b"x-noted": b"by the broker"}),
        ({"delivery_mode": 2}, {"deaths": []}),
        ({"delivery_mode": 2, "headers": [(b"b", "I", 2), (b"a", "S", b"1")]}, {}),
        ({"delivery_mode": 2, "headers": [(b"a", "I", 2), (b"a", "S", b"1")]}, {}),
        ({"delivery_mode": 2, "headers": [(b"a", "L", 2)]}, {}),
        ({"delivery_mode": 2, "headers": [(b"a", "A", [("L", 2)])]}, {}),
    ],
)  # fmt: skip
def test_what_a_node_delivers_otherwise_is_left(values: dict[str, Any], more: dict[Any, Any]) -> None:
    r = random.Random(1)
    assert check([container(properties.encode(values), noted(r, more)) for _ in range(100)]) == 0


def test_a_true_that_is_spelled_as_2_is_left() -> None:
    r = random.Random(1)
    listed = properties.encode({"delivery_mode": 2, "headers": [(b"a", "t", True)]}).replace(b"\1at\1", b"\1at\2")
    assert check([container(listed, noted(r, {})) for _ in range(100)]) == 0


def test_what_has_no_shape() -> None:
    r = random.Random(1)
    whole = container(properties.encode({"delivery_mode": 2}), noted(r, {}))
    assert container_shape.shape_of(whole, 16) is not None
    assert container_shape.shape_of(whole, 0) is None
    for size in range(len(whole)):
        assert container_shape.shape_of(whole[:size], 16) is None
    for text in (b"mc_amqpl", b"content", b"rabbit_framing_amqp_0_9_1"):
        assert container_shape.shape_of(whole.replace(text, text[::-1]), 16) is None
