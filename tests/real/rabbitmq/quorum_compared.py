"""Compares a node's quorum queues: what it delivers after its next start, and what we read before it."""

from __future__ import annotations

import hashlib
import shutil
import time
from collections import Counter
from itertools import zip_longest
from pathlib import Path
from typing import Any

from storage_core.formats.rabbitmq.amqp import properties
from tests.golden.archive import fingerprint
from tests.rabbitmq import quorum_golden as golden
from tests.real.rabbitmq.amqp import Client
from tests.real.rabbitmq.node import Node
from tests.real.rabbitmq.quorum_history import DEAD_LETTERS, NOBODY, QUEUES, History, snapshot_often

STEPS = 60
SOURCES = tuple(
    f"q{number} ".encode()
    for number, each in enumerate(QUEUES)
    if each.get("x-dead-letter-routing-key") == DEAD_LETTERS
)
"""The prefixes of the bodies of messages that may become dead letters."""

HOLDING = [f"q{number}" for number, each in enumerate(QUEUES) if each.get("x-dead-letter-routing-key") == NOBODY]
HELD = """
{ok, Q} = rabbit_amqqueue:lookup(rabbit_misc:r(<<"/">>, queue, <<"%s">>)),
proplists:get_value(messages_dlx, rabbit_quorum_queue:info(Q, [messages_dlx])).
"""

Delivered = dict[golden.Queue, list[golden.Message]]


def drained(node: Node, queues: list[str]) -> Delivered:
    """What the node delivers from each queue, in the form of the fixtures' truth; all of it returns to the queues."""
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


def held(node: Node, queue: str) -> int:
    """How many messages of a queue are held for its dead-letter worker."""
    return int(node.eval(HELD % queue))


def without_new(delivered: Delivered, known: list[golden.Message], bodies: frozenset[str]) -> Delivered:
    """The deliveries without dead letters beyond the known ones: a node start applies the commands after the last tick
    before a kill again, and publishes their dead letters (docs/format/rabbitmq-quorum.md 11). On disk there was none,
    or, of one published at least once, one less. One is redelivered only if it keeps the delivery count of its source,
    as those of v5_random do.
    """
    key = "/", DEAD_LETTERS
    left, kept = Counter(each["body_sha256"] for each in known), []
    for each in delivered.get(key, []):
        if left[each["body_sha256"]]:
            left[each["body_sha256"]] -= 1
            kept.append(each)
        elif each["body_sha256"] not in bodies or (each["redelivered"] and not _has_count(each)):
            return delivered
    others = {name: messages for name, messages in delivered.items() if name != key}
    return {**others, key: kept} if kept else others


def _has_count(delivered: dict[str, Any]) -> bool:
    return any(name == "x-delivery-count" for name, _, _ in delivered["props"].get("headers") or ())


def differing(found: Delivered, expected: Delivered) -> list[str]:
    """For each queue whose messages differ: the numbers of messages, and the first difference."""
    differences = []
    for name in sorted({*found, *expected}):
        pairs = zip_longest(found.get(name, []), expected.get(name, []))
        first = next(((row, ours, theirs) for row, (ours, theirs) in enumerate(pairs) if ours != theirs), None)
        if first is not None:
            differences.append(f"{name}: {len(found.get(name, []))} of {len(expected.get(name, []))}, {first}")
    return differences


def compare(node: Node, history: History, number: int, copy: Path, what: str) -> int:
    """Continues a history, ends the node in the middle of it, reads its disk, starts it again, and drains it. Returns
    the number of messages compared; `what` is reported if some differ.
    """
    history.run(STEPS)
    node.end(clean=number % 3 == 2)
    history.abandon()
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(node.vhosts.parents[1] / "quorum", copy, symlinks=True)
    before = fingerprint(copy)
    (folder,) = copy.iterdir()
    one, seven = (golden.delivered(golden.rows(folder, min_partitions=count)) for count in (1, 7))
    letters = [row["queue"] for row in golden.rows(folder, include_acked=True) if row["status"] == "dead-lettering"]
    assert fingerprint(copy) == before
    node.start()
    if history.consumers:
        snapshot_often(node)
    time.sleep(5)
    still_held = [held(node, name) for name in HOLDING]
    drained_all = drained(node, history.queues)
    expected = without_new(drained_all, one.get(("/", DEAD_LETTERS), []), history.dead_letters(SOURCES))
    assert not (differences := differing(one, expected)), (what, differences)
    assert seven == one, f"{what}, seven partitions"
    assert [letters.count(name) for name in HOLDING] == still_held, what
    return sum(map(len, expected.values()))
