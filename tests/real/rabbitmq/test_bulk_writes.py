"""A real 3.10.8 node boots on what a job wrote, clean and dirty, delivers it in order, and goes on with it."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from storage_core.formats.rabbitmq import field_table, properties
from storage_core.rabbitmq import open_store
from storage_core.store import ScanRequest
from tests.real.rabbitmq.amqp import Client, Delivery
from tests.real.rabbitmq.node import Node

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]

QUEUES = ("plain", "prio", "large", "q ünïcödé", "typed")
MAX_PRIORITY = 3
ROWS = int(os.environ.get("MQSTORE_ROWS", "9000"))


def rows(count: int, seed: int) -> pa.Table:
    """Rows over five queues: bodies of 0 B to 2 MB, every property, priorities, headers as a map and typed."""
    chance = random.Random(seed)
    queues = [chance.choice(QUEUES) for _ in range(count)]
    sizes = [chance.choice([0, 1, 100, 4000, 4096, 5000]) for _ in range(count)]
    for number in range(0, count, 997):
        sizes[number] = 2 << 20
    typed = [("i", "I", -7), ("t", "t", True), ("d", "D", (2, 314)), ("v", "V", None), ("x", "x", b"\0\xff"),
             ("n", "F", [(b"k", "A", [("S", b"a"), ("l", 1 << 40)])])]  # fmt: skip
    raw = properties.encode({"headers": [(k.encode(), t, v) for k, t, v in typed], "delivery_mode": 2, "priority": 2})
    return pa.table(
        {
            "queue": queues,
            "body": pa.array([chance.randbytes(size) for size in sizes], pa.binary()),
            "exchange": [chance.choice(["", "amq.topic"]) for _ in range(count)],
            "routingKeys": [chance.choice([None, ["k"], ["k", "cc"]]) for _ in range(count)],
            "rawProperties": pa.array([raw if queue == "typed" else None for queue in queues], pa.binary()),
            "headers": pa.array(
                [[("h", str(n)), ("", "é" * chance.randrange(9))] if n % 3 else None for n in range(count)],
                pa.map_(pa.string(), pa.string()),
            ),
            "priority": pa.array([chance.choice([None, 0, 1, 3, 9]) for _ in range(count)], pa.int32()),
            "contentType": [chance.choice([None, "text/plain"]) for _ in range(count)],
            "correlationId": [chance.choice([None, str(n)]) for n in range(count)],
            "messageId": [str(n) for n in range(count)],
            "userId": ["guest"] * count,
            "timestamp": pa.array(
                [chance.choice([None, n * 1_000_000]) for n in range(count)], pa.timestamp("us", "UTC")
            ),
            "expiresAt": pa.array(
                [chance.choice([None, 4_000_000_000_000_000]) for _ in range(count)], pa.timestamp("us", "UTC")
            ),
        }
    )


def expected(table: pa.Table, queue: str) -> list[dict[str, object]]:
    """The rows of one queue in the order in which they are delivered."""
    found = table.filter(pc.equal(table["queue"], queue)).to_pylist()
    return sorted(found, key=lambda row: -min(row["priority"] or 0, MAX_PRIORITY)) if queue == "prio" else found


def check(found: list[Delivery], wanted: list[dict[str, object]]) -> None:
    assert len(found) == len(wanted)
    for delivery, row in zip(found, wanted, strict=True):
        assert delivery.body == row["body"]
        assert delivery.exchange == row["exchange"]
        assert delivery.routing_key == (row["routingKeys"] or [row["queue"]])[0]
        if row["rawProperties"] is not None:
            assert delivery.properties == row["rawProperties"]
            continue
        values = properties.decode(delivery.properties)
        assert values.pop("delivery_mode") == 2
        assert values.pop("message_id") == str(row["messageId"]).encode()
        assert values.pop("user_id") == b"guest"
        headers = values.pop("headers", None)
        assert headers == (
            [(k.encode(), "S", v.encode()) for k, v in row["headers"]] if row["headers"] is not None else None
        )
        for name, column in (("content_type", "contentType"), ("correlation_id", "correlationId")):
            value = values.pop(name, None)
            assert (value.decode() if value is not None else None) == row[column]
        assert values.pop("priority", None) == row["priority"]
        seconds = values.pop("timestamp", None)
        assert seconds == (None if row["timestamp"] is None else int(row["timestamp"].timestamp()))
        assert values == {}


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    found = Node(tmp_path / "node")
    yield found
    found.kill()


def declare(node: Node, definitions: Path) -> Path:
    """Starts the node, imports the definitions, stops it; the vhost's directory."""
    node.start()
    node.ctl("import_definitions", str(definitions))
    node.stop()
    return next(node.vhosts.iterdir())


