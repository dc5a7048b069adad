"""Terms from before RabbitMQ 3.13 that must be rewritten in part: each one found is as when it is decoded alone.

The part is a body in pieces or a property list that the broker keeps decoded.
"""

from __future__ import annotations

import random
from functools import partial
from typing import Any

import numpy as np
import pytest

from storage_core.formats.rabbitmq.amqp import properties
from storage_core.formats.rabbitmq.erlang import external_term as et
from storage_core.formats.rabbitmq.erlang.external_term import FALSE, TRUE, UNDEFINED, Atom
from storage_core.formats.rabbitmq.message import basic_message
from storage_core.rabbitmq.queue.delivery import Deliveries
from storage_core.rabbitmq.quorum.machine.message_facts import message_facts, noted_facts
from tests.rabbitmq.containers import harmed, packed, same_alone, with_small_atoms

pytestmark = pytest.mark.usefixtures("either_loops")

check = partial(same_alone, basic_message.locate)
LISTED = properties.encode({"content_type": b"text/plain", "headers": [(b"b", "I", 1), (b"a", "S", b"v")]})
TEXTS = b"", b"text", b"n" * 255, b"v" * 300, b"\xff\0"
SIMPLE: list[tuple[str, tuple[Any, ...]]] = [
    ("longstr", TEXTS), ("signedint", (0, 200, -1, 1 << 30, -(1 << 31))), ("unsignedint", (0, (1 << 32) - 1)),
    ("long", (0, 300, -300, 1 << 40, -(1 << 40))), ("timestamp", (0, 1_700_000_000, 1 << 40)), ("short", (-5, 300)),
    ("unsignedshort", (0, 65_535)), ("byte", (-128, 127)), ("unsignedbyte", (0, 255)), ("bool", (TRUE, FALSE)),
    ("binary", TEXTS), ("void", (UNDEFINED,)), ("table", ([],)), ("array", ([],)),
]  # fmt: skip
ODD: list[tuple[str, Any]] = [
    ("longstr", 5), ("longstr", [1, 2]), ("signedint", 1 << 31), ("byte", 128), ("long", 1 << 62), ("timestamp", -1),
    ("unsignedint", -1), ("bool", Atom("maybe")), ("bool", b"true"), ("double", 1.5), ("float", 2.0),
    ("decimal", (Atom("decimal"), 2, 5)), ("other", b"v"), ("void", 7), ("table", [(b"n" * 256, Atom("long"), 1)]),
    ("array", [(Atom("long"), 1, 2)]), ("table", b""), ("signedint", b"1"),
]  # fmt: skip


def term(r: random.Random, decoded: Any, listed: Any, body: list[bytes], protocol: str = "none") -> bytes:
    content = Atom("content"), 60, decoded, listed, Atom(protocol), body
    resource = Atom("resource"), b"/", Atom("exchange"), b"x"
    return et.encode((Atom("basic_message"), resource, [b"key"], content, r.randbytes(16), r.random() < 0.5))


def stored(r: random.Random, body: list[bytes]) -> bytes:
    return term(r, Atom("none"), LISTED, body, "rabbit_framing_amqp_0_9_1")


def record(**fields: Any) -> tuple[Any, ...]:
    return Atom("P_basic"), *(fields.get(name, UNDEFINED) for name, _ in properties.FIELDS)


def header(r: random.Random, depth: int) -> tuple[Any, Any]:
    """The type and value of a header, as nodes write them."""
    if depth and r.random() < 0.4:
        inner = [header(r, depth - 1) for _ in range(r.randrange(4))]
        if r.random() < 0.5:
            return Atom("array"), inner
        return Atom("table"), [(r.choice((b"a", b"b", b"")), *each) for each in inner]
    word, values = r.choice(SIMPLE)
    return Atom(word), r.choice(values)


def decoded(r: random.Random, odd: bool = False) -> tuple[Any, ...]:
    makers: dict[str, Any] = {
        "delivery_mode": r.choice((1, 2)), "priority": r.randrange(256), "timestamp": r.choice((0, 200, 1 << 40)),
        "headers": [(r.choice((b"x-death", b"a", b"")), *header(r, 3)) for _ in range(r.randrange(5))],
    }  # fmt: skip
    fields = {name: makers.get(name, r.choice(TEXTS[:3])) for name, _ in properties.FIELDS if r.random() < 0.4}
    if odd and r.random() < 0.5:
        word, value = r.choice(ODD)
        fields["headers"] = [*fields.get("headers", []), (b"odd", Atom(word), value)]
    elif odd:
        fields[r.choice(properties.FIELDS)[0]] = r.choice((5, 256, -1, b"v" * 256, [], Atom("none")))
    return record(**fields)


def death(count: int) -> tuple[Any, Any]:
    keys = [(Atom("longstr"), b"key")] * (count % 3)
    table = [
        (b"count", Atom("long"), count), (b"reason", Atom("longstr"), b"expired"), (b"queue", Atom("longstr"), b"q"),
        (b"time", Atom("timestamp"), 1_700_000_000 + count), (b"exchange", Atom("longstr"), b""),
        (b"routing-keys", Atom("array"), keys),
    ]  # fmt: skip
    return Atom("table"), table


