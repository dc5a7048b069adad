"""Containers found by a walk: each one found has the same parts as when it is decoded alone."""

from __future__ import annotations

import random
from functools import partial
from typing import Any

import numpy as np
import pytest

from storage_core.formats.rabbitmq.amqp import properties
from storage_core.formats.rabbitmq.erlang.external_term import Atom
from storage_core.formats.rabbitmq.message import basic_message, container_walk
from tests.rabbitmq.containers import (
    Locate,
    container,
    harmed,
    noted,
    packed,
    plain_death,
    random_terms,
    same_alone,
    with_small_atoms,
)

pytestmark = pytest.mark.usefixtures("either_loops")


check = partial(same_alone, container_walk.locate)


@pytest.mark.parametrize(("locate", "rounds"), [(basic_message.locate, 150), (container_walk.locate, 60)])
def test_what_is_found_is_what_decoding_gives(locate: Locate, rounds: int) -> None:
    """Found by shapes and by the walk."""
    r, found, count = random.Random(5), 0, 0
    for _ in range(rounds):
        terms = [with_small_atoms(term) if r.random() < 0.5 else term for term in random_terms(r)]
        found, count = found + same_alone(locate, terms), count + len(terms)
        same_alone(locate, [harmed(r, term) for term in terms])
    assert found > count // 5


@pytest.mark.parametrize(
    "more",
    [
        {}, {"d": False}, {"p": 0}, {"p": 255}, {"p": Atom("undefined"), "ttl": Atom("undefined")}, {"rts": 0},
        {"bcc": [b"q", b""]}, {"delivery_count": 3, "acquired_count": 4}, {"deaths": []}, {b"x-opt": b"v", b"x-a": 7},
        {b"x-b": Atom("true"), b"x-c": [b"left out"]}, {b"x-death": b"", "deaths": []},
        {"rk": []}, {"rk": [b"", b"k" * 70_000]}, {"x": b"x" * 300},
    ],
)  # fmt: skip
def test_what_is_found(more: dict[str, Any]) -> None:
    r = random.Random(1)
    values = {"delivery_mode": 2} | ({"priority": more["p"]} if isinstance(more.get("p"), int) else {})
    terms = [container(properties.encode(values), noted(r, more), [b"b" * row] * (row % 4)) for row in range(20)]
    assert check(terms) == check([with_small_atoms(term) for term in terms]) == 20


def test_times_to_live_that_differ() -> None:
    r = random.Random(1)
    ttls = [0, 1, 255, 256, 5000, 2**31 - 1, 2**31, 2**32, 2**40]
    terms = [
        container(properties.encode({"delivery_mode": 2, "expiration": b"%d" % ttl}), noted(r, {"ttl": ttl}))
        for ttl in ttls
    ]
    buffer, starts, stops = packed(terms)
    found = container_walk.locate(buffer, starts, stops, 16)
    assert found.ok.all()
    assert found.ttl.tolist() == ttls
    assert np.unique(found.priority).tolist() == [-1]


@pytest.mark.parametrize(
    "more",
    [
        {"deaths": b""}, {"delivery_count": b"1"}, {b"x-opt": 1.5}, {b"x-opt": -1}, {b"x-" + b"n" * 254: 1},
        {"other": 1}, {"bcc": [1]}, {"rk": [b"k", 1]},
        {"x": 1}, {"id": b"short"}, {"d": Atom("maybe")}, {"d": 1}, {"ttl": -1}, {"ttl": 1 << 60}, {"p": 256},
        {"p": Atom("high")}, {"ts": Atom("undefined")}, {"rts": b""}, {"rts": -1},
    ],
)  # fmt: skip
def test_what_is_left_to_be_decoded_alone(more: dict[Any, Any]) -> None:
    r = random.Random(1)
    assert check([container(properties.encode({"delivery_mode": 2}), noted(r, more))] * 3) == 0


def test_dead_letters() -> None:
    """Dead letters of a few deaths each, some of which had headers or an expiration before."""
    r = random.Random(2)
    terms, lost = [], {"x-first-death-queue": b"q", "x-first-death-reason": b"expired"}
    for row in range(60):
        values: dict[str, Any] = {"delivery_mode": 2, "content_type": b"t", "expiration": b"1"} if row % 2 else {}
        values |= {"headers": [(b"x-death", "S", b"old"), (b"a", "I", row)]} if row % 3 else {}
        values["delivery_mode"] = 2
        annotation_map = {"ttl": Atom("undefined"), "deaths": [plain_death(r) for _ in range(row % 5)]}
        annotation_map |= {name.encode(): value for name, value in lost.items()} if row % 7 else {}
        terms.append(container(properties.encode(values), noted(r, annotation_map)))
    assert check(terms) == check([with_small_atoms(term) for term in terms]) == 60


def test_what_is_missing() -> None:
    r = random.Random(1)
    for name in ("x", "rk", "id"):
        annotation_map = noted(r, {})
        del annotation_map[name]
        assert check([container(properties.encode({"delivery_mode": 2}), annotation_map)]) == 0
