"""Messages of quorum queues that consumers annotated, or that are delayed: those of the node after a start equal ours.

The commands are those that an AMQP 1.0 consumer issues with the outcome `modified`, passed to the queue directly.
"""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from tests.rabbitmq import quorum_golden as golden
from tests.real.rabbitmq.node_4 import FROM_4_ON, LATER, Node4, Node43
from tests.real.rabbitmq.quorum_compared import Delivered, drained
from tests.real.rabbitmq.quorum_history import SETTLE_S, SMALL_LOG, SNAPSHOTS
from tests.real.rabbitmq.returned import MESSAGES, QUEUE, a_consumer, modify

pytestmark = [pytest.mark.real, pytest.mark.timeout(0), LATER]

RETRY = """
{ok, Q} = rabbit_amqqueue:lookup(rabbit_misc:r(<<"/">>, queue, <<"returned">>)),
ra:process_command(amqqueue:get_pid(Q), rabbit_fifo:make_delayed({retry, all})).
"""


def rows_of(node: Node4, copy: Path) -> list[dict[str, Any]]:
    """The rows that we read from a killed node."""
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(node.vhosts.parents[1] / "quorum", copy, symlinks=True)
    (folder,) = copy.iterdir()
    return golden.rows(folder, topics=(QUEUE,))


def delivered_after_a_start(node: Node4) -> Delivered:
    node.start()
    time.sleep(SETTLE_S)
    return drained(node, [QUEUE])


@pytest.mark.parametrize("kind", FROM_4_ON)
@pytest.mark.parametrize("has_snapshot", [False, True])
def test_what_consumers_noted(kind: type[Node4], has_snapshot: bool, tmp_path: Path) -> None:
    node = kind(SMALL_LOG)
    try:
        node.start()
        with a_consumer(node, {"x-delivery-limit": 20}) as connection:
            noted = '#{<<"x-opt-text">> => <<"a">>, <<"x-opt-number">> => 5, <<"x-opt-yes">> => true}'
            modify(node, [0, 2], True, noted)
            modify(node, [1], False, '#{<<"x-opt-text">> => <<"b">>}')
            modify(node, [3], True, "#{}")
            connection.process_data_events(0.5)
            modify(node, [6], False, '#{<<"x-opt-number">> => -1}')
            if has_snapshot and node.snapshots_hold_messages:
                node.eval(SNAPSHOTS)
                time.sleep(1)
        found = golden.delivered(rows_of(node, tmp_path / "copy"))
        assert found == delivered_after_a_start(node)
        headers = [row["props"]["headers"] for row in found["/", QUEUE]]
        assert sum(any(name == "x-opt-number" for name, *_ in listed) for listed in headers) == 2
    finally:
        node.remove()


@pytest.mark.parametrize("retry", ["all", "failed", "returned", None])
def test_what_waits_for_its_time(retry: str | None, tmp_path: Path) -> None:
    """Messages are delayed by a queue argument, or by a consumer. At the end the node is told to stop waiting."""
    node = Node43(SMALL_LOG)
    arguments = {"x-delayed-retry-type": retry, "x-delayed-retry-min": 80_000_000} if retry else {}
    far = int(time.time() * 1000) + 70_000_000
    try:
        node.start()
        with a_consumer(node, arguments):
            modify(node, [0], True, "#{}")
            modify(node, [1], False, "#{}")
            modify(node, [2], False, f'#{{<<"x-opt-delivery-time">> => {far}}}')
            modify(node, [4], True, f'#{{<<"x-opt-delivery-time">> => {far - 1}}}')
        rows = rows_of(node, tmp_path / "copy")
        waiting = [row for row in rows if row["status"] == "delayed"]
        at_once = golden.delivered([row for row in rows if row["status"] != "delayed"])
        assert len(rows) == MESSAGES
        assert waiting
        assert at_once == delivered_after_a_start(node)
        node.kill()
        assert [row["body"] for row in rows_of(node, tmp_path / "copy") if row["status"] == "delayed"][
            : len(waiting)
        ] == [row["body"] for row in waiting]
        node.start()
        time.sleep(SETTLE_S)
        node.eval(RETRY)
        assert {row["body_sha256"] for row in drained(node, [QUEUE])["/", QUEUE]} == {
            row["body_sha256"] for row in golden.delivered(rows)["/", QUEUE]
        }
    finally:
        node.remove()
