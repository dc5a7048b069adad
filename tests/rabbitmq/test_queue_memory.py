"""The memory of a long queue stays flat, although far more is published than its target lets it keep."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
MESSAGES = 400_000
LIMIT = 100 << 20

CODE = """
import sys
from storage_core.files import system
from storage_core.rabbitmq.queue.queue import Queue
from storage_core.rabbitmq.disk.settings import Settings

count, body = int(sys.argv[2]), b"x" * 200
system.fsync = lambda descriptor: None  # memory is measured, not the disk
with Queue(sys.argv[1], "q", Settings(target_ram_count=10_000)) as queue:
    base = peak = system.memory_used()
    for batch in range(count // 100):
        queue.publish_many([body] * 100)
        if batch % 50 == 0:
            peak = max(peak, system.memory_used())
    assert len(queue) == count
    fetched = 0
    while len(taken := queue.fetch_many(100)):
        assert taken.bodies() == [body] * len(taken)
        queue.ack(taken)
        fetched += len(taken)
        if fetched % 5000 == 0:
            peak = max(peak, system.memory_used())
    assert fetched == count
    assert "pandas" not in sys.modules  # which takes as much as the queue
    print(peak - base)
"""


def test_a_queue_of_many_messages_stays_flat(tmp_path: Path) -> None:
    """Unbounded, these messages would take twice the limit. Runs without numba, which takes 60 MB of it."""
    done = subprocess.run(
        [sys.executable, "-c", CODE, str(tmp_path / "store"), str(MESSAGES)],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env={**os.environ, "MQSTORE_COMPILED": "never"},
    )
    assert done.stderr == ""
    assert int(done.stdout) < LIMIT, f"{int(done.stdout) >> 20} MiB over the start"
