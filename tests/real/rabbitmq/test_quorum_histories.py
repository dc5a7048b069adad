"""Random histories of quorum queues: what a real node delivers after a kill or a stop is what we read before it.

`MQSTORE_HISTORIES` says how many of 3.10.8, `MQSTORE_RELEASE_4` how many of 3.12 and 4.0. A history goes on where the
node's own draining of the one before left its queues, so it begins with returned messages, snapshots and several terms
of the log.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.real.rabbitmq.node import Node
from tests.real.rabbitmq.node_4 import Node4, Node312
from tests.real.rabbitmq.quorum_compared import compare
from tests.real.rabbitmq.quorum_history import SMALL_LOG, History, snapshot_often, with_small_log

pytestmark = [pytest.mark.real, pytest.mark.timeout(0)]

SEED = int(os.environ.get("MQSTORE_SEED", "20261123"))
HISTORIES = int(os.environ.get("MQSTORE_HISTORIES", "2"))
LATER = int(os.environ.get("MQSTORE_RELEASE_4", "0"))
OF_ONE_NODE = 10


def test_what_a_node_delivers_after_a_random_history(tmp_path: Path) -> None:
    compared = 0
    for first in range(0, HISTORIES, OF_ONE_NODE):
        node = with_small_log(Node(tmp_path / f"node-{first}"))
        node.start()
        try:
            history = History(node, SEED + first)
            history.declare()
            for number in range(first, min(first + OF_ONE_NODE, HISTORIES)):
                compared += compare(node, history, number, tmp_path / "copy", f"seed {SEED}, history {number}")
        finally:
            node.kill()
    print(f"{HISTORIES} histories of {len(history.queues)} queues, seed {SEED}: {compared} messages as delivered")
    assert compared > 20 * HISTORIES


@pytest.mark.skipif(not LATER, reason="make test-real-full installs RabbitMQ 3.12 and 4 (MQSTORE_RELEASE_4: rounds)")
@pytest.mark.parametrize("kind", [Node312, Node4])
def test_what_a_later_node_delivers_after_a_random_history(kind: type[Node4], tmp_path: Path) -> None:
    """With consumers that stay, single active ones too, and messages of high priority."""
    compared = 0
    for first in range(0, LATER, OF_ONE_NODE):
        node = kind(SMALL_LOG)
        try:
            node.start()
            snapshot_often(node)
            history = History(node, SEED + first, consumers=True)
            history.declare()
            for number in range(first, min(first + OF_ONE_NODE, LATER)):
                compared += compare(node, history, number, tmp_path / "copy", f"seed {SEED}, history {number}")
        finally:
            node.remove()
    print(f"{LATER} histories of {len(history.queues)} queues, seed {SEED}: {compared} messages as delivered")
    assert compared > 50 * LATER
