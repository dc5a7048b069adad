"""Containers found by their shape: each one found has the same parts as when it is decoded alone."""

from __future__ import annotations

import random
from functools import partial
from typing import Any

import pytest

from storage_core.formats.rabbitmq.amqp import properties
from storage_core.formats.rabbitmq.erlang.external_term import Atom
from storage_core.formats.rabbitmq.message import basic_message, container_shape
from tests.rabbitmq.containers import (
    SECOND,
    container,
    harmed,
    noted,
    same_alone,
    with_small_atoms,
)

pytestmark = pytest.mark.usefixtures("either_loops")


check = partial(same_alone, basic_message.locate)


@pytest.mark.parametrize(
    ("values", "more"),
    [
        ({"delivery_mode": 2}, {}),
        ({"delivery_mode": 1, "content_type": b"text/plain", "message_id": b"1"}, {"d": False}),
        ({"delivery_mode": 2, "headers": [(b"a", "S", b"1"), (b"b", "I", 2)], "app_id": b"a"}, {}),
        ({"delivery_mode": 2, "headers": [(b"b", "I", 2), (b"a", "S", b"1")], "content_type": b"t"}, {}),
        ({"delivery_mode": 2, "headers": [(b"a", "I", 2), (b"a", "S", b"longer"), (b"A", "d", 1.5)]}, {}),
        ({"delivery_mode": 2, "headers": [(b"b", "A", [("V", None)]), (b"a", "F", [(b"z", "l", 1)])]}, {}),
        ({"delivery_mode": 2, "timestamp": SECOND}, {"ts": SECOND * 1000}),
        ({"delivery_mode": 2, "expiration": b"60000", "priority": 3}, {"ttl": 60000, "p": 3}),
        ({"delivery_mode": 2}, {"p": Atom("undefined"), "ttl": Atom("undefined"), "bcc": [b"q"]}),
        ({}, {"d": False}),
        ({"delivery_mode": 2, "expiration": b"60"}, {"ttl": Atom("undefined")}),
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
        ({"delivery_mode": 2}, {"p": 3}),
        ({"delivery_mode": 2, "headers": [(b"a", "L", 2)]}, {}),
        ({"delivery_mode": 2, "headers": [(b"b", "L", 2), (b"a", "S", b"1")]}, {}),
        ({"delivery_mode": 2, "headers": [(b"a", "d", float("nan"))]}, {}),
        ({"delivery_mode": 2, "headers": [(b"a", "f", float("inf"))]}, {}),
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
    assert container_shape.shape_of(whole, 0) is not None
    without_id = container(properties.encode({"delivery_mode": 2}), {"x": b"", "rk": []})
    assert container_shape.shape_of(without_id, 16) is None
    assert container_shape.shape_of(without_id, 0) is not None
    for size in range(len(whole)):
        assert container_shape.shape_of(whole[:size], 16) is None
    for text in (b"mc_amqpl", b"content", b"rabbit_framing_amqp_0_9_1"):
        assert container_shape.shape_of(whole.replace(text, text[::-1]), 16) is None


def test_a_harmed_term_teaches_no_shape() -> None:
    """An error in bytes that a shape does not compare is in all terms that are like the first one."""
    r = random.Random(1)
    whole = with_small_atoms(container(properties.encode({"delivery_mode": 2}), noted(r, {"d": True})))
    for right, wrong in ((b"\x83", b"\x81"), (b"w\4true", b"w\4tr\xf2e")):
        for terms in ([whole.replace(right, wrong)] * 100, [whole.replace(right, wrong)] * 7 + [whole] * 93):
            assert check(terms) == terms.count(whole)
    for _ in range(50):
        check([harmed(r, whole)] * 100)
