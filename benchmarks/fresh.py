"""One measurement in a fresh process, for work that a process does only once or that needs its own; prints JSON.

`python -m benchmarks.fresh snapshot PATH`: opens a store and plans all of it.
`python -m benchmarks.fresh open PATH`: opens a store with `recovery=none` and lists its queues.
`python -m benchmarks.fresh read FILE`: reads the pickled partitions of FILE, as a Spark worker would.
"""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter, process_time

import storage_core.rabbitmq.store
import storage_core.rocketmq.store  # noqa: F401  # importing an engine is not what is measured
from benchmarks.machine import peak_bytes
from storage_core import open_store
from storage_core.files import system
from storage_core.formats.layout import Bytes, Positions
from storage_core.store import ScanRequest

ROOT = Path(__file__).resolve().parents[1]


class ByteCount:
    """The number of bytes that were read through `system`."""

    def __init__(self) -> None:
        self.bytes_read = 0


@contextmanager
def counted_bytes() -> Iterator[ByteCount]:
    """Counts the bytes that are read from files inside of the block."""
    count = ByteCount()
    into, plain, each = system.pread_into, system.pread, system.pread_runs

    def counting_into(descriptor: int, target: memoryview, position: int) -> int:
        done = into(descriptor, target, position)
        count.bytes_read += done
        return done

    def counting(descriptor: int, size: int, position: int) -> bytes:
        data = plain(descriptor, size, position)
        count.bytes_read += len(data)
        return data

    def counting_each(
        descriptors: Positions, target: Bytes, starts: Positions, stops: Positions, positions: Positions
    ) -> tuple[int, int] | None:
        before = count.bytes_read
        ended = each(descriptors, target, starts, stops, positions)
        # The same count, whether the loop is compiled or not.
        count.bytes_read = before + int((stops - starts).sum())
        return ended

    system.pread_into, system.pread, system.pread_runs = counting_into, counting, counting_each
    try:
        yield count
    finally:
        system.pread_into, system.pread, system.pread_runs = into, plain, each


def in_fresh_process(what: str, path: str) -> dict[str, float]:
    """Runs one measurement and returns what it prints. It has no access to what earlier processes cached."""
    command = [sys.executable, "-m", "benchmarks.fresh", what, path]
    with TemporaryDirectory(prefix="mqstore-bench-") as nothing:
        environment = {**os.environ, "XDG_CACHE_HOME": nothing}
        done = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def _snapshot(path: str) -> dict[str, float]:
    with counted_bytes() as count:
        cpu, start = process_time(), perf_counter()
        partitions = open_store(path).snapshot().plan(ScanRequest())
        wall_s, cpu_s = perf_counter() - start, process_time() - cpu
    return {"wall_s": wall_s, "cpu_s": cpu_s, "bytes_read": count.bytes_read, "partitions": len(partitions)}


def _open(path: str) -> dict[str, float]:
    cpu, start = process_time(), perf_counter()
    with open_store(path, recovery="none") as store:
        queues = store.queues()
    return {"wall_s": perf_counter() - start, "cpu_s": process_time() - cpu, "queues": len(queues)}


def _read(path: str) -> dict[str, float]:
    with open(path, "rb") as file:
        # Our own plan, written a moment ago by the process that started this one.
        partitions = pickle.load(file)  # noqa: S301
    before, rows = peak_bytes(), 0
    for partition in partitions:
        for batch in partition.read():
            rows += batch.num_rows
    return {"rows": rows, "grown_bytes": peak_bytes() - before}


if __name__ == "__main__":
    print(json.dumps({"snapshot": _snapshot, "open": _open, "read": _read}[sys.argv[1]](sys.argv[2])))
