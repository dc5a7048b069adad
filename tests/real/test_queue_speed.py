"""Messages per second of `queue()` and of the real rabbit_variable_queue, in batches of 100, in one run.

Prints the rates and their ratio (`-s`). The real queue's time includes building its message terms, as ours does.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from statistics import median

import pytest

from storage_core.rabbitmq.queue import Queue
from tests.rabbitmq.traces import answers
from tests.real.rabbitmq.backing_queue import BackingQueue
from tests.real.rabbitmq.node import Node
from tests.real.rabbitmq.scripts import DEFAULTS

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]

BATCH, SIZE = 100, 200
BATCHES = int(os.environ.get("MQSTORE_BATCHES", "2000"))
ROUNDS = 3
WANTED = 200_000


def real_speed(queue: BackingQueue, folder: Path, number: int) -> tuple[float, float]:
    settings = ", ".join(f"{{{name}, {value}}}" for name, value in DEFAULTS.items())
    script = folder / f"speed-{number}.script"
    script.write_text(f"{{config, #{{env => [{settings}]}}}}.\n{{speed, {BATCHES}, {BATCH}, {SIZE}}}.\n")
    published_us, fetched_us = answers(queue.run([script])[0])[1]["result"]
    count = BATCHES * BATCH * 1e6
    return count / published_us, count / fetched_us


def own_speed(folder: Path, number: int) -> tuple[float, float]:
    """Wall-clock rates of publishing, and of fetching with bodies and acknowledging."""
    bodies = [b"x" * SIZE] * BATCH
    with Queue(str(folder / f"store-{number}"), "q") as queue:
        start = time.perf_counter()
        for _ in range(BATCHES):
            queue.publish_many(bodies)
        published = time.perf_counter()
        for _ in range(BATCHES):
            taken = queue.fetch_many(BATCH)
            assert len(taken.bodies()) == BATCH
            queue.ack(taken)
        fetched = time.perf_counter()
    count = BATCHES * BATCH
    return count / (published - start), count / (fetched - published)


def test_publish_and_fetch_in_batches(tmp_path: Path) -> None:
    node = Node(tmp_path / "node")
    node.start()
    try:
        real = BackingQueue(node, tmp_path)
        pairs = [(own_speed(tmp_path, number), real_speed(real, tmp_path, number)) for number in range(ROUNDS)]
    finally:
        node.stop()
    for what, at in (("publish", 0), ("fetch and ack", 1)):
        ours, theirs = (median(pair[side][at] for pair in pairs) for side in (0, 1))
        print(f"{what}: {ours:,.0f}/s, the real queue {theirs:,.0f}/s, ratio {ours / theirs:.2f}")
        assert ours > 0
    best = [max(pair[0][at] for pair in pairs) for at in (0, 1)]
    if min(best) < WANTED:
        load = os.getloadavg()[0] / (os.cpu_count() or 1)
        assert load > 1, f"{best} on a machine that has nothing else to do; {WANTED} are wanted"
