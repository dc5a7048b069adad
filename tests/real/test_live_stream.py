"""A real broker writes at full speed while a stream reads its directory: no row is missing, duplicated or torn.

The broker's own throughput with and without the reader is measured alternately and printed. `MQSTORE_LIVE_S` sets how
long the reader runs, in seconds (8; 60 in `make test-real-full`).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from storage_core import open_store
from tests.real.broker import Broker

pytestmark = pytest.mark.real

SECONDS = float(os.environ.get("MQSTORE_LIVE_S", "8"))
TURNS, QUEUES, SIZE, BATCH = 3, 4, 300, 16
SETTINGS = {"mappedFileSizeCommitLog": 16 << 20, "mappedFileSizeConsumeQueue": 400_000}
ROOT = Path(__file__).resolve().parents[2]


class Reader:
    """A reader in a separate process."""

    def __init__(self, store: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.real.live_reader", str(store), str(SIZE)], cwd=ROOT, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip

    def say(self, command: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{command}\n")
        self._process.stdin.flush()

    def until(self, read: list[int]) -> dict[str, Any]:
        """Waits until it has read this many rows of each queue; returns what it then reports."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            status: dict[str, Any] = json.loads(line)
            if [status["read"].get(str(queue), 0) for queue in range(QUEUES)] == read:
                return status
        raise AssertionError("the reader ended")

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()


@contextmanager
def reader(store: Path) -> Iterator[Reader]:
    running = Reader(store)
    try:
        yield running
    finally:
        running.kill()


@pytest.mark.timeout(600)
@pytest.mark.parametrize("version", ["493", "533"][: 1 if SECONDS < 60 else 2])
def test_a_stream_reads_the_directory_of_a_broker_at_full_speed(version: str, tmp_path: Path) -> None:
    store = tmp_path / "store"
    sent = [0] * QUEUES
    rates: dict[bool, float] = {True: 0.0, False: 0.0}
    with Broker(version, store, SETTINGS) as broker:
        broker.ask(op="topic", topic="load", queues=QUEUES)
        flood = {"op": "flood", "topic": "load", "threads": QUEUES, "size": SIZE, "batch": BATCH}
        sent = broker.ask(**flood, seconds=2, first=sent)["next"]
        with reader(store) as running:
            for turn in range(2 * TURNS):
                on = turn % 2 == 0
                running.say("on")
                running.until(sent)
                running.say("on" if on else "off")
                before = sum(sent)
                sent = broker.ask(**flood, seconds=SECONDS / TURNS, first=sent)["next"]
                rates[on] += (sum(sent) - before) / SECONDS
            running.say("on")
            status = running.until(sent)
    with open_store(str(store)) as opened:
        ends = [(info.start, info.stop) for info in opened.queues() if info.topic == "load"]
    assert ends == [(0, each) for each in sent]
    print(
        f"{version}: {sum(sent)} messages of {SIZE} B in {status['triggers']} micro-batches, the slowest took "
        f"{status['slowest']:.2f} s; {rates[True]:,.0f} messages/s while it was read, {rates[False]:,.0f} alone: "
        f"{rates[True] / rates[False]:.3f}; load {os.getloadavg()[0]:.1f}"
    )
    assert status["triggers"] > TURNS
