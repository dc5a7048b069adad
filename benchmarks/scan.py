"""Question 1: how close does `format("mqstore")` come to the most that Spark can take from a Python data source?

Contenders of one comparison read the same rows in the same partitions and batches into Spark's noop sink.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.make_store import StoreShape, make_store
from benchmarks.measure import Rounds, interleaved
from benchmarks.report import Finding, Section

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession

ROOT = Path(__file__).resolve().parents[1]

FIVE = ("topic", "queueId", "queueOffset", "key", "body")
ENTRY_ONLY = ("topic", "queueId", "queueOffset", "physicalOffset", "size")
METHOD = (
    '`format("mqstore")` to Spark\'s noop sink, in one warm session with two cores, against a Python data source that '
    "yields ready batches (same schema, partitions, batch sizes), one that unpacks records by hand with `struct` into "
    "tuples, and Parquet (uncompressed) with the same rows. Page cache warm. Rates are medians over the rounds; ratios "
    "are medians of the ratios within a round."
)


@dataclass(frozen=True)
class Case:
    """One comparison: its columns, and gate and goal for the share of the ceiling and against `struct.unpack`."""

    title: str
    columns: tuple[str, ...] | None
    ceiling: tuple[float, float]
    unpack: tuple[float, float] | None = None


CASES = {
    98: [
        Case("five columns", FIVE, (0.78, 0.88), (7.0, 10.0)),
        Case("all columns", None, (0.72, 0.82)),
        Case("unit columns", ENTRY_ONLY, (0.60, 0.72)),
    ],
    1060: [Case("five columns", FIVE, (0.75, 0.88), (5.0, 6.0)), Case("all columns", None, (0.78, 0.88))],
}
KAFKA = {"layout": "kafka", "includeHeaders": "true"}
OF_KAFKA = {98: (0.70, 0.85), 1060: (0.75, 0.85)}
COUNTS = {98: 4_000_000, 1060: 1_000_000}
NAMES = {98: "100 B", 1060: "1 KB"}


def scan(folder: Path, scale: float, rounds: int) -> Section:
    """Measures all cases in one Spark session."""
    section = Section("Scan in Spark", METHOD)
    with session(folder) as spark:
        for body_size, cases in CASES.items():
            shape = StoreShape(COUNTS[body_size], body_size).scaled(scale)
            store = make_store(str(folder / f"scan-{body_size}"), shape)
            os.sync()
            for case in cases:
                _compare(spark, folder, store, shape, case, rounds, section)
            _kafka_layout(spark, folder, store, shape, rounds, section)
            _counts(spark, store, shape, rounds, section)
    return section


@contextmanager
def session(folder: Path, settings: Mapping[str, str] | None = None) -> Iterator[SparkSession]:
    """A Spark session on two cores whose workers import this checkout, with optional settings."""
    from pyspark_mqstore.java import ensure_java

    ensure_java()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    from pyspark.sql import SparkSession

    from benchmarks.sources import DroppingSource, ReadySource, UnpackSource
    from benchmarks.stream_sources import DroppingStreamSink, ReadyStreamSource

    builder = SparkSession.builder.master("local[2]").appName("mqstore benchmarks")
    for name, value in {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "4g",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.log.level": "ERROR",
        **(settings or {}),
    }.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    try:
        for source in (ReadySource, UnpackSource, DroppingSource, ReadyStreamSource, DroppingStreamSink):
            spark.dataSource.register(source)
        yield spark
    finally:
        spark.stop()


def _compare(
    spark: SparkSession, folder: Path, store: str, shape: StoreShape, case: Case, rounds: int, section: Section
) -> None:
    # Workers cache ready batches by path, so every case has its own path.
    folder = folder / f"{shape.body_size}-{case.title.replace(' ', '-')}"
    folder.mkdir()
    parts = write_peers(folder, store, case.columns)
    ours = {} if case.columns is None else {"columns": ",".join(case.columns)}
    contenders = {
        "mqstore": noop(lambda: spark.read.format("mqstore").options(**ours).load(store)),
        "ceiling": noop(lambda: spark.read.format("ready").load(str(folder / "ready"))),
        "Parquet": noop(lambda: spark.read.parquet(str(folder / "parquet"))),
    }
    if case.columns != ENTRY_ONLY:
        unchecked = {**ours, "verifyCrc": "false"}
        contenders["unchecked"] = noop(lambda: spark.read.format("mqstore").options(**unchecked).load(store))
    if case.unpack is not None:
        options = {"partitions": parts, "record_size": shape.record_size, "log_size": shape.log_size}
        contenders["struct.unpack"] = noop(lambda: spark.read.format("unpack").options(**options).load(store))
    found = interleaved(contenders, rounds, warm_ups=2)
    section.foreign.append(found.foreign)
    _tell(section, found, shape, case)
    _remove(folder)


def _kafka_layout(
    spark: SparkSession, folder: Path, store: str, shape: StoreShape, rounds: int, section: Section
) -> None:
    """`layout=kafka` with headers against ready batches of the same rows."""
    from pyspark.sql.pandas.types import to_arrow_schema

    from benchmarks.sources import write_ready
    from connector.datasource import MqStoreDataSource

    source = MqStoreDataSource({"path": store, **{name.lower(): text for name, text in KAFKA.items()}})
    schema = source.schema()
    folder = folder / f"{shape.body_size}-kafka"
    write_ready(folder, source.reader(schema).partitions(), to_arrow_schema(schema, timezone="UTC"))
    contenders = {
        "mqstore": noop(lambda: spark.read.format("mqstore").options(**KAFKA).load(store)),
        "ceiling": noop(lambda: spark.read.format("ready").load(str(folder))),
    }
    found = interleaved(contenders, rounds, warm_ups=2)
    section.foreign.append(found.foreign)
    must, goal = OF_KAFKA[shape.body_size]
    speeds = " and ".join(f"{name} {_speed(found, name, shape)}" for name in contenders)
    note = f"{speeds}; by CPU time {found.cheaper('mqstore', 'ceiling') * 100:.0f} %"
    title = f"{NAMES[shape.body_size]}, layout=kafka with headers: of the ceiling"
    section.add(Finding(title, found.faster("mqstore", "ceiling"), "%", must, note=note, goal=goal))
    _remove(folder)


def _counts(spark: SparkSession, store: str, shape: StoreShape, rounds: int, section: Section) -> None:
    """Counts the messages by `count()`, and by the sum over `view=queues`, compared with a scan of five columns."""

    def load(**options: str) -> DataFrame:
        return spark.read.format("mqstore").options(**options).load(store)

    contenders: dict[str, Callable[[], object]] = {
        "scan": noop(lambda: load(columns=",".join(FIVE))),
        "count()": lambda: load().count(),
        "view": lambda: load(view="queues").agg({"messages": "sum"}).first(),
    }
    found = interleaved(contenders, rounds, warm_ups=2)
    section.foreign.append(found.foreign)
    size, note = NAMES[shape.body_size], f"count() {_speed(found, 'count()', shape)}"
    section.add(Finding(f"{size}: count() over five columns", found.faster("count()", "scan"), "×", note=note))
    note = f"{found.wall_s('view') * 1e3:.0f} ms"
    section.add(Finding(f"{size}: the sum over view=queues, over five columns", found.faster("view", "scan"), "×",
                        note=note, goal=10.0))  # fmt: skip


def _tell(section: Section, found: Rounds, shape: StoreShape, case: Case) -> None:
    title = f"{NAMES[shape.body_size]}, {case.title}"

    def share(name: str, than: str) -> str:
        speeds = " and ".join(f"{each} {_speed(found, each, shape)}" for each in (name, than))
        return f"{speeds}; by CPU time {found.cheaper(name, than) * 100:.0f} %"

    section.add(Finding(f"{title}: of the ceiling", found.faster("mqstore", "ceiling"), "%", case.ceiling[0],
                        note=share("mqstore", "ceiling"), goal=case.ceiling[1]))  # fmt: skip
    if "unchecked" in found.runs:
        section.add(Finding(f"{title}, verifyCrc=false: of the ceiling", found.faster("unchecked", "ceiling"), "%",
                            note=share("unchecked", "ceiling")))  # fmt: skip
    if case.unpack is not None:
        must, goal = case.unpack
        section.add(Finding(f"{title}: over struct.unpack", found.faster("mqstore", "struct.unpack"), "×", must,
                            goal=goal, note=f"struct.unpack {_speed(found, 'struct.unpack', shape)}"))  # fmt: skip
    section.add(Finding(f"{title}: over Parquet", found.faster("mqstore", "Parquet"), "×",
                        note=f"Parquet {_speed(found, 'Parquet', shape)}"))  # fmt: skip


def _speed(found: Rounds, name: str, shape: StoreShape) -> str:
    return f"{shape.message_count / found.wall_s(name) / 1e6:.2f} M rows/s"


def noop(frame: Callable[[], DataFrame]) -> Callable[[], Any]:
    """Reads a frame, created for each run, into Spark's noop sink."""
    return lambda: frame().write.format("noop").mode("overwrite").save()


