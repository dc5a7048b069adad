"""Priority queues in Python: highest priority first, as a node delivers, and across clean and dirty restarts."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from storage_core.errors import OptionError
from storage_core.formats.rabbitmq import paths
from storage_core.formats.rabbitmq.amqp import properties
from storage_core.rabbitmq.queue.priority_queue import PriorityQueue
from storage_core.rabbitmq.queue.queue import Queue
from storage_core.rabbitmq.read import declared
from storage_core.rabbitmq.store import VhostStore
from tests.rabbitmq import golden

MOST = 3


@pytest.fixture
def root(tmp_path: Path) -> str:
    return str(tmp_path / "vhosts" / "store")


def door(root: str, max_priority: int | None = None, name: str = "prio") -> PriorityQueue:
    with VhostStore(root) as store:
        queue = store.queue(name, max_priority=max_priority)
    assert isinstance(queue, PriorityQueue)
    return queue


def fill(queue: PriorityQueue, count: int, seed: int) -> list[bytes]:
    """Publishes messages and returns their bodies in the order of delivery."""
    chance = random.Random(seed)
    rows = []
    for number in range(count):
        priority, size = chance.choice([None, 0, 1, 2, 3, 9]), chance.choice([0, 5000])
        body = b"%d:" % number + b"x" * size
        if priority is None:
            queue.publish(body)
        elif number % 2:
            queue.publish_many([body], priority=priority)
        else:
            queue.publish(body, raw_properties=properties.encode({"delivery_mode": 2, "priority": priority}))
        rows.append((min(priority or 0, MOST), body))
    return [body for _, body in sorted(rows, key=lambda row: -row[0])]


def test_the_highest_priority_first(root: str) -> None:
    with door(root, MOST) as queue:
        wanted = fill(queue, 60, 1)
        assert (len(queue), queue.unacknowledged, bool(queue)) == (60, 0, True)
        taken = queue.fetch_many(40)
        assert taken.bodies() == wanted[:40]
        assert [delivery.body for delivery in taken] == wanted[:40]
        assert sorted(taken.priorities.tolist(), reverse=True) == taken.priorities.tolist()
        assert taken[3:5].priorities.tolist() == [taken[3].priority, taken[4].priority]
        assert queue.requeue(taken[35:]) == 5
        queue.publish(b"late", priority=MOST)
        first = queue.fetch()
        assert first is not None
        assert (first.body, first.priority, first.properties["priority"]) == (b"late", MOST, MOST)
        assert queue.ack(first) == 1
        assert queue.ack((delivery.priority, delivery.sequence_id) for delivery in taken[:10]) == 10
        assert (len(queue), queue.unacknowledged) == (25, 25)
        queue.set_target_ram_count(0)
        queue.set_lazy(True)
        assert [delivery.body for delivery in queue] == wanted[35:]
        assert queue.fetch() is None


@pytest.mark.parametrize("clean", [True, False])
def test_a_restart_knows_the_priorities(root: str, clean: bool) -> None:
    queue = door(root, MOST)
    wanted = fill(queue, 40, 2)
    taken = queue.fetch_many(10)
    queue.ack(taken)
    queue.sync()
    if not clean:
        queue._queues[0]._vhost.abandon(RuntimeError("killed"))
    queue.close()
    assert golden.table(Path(root), columns=("body",))["body"].to_pylist() == wanted[10:]
    with door(root) as queue:
        assert queue.max_priority == MOST
        found = list(queue)
        assert [delivery.body for delivery in found] == wanted[10:]
        assert all(delivery.redelivered for delivery in found) is not clean
        queue.ack(found)
        queue.publish(b"next", priority=200)
        assert queue.purge() == 1
        queue.set_ram_duration_target(float("inf"))


def test_definitions_name_the_queue(root: str) -> None:
    with door(root, MOST) as queue:
        queue.publish(b"low")
        with VhostStore(root) as store, store.queue("plain") as plain, store.queue("gone", durable=False):
            assert isinstance(plain, Queue)
            plain.publish(b"1")
    found = json.loads((Path(root).parent / "definitions.json").read_text())
    assert found["vhosts"] == [{"name": "/"}]
    assert {each["name"]: each["arguments"] for each in found["queues"]} == {
        "plain": {},
        "prio": {"x-max-priority": MOST},
    }
    with door(root) as queue:
        assert queue.max_priority == MOST, "of the priorities only 0 has a directory"
    (Path(root) / "recovery.dets").unlink()
    with door(root) as queue:
        assert queue.max_priority == MOST, "the definitions know"


def test_files_go_before_definitions_of_another_store(root: str, tmp_path: Path) -> None:
    with VhostStore(root) as store, store.queue("prio") as queue:
        queue.publish(b"1")
    with door(str(tmp_path / "vhosts" / "other"), MOST) as queue:
        queue.publish(b"2")
    with VhostStore(root) as store:
        assert declared.priorities(store.snapshot()) == {}


def test_one_of_the_queues_behind_it(root: str) -> None:
    with door(root, MOST) as queue, VhostStore(root) as store, store.queue("prio", priority=2) as second:
        queue.publish_many([b"a", b"b"], priority=2)
        assert [delivery.body for delivery in second] == [b"a", b"b"]
        assert (Path(root) / "queues" / paths.queue_directory(b"/", b"prio", 2)).is_dir()


def test_a_real_nodes_priority_queue(tmp_path: Path) -> None:
    store = golden.unpack("s1_mixed_clean_idle", tmp_path) / golden.DEFAULT_VHOST
    rows = golden.by_queue(golden.table(store, columns=("queue", "body", "redelivered")))["e.prio"]
    with door(str(store), name="e.prio") as queue:
        assert queue.max_priority == 3
        found = list(queue)
    assert [(delivery.body, delivery.redelivered) for delivery in found] == [
        (row["body"], row["redelivered"]) for row in rows
    ]


@pytest.mark.parametrize(
    ("name", "most", "text"),
    [
        ("prio", 4, "option 'max_priority' = '4': the queue prio already exists and has 3"),
        ("plain", 4, "option 'max_priority' = '4': the queue plain already exists and is not a priority queue"),
        ("new", 256, "option 'max_priority' = '256': it is a number from 0 to 255"),
    ],
)
def test_wrong_priorities(root: str, name: str, most: int, text: str) -> None:
    with door(root, MOST) as queue, VhostStore(root) as store, store.queue("plain"):
        with pytest.raises(OptionError) as caught:
            store.queue(name, max_priority=most)
        assert str(caught.value) == f"OptionError: {text}"
        with pytest.raises(OptionError, match="a pair"):
            queue.ack([7])  # type: ignore[list-item]
        with pytest.raises(OptionError, match="are 0 to 3"):
            queue.ack([(4, 0)])
        with pytest.raises(OptionError, match="a number from 0 to 255"):
            queue.publish(b"1", priority="high")
