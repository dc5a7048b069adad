"""The rows of `test_bulk_writes.py`, published one by one: a node boots to the same deliveries, clean and dirty.

There are transient messages between them, which a node drops. What it leaves after that is what mqstore reads.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from storage_core.rabbitmq import open_store
from storage_core.store import ScanRequest
from tests.real.rabbitmq.node import Node
from tests.real.rabbitmq.written import (
    MAX_PRIORITY,
    QUEUES,
    ROWS,
    ack_half,
    check,
    drained,
    expected,
    rows,
    wanted_properties,
)

pytestmark = [pytest.mark.real, pytest.mark.timeout(900 if ROWS <= 20_000 else 0)]

TRANSIENT = b"gone after a start"


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    found = Node(tmp_path / "node")
    yield found
    found.kill()


def how_of(row: dict[str, Any]) -> dict[str, Any]:
    """The row as arguments of `publish`."""
    how: dict[str, Any] = {"exchange": row["exchange"], "routing_keys": row["routingKeys"]}
    if row["expiresAt"] is not None:
        how["expires_at_us"] = int(row["expiresAt"].timestamp() * 1_000_000)
    if row["rawProperties"] is not None:
        return {**how, "raw_properties": row["rawProperties"]}
    return {**how, **wanted_properties(row)}


def publish(store: Path, table: pa.Table, clean: bool) -> None:
    """Publishes all rows, paging meanwhile, and closes the store, or abandons it after a last sync."""
    with ExitStack() as opened, open_store(str(store)) as found:
        queues = {
            name: opened.enter_context(found.queue(name, max_priority=MAX_PRIORITY if name == "prio" else None))
            for name in QUEUES
        }
        for queue in queues.values():
            queue.set_target_ram_count(500)
        number = 0
        for batch in table.to_batches(max_chunksize=1000):
            for row in batch.to_pylist():
                queues[row["queue"]].publish(row["body"], **how_of(row))
                if number % 7 == 0:
                    queues[row["queue"]].publish(TRANSIENT * (1 + number % 300), persistent=False)
                number += 1
        for queue in queues.values():
            queue.sync()
        if not clean:
            queues["plain"]._vhost.abandon(RuntimeError("killed"))


@pytest.mark.parametrize("clean", [True, False])
def test_a_node_delivers_what_was_published(node: Node, tmp_path: Path, clean: bool) -> None:
    store, table = tmp_path / "vhosts" / "any-name", rows(ROWS, 1)
    with open_store(str(store)) as found, ExitStack() as opened:
        for name in QUEUES:
            opened.enter_context(found.queue(name, max_priority=MAX_PRIORITY if name == "prio" else None))
    publish(store, table, clean)
    node.start()
    node.ctl("import_definitions", str(tmp_path / "vhosts" / "definitions.json"))
    node.stop()
    target = next(node.vhosts.iterdir())
    shutil.rmtree(target)
    shutil.copytree(store, target)
    node.start()
    found = drained(node)
    for queue in QUEUES:
        check(found[queue], expected(table, queue))
        assert {delivery.redelivered for delivery in found[queue]} == {not clean}
    del found
    gone = {queue: ack_half(node, queue) for queue in QUEUES}
    assert sum(gone.values()) > ROWS // 2 - len(QUEUES)
    node.stop()
    with open_store(str(target)) as opened_store:
        for queue in QUEUES:
            plan = opened_store.snapshot().plan(ScanRequest(topics=(queue,)))
            left = pa.Table.from_batches([batch for partition in plan for batch in partition.read()])
            assert left["body"].to_pylist() == [row["body"] for row in expected(table, queue)[gone[queue] :]]
