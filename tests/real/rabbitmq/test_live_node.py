"""A stream reads the vhost of a running node while clients publish and consume: no message is missed, duplicated or
torn.

There are two classic queues of each version, of which one is consumed and the other is not. `MQSTORE_LIVE_S` sets the
duration in seconds (60 in `make test-real-full`).
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

import pika
import pyarrow as pa
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from storage_core import open_store
from storage_core.store import ScanRequest
from tests.real.rabbitmq.node import Node
from tests.support.stream_query import Query

pytestmark = [
    pytest.mark.real,
    pytest.mark.timeout(600),
    pytest.mark.skipif("MQSTORE_LIVE_S" not in os.environ, reason="make test-real-full sets MQSTORE_LIVE_S"),
]

SECONDS = float(os.environ.get("MQSTORE_LIVE_S", "60"))
QUEUES = {"kept1": 1, "kept2": 2, "taken1": 1, "taken2": 2}
SIZES = (60, 300, 5000)
"""Bodies of less than 4,096 bytes are in the index, the others in message files."""
AT_ONCE = 100
LAST_S = 60.0


def body(queue: str, number: int) -> bytes:
    """The body of a published message."""
    return f"{queue} {number} ".encode().ljust(SIZES[number % len(SIZES)], b"x")


@contextmanager
def channel(node: Node) -> Iterator[BlockingChannel]:
    """A channel on its own connection."""
    where = pika.ConnectionParameters("127.0.0.1", node.port, heartbeat=0, socket_timeout=20)
    with closing(pika.BlockingConnection(where)) as connection:
        yield connection.channel()


def publish(node: Node, queue: str, until: float) -> int:
    """Publishes numbers from 0 on; returns how many."""
    first, persistent = 0, pika.BasicProperties(delivery_mode=2)
    with channel(node) as mine:
        while time.monotonic() < until:
            for number in range(first, first + AT_ONCE):
                mine.basic_publish("", queue, body(queue, number), persistent)
            mine.queue_declare(queue, passive=True)
            first += AT_ONCE
    return first


def consume(node: Node, queue: str, until: float) -> int:
    """Receives and acknowledges messages in order; returns how many."""
    taken = 0
    with channel(node) as mine:
        while time.monotonic() < until:
            method, _, found = mine.basic_get(queue)
            if method is None:
                time.sleep(0.01)
                continue
            assert found == body(queue, taken)
            mine.basic_ack(method.delivery_tag)
            taken += 1
        mine.queue_declare(queue, passive=True)
    return taken


class Rows:
    """The numbers of the messages that the stream returned, by queue."""

    def __init__(self) -> None:
        self.read: dict[str, list[int]] = {queue: [] for queue in QUEUES}

    def add(self, table: pa.Table) -> None:
        """Adds the rows of a table. Raises AssertionError for a message that is torn, repeated or out of order."""
        for queue, found in zip(table["queue"].to_pylist(), table["body"].to_pylist(), strict=True):
            number, before = int(found.split()[1]), self.read[queue]
            assert found == body(queue, number), f"{queue}: {found[:30]!r}"
            assert not before or number > before[-1], f"{queue}: {number} after {before[-1]}"
            before.append(number)


def left(vhost: Path, queue: str) -> list[int]:
    """The numbers of the messages that the queue holds."""
    with open_store(str(vhost)) as store:
        plan = store.snapshot().plan(ScanRequest(columns=("body",), topics=(queue,)))
        return [int(row["body"].split()[1]) for part in plan for each in part.read() for row in each.to_pylist()]


def followed(query: Query, rows: Rows, sent: dict[str, Future[int]], taken: list[Future[int]]) -> int:
    """Reads until clients have ended and each queue's last message was read; returns the number of micro-batches."""
    triggers, until = 0, time.monotonic() + SECONDS + LAST_S
    while time.monotonic() < until:
        if query.trigger():
            rows.add(query.tables.pop())
            triggers += 1
        elif all(each.done() for each in (*sent.values(), *taken)) and all(
            rows.read[queue][-1:] == [each.result() - 1] for queue, each in sent.items()
        ):
            return triggers
        time.sleep(0.05)
    raise AssertionError({queue: (rows.read[queue][-1:], each.result()) for queue, each in sent.items()})


def test_a_stream_reads_the_directory_of_a_running_node(tmp_path: Path) -> None:
    node, rows = Node(tmp_path / "node"), Rows()
    node.start()
    try:
        with channel(node) as made:
            for queue, version in QUEUES.items():
                made.queue_declare(queue, durable=True, arguments={"x-queue-version": version})
        (vhost,) = node.vhosts.iterdir()
        query, until = Query(vhost, {"columns": "queue,sequenceId,body"}), time.monotonic() + SECONDS
        query.start()
        with ThreadPoolExecutor(8) as threads:
            sent = {queue: threads.submit(publish, node, queue, until) for queue in QUEUES}
            taken = {
                queue: threads.submit(consume, node, queue, until - 1) for queue in QUEUES if queue.startswith("taken")
            }
            triggers = followed(query, rows, sent, list(taken.values()))
        counts = {queue: each.result() for queue, each in sent.items()}
        query.stop()
    finally:
        node.kill()
    gone = {queue: each.result() for queue, each in taken.items()}
    print(f"{counts} published in {SECONDS:.0f} s, {gone} taken, {triggers} micro-batches, read "
          f"{ {queue: len(each) for queue, each in rows.read.items()} }; load {os.getloadavg()[0]:.1f}")  # fmt: skip
    for queue in QUEUES.keys() - taken.keys():
        assert rows.read[queue] == list(range(counts[queue]))
    for queue in taken:
        there = left(vhost, queue)
        assert there[-1:] == [counts[queue] - 1]
        assert set(there) <= set(rows.read[queue])
    assert triggers > 3
