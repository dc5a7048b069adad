"""Random histories of quorum queues: what a real 3.10.8 node delivers after a kill or a stop is what we read before it.

`MQSTORE_HISTORIES` says how many. A history goes on where the node's own draining of the one before left its queues, so
it begins with returned messages, snapshots and several terms of the log.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from itertools import zip_longest
from pathlib import Path

import pytest

from storage_core.formats.rabbitmq.message import properties
from tests.golden.archive import fingerprint
from tests.rabbitmq import quorum_golden as golden
from tests.real.rabbitmq.amqp import Client
from tests.real.rabbitmq.node import Node
from tests.real.rabbitmq.quorum_history import DEAD_LETTERS, QUEUES, History, with_small_log

pytestmark = [pytest.mark.real, pytest.mark.timeout(0)]

SEED = int(os.environ.get("MQSTORE_SEED", "20261123"))
HISTORIES = int(os.environ.get("MQSTORE_HISTORIES", "2"))
OF_ONE_NODE, STEPS = 10, 60
SOURCES = tuple(
    f"q{number} ".encode()
    for number, each in enumerate(QUEUES)
    if each.get("x-dead-letter-routing-key") == DEAD_LETTERS
)
"""How the bodies of messages begin that may become dead letters."""

Delivered = dict[golden.Queue, list[golden.Message]]


def drained(node: Node, queues: list[str]) -> Delivered:
    """What the node delivers of each queue, in the words of the fixtures' truth; all of it returns."""
    found = {}
    for name in queues:
        with Client(node.port) as client:
            rows = [
                golden.as_delivered(
                    hashlib.sha256(each.body).hexdigest(), len(each.body), properties.decode(each.properties),
                    each.exchange, each.routing_key, each.redelivered,
                )
                for each in client.consume(name)
            ]  # fmt: skip
        if rows:
            found["/", name] = rows
    return found


def test_what_a_node_delivers_after_a_random_history(tmp_path: Path) -> None:
    compared = 0
    for first in range(0, HISTORIES, OF_ONE_NODE):
        node = with_small_log(Node(tmp_path / f"node-{first}"))
        node.start()
        try:
            history = History(node, SEED + first)
            history.declare()
            for number in range(first, min(first + OF_ONE_NODE, HISTORIES)):
                compared += compare(node, history, number, tmp_path / "copy")
        finally:
            node.kill()
    print(f"{HISTORIES} histories of {len(history.queues)} queues, seed {SEED}: {compared} messages as delivered")
    assert compared > 20 * HISTORIES


def without_new(delivered: Delivered, known: int, bodies: frozenset[str]) -> Delivered:
    """Without the dead letters behind the first `known`: a start applies commands again that came after the last tick
    before a kill, and publishes their dead letters (docs/format/rabbitmq-quorum.md 11). On the disk there was none.
    """
    key = "/", DEAD_LETTERS
    dead = delivered.get(key, [])
    new = dead[known:]
    if any(each["redelivered"] or each["body_sha256"] not in bodies for each in new):
        return delivered
    left = {name: messages for name, messages in delivered.items() if name != key}
    return {**left, key: dead[:known]} if dead[:known] else left


def differing(found: Delivered, expected: Delivered) -> list[str]:
    """For each queue whose messages differ: how many there are, and the first difference."""
    told = []
    for name in sorted({*found, *expected}):
        pairs = zip_longest(found.get(name, []), expected.get(name, []))
        first = next(((row, ours, theirs) for row, (ours, theirs) in enumerate(pairs) if ours != theirs), None)
        if first is not None:
            told.append(f"{name}: {len(found.get(name, []))} of {len(expected.get(name, []))}, {first}")
    return told


def compare(node: Node, history: History, number: int, copy: Path) -> int:
    """Ends the node in the middle of its work, reads its disk, starts it again, and drains it."""
    history.run(STEPS)
    if number % 3 == 2:
        node.stop()
    else:
        node.kill()
    history.abandon()
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(node.vhosts.parents[1] / "quorum", copy)
    before = fingerprint(copy)
    (folder,) = copy.iterdir()
    one, seven = (golden.delivered(golden.rows(folder, min_partitions=count)) for count in (1, 7))
    assert fingerprint(copy) == before
    node.start()
    time.sleep(5)
    drained_all = drained(node, history.queues)
    expected = without_new(drained_all, len(one.get(("/", DEAD_LETTERS), [])), history.dead_letters(SOURCES))
    assert not differing(one, expected), f"seed {SEED}, history {number}"
    assert seven == one, f"seed {SEED}, history {number}, seven partitions"
    return sum(map(len, expected.values()))
