"""The JSON of a checkpoint: equal offsets give equal text; one that does not fit the store is a one-line error."""

from __future__ import annotations

import json
from typing import Any

import pytest

from storage_core.errors import CheckpointError, DataLossError
from storage_core.store import QueueKey
from storage_core.stream.offsets import StreamOffset, check_store, from_json, resumed
from tests.stream.fixed_snapshot import FixedSnapshot

OFFSET = StreamOffset("rocketmq", {("b", 10): 5, ("b", 9): 7, ("a", 0): 0}, ("b", "a"), {("b", 9): "6:x"})


def test_queues_stand_in_order() -> None:
    assert json.dumps(OFFSET.to_json()) == (
        '{"mqstore": 1, "engine": "rocketmq", "queues": {"a": {"0": 0}, "b": {"9": 7, "10": 5}}, '
        '"seals": {"b": {"9": "6:x"}}, "topics": ["a", "b"]}'
    )


def test_what_was_written_is_read() -> None:
    found = from_json(json.loads(json.dumps(OFFSET.to_json())), "rocketmq", "/s")
    assert found.to_json() == OFFSET.to_json()
    assert found.positions == OFFSET.positions
    assert found.seals == OFFSET.seals


@pytest.mark.parametrize(
    ("noted", "text"),
    [
        (None, "holds no offset of mqstore"),
        ({"a": {"0": 3}}, "holds no offset of mqstore"),
        ({"mqstore": 2, "queues": {}}, "holds offsets of version 2, this mqstore knows version 1"),
        (
            {"mqstore": 1, "engine": "rabbitmq", "queues": {}},
            "belongs to a rabbitmq store, and this is a rocketmq store",
        ),
        ({"mqstore": 1, "engine": "rocketmq", "queues": {"a": {"0": -1}}}, "is damaged"),
        ({"mqstore": 1, "engine": "rocketmq", "queues": {"a": {"x": 1}}}, "is damaged"),
        ({"mqstore": 1, "engine": "rocketmq", "queues": ["a"]}, "is damaged"),
        ({"mqstore": 1, "queues": {}}, "is damaged"),
        ({"mqstore": 1, "engine": "rocketmq", "queues": {}, "seals": {"a": {"0": "x:1"}}}, "is damaged"),
        ({"mqstore": 1, "engine": "rocketmq", "queues": {}, "topics": [1, "a"]}, "is damaged"),
    ],
)
def test_another_checkpoint_is_refused_in_one_line(noted: Any, text: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        from_json(noted, "rocketmq", "/s")
    assert text in str(caught.value)
    assert str(caught.value).startswith("CheckpointError: /s: ")
    assert "\n" not in str(caught.value)


def test_a_seal_tells_another_store() -> None:
    held = {("b", 9): (0, 20)}
    check_store(OFFSET, FixedSnapshot(held, {(("b", 9), 7): "x"}), "/s")
    check_store(OFFSET, FixedSnapshot(held, {}), "/s")  # the message is missing: nothing to compare
    check_store(OFFSET, FixedSnapshot({("b", 9): (0, 3)}, {(("b", 9), 7): "y"}), "/s")  # `resumed` reports shrinkage
    with pytest.raises(CheckpointError, match=r"another store, .* message 6 of b/9 is not the one that was read"):
        check_store(OFFSET, FixedSnapshot(held, {(("b", 9), 7): "y"}), "/s")


def test_one_seal_that_holds_tells_that_the_store_is_the_same() -> None:
    """Then a queue in which another message has the number was declared again, which `resumed` reports."""

    class Sealed(FixedSnapshot):
        def holds(self, key: QueueKey, seal: str) -> bool | None:
            return {"same": True, "other": False}.get(seal)

    snapshot = Sealed({("a", 0): (0, 20), ("b", 0): (0, 20)})
    for seals in (("other", "other"), ("other", "gone")):
        offset = StreamOffset("rabbitmq", {}, seals={("a", 0): seals[0], ("b", 0): seals[1], ("c", 0): "same"})
        with pytest.raises(CheckpointError, match=r"another store, .* message other of a/0"):
            check_store(offset, snapshot, "/s")
    for seals in (("other", "same"), ("gone", "same"), ("gone", "gone")):
        check_store(StreamOffset("rabbitmq", {}, seals={("a", 0): seals[0], ("b", 0): seals[1]}), snapshot, "/s")


def test_the_start_of_a_new_queue_is_noted_once() -> None:
    snapshot = FixedSnapshot({("a", 0): (0, 20), ("n", 1): (6, 20), ("o", 0): (0, 20)})
    positions = {("a", 0): 9, ("n", 1): 8, ("o", 0): 3}
    begun = StreamOffset("rocketmq", {("a", 0): 5}).moved(positions, snapshot, {("a", 0): 5, ("n", 1): 6, ("o", 0): 0})
    assert begun.to_json()["first"] == {"n": {"1": 6}}
    assert from_json(begun.to_json(), "rocketmq", "/s").first == {("n", 1): 6}
    assert "first" not in begun.moved({**positions, ("n", 1): 9}, snapshot, positions).to_json()


def test_what_is_lost_is_named() -> None:
    held = {("a", 0): (0, 20), ("b", 0): (5, 20)}
    snapshot = FixedSnapshot(held)
    assert resumed({("a", 0): 20, ("b", 0): 5, ("gone", 0): 0}, snapshot, "/s", True) == {("a", 0): 20, ("b", 0): 5}
    cases = {
        ("a", 0): (21, "a/0 ends at 20 now, the checkpoint is at 21", 20),
        ("b", 0): (4, "b/0 begins at 5 now, the checkpoint is at 4", 5),
        ("c", 1): (4, "c/1 is gone, the checkpoint is at 4", None),
    }
    for key, (position, text, left) in cases.items():
        with pytest.raises(DataLossError) as caught:
            resumed({key: position}, snapshot, "/s", True)
        assert str(caught.value) == (
            f"DataLossError: /s: {text}; messages may be lost, if this is the store of the checkpoint: "
            "set failOnDataLoss=false to go on with what is there"
        )
        assert resumed({key: position}, snapshot, "/s", False) == ({} if left is None else {key: left})


def test_an_offset_that_does_not_move_is_the_same() -> None:
    snapshot = FixedSnapshot({("a", 0): (0, 9)}, {(("a", 0), 4): "s"})
    assert OFFSET.moved(dict(OFFSET.positions), snapshot) is OFFSET
    moved = OFFSET.moved({("a", 0): 4}, snapshot)
    assert moved.seals == {("a", 0): "3:s"}
