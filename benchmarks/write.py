"""Question 4: how close does `df.write.format("mqstore")` come to the most that Spark can give to a Python source?

Contenders write the same Parquet rows: into a store, into a source that drops its batches, into Parquet. `write_core`
measures the append core without Spark.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.measure import Rounds, interleaved
from benchmarks.report import Finding, Section
from benchmarks.scan import session
from benchmarks.write_core import append_core

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

METHOD = (
    'Rows of Parquet (topic, queueId, key, tags, body; uncompressed) written by `format("mqstore")`, appended to one '
    "store of the default file sizes with CRC, queues, index and every sync of the commit, against a Python data "
    "source that drops its batches, in one warm session with two cores. Without Spark: `store.append` of a table in "
    "memory into a new store, one process, against `StoreBench` (RocketMQ's own store, asynchronous flush, one thread, "
    "a fresh JVM each round). Rates are medians over the rounds; ratios are medians of the ratios within a round."
)
COUNTS = {98: 2_000_000, 1060: 500_000}
NAMES = {98: "100 B", 1060: "1 KB"}
OF_DROPPING = {98: (0.65, 0.78), 1060: (0.65, 0.80)}
ROWS_A_FILE = 250_000


def write(folder: Path, scale: float, rounds: int) -> Section:
    """Measures all sizes in one Spark session, then the append core."""
    section = Section("Write", METHOD)
    with session(folder) as spark:
        for body_size, whole in COUNTS.items():
            count = max(int(whole * scale), 20)
            rows = folder / f"rows-{body_size}"
            write_rows(rows, count, body_size)
            found = compare_writes(partial(spark.read.parquet, str(rows)), folder, rounds)
            tell_writes(section, found, NAMES[body_size], count, OF_DROPPING[body_size])
            shutil.rmtree(rows)
    append_core(section, folder, scale, rounds)
    return section


def write_rows(folder: Path, count: int, body_size: int) -> None:
    """Writes Parquet files of messages in four topics with four queues each; every body is different."""
    folder.mkdir()
    pool = np.random.default_rng(7).integers(0x61, 0x7B, body_size + ROWS_A_FILE, np.uint8)
    window = np.lib.stride_tricks.sliding_window_view(pool, body_size)
    for number, first in enumerate(range(0, count, ROWS_A_FILE)):
        rows = np.arange(first, min(first + ROWS_A_FILE, count))
        bodies = np.ascontiguousarray(window[rows % ROWS_A_FILE])
        offsets = np.arange(len(rows) + 1, dtype=np.int32) * body_size
        table = pa.table({
            "topic": np.array(["orders", "ship00", "refund", "paymnt"])[rows % 4],
            "queueId": pa.array(rows // 4 % 4, pa.int32()),
            "key": [f"ORD-{row:010d}" for row in rows.tolist()],
            "tags": np.array(["create", "update", "cancel", "closed"])[rows // 16 % 4],
            "body": pa.Array.from_buffers(pa.binary(), len(rows), [None, pa.py_buffer(offsets), pa.py_buffer(bodies)]),
        })  # fmt: skip
        pq.write_table(table, folder / f"{number}.parquet", compression="NONE", use_dictionary=False)


def compare_writes(
    frame: Callable[[], DataFrame], folder: Path, rounds: int, new_stores: bool = False, **options: str
) -> Rounds:
    """Writes the rows of `frame` into one store below `folder`, or into a new one each time, and elsewhere."""
    store, copy = folder / "store", folder / "copy"

    def between() -> None:
        if new_stores:
            shutil.rmtree(store, ignore_errors=True)
        # Writes back what one contender left in the page cache, so that the next one does not pay for it.
        os.sync()

    def ours() -> None:
        frame().write.format("mqstore").options(**options).mode("append").save(str(store))

    contenders = {
        "mqstore": ours,
        "dropping": lambda: frame().write.format("dropping").mode("append").save(),
        "Parquet": lambda: frame().write.mode("overwrite").option("compression", "none").parquet(str(copy)),
    }
    found = interleaved(contenders, rounds, warm_ups=2, between=between)
    shutil.rmtree(store, ignore_errors=True)
    shutil.rmtree(copy)
    return found


def tell_writes(
    section: Section, found: Rounds, title: str, count: int, bounds: tuple[float, float] | None = None
) -> None:
    """Adds the findings of `compare_writes`, with gate and goal."""
    section.foreign.append(found.foreign)

    def speed(name: str) -> str:
        return f"{name} {count / found.wall_s(name) / 1e6:.2f} M rows/s, {found.cpu_s(name) / count * 1e6:.2f} CPU-µs"

    share = found.faster("mqstore", "dropping")
    note = f"{speed('mqstore')}; {speed('dropping')}; by CPU time {found.cheaper('mqstore', 'dropping') * 100:.0f} %"
    must, goal = bounds or (None, None)
    section.add(Finding(f"{title}: of a source that drops its batches", share, "%", must, note=note, goal=goal))
    section.add(Finding(f"{title}: over Parquet", found.faster("mqstore", "Parquet"), "×", note=speed("Parquet")))
