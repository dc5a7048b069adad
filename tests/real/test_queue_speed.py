"""Messages per second of `queue()` and of the real rabbit_variable_queue, in batches of 100, in one run.

Prints the rates and their ratio (`-s`). The real queue's time includes building its message terms, as ours does.
The limit applies to the ratio: the speed of the machine, and its other load, must not decide the test.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from statistics import median

import pytest

from storage_core.rabbitmq.queue.queue import Queue
from tests.rabbitmq.traces import answers
from tests.real.rabbitmq.backing_queue import BackingQueue
from tests.real.rabbitmq.node import Node
from tests.real.rabbitmq.scripts import DEFAULTS

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]

BATCH, SIZE = 100, 200
BATCHES = int(os.environ.get("MQSTORE_BATCHES", "2000"))
ROUNDS = 3
WANTED = 2
"""As a multiple of the rate of the real queue."""


def real_speed(queue: BackingQueue, folder: Path, number: int) -> tuple[float, float]:
    settings = ", ".join(f"{{{name}, {value}}}" for name, value in DEFAULTS.items())
    script = folder / f"speed-{number}.script"
    script.write_text(f"{{config, #{{env => [{settings}]}}}}.\n{{speed, {BATCHES}, {BATCH}, {SIZE}}}.\n")
    published_us, fetched_us = answers(queue.run([script])[0])[1]["result"]
    count = BATCHES * BATCH * 1e6
    return count / published_us, count / fetched_us


class Stopwatch:
    """Messages per second of wall-clock time, and per second of this process's CPU time."""

    def __init__(self) -> None:
        self.wall, self.cpu = time.perf_counter(), time.process_time()

    def rates(self) -> tuple[float, float]:
        count = BATCHES * BATCH
        return count / (time.perf_counter() - self.wall), count / (time.process_time() - self.cpu)


def own_speed(folder: Path, number: int) -> tuple[tuple[float, float], tuple[float, float]]:
    """The rates of publishing, and of fetching with bodies and acknowledging."""
    bodies = [b"x" * SIZE] * BATCH
    with Queue(str(folder / f"store-{number}"), "q") as queue:
        watch = Stopwatch()
        for _ in range(BATCHES):
            queue.publish_many(bodies)
        published, watch = watch.rates(), Stopwatch()
        for _ in range(BATCHES):
            taken = queue.fetch_many(BATCH)
            assert len(taken.bodies()) == BATCH
            queue.ack(taken)
        return published, watch.rates()


def test_publish_and_fetch_in_batches(tmp_path: Path) -> None:
    node = Node(tmp_path / "node")
    node.start()
    try:
        real = BackingQueue(node, tmp_path)
        pairs = [(own_speed(tmp_path, number), real_speed(real, tmp_path, number)) for number in range(ROUNDS)]
    finally:
        node.stop()
    for what, at in (("publish", 0), ("fetch and ack", 1)):
        wall, cpu = (median(own[at][kind] for own, _ in pairs) for kind in (0, 1))
        theirs = median(other[at] for _, other in pairs)
        print(
            f"{what}: {wall:,.0f}/s ({cpu:,.0f} per CPU second), the real queue {theirs:,.0f}/s, {wall / theirs:.2f}x"
        )
        assert max(own[at][0] / other[at] for own, other in pairs) > WANTED
