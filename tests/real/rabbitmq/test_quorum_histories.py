"""Random histories of quorum queues: what a real node delivers after a kill or a stop is what we read before it.

`MQSTORE_HISTORIES` sets how many of 3.10.8, `MQSTORE_RELEASE_4` how many of 3.12, 4.0 and 4.3. A history continues with
the queues as draining them after the previous one left them, so it begins with returned messages, snapshots and several
terms of the log.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.rabbitmq import quorum_golden as golden
from tests.real.rabbitmq.giving_way import NOTED_S, give_way, started
from tests.real.rabbitmq.node import Node
from tests.real.rabbitmq.node_4 import LATER, ROUNDS, Node4, Node43, Node312
from tests.real.rabbitmq.quorum_compared import STEPS, compare, differing, drained
from tests.real.rabbitmq.quorum_history import SETTLE_S, SMALL_LOG, TINY_LOG, History, snapshot_often, with_small_log

pytestmark = [pytest.mark.real, pytest.mark.timeout(0)]

SEED = int(os.environ.get("MQSTORE_SEED", "20261123"))
HISTORIES = int(os.environ.get("MQSTORE_HISTORIES", "2"))
OF_ONE_NODE = 10


def compared(make: Callable[[Path], Node], count: int, consumers: bool, folder: Path) -> int:
    """Compares `count` histories, at most OF_ONE_NODE per node; returns the number of messages compared."""
    found = 0
    for first in range(0, count, OF_ONE_NODE):
        node = make(folder / f"node-{first}")
        try:
            node.start()
            history = History(node, SEED + first, consumers)
            if consumers:
                snapshot_often(node)
            history.declare()
            for number in range(first, min(first + OF_ONE_NODE, count)):
                found += compare(node, history, number, folder / "copy", f"seed {SEED}, history {number}")
        finally:
            node.remove()
    print(f"{count} histories of {len(history.queues)} queues, seed {SEED}: {found} messages as delivered")
    return found


def test_what_a_node_delivers_after_a_random_history(tmp_path: Path) -> None:
    found = compared(lambda folder: with_small_log(Node(folder)), HISTORIES, False, tmp_path)
    assert found > 20 * HISTORIES


@LATER
@pytest.mark.parametrize(("kind", "log"), [(Node312, SMALL_LOG), (Node4, SMALL_LOG), (Node43, TINY_LOG)])
def test_what_a_later_node_delivers_after_a_random_history(kind: type[Node4], log: str, tmp_path: Path) -> None:
    """With long-lived consumers, including single active ones, and messages of high priority."""
    found = compared(lambda _: kind(log), ROUNDS, True, tmp_path)
    assert found > 50 * ROUNDS


@LATER
@pytest.mark.parametrize(
    ("kind", "wait_s", "delivered", "starts"),
    [(Node4, 0, 1, 1), (Node4, NOTED_S, 1 + 5, 1), (Node43, 0, 1 + 5, 2), (Node43, NOTED_S, 1 + 5, 2)],
)
def test_a_consumer_that_was_giving_way(
    kind: type[Node4], wait_s: float, delivered: int, starts: int, tmp_path: Path
) -> None:
    """When a node of 4.0 starts, the consumer takes messages again before it is gone, and these count as delivered; but
    only if the node knew of it when it last recorded what it had applied. On 4.3 the consumer is revived, and takes
    messages until the next start.
    """
    node = kind()
    try:
        node.start()
        give_way(node, wait_s)
        shutil.copytree(node.vhosts.parents[1] / "quorum", tmp_path / "copy", symlinks=True)
        (folder,) = (tmp_path / "copy").iterdir()
        found = golden.delivered(golden.rows(folder))
        assert sum(row["redelivered"] for row in found["/", "q"]) == delivered
        started(node, starts)
        assert differing(found, drained(node, ["q"])) == []
    finally:
        node.remove()


@LATER
def test_what_an_upgraded_node_delivers(tmp_path: Path) -> None:
    """A node of 4.0 continues as one of 4.3: logs go from machine version 5 to 8, some from a snapshot of version 5."""
    old, new = Node4(SMALL_LOG), Node43(TINY_LOG)
    try:
        old.start()
        old.ctl("enable_feature_flag", "all")
        old.ctl("enable_feature_flag", "--experimental", "khepri_db")
        snapshot_often(old)
        history = History(old, SEED, True)
        history.declare()
        history.run(STEPS)
        old.stop()
        history.abandon()
        shutil.copytree(old.folder / "mnesia", new.folder / "mnesia", symlinks=True)
        new.start()
        time.sleep(SETTLE_S)
        history.move_to(new)
        for number in range(ROUNDS):
            assert compare(new, history, number, tmp_path / "copy", f"seed {SEED}, upgraded, history {number}")
    finally:
        old.remove()
        new.remove()