def write_peers(folder: Path, store: str, columns: tuple[str, ...] | None) -> int:
    """Writes the ready batches and the Parquet files of a comparison; returns the number of partitions."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from benchmarks.sources import write_ready
    from connector.planning import driver_cores
    from storage_core import open_store
    from storage_core.store import ScanRequest

    snapshot = open_store(store).snapshot()
    request = ScanRequest(columns=columns, min_partitions=driver_cores(), cores=driver_cores())
    schema = pa.schema([pa.field(f.name, f.type) for f in snapshot.schema(request)])
    partitions = snapshot.plan(request)
    (folder / "parquet").mkdir()
    write_ready(folder / "ready", partitions, schema)
    for number, partition in enumerate(partitions):
        with pq.ParquetWriter(folder / "parquet" / f"{number}.parquet", schema, compression="NONE") as writer:
            rows: list[pa.RecordBatch] = []
            for batch in partition.read():
                rows.append(pa.RecordBatch.from_arrays(batch.columns, schema=schema))
                if sum(each.num_rows for each in rows) >= 128_000:
                    writer.write_table(pa.Table.from_batches(rows))
                    rows.clear()
            if rows:
                writer.write_table(pa.Table.from_batches(rows))
    return len(partitions)


def _remove(*folders: Path) -> None:
    import shutil

    for folder in folders:
        shutil.rmtree(folder)
