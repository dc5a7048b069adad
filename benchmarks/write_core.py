"""The append core in one process, without Spark: CRC, queues, index and commit, against the real store's `putMessage`.

Also: whether a small commit costs more in a large store. The Spark side of question 4 is in `write`.
"""

from __future__ import annotations

import os
import shutil
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
import pyarrow as pa

from benchmarks.fresh import counted_bytes
from benchmarks.java_program import JavaProgram
from benchmarks.make_store import StoreShape, make_store
from benchmarks.measure import Rounds, Run, interleaved, timed
from benchmarks.report import Finding, Section
from storage_core import open_store

SIZES = {100: "100 B", 1024: "1 KB"}
COUNTS = {100: 1_000_000, 1024: 500_000}
OVER_PUT, OVER_PUT_GOAL = 4.0, 6.0
SMALL_JOB = 1_000
STORES = {"small": 20_000, "large": 4_000_000}
GROWTH = 1.25
BATCH = 10_000


def append_core(section: Section, folder: Path, scale: float, rounds: int) -> None:
    """Adds the findings of all sizes; prints one line if the real store cannot be run."""
    for body_size, title in SIZES.items():
        count = max(int(COUNTS[body_size] * scale), 100)
        _compare(section, folder, body_size, title, count, rounds)
    _commit_cost(section, folder, scale, rounds)


def messages(first: int, count: int, body_size: int) -> pa.Table:
    """Messages as `StoreBench` puts them: one topic, four queues, KEYS, TAGS and UNIQ_KEY."""
    pool = np.random.default_rng(1).integers(0, 256, (min(count, BATCH), body_size), np.uint8)
    bodies = pa.array([row.tobytes() for row in pool], pa.binary())
    found = []
    for start in range(first, first + count, BATCH):
        numbers = range(start, min(start + BATCH, first + count))
        pairs = [[("UNIQ_KEY", f"7F000001{number:024X}")] for number in numbers]
        found.append(
            pa.table({
                "body": bodies[: len(numbers)],
                "key": [f"order-{number}" for number in numbers],
                "tags": [f"Tag{number % 5}" for number in numbers],
                "queueId": pa.array(np.asarray(numbers) & 3, pa.int32()),
                "properties": pa.array(pairs, pa.map_(pa.string(), pa.string())),
            })
        )  # fmt: skip
    return pa.concat_tables(found)


def _compare(section: Section, folder: Path, body_size: int, title: str, count: int, rounds: int) -> None:
    table = messages(0, count, body_size)
    size = body_size * count
    ours: list[Run] = []
    puts: list[Run] = []
    warm: list[float] = []
    dispatched: list[float] = []
    missing = ""
    for number in range(rounds + 1):
        ours.append(_append(folder / "ours", table))
        with JavaProgram("StoreBench", [str(folder / "theirs"), str(count), str(body_size)], folder) as java:
            missing = java.missing
            if not missing:
                times = [_put(java), _put(java)]
                puts.append(times[0][0])
                dispatched.append(times[0][1])
                warm.append(times[1][0].wall_s)
        shutil.rmtree(folder / "theirs", ignore_errors=True)
        if not number:
            for each in (ours, puts, warm, dispatched):
                each.clear()
    found = Rounds({"mqstore": ours, **({"putMessage": puts} if puts else {})})
    section.foreign.append(found.foreign)
    rate = count / found.wall_s("mqstore") / 1e6
    cpu = found.cpu_s("mqstore") / count * 1e6
    note = f"{cpu:.2f} CPU-µs a message; {size / found.wall_s('mqstore') / 1e9:.2f} GB/s of bodies"
    section.add(Finding(f"{title}, no Spark: append into a new store", rate, "M/s", note=note))
    if missing:
        print(f"  RocketMQ's own store is left out: {missing}", flush=True)
        return
    note = (
        f"putMessage {count / found.wall_s('putMessage') / 1e6:.2f} M/s, with its dispatch "
        f"{count / median(dispatched) / 1e6:.2f}; again in the same JVM {count / median(warm) / 1e6:.2f}"
    )
    value = median(theirs / mine.wall_s for theirs, mine in zip(warm, ours, strict=True))
    section.add(
        Finding(f"{title}, no Spark: over putMessage, warmed up", value, "×", OVER_PUT, note=note, goal=OVER_PUT_GOAL)
    )


def _append(path: Path, table: pa.Table) -> Run:
    def work() -> None:
        with open_store(str(path), "rocketmq") as store:
            store.append(table, topic="bench")

    os.sync()
    run = timed(work)
    shutil.rmtree(path)
    return run


def _put(java: JavaProgram) -> tuple[Run, float]:
    """One round of StoreBench: the time of putMessage by its own clock, and the seconds until dispatch was done."""
    seconds: list[float] = []
    os.sync()
    run = timed(lambda: seconds.extend(map(float, java.again().split())))
    return Run(seconds[0], run.cpu_s, run.foreign), seconds[1]


def _commit_cost(section: Section, folder: Path, scale: float, rounds: int) -> None:
    """A job of a thousand rows into a store with few and one with many messages."""
    paths, bytes_read = {}, {}
    for name, count in STORES.items():
        paths[name] = make_store(str(folder / name), StoreShape(count, 98).scaled(scale))
        # The first job recovers the whole store, as a broker would; the jobs after it use what it records.
        with open_store(paths[name]) as store:
            store.append(messages(0, SMALL_JOB, 100), topic="bench")

    def job(name: str) -> None:
        with counted_bytes() as count, open_store(paths[name]) as store:
            store.append(messages(0, SMALL_JOB, 100), topic="bench")
        bytes_read[name] = count.bytes_read

    found = interleaved({name: partial(job, name) for name in paths}, max(rounds, 2) * 3)
    counts = " and ".join(f"{found.wall_s(name) * 1e3:.0f} ms with {STORES[name] * scale:,.0f}" for name in paths)
    section.add(
        Finding("a commit of 1,000 rows: large store over small", 1 / found.faster("large", "small"), "×", GROWTH,
                at_most=True, note=counts)
    )  # fmt: skip
    ratio = bytes_read["large"] / max(bytes_read["small"], 1)
    note = f"{bytes_read['large'] / 1e6:.2f} MB"
    section.add(Finding("the same: bytes read", ratio, "×", GROWTH, at_most=True, note=note))
    for path in paths.values():
        shutil.rmtree(path)
