"""Question: how fast is an append (CRC, queues, index, commit) in one process, beside the real store's putMessage?

Both run in turn, each as a process of its own; the real store is `StoreBench` of the tests' oracle, which needs a Java.
Times of CPU are given too: they say more on a machine that others use.

    python -m benchmarks.write_core FOLDER CLASSPATH [COUNT]

CLASSPATH: the built oracle of 4.9.3 with a compiled StoreBench.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa

from storage_core import open_store

JAVA_FLAGS = (
    "--add-opens=java.base/java.nio=ALL-UNNAMED", "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.base/jdk.internal.ref=ALL-UNNAMED", "--add-opens=java.base/java.lang=ALL-UNNAMED",
    "--add-exports=java.base/sun.nio.ch=ALL-UNNAMED", "-Xmx2g",
)  # fmt: skip
SIZES = (100, 1024)
BATCH = 10_000


def batches(count: int, body_size: int) -> list[pa.RecordBatch]:
    """Messages as StoreBench puts them: one topic, UNIQ_KEY, KEYS and TAGS."""
    pool = np.random.default_rng(1).integers(0, 256, (BATCH, body_size), np.uint8)
    bodies = pa.array([row.tobytes() for row in pool], pa.binary())
    found = []
    for start in range(0, count, BATCH):
        numbers = range(start, start + BATCH)
        pairs = pa.array([[("UNIQ_KEY", f"{n:032X}")] for n in numbers], pa.map_(pa.string(), pa.string()))
        keys = pa.array([f"key-{n}" for n in numbers])
        found.append(pa.record_batch({"body": bodies, "key": keys, "tags": ["TagA"] * BATCH, "properties": pairs}))
    return found


def ours(folder: Path, body_size: int, count: int) -> dict[str, float]:
    """Seconds of one append into a new store of default geometry."""
    path = folder / "ours"
    shutil.rmtree(path, ignore_errors=True)
    made = pa.Table.from_batches(batches(count, body_size))
    before, began = _cpu(resource.RUSAGE_SELF), time.perf_counter()
    with open_store(str(path), "rocketmq") as store:
        store.append(made, topic="bench")
    return {"wall_s": time.perf_counter() - began, "cpu_s": _cpu(resource.RUSAGE_SELF) - before}


def theirs(folder: Path, classpath: str, body_size: int, count: int) -> dict[str, float]:
    """Seconds of putMessage, and with the dispatch behind it; CPU of the whole process."""
    path = folder / "theirs"
    shutil.rmtree(path, ignore_errors=True)
    before = _cpu(resource.RUSAGE_CHILDREN)
    command = ["java", *JAVA_FLAGS, "-cp", classpath, "StoreBench", str(path), str(count), str(body_size)]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    steps = {step["step"]: step for step in map(json.loads, text.splitlines())}
    put = steps["put"]
    return {
        "wall_s": put["seconds"],
        "dispatched_s": put["seconds"] + put.get("dispatch_s", 0),
        "process_cpu_s": _cpu(resource.RUSAGE_CHILDREN) - before,
    }


def _cpu(who: int) -> float:
    used = resource.getrusage(who)
    return used.ru_utime + used.ru_stime


def main(folder: Path, classpath: str, count: int) -> None:
    """Prints one line a size and side."""
    os.makedirs(folder, exist_ok=True)
    for body_size in SIZES:
        for name, found in (("putMessage", theirs(folder, classpath, body_size, count)),
                            ("mqstore", ours(folder, body_size, count))):  # fmt: skip
            rates = ", ".join(f"{key} {value:.2f} ({count / value / 1e6:.2f} M/s)" for key, value in found.items())
            print(f"{body_size} B x {count}: {name}: {rates}", flush=True)
        shutil.rmtree(folder)
        os.makedirs(folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else 200_000)
