"""Question 5: what does a lookup cost? One key among ten million, the last tenth by time, the second entry point.

This module measures lookups through Spark, `find_core` calls without Spark.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from benchmarks.find_core import find_core
from benchmarks.make_index import key_of
from benchmarks.make_store import FIRST_MS, StoreShape, make_store
from benchmarks.measure import Rounds, interleaved
from benchmarks.report import Finding, Section
from benchmarks.scan import FIVE, noop, session
from storage_core import open_store
from storage_core.formats.rocketmq.indexfile import Geometry

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

METHOD = (
    "Messages of 98 B with a UNIQ_KEY and a key each, in index files of a broker's size (20 million entries), page "
    'cache warm. Through Spark: `format("mqstore")` to the noop sink, five columns, `recovery=none`, one warm session '
    "with two cores; an empty load (`startingTimestamp` after all) is what every query costs, and is taken off where "
    "the title says so. `read` is `pyspark_mqstore.read`; its CPU is that of the JVM and of all Python workers."
)

OF_LOAD = {"five columns": (0.85, 0.75), "all columns": (0.80, 0.70)}
AFTER_ALL = "2100-01-01T00:00:00Z"


def find(folder: Path, scale: float, rounds: int) -> Section:
    """Measures one store of ten million messages, then the second entry point on a smaller one."""
    section = Section("Find", METHOD)
    shape = StoreShape(10_000_000, 98, index=Geometry()).scaled(scale)
    path = make_store(str(folder / "find"), shape)
    os.sync()
    find_core(section, path, shape, folder, scale, rounds)
    with session(folder) as spark:
        _keys(spark, path, shape, section, rounds)
        _last_tenth(spark, path, shape, section, rounds)
        shutil.rmtree(path)
        _second_way_in(spark, folder, scale, section, rounds)
    return section


def _load(spark: SparkSession, path: str, **options: Any) -> DataFrame:
    return spark.read.format("mqstore").options(columns=",".join(FIVE), recovery="none", **options).load(path)


def _keys(spark: SparkSession, path: str, shape: StoreShape, section: Section, rounds: int) -> None:
    key = key_of(shape.message_count // 3)
    contenders: dict[str, Callable[[], DataFrame]] = {
        "empty": lambda: _load(spark, path, startingTimestamp=AFTER_ALL),
        "key": lambda: _load(spark, path, key=key),
        "unindexed": lambda: _load(spark, path, key=key, useIndex="false"),
        "scan": lambda: _load(spark, path).where(f"key = '{key}'"),
    }
    for name in ("key", "unindexed", "scan"):
        if contenders[name]().count() != 1:
            raise RuntimeError(f"{name}: the key was not found once")
    found = interleaved({name: noop(frame) for name, frame in contenders.items()}, rounds, warm_ups=2)
    section.foreign.append(found.foreign)
    title, empty = f"{shape.message_count:,} messages, Spark", found.wall_s("empty")
    note = f"key {found.wall_s('key') * 1e3:.0f} ms, full scan {found.wall_s('scan'):.2f} s, empty {empty * 1e3:.0f} ms"
    section.add(Finding(f"{title}: one key over a full scan, empty load taken off", _net(found), "×", 20, note=note))
    beyond = median(key.wall_s - none.wall_s for key, none in zip(found.runs["key"], found.runs["empty"], strict=True))
    section.add(Finding(f"{title}: one key, beyond an empty load", beyond * 1e3, "ms", 100, True, goal=50))
    section.add(Finding(f"{title}: one key, end to end", found.wall_s("key") * 1e3, "ms", 250, True))
    section.add(Finding(f"{title}: one key without index files", found.wall_s("unindexed"), "s", 2.5, True,
                        f"{found.cpu_s('unindexed'):.2f} CPU-s", 1.2))  # fmt: skip


def _net(found: Rounds) -> float:
    """How many times faster the lookup is, both without the cost of an empty load: the median over rounds."""
    rounds = zip(found.runs["empty"], found.runs["key"], found.runs["scan"], strict=True)
    # A lookup counts as at least ten milliseconds, even if it costs no more than an empty load.
    return median((scan.wall_s - empty.wall_s) / max(key.wall_s - empty.wall_s, 1e-2) for empty, key, scan in rounds)


def _last_tenth(spark: SparkSession, path: str, shape: StoreShape, section: Section, rounds: int) -> None:
    first = shape.message_count - shape.message_count // 10
    with open_store(path, recovery="none") as store:
        queues = store.queues()
    # Messages are assigned to the queues in turn, and message i was stored at FIRST_MS + 1 + i.
    offsets: dict[str, dict[str, int]] = {}
    for queue in queues:
        offsets.setdefault(queue.topic, {})[str(queue.queue_id)] = queue.stop - queue.stop // 10
    by_time = partial(_load, spark, path, startingTimestamp=str(FIRST_MS + 1 + first))
    by_offset = partial(_load, spark, path, startingOffsets=json.dumps(offsets))
    counts = by_time().count(), by_offset().count()
    if abs(counts[0] - counts[1]) > len(queues):
        raise RuntimeError(f"the last tenth has {counts[0]} rows by time and {counts[1]} by offsets")
    found = interleaved({"time": noop(by_time), "offsets": noop(by_offset)}, rounds, warm_ups=2)
    section.foreign.append(found.foreign)
    note = f"{found.wall_s('time'):.2f} s and {found.wall_s('offsets'):.2f} s for {counts[0]:,} rows"
    by_cpu = 1 / found.cheaper("time", "offsets")
    section.add(Finding("the last tenth by startingTimestamp, of reading that many rows by offsets",
                        1 / found.faster("time", "offsets"), "%", 1.3, True,
                        f"{note}; by CPU time {by_cpu * 100:.0f} %"))  # fmt: skip


def _second_way_in(spark: SparkSession, folder: Path, scale: float, section: Section, rounds: int) -> None:
    import pyspark_mqstore

    shape = StoreShape(2_000_000, 98).scaled(scale)
    path = make_store(str(folder / "second"), shape)
    os.sync()
    for title, columns in {"five columns": FIVE, "all columns": None}.items():
        listed = {} if columns is None else {"columns": ",".join(columns)}
        reader = spark.read.format("mqstore").options(recovery="none", **listed)
        contenders: dict[str, Callable[[], DataFrame]] = {
            "load": partial(reader.load, path),
            "read": partial(pyspark_mqstore.read, spark, path, columns=columns, recovery="none"),
        }
        # Compilation in the JVM would count as CPU time of the contender that runs meanwhile.
        found = interleaved({name: noop(frame) for name, frame in contenders.items()}, rounds, warm_ups=6)
        section.foreign.append(found.foreign)
        each = {name: found.cpu_s(name) / shape.message_count * 1e6 for name in contenders}
        note = f"{each['read']:.2f} and {each['load']:.2f} CPU-µs a row; by wall {found.faster('load', 'read'):.2f}×"
        must, goal = OF_LOAD[title]
        section.add(
            Finding(f"CPU of read over load, {title}", found.cheaper("load", "read"), "×", must, True, note, goal)
        )
    shutil.rmtree(path)