def log_of(node: Node) -> str:
    return next((node.folder / "log").glob("*localhost.log")).read_text()


def put(store: Path, target: Path) -> None:
    shutil.rmtree(target)
    shutil.copytree(store, target)


def drained(node: Node) -> dict[str, list[Delivery]]:
    with Client(node.port) as client:
        return {queue: client.drain(queue) for queue in QUEUES}


def write(store: Path, table: pa.Table, parts: int = 3) -> None:
    """One job of several tasks, the last one first."""
    with open_store(str(store)) as opened:
        job = opened.begin_job()
        job.options.priorities[b"prio"] = MAX_PRIORITY
        size = -(-len(table) // parts)
        staged = [job.stage(iter(table.slice(n * size, size).to_batches()), n) for n in reversed(range(parts))]
        assert job.commit(staged) == len(table)


def test_a_node_delivers_what_was_written(node: Node, tmp_path: Path) -> None:
    store = tmp_path / "vhosts" / "any-name"
    first, second = rows(ROWS, 1), rows(500, 2)
    write(store, first)
    definitions = tmp_path / "vhosts" / "definitions.json"
    assert {q["name"]: q["arguments"] for q in json.loads(definitions.read_text())["queues"]}["prio"] == {
        "x-max-priority": MAX_PRIORITY
    }
    target = declare(node, definitions)
    put(store, target)
    before = len(log_of(node))
    node.start()
    found = drained(node)
    for queue in QUEUES:
        check(found[queue], expected(first, queue))
        assert not any(delivery.redelivered for delivery in found[queue])
    assert "rebuilding indices from scratch" not in log_of(node)[before:]
    node.stop()

    # Appending to the store that the node has just stopped: old and new, in order.
    write(target, second)
    node.start()
    found = drained(node)
    both = pa.concat_tables([first, second])
    for queue in QUEUES:
        check(found[queue], expected(both, queue))
        fresh = len(expected(second, queue))
        if queue != "prio" and fresh:
            # A node counts as delivered what lies before the first gap of sequence ids; here, the first task's rows.
            assert found[queue][0].redelivered
            assert {delivery.redelivered for delivery in found[queue][-fresh:]} == {False}

    # The node takes some away; what is left is what we read then.
    with Client(node.port) as client:
        deliveries = [client.get("plain") for _ in range(100)]
        assert deliveries[-1] is not None
        client.ack_all(deliveries[-1].tag)
    node.stop()
    with open_store(str(target)) as opened:
        plan = opened.snapshot().plan(ScanRequest(topics=("plain",)))
        left = pa.Table.from_batches([batch for partition in plan for batch in partition.read()])
    wanted = expected(both, "plain")[100:]
    assert left["body"].to_pylist() == [row["body"] for row in wanted]
    node.start()
    with Client(node.port) as client:
        delivered = client.drain("plain")
    check(delivered, wanted)
    assert left["redelivered"].to_pylist() == [delivery.redelivered for delivery in delivered]


def test_a_node_recovers_what_was_written_without_the_clean_files(node: Node, tmp_path: Path) -> None:
    store = tmp_path / "vhosts" / "any-name"
    table = rows(3000, 3)
    write(store, table)
    target = declare(node, tmp_path / "vhosts" / "definitions.json")
    (store / "recovery.dets").unlink()
    for name in ("clean.dot", "file_summary.ets", "msg_store_index.ets"):
        (store / "msg_store_persistent" / name).unlink()
    put(store, target)
    node.start()
    found = drained(node)
    for queue in QUEUES:
        check(found[queue], expected(table, queue))
        assert all(delivery.redelivered for delivery in found[queue])


def test_field_tables_of_the_rows_are_typed() -> None:
    raw = rows(20, 1).filter(pc.is_valid(rows(20, 1)["rawProperties"]))["rawProperties"][0].as_py()
    assert [letter for _, letter, _ in properties.decode(raw)["headers"]] == list("ItDVxF")
    assert field_table.encode(properties.decode(raw)["headers"]) in raw
