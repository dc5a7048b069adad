"""Rows in queues of version 2: a node serves them after the existing messages, and continues."""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pika
import pyarrow.compute as pc
import pytest

from storage_core.formats.rabbitmq import paths
from storage_core.rabbitmq import open_store
from tests.rabbitmq import golden
from tests.real.rabbitmq.history_4 import MAY_BE, as_rows, properties, rows_of
from tests.real.rabbitmq.node import Node
from tests.real.rabbitmq.node_4 import LATER, ROUNDS, Node4, Node43, Node312
from tests.real.rabbitmq.written import MAX_PRIORITY, QUEUES, check, declare, drained, expected, put, rows, write
from tests.support.sampling import SEED, WHOLE

pytestmark = [pytest.mark.real, pytest.mark.timeout(0)]

INDEX_WRITTEN_AFTER_S = 1.5
OLD = "typed"
"""A queue that requests no version: it has the first one before 4.0."""
RELEASES: list[Any] = [
    pytest.param(Node, {"x-queue-version": 2}, id="3.10"),
    pytest.param(lambda _: Node312(), {"x-queue-version": 2}, id="3.12", marks=LATER),
    pytest.param(lambda _: Node4(), {}, id="4.0", marks=LATER),
    pytest.param(lambda _: Node43(), {}, id="4.3", marks=LATER),
]


def fill(node: Node, r: random.Random, arguments: dict[str, Any], count: int) -> None:
    """Publishes with confirms, and acknowledges a share of each queue."""
    connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", node.port, heartbeat=0))
    channel = connection.channel()
    for queue in QUEUES:
        own = {"x-max-priority": MAX_PRIORITY} if queue == "prio" else {}
        channel.queue_declare(queue, durable=True, arguments=own if queue == OLD else arguments | own)
    channel.confirm_delivery()
    for number in range(count):
        body = r.randbytes(r.choice([0, 1, 100, 3000, 4090, 4096, 9000]))
        channel.basic_publish("", r.choice(QUEUES), body, properties(r, number))
    for queue in QUEUES:
        share = r.choice([0, 0.3, 0.9, 1])
        while (got := channel.basic_get(queue))[0] is not None:
            if r.random() < share:
                channel.basic_ack(got[0].delivery_tag)
    time.sleep(INDEX_WRITTEN_AFTER_S)
    connection.close()


def check_appended(store: Path, count: int, seed: int) -> None:
    """Appends rows and asserts that they follow the existing ones, byte for byte, and that the store has no damage."""
    before, table = rows_of(golden.table(store), QUEUES), rows(count, seed)
    write(store, table)
    for folder in store.glob("queues/*"):
        assert not ([*folder.glob("*.idx")] and [*folder.glob("*.qi")]), "a queue of two versions"
    after = rows_of(golden.table(store), QUEUES)
    for queue in QUEUES:
        count = len(before[queue])
        if queue == "prio":
            new = [row for row in after[queue] if row not in before[queue]]
        else:
            assert [row[3:] for row in after[queue][:count]] == [row[3:] for row in before[queue]]
            new = after[queue][count:]
        assert [row[4] for row in new] == [row["body"] for row in expected(table, queue)]
    with open_store(str(store)) as opened:
        assert [finding for finding in opened.verify() if finding.kind not in MAY_BE] == []


@pytest.mark.parametrize(("make", "arguments"), RELEASES)
def test_a_node_serves_what_was_appended(
    make: Callable[[Path], Node], arguments: dict[str, Any], tmp_path: Path
) -> None:
    for number in range(max(ROUNDS, 1)):
        r = random.Random(f"{SEED} {number}")
        node = make(tmp_path / f"node{number}")
        try:
            node.start()
            fill(node, r, arguments, r.randrange(300))
            for turn in range(3 if WHOLE else 1):
                node.end(clean=r.random() < 0.6)
                store = node.vhosts / paths.vhost_directory(b"/")
                check_appended(store, r.choice([40, 900, 9000] if WHOLE else [40, 900]), r.randrange(1 << 30))
                found = rows_of(golden.table(store), QUEUES)
                node.start()
                delivered = as_rows(drained(node))
                counts = {queue: (len(found[queue]), len(delivered[queue])) for queue in QUEUES}
                assert found == delivered, (SEED, number, turn, counts)
                fill(node, r, arguments, r.randrange(200))
        finally:
            node.remove()


@pytest.mark.parametrize(("make", "arguments"), RELEASES)
def test_a_node_serves_a_new_store(make: Callable[[Path], Node], arguments: dict[str, Any], tmp_path: Path) -> None:
    """One queue requests version 2, and the others are made like it: a node before 4.0 converts these to version 1."""
    node = make(tmp_path / "node")
    try:
        store, table = tmp_path / "vhosts" / "any-name", rows(6000, SEED)
        with open_store(str(store)) as opened:
            asks = table.filter(pc.equal(table["queue"], "plain")).drop_columns("queue")
            opened.append(asks, queue="plain", queueArguments={"x-queue-version": 2})
        write(store, table.filter(pc.not_equal(table["queue"], "plain")))
        assert not [*store.glob("queues/*/*.idx")]
        definitions = node.folder / "definitions.json"
        shutil.copy(tmp_path / "vhosts" / "definitions.json", definitions)
        put(store, declare(node, node.inside(definitions)))
        node.start()
        found = drained(node)
        for queue in QUEUES:
            check(found[queue], expected(table, queue))
            assert not any(delivery.redelivered for delivery in found[queue])
    finally:
        node.remove()
