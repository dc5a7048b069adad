"""AMQP 0-9-1 containers for tests, from publishers whose messages are encoded alike, some of them unusual."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np

from storage_core.formats.layout import Bytes, Positions
from storage_core.formats.rabbitmq.amqp import properties
from storage_core.formats.rabbitmq.erlang import external_term as et
from storage_core.formats.rabbitmq.erlang.external_term import Atom
from storage_core.formats.rabbitmq.message import basic_message
from storage_core.formats.rabbitmq.message.basic_message import Message
from storage_core.formats.rabbitmq.message.delivered_lists import relist
from storage_core.formats.rabbitmq.message.message_spans import MessageSpans, whole_bodies

Locate = Callable[[Bytes, Positions, Positions, int], MessageSpans]
SECOND = 1_700_000_000
VALUES: list[tuple[str, Any]] = [
    ("S", b"text"), ("S", b""), ("I", -5), ("l", 1 << 40), ("L", 7), ("t", True), ("t", False), ("b", -1), ("B", 200),
    ("s", -3), ("u", 5), ("i", 9), ("V", None), ("T", SECOND), ("x", b"\0\1"), ("d", 1.5), ("f", 2.0),
    ("A", [("S", b"q")]), ("F", [(b"in", "L", 3)]),
]  # fmt: skip


def container(listed: bytes, annotations: dict[Any, Any], body: list[bytes] | None = None) -> bytes:
    """An AMQP 0-9-1 container; text keys of `annotations` become atoms."""
    pieces = [b"body"] if body is None else body
    content = Atom("content"), 60, Atom("none"), listed, Atom("rabbit_framing_amqp_0_9_1"), pieces
    noted = {Atom(key) if isinstance(key, str) else key: value for key, value in annotations.items()}
    return et.encode((Atom("mc"), Atom("mc_amqpl"), content, noted))


def noted(r: random.Random, more: dict[Any, Any]) -> dict[Any, Any]:
    """The annotations that a node adds to each message, and `more`."""
    return {"id": r.randbytes(16), "x": b"ex", "rk": [b"key"], "rts": SECOND * 1000 + r.randrange(10**6), **more}


def more_noted(r: random.Random) -> dict[Any, Any]:
    """Annotations that few messages have."""
    found: dict[Any, Any] = r.choice(({}, {}, {}, {"d": False}, {"d": True}, {"bcc": [b"also"]}, {"delivery_count": 2}))
    if r.random() < 0.3:
        found = {**found, "deaths": [death(r) for _ in range(r.choice((0, 1, 1, 1, 2, 3)))]}
    if r.random() < 0.3:
        names = b"x-opt", b"x-first-death-queue", b"x-a", b"x-", b"x-death", b"other", b"x-" + b"n" * 253, b"x" * 300
        values = b"v", b"", b"v" * 300, 7, 1 << 40, -1, Atom("true"), Atom("false"), Atom("other"), [b"listed"], 1.5
        found = {**found, **{r.choice(names): r.choice(values) for _ in range(r.randrange(1, 4))}}
    return found


def plain_death(r: random.Random) -> tuple[Any, Any]:
    """A death record as nodes write it."""
    times = {Atom("first_time"): SECOND * 1000 + r.randrange(10**7), Atom("last_time"): SECOND * 1000}
    return (b"q", Atom("expired")), (Atom("death"), b"ex", [b"key"], r.randrange(1, 300), times)


def death(r: random.Random) -> tuple[Any, Any]:
    """A death record: queue, reason, count and times; occasionally in a form that no node writes."""
    first = SECOND * 1000 + r.randrange(10**7)
    times: dict[Any, Any] = {Atom("first_time"): first, Atom("last_time"): first + r.randrange(99)}
    if r.random() < 0.3:
        times[Atom("ttl")] = r.choice((0, 1, 60_000, 1 << 33))
    if r.random() < 0.03:
        times = {**times, Atom("new"): 1, Atom("ttl"): r.choice((-1, Atom("undefined"), b""))}
    reason = r.choice((Atom("expired"), Atom("rejected"), Atom("maxlen"), Atom("delivery_limit"), Atom("r\xe9"), b"r"))
    keys = [r.randbytes(r.randrange(9)) for _ in range(r.choice((0, 1, 1, 2)))]
    record = Atom("death"), r.randbytes(r.randrange(4)), keys, r.choice((1, 2, 300, 1 << 40)), times
    return (r.randbytes(r.randrange(12)), reason if r.random() < 0.2 else Atom("expired")), record


NAMES = (
    b"mc", b"mc_amqpl", b"content", b"none", b"rabbit_framing_amqp_0_9_1", b"x", b"rk", b"id", b"ts", b"rts", b"d",
    b"p", b"ttl", b"deaths", b"bcc", b"death", b"expired", b"first_time",
    b"last_time", b"delivery_count", b"true", b"false", b"undefined", b"mc_amqp", b"v1", b"mc_mqtt", b"mqtt_msg",
    b"basic_message", b"resource", b"exchange", b"P_basic", b"symbol", b"utf8", b"binary", b"byte", b"ubyte",
    b"long", b"ulong", b"int", b"uint", b"timestamp",
)  # fmt: skip
TAGS = (97, 98, 100, 104, 106, 108, 109, 110, 115, 116, 118, 119)


def with_small_atoms(term: bytes) -> bytes:
    """A container with its atoms as OTP 26 and later write them."""
    for name in NAMES:
        term = term.replace(b"d\0" + bytes((len(name),)) + name, b"w" + bytes((len(name),)) + name)
    return term


def harmed(r: random.Random, term: bytes) -> bytes:
    """A term with a flipped bit, a wrong tag somewhere, or a missing end."""
    if r.random() < 0.1:
        return term[: r.randrange(len(term))]
    data = bytearray(term)
    if r.random() < 0.7:
        data[r.randrange(len(data))] ^= 1 << r.randrange(8)
    else:
        data[r.randrange(len(data))] = r.choice(TAGS)
    return bytes(data)


def random_terms(r: random.Random) -> list[bytes]:
    """Terms of a few publishers, some of them unusual and some with a flipped bit."""
    kinds = [
        {
            "delivery_mode": r.random() < 0.8, "headers": r.random() < 0.5, "ts": r.random() < 0.4,
            "p": r.random() < 0.3, "ttl": r.choice((None, None, 5000, 10**10, Atom("undefined"))),
            "x": r.randbytes(r.randrange(4)),
            "rk": [r.randbytes(r.randrange(1, 4)) for _ in range(r.choice((1, 1, 2)))],
            "more": more_noted(r),
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
        values["headers"] = [item for _, item in unique] if r.random() < 0.5 else items
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
    body = [r.randbytes(r.randrange(1, 40)) for _ in range(r.choice((1, 1, 1, 1, 1, 1, 1, 0, 2, 3)))]
    return container(listed, noted(r, {"x": kind["x"], "rk": kind["rk"], **more}), body)


def packed(terms: list[bytes]) -> tuple[Bytes, Positions, Positions]:
    """The terms concatenated, with their start and stop positions."""
    stops = np.cumsum([len(term) for term in terms])
    return np.frombuffer(b"".join(terms), np.uint8), stops - [len(term) for term in terms], stops


def same_alone(locate: Locate, terms: list[bytes]) -> int:
    """The number of terms found, with property lists as a node delivers them. Raises AssertionError if decoding a term
    alone gives a different result.
    """
    buffer, starts, stops = packed(terms)
    buffer, spans = relist(*whole_bodies(buffer, locate(buffer, starts, stops, 16)))
    assert (spans.ok == spans.known).all()
    raw = buffer.tobytes()
    for row in np.flatnonzero(spans.ok).tolist():
        keys = tuple(
            raw[start:stop]
            for key_row, start, stop in zip(spans.keys.rows, spans.keys.starts, spans.keys.stops, strict=True)
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
