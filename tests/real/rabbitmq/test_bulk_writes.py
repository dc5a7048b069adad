"""A real 3.10.8 node boots on what a job wrote, clean and dirty, delivers it in order, and continues with it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner

from command_line.main import main
from storage_core.rabbitmq import open_store
from storage_core.store import ScanRequest
from tests.real.rabbitmq.amqp import Client
from tests.real.rabbitmq.node import Node
from tests.real.rabbitmq.written import (
    MAX_PRIORITY,
    QUEUES,
    ROWS,
    ack_half,
    check,
    declare,
    drained,
    expected,
    put,
    rows,
    write,
)

pytestmark = [pytest.mark.real, pytest.mark.timeout(900 if ROWS <= 20_000 else 0)]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    found = Node(tmp_path / "node")
    yield found
    found.kill()


def log_of(node: Node) -> str:
    return next((node.folder / "log").glob("*localhost.log")).read_text()


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
            # A node counts messages before the first gap in sequence ids as delivered; here, the first task's rows.
            assert found[queue][0].redelivered
            assert {delivery.redelivered for delivery in found[queue][-fresh:]} == {False}

    # The node removes half of each queue; the rest is what we then read, and what the node delivers next.
    gone = {queue: ack_half(node, queue) for queue in QUEUES}
    assert sum(gone.values()) > len(both) // 2 - len(QUEUES)
    node.stop()
    for queue in QUEUES:
        with open_store(str(target)) as opened:
            plan = opened.snapshot().plan(ScanRequest(topics=(queue,)))
            left = pa.Table.from_batches([batch for partition in plan for batch in partition.read()])
        wanted = expected(both, queue)[gone[queue] :]
        assert left["body"].to_pylist() == [row["body"] for row in wanted]
        if queue == "plain":
            redelivered = left["redelivered"].to_pylist()
    node.start()
    with Client(node.port) as client:
        delivered = client.drain("plain")
    check(delivered, expected(both, "plain")[gone["plain"] :])
    assert redelivered == [delivery.redelivered for delivery in delivered]


def test_a_node_recovers_what_was_written_without_the_clean_files(node: Node, tmp_path: Path) -> None:
    store = tmp_path / "vhosts" / "any-name"
    table = rows(ROWS, 3)
    write(store, table)
    (tmp_path / "vhosts" / "definitions.json").unlink()
    done = CliRunner().invoke(main, ["definitions", str(store), "-o", str(tmp_path / "printed.json")])
    assert (done.exit_code, done.stdout) == (0, "")
    target = declare(node, tmp_path / "printed.json")
    assert f"msg_stores/vhosts/{target.name}  by  {store}" in done.stderr
    (store / "recovery.dets").unlink()
    for name in ("clean.dot", "file_summary.ets", "msg_store_index.ets"):
        (store / "msg_store_persistent" / name).unlink()
    put(store, target)
    node.start()
    found = drained(node)
    for queue in QUEUES:
        check(found[queue], expected(table, queue))
        assert all(delivery.redelivered for delivery in found[queue])
