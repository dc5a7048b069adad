"""Real nodes of RabbitMQ 4: what they keep, compacted or not, is read as delivered; they boot on what we write."""

from __future__ import annotations

import random
import shutil
from functools import partial
from pathlib import Path

import pika
import pytest

from storage_core.errors import StoreLockedError
from storage_core.rabbitmq.disk.running_node import check_not_running, is_running
from tests.real.rabbitmq import history_4
from tests.real.rabbitmq.history_4 import COMPACTED_AFTER_S, History, check_published, check_store
from tests.real.rabbitmq.node_4 import FROM_4_ON, LATER, ROUNDS, Node4
from tests.real.rabbitmq.stream_compared import compare
from tests.real.rabbitmq.written import QUEUES, check, declare, drained, expected, put, rows, write
from tests.support.sampling import SEED

ALIKE = 1200
pytestmark = [pytest.mark.real, pytest.mark.timeout(0), LATER]
OF_EACH = pytest.mark.parametrize("release", FROM_4_ON)


@OF_EACH
def test_what_a_node_delivers_after_compactions(release: type[Node4]) -> None:
    holes = 0
    for number in range(ROUNDS):
        history = History(f"{SEED} {number}", release)
        try:
            history.until_compacted()
            history.end(clean=number % 2 == 0)
            holes += history.holes()
            check_store(history, f"{SEED} {number}")
            history.node.start()
            history.work()
            history.wait(history.r.choice([0.1, COMPACTED_AFTER_S]))
            history.end(clean=history.r.random() < 0.5)
            check_store(history, f"{SEED} {number}, once more")
        finally:
            history.node.remove()
    assert holes or ROUNDS < 4, "no compaction left anything to look over"


@OF_EACH
def test_messages_that_are_spelled_alike(release: type[Node4], alone: list[bytes]) -> None:
    """Most of them are recognised by their shape."""
    for number in range(-(-ROUNDS // 5)):
        history = History(f"alike {SEED} {number}", release)
        check_published(history, partial(history.alike, ALIKE), number % 2 == 0, f"{SEED} {number}")
        assert len(alone) < ALIKE // 2
        alone.clear()


@OF_EACH
def test_a_node_delivers_what_was_written(release: type[Node4], tmp_path: Path) -> None:
    """A node of 4.0 converts the queues written in version 1 to version 2; to one of 4.3 they are empty."""
    node = release()
    try:
        store, table = tmp_path / "vhosts" / "any-name", rows(3000, SEED)
        write(store, table)
        definitions = node.folder / "definitions.json"
        shutil.copy(tmp_path / "vhosts" / "definitions.json", definitions)
        target = declare(node, Path(str(definitions).replace(str(node.root), "")))
        put(store, target)
        node.start()
        found = drained(node)
        for queue in QUEUES:
            check(found[queue], expected(table, queue) if node.knows_version_1 else [])
            assert not any(delivery.redelivered for delivery in found[queue])
    finally:
        node.remove()


@OF_EACH
def test_what_a_node_delivers_of_a_stream(release: type[Node4]) -> None:
    node, r = release(), random.Random(SEED)
    count = 300
    try:
        node.start()
        node.declare("s", "stream")
        connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", node.port, heartbeat=0))
        channel = connection.channel()
        channel.confirm_delivery()
        for number in range(count):
            listed = history_4.properties(r, number)
            if r.random() < 0.4:  # then the chunk has a filter
                listed.headers = {**(listed.headers or {}), "x-stream-filter-value": r.choice(["red", "blue"])}
            channel.basic_publish("", "s", r.randbytes(r.choice([0, 5, 3000])), listed)
        connection.close()
        compare(node, "s", count)
    finally:
        node.remove()


@OF_EACH
def test_a_running_node_is_seen(release: type[Node4]) -> None:
    """Nothing is written to a node's stores before it is stopped."""
    node = release()
    try:
        node.start()
        for kind in ("classic", "quorum", "stream"):
            node.declare(kind, kind)
        home = node.folder / "mnesia" / f"{node.name}@localhost"
        roots = [next(node.vhosts.iterdir()), home / "quorum" / home.name, home / "stream"]
        for root in roots:
            with pytest.raises(StoreLockedError, match="is locked by"):
                check_not_running(str(root))
        node.stop()
        assert [is_running(str(root)) for root in roots] == [False] * 3
    finally:
        node.remove()
