"""Question 10: how fast are a scan and a write compared with Spark's Kafka connector, on the same rows and machine?

Both read and write the columns of Spark's Kafka source, headers included; `kafka_broker` runs the broker.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.kafka_broker import KafkaBroker
from benchmarks.measure import Rounds, interleaved
from benchmarks.report import Finding, Section
from benchmarks.scan import noop, session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

METHOD = (
    "One Kafka broker (3.9, KRaft, no forced writes) on this machine and Spark's Kafka connector, tuned: linger 20 ms, "
    "batches of 256 KB, lz4; fetches of 4 to 16 MB that wait for 10 ms at most. Same rows of Parquet, in 16 queues of "
    "four topics, with two headers. Scan: eight columns (key, value, topic, partition, offset, timestamp, "
    "timestampType, headers) to the noop sink, mqstore by `layout=kafka`. Write: the rows appended, by mqstore with "
    "every sync of its commit. CPU time is that of both JVMs and all workers."
)
COUNTS = {98: 2_000_000, 1060: 500_000}
NAMES = {98: "100 B", 1060: "1 KB"}
SCAN, WRITE = (2.0, 3.0), (1.7, 2.4)
TOPICS = ("orders", "ship00", "refund", "paymnt")
ROWS_A_FILE = 250_000
READER = {
    "startingOffsets": "earliest", "includeHeaders": "true", "kafka.max.poll.records": "20000",
    "kafka.fetch.min.bytes": str(4 << 20), "kafka.fetch.max.bytes": str(16 << 20),
    "kafka.max.partition.fetch.bytes": str(4 << 20), "kafka.fetch.max.wait.ms": "10",
}  # fmt: skip
WRITER = {"kafka.linger.ms": "20", "kafka.batch.size": str(256 << 10), "kafka.compression.type": "lz4"}


def kafka(folder: Path, scale: float, rounds: int) -> Section:
    """Measures both sizes in one Spark session with one broker; prints one line if there is no broker."""
    section = Section("Beside Kafka", METHOD)
    with KafkaBroker(folder / "broker") as broker:
        if broker.missing:
            print(f"  Kafka is left out: {broker.missing}", flush=True)
            return section
        _stop_java()
        with session(folder, {"spark.jars": ",".join(map(str, broker.connector))}) as spark:
            for body_size, whole in COUNTS.items():
                count = max(int(whole * scale), 1000)
                work = folder / str(body_size)
                work.mkdir()
                write_kafka_rows(work / "rows", count, body_size)
                _compare(spark, section, broker.address, work, body_size, count, rounds)
                shutil.rmtree(work)
        _stop_java()
    return section


def write_kafka_rows(folder: Path, count: int, body_size: int) -> None:
    """Writes Parquet files of rows for Kafka's sink: topic, partition, key, value, two headers."""
    folder.mkdir()
    pool = np.random.default_rng(7).integers(0x61, 0x7B, body_size + ROWS_A_FILE, np.uint8)
    window = np.lib.stride_tricks.sliding_window_view(pool, body_size)
    for number, first in enumerate(range(0, count, ROWS_A_FILE)):
        rows = np.arange(first, min(first + ROWS_A_FILE, count))
        offsets = np.arange(len(rows) + 1, dtype=np.int32) * body_size
        bodies = pa.py_buffer(np.ascontiguousarray(window[rows % ROWS_A_FILE]))
        tags = np.array(["create", "update", "cancel", "closed"])[rows // 16 % 4]
        pairs = pa.StructArray.from_arrays(
            [pa.array(np.tile(["TAGS", "tenant"], len(rows))), _pairs(tags, np.char.mod("t%05d", rows % 1000))],
            names=["key", "value"],
        )
        table = pa.table({
            "topic": np.array(TOPICS)[rows % 4],
            "partition": pa.array(rows // 4 % 4, pa.int32()),
            "key": pa.array([f"ORD-{row:010d}".encode() for row in rows.tolist()], pa.binary()),
            "value": pa.Array.from_buffers(pa.binary(), len(rows), [None, pa.py_buffer(offsets), bodies]),
            "headers": pa.ListArray.from_arrays(np.arange(len(rows) + 1, dtype=np.int32) * 2, pairs),
        })  # fmt: skip
        pq.write_table(table, folder / f"{number}.parquet", compression="NONE", use_dictionary=False)


def _pairs(first: np.ndarray, second: np.ndarray) -> pa.Array:
    return pa.array(np.stack((first.astype("S6"), second.astype("S6")), axis=1).ravel().tolist(), pa.binary())


def _compare(
    spark: SparkSession, section: Section, address: str, work: Path, body_size: int, count: int, rounds: int
) -> None:
    frame, title = partial(spark.read.parquet, str(work / "rows")), NAMES[body_size]
    names, servers = _topics(body_size), {"kafka.bootstrap.servers": address}
    store, warm_ups = str(work / "scanned"), 2 if count == COUNTS[body_size] else 1
    _to_kafka(frame(), servers, f"scan{body_size}-")
    _to_store(frame(), store)
    os.sync()
    theirs = {**servers, **READER, "subscribe": ",".join(names)}
    ours = {"layout": "kafka", "includeHeaders": "true"}
    for name, rows in (
        ("Kafka", spark.read.format("kafka").options(**theirs).load().count()),
        ("mqstore", spark.read.format("mqstore").options(**ours).load(store).count()),
    ):
        if rows != count:
            raise RuntimeError(f"{name} has {rows} of {count} rows")
    found = interleaved(
        {
            "mqstore": noop(lambda: spark.read.format("mqstore").options(**ours).load(store)),
            "Kafka": noop(lambda: spark.read.format("kafka").options(**theirs).load()),
        }, rounds, warm_ups,
    )  # fmt: skip
    _tell(section, found, f"{title}, eight columns with headers: scan over Kafka's connector", count, SCAN)
    found = interleaved(
        {
            "mqstore": lambda: _to_store(frame(), str(work / "written")),
            "Kafka": lambda: _to_kafka(frame(), servers, f"write{body_size}-"),
        }, rounds, warm_ups, between=os.sync,
    )  # fmt: skip
    _tell(section, found, f"{title}: write over Kafka's connector", count, WRITE)


def _topics(body_size: int) -> list[str]:
    return [f"scan{body_size}-{topic}" for topic in TOPICS]


def _to_kafka(rows: DataFrame, servers: Mapping[str, str], prefix: str) -> None:
    from pyspark.sql import functions

    named = rows.withColumn("topic", functions.concat(functions.lit(prefix), "topic"))
    named.write.format("kafka").options(**servers, **WRITER).save()


def _to_store(rows: DataFrame, store: str) -> None:
    rows.write.format("mqstore").mode("append").save(store)


def _tell(section: Section, found: Rounds, title: str, count: int, bounds: tuple[float, float]) -> None:
    section.foreign.append(found.foreign)
    speeds = [
        f"{name} {count / found.wall_s(name) / 1e6:.2f} M rows/s, {found.cpu_s(name) / count * 1e6:.2f} CPU-µs"
        for name in ("mqstore", "Kafka")
    ]
    note = f"{'; '.join(speeds)}; by CPU time {found.cheaper('mqstore', 'Kafka'):.2f} ×"
    section.add(Finding(title, found.faster("mqstore", "Kafka"), "×", bounds[0], note=note, goal=bounds[1]))


def _stop_java() -> None:
    """Ends the JVM that earlier sessions ran in: jars can only be given to a new one."""
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    if gateway is None:
        return
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait()
    SparkContext._gateway = SparkContext._jvm = None
