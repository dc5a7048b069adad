"""Offsets and assignments: Kafka's batch rules, one store and several, without Spark."""

from __future__ import annotations

import json

import pytest

from storage_core.errors import OptionError
from storage_core.options.offsets import assignment, bound
from storage_core.store import EARLIEST, LATEST, OffsetBound

start, stop = bound(starting=True), bound(starting=False)


def of_one(parsed) -> OffsetBound:
    return parsed.of_store("s", ["s"])


def refusal(parse, value, stores=("s",)) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    with pytest.raises(OptionError) as caught:
        parse("option", text).of_store(stores[0], stores)
    message = str(caught.value)
    assert "\n" not in message
    return message.split("': ", 1)[1]


def test_words() -> None:
    assert of_one(start("startingOffsets", " Earliest ")) == OffsetBound(EARLIEST)
    assert of_one(stop("endingOffsets", "LATEST")) == OffsetBound(LATEST)
    assert of_one(start("startingOffsets", "last:100")) == OffsetBound(EARLIEST, last=100)
    assert of_one(start("startingOffsets", "group:billing")) == OffsetBound(EARLIEST, group="billing")
    assert of_one(stop("endingOffsets", "group:billing")) == OffsetBound(EARLIEST, group="billing")


def test_json_offsets_of_one_store() -> None:
    parsed = start("startingOffsets", '{"orders": {"0": 23, "1": -2}, "%DLQ%x": {"0": 0}}')
    assert of_one(parsed) == OffsetBound(EARLIEST, {("orders", 0): 23, ("orders", 1): -2, ("%DLQ%x", 0): 0})
    assert of_one(stop("endingOffsets", '{"orders": {"0": -1}}')) == OffsetBound(LATEST, {("orders", 0): -1})


def test_json_offsets_of_several_stores_have_the_store_outside() -> None:
    parsed = start("startingOffsets", '{"a": {"orders": {"0": 5}}}')
    assert parsed.of_store("a", ["a", "b"]) == OffsetBound(EARLIEST, {("orders", 0): 5})
    assert parsed.of_store("b", ["a", "b"]) == OffsetBound(EARLIEST)
    assert refusal(start, {"orders": {"0": 5}}, ("a", "b")) == (
        'names orders, which is none of the stores a, b; write it like {"a": {"orders": {"0": 23, "1": -2}}}'
    )


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("latest", "would read nothing in a batch; leave it out for earliest, which is the default"),
        ("newest", 'must be earliest, last:100, group:billing, or JSON such as {"orders": {"0": 23, "1": -2}}'),
        ("23", 'must be earliest, last:100, group:billing, or JSON such as {"orders": {"0": 23, "1": -2}}'),
        ("group:", "names no consumer group; write it like group:billing"),
        ("last:x", 'must be earliest, last:100, group:billing, or JSON such as {"orders": {"0": 23, "1": -2}}'),
        ({"orders": {"0": -1}}, "orders/0 has -1 (latest) as a start, which would read nothing; leave the queue out"),
        ({"orders": {"0": -3}}, "offset -3 of orders/0 must be a whole number of at least 0, or -2, -1"),
        ({"orders": {"0": 1.5}}, "offset 1.5 of orders/0 must be a whole number of at least 0, or -2, -1"),
        ({"orders": {"0": True}}, "offset true of orders/0 must be a whole number of at least 0, or -2, -1"),
        ({"orders": {"0": 1 << 63}}, f"offset {1 << 63} of orders/0 must be a whole number of at least 0, or -2, -1"),
        ({"orders": {"-1": 0}}, 'queue "-1" must be a queue id, 0 to 2147483647'),
        ({"orders": [0]}, 'what stands at orders has the wrong shape; write it like {"orders": {"0": 23, "1": -2}}'),
        ({"orders": {}}, 'what stands at orders has the wrong shape; write it like {"orders": {"0": 23, "1": -2}}'),
        ({"orders": {"0": 5, "00": 7}}, "names the queue orders/0 twice"),
        ('{"orders": {"0": 1}, "orders": {"0": 2}}', "names orders twice"),
        ("{", 'is not JSON; write it like {"orders": {"0": 23, "1": -2}}'),
    ],
)
def test_wrong_starts(value, text: str) -> None:
    assert refusal(start, value) == text


def test_wrong_ends() -> None:
    assert refusal(stop, "earliest") == "would read nothing in a batch; leave it out for latest, which is the default"
    assert (
        refusal(stop, {"t": {"0": -2}})
        == "t/0 has -2 (earliest) as an end, which would read nothing; leave the queue out"
    )


def test_assign() -> None:
    parsed = assignment("assign", '{"orders": [1, 0, 1], "p": [3]}')
    assert parsed.of_store("s", ["s"]) == (("orders", 1), ("orders", 0), ("p", 3))
    several = assignment("assign", '{"a": {"orders": [0]}}')
    assert several.of_store("a", ["a", "b"]) == (("orders", 0),)
    assert several.of_store("b", ["a", "b"]) == ()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("orders", 'is not JSON; write it like {"orders": [0, 1]}'),
        ('["orders"]', 'must be a JSON object such as {"orders": [0, 1]}'),
        ({}, 'names no queue; write it like {"orders": [0, 1]}'),
        ({"orders": []}, 'what stands at orders has the wrong shape; write it like {"orders": [0, 1]}'),
        ({"orders": [-1]}, "queue -1 must be a queue id, 0 to 2147483647"),
        ({"orders": [2**31]}, "queue 2147483648 must be a queue id, 0 to 2147483647"),
    ],
)
def test_wrong_assignments(value, text: str) -> None:
    assert refusal(assignment, value) == text