def test_bodies_in_pieces() -> None:
    r = random.Random(1)
    pieces = [[r.randbytes(r.choice((0, 1, 300))) for _ in range(count % 6)] for count in range(120)]
    terms = [stored(r, each) for each in pieces]
    assert check(terms) == check([with_small_atoms(each) for each in terms]) == len(terms)
    assert check([stored(r, [b"p"] * 64)]) == 1
    assert check([stored(r, [b"p"] * 65)]) == 0
    # An Erlang string is a list of small numbers.
    assert check([stored(r, [1, 2])]) == 0  # type: ignore[list-item]


def test_bodies_of_deliveries() -> None:
    r = random.Random(2)
    bodies = [[b"b" * count, b"a"] if count % 3 else [b"a" + b"b" * count] for count in range(9)]
    for some in (bodies, bodies[1:]):
        terms = np.empty(len(some), object)
        terms[:] = [stored(r, body) for body in some]
        taken = Deliveries(np.arange(len(some)), np.zeros(len(some), bool), terms)
        for _ in range(2):
            assert taken.bodies() == [b"".join(body[::-1]) for body in some]


def test_dead_letters() -> None:
    r = random.Random(3)
    terms = []
    for count in range(100):
        headers = [(b"x-death", Atom("array"), [death(count) for _ in range(1 + count % 3)])]
        headers += [(b"x-first-death-queue", Atom("longstr"), b"q"), (b"n", Atom("signedint"), -count)]
        terms.append(
            term(r, record(headers=headers, delivery_mode=2, message_id=b"%d" % count), Atom("none"), [b"body"])
        )
    assert check(terms) == check([with_small_atoms(each) for each in terms]) == len(terms)


@pytest.mark.parametrize(("word", "values"), SIMPLE)
def test_each_type_of_header(word: str, values: tuple[Any, ...]) -> None:
    r = random.Random(4)
    for value in values:
        terms = [term(r, record(headers=[(b"n", Atom(word), value)]), Atom("none"), [b"body"])]
        assert check(terms) == 1


def test_what_is_found_is_what_decoding_gives() -> None:
    r, found, count = random.Random(5), 0, 0
    for _ in range(150):
        terms = []
        for _ in range(r.choice((1, 30, 100))):
            body = [r.randbytes(r.randrange(9)) for _ in range(r.choice((0, 1, 1, 2, 3)))]
            if r.random() < 0.3:
                terms.append(stored(r, body))
            else:
                protocol = r.choice((*["none"] * 18, "rabbit_framing_amqp_0_9_1", "other"))
                listed = Atom("none") if r.random() < 0.8 else LISTED
                terms.append(term(r, decoded(r, r.random() < 0.1), listed, body, protocol))
        terms = [with_small_atoms(each) for each in terms] if r.random() < 0.5 else terms
        found, count = found + check(terms), count + len(terms)
        check([harmed(r, each) for each in terms])
    assert found > count * 3 // 4


def test_what_a_broker_decoded_and_kept() -> None:
    """The list that was received is delivered, whatever the decoded one contains."""
    r = random.Random(7)
    protocol = "rabbit_framing_amqp_0_9_1"
    terms = [term(r, decoded(r), LISTED, [b"body"], protocol) for _ in range(50)]
    assert check(terms) == check([with_small_atoms(each) for each in terms]) == len(terms)
    assert check([term(r, record(delivery_mode=2), LISTED, [b"body"], "rabbit_framing_amqp_0_8")]) == 0


def test_what_quorum_queues_hold() -> None:
    """Messages without an id or, for dead letters, with one; a decoded expiration counts as a time to live."""
    r, found = random.Random(8), 0
    texts = b"0", b"60000", b"00", b"-1", b"", b"1" * 18, b"1" * 19, b"+5", b"\xff", b"5\n"
    for _ in range(40):
        fields: dict[str, Any] = {"expiration": r.choice(texts)} if r.random() < 0.8 else {"delivery_mode": 2}
        listed, protocol = r.choice(((Atom("none"), "none"), (LISTED, "rabbit_framing_amqp_0_9_1")))
        made = term(r, record(**fields), listed, [b"bo", b"dy"], protocol)
        if r.random() < 0.5:
            made = made[: made.rindex(b"m\0\0\0\x10")] + b"m\0\0\0\0" + made[made.rindex(b"d\0") :]
        buffer, starts, stops = packed([made])
        spans = basic_message.locate(buffer, starts, stops, 0)
        if spans.known[0]:
            found += 1
            size = int((spans.body_stops - spans.body_starts)[0])
            facts = message_facts(made)
            assert noted_facts(size, facts.metadata, int(spans.ttl[0]), -1, -1) == facts
            assert basic_message.decode(made, 0).body == b"dybo"
    assert found > 30


def test_what_is_left_to_be_decoded_alone() -> None:
    r = random.Random(6)
    deep: Any = (Atom("array"), [])
    for _ in range(7):
        deep = Atom("array"), [deep]
    for word, value in [*ODD, deep]:
        check([term(r, record(headers=[(b"n", Atom(word), value)]), Atom("none"), [b"body"])] * 2)
    assert check([term(r, record(headers=[(b"n", *deep)]), Atom("none"), [b"body"])]) == 0
    assert check([term(r, record(headers=[(b"n", Atom("double"), 1.5)]), Atom("none"), [b"body"])]) == 0
