"""Rows for five queues with everything that a message can have, and what a node must deliver for them."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from storage_core.formats.rabbitmq.amqp import properties
from storage_core.rabbitmq import open_store
from tests.real.rabbitmq.amqp import Client, Delivery
from tests.real.rabbitmq.node import Node

QUEUES = ("plain", "prio", "large", "q ünïcödé", "typed")
MAX_PRIORITY = 3
ROWS = int(os.environ.get("MQSTORE_ROWS", "9000"))
TEXTS = {
    "contentType": "content_type", "contentEncoding": "content_encoding", "correlationId": "correlation_id",
    "replyTo": "reply_to", "messageId": "message_id", "type": "type", "userId": "user_id", "appId": "app_id",
    "expiration": "expiration",
}  # fmt: skip
TYPED = [
    ("S", b"\xff text"), ("I", -7), ("i", 7), ("s", -300), ("u", 300), ("b", -3), ("B", 200), ("l", -(1 << 40)),
    ("L", 1 << 40), ("T", 1_700_000_000), ("t", True), ("f", 0.5), ("d", -2.25), ("D", (2, 314)), ("V", None),
    ("x", b"\0\xff"), ("F", [(b"k", "A", [("S", b"a"), ("l", 1 << 40)])]), ("A", [("t", False), ("F", [])]),
]  # fmt: skip
RAW = properties.encode(
    {"headers": [(f"n{kind}".encode(), kind, value) for kind, value in TYPED], "delivery_mode": 2, "priority": 2}
)


def rows(count: int, seed: int) -> pa.Table:
    """Rows for five queues: bodies of 0 B to 2 MB, every property, priorities, headers as a map and typed."""
    chance = random.Random(seed)
    queues = [chance.choice(QUEUES) for _ in range(count)]
    sizes = [chance.choice([0, 1, 100, 4000, 4096, 5000]) for _ in range(count)]
    for number in range(0, count, 997):
        sizes[number] = 2 << 20

    def maybe(values: list[Any]) -> list[Any]:
        return [chance.choice([None, value]) for value in values]

    def times(values: list[Any]) -> pa.Array:
        return pa.array(maybe(values), pa.timestamp("us", "UTC"))

    return pa.table(
        {
            "queue": queues,
            "body": pa.array([chance.randbytes(size) for size in sizes], pa.binary()),
            "exchange": [chance.choice(["", "amq.topic"]) for _ in range(count)],
            "routingKeys": [chance.choice([None, [], ["k"], ["k", "cc"]]) for _ in range(count)],
            "rawProperties": pa.array([RAW if queue == "typed" else None for queue in queues], pa.binary()),
            "headers": pa.array(
                [[("h", str(n)), ("", "é" * chance.randrange(9))] if n % 3 else None for n in range(count)],
                pa.map_(pa.string(), pa.string()),
            ),
            "priority": pa.array([chance.choice([None, 0, 1, 3, 9]) for _ in range(count)], pa.int32()),
            "contentType": maybe(["text/plain"] * count),
            "contentEncoding": maybe(["gzip"] * count),
            "correlationId": maybe([str(n) for n in range(count)]),
            "replyTo": maybe(["q ünïcödé"] * count),
            "messageId": [str(n) for n in range(count)],
            "type": maybe(["kind"] * count),
            "userId": ["guest"] * count,
            "appId": maybe(["tests"] * count),
            "expiration": maybe(["3600000"] * count),
            "timestamp": times([n * 1_000_000 for n in range(count)]),
            "expiresAt": times([4_000_000_000_000_000] * count),
        }
    )


def expected(table: pa.Table, queue: str) -> list[dict[str, Any]]:
    """The rows of one queue in the order in which they are delivered."""
    found = table.filter(pc.equal(table["queue"], queue)).to_pylist()
    return sorted(found, key=lambda row: -min(row["priority"] or 0, MAX_PRIORITY)) if queue == "prio" else found


def wanted_properties(row: dict[str, Any]) -> dict[str, Any]:
    """The fields of a property list made from the columns of `row`."""
    found: dict[str, Any] = {"delivery_mode": 2}
    for column, name in TEXTS.items():
        if row[column] is not None:
            found[name] = row[column].encode()
    if row["headers"] is not None:
        found["headers"] = [(key.encode(), "S", value.encode()) for key, value in row["headers"]]
    if row["priority"] is not None:
        found["priority"] = row["priority"]
    if row["timestamp"] is not None:
        found["timestamp"] = int(row["timestamp"].timestamp())
    return found


def check(found: list[Delivery], wanted: list[dict[str, Any]]) -> None:
    """Asserts that the deliveries equal the rows, byte for byte and in order."""
    assert len(found) == len(wanted)
    for delivery, row in zip(found, wanted, strict=True):
        assert delivery.body == row["body"]
        assert delivery.exchange == row["exchange"]
        assert delivery.routing_key == (row["routingKeys"] or [row["queue"]])[0]
        if row["rawProperties"] is not None:
            assert delivery.properties == row["rawProperties"]
        else:
            assert properties.decode(delivery.properties) == wanted_properties(row)


def drained(node: Node) -> dict[str, list[Delivery]]:
    """All messages of all queues; they stay in the queues."""
    with Client(node.port) as client:
        return {queue: client.drain(queue) for queue in QUEUES}


def ack_half(node: Node, queue: str) -> int:
    """Acknowledges the first half of a queue; returns how many messages that was."""
    with Client(node.port) as client:
        found = client.drain(queue)
        if len(found) > 1:
            client.ack_all(found[len(found) // 2 - 1].tag)
        return len(found) // 2


def declare(node: Node, definitions: Path) -> Path:
    """Starts the node, imports the definitions, and stops it; returns the vhost's directory."""
    node.start()
    node.ctl("import_definitions", str(definitions))
    node.stop()
    return next(node.vhosts.iterdir())


def put(store: Path, target: Path) -> None:
    """Replaces the store at `target` with a copy of `store`."""
    shutil.rmtree(target)
    shutil.copytree(store, target)


def write(store: Path, table: pa.Table, parts: int = 3) -> None:
    """Writes a table with one job of several tasks, the last one first."""
    with open_store(str(store)) as opened:
        job = opened.begin_job()
        job.options.priorities[b"prio"] = MAX_PRIORITY
        size = -(-len(table) // parts)
        staged = [job.stage(iter(table.slice(n * size, size).to_batches()), n) for n in reversed(range(parts))]
        assert job.commit(staged) == len(table)
