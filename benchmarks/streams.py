"""Question 7: what do streams cost beyond the minimum cost of Spark's Python streams?

Large micro-batches, small ones, idle triggers, and the sink. Times of a micro-batch are those of Spark's own progress,
without the start of a query, which takes 1.5 s for any Python source.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from time import process_time
from typing import TYPE_CHECKING, Any

from benchmarks.make_store import StoreShape, make_store
from benchmarks.report import Finding, Section
from benchmarks.scan import session
from benchmarks.sources import write_ready

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

METHOD = (
    "`readStream` of one store with the eight columns of Spark's Kafka source into Spark's noop sink, against a Python "
    "stream source that hands out prebuilt batches of the same sizes; `writeStream` of such batches into a store, "
    "against a Python stream writer that drops them. One warm session, two cores; contenders take turns. The time of a "
    "micro-batch is Spark's `triggerExecution`. An idle trigger is the CPU time of our code, without Spark."
)
COUNT, BODY_SIZE = 1_000_000, 98
SMALL_ROWS, SMALL_TRIGGERS, WARM_TRIGGERS = 100, 40, 10
IDLE_TRIGGERS = 2000
WARM_ROUNDS = 3
"""Rounds of large micro-batches until each worker has loaded its compiled loops."""
KAFKA = {"layout": "kafka", "includeHeaders": "true"}
WRITTEN = ("topic", "queueId", "key", "body")

Frames = Mapping[str, Callable[[], "DataFrame"]]


def streams(folder: Path, scale: float, rounds: int) -> Section:
    """Measures source and sink in one Spark session."""
    section = Section("Streams", METHOD)
    shape = StoreShape(COUNT, BODY_SIZE).scaled(scale)
    store = make_store(str(folder / "store"), shape)
    with session(folder) as spark:
        _ready(folder / "kafka", store, KAFKA)
        _ready(folder / "native", store, {"columns": ",".join(WRITTEN)})
        _large(section, spark, folder, store, rounds)
        _small(section, spark, folder, store, rounds)
        _sink(section, spark, folder, rounds)
    _idle(section, store)
    return section


def _ready(folder: Path, store: str, options: Mapping[str, str]) -> None:
    """Saves the batches of a stream that reads the store in one micro-batch."""
    from pyspark.sql.pandas.types import to_arrow_schema

    from connector.datasource import MqStoreDataSource

    source = MqStoreDataSource({"path": store, **{name.lower(): text for name, text in options.items()}})
    schema = source.schema()
    reader: Any = source.streamReader(schema)
    start = reader.initialOffset()
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    parts = [_Read(reader, each) for each in reader.partitions(start, end)]
    write_ready(folder, parts, to_arrow_schema(schema, timezone="UTC"))
    reader.stop()


class _Read:
    """A partition that reads itself."""

    def __init__(self, reader: Any, partition: Any) -> None:
        self.read = lambda: reader.read(partition)


def _large(section: Section, spark: SparkSession, folder: Path, store: str, rounds: int) -> None:
    frames = {
        "mqstore": lambda: spark.readStream.format("mqstore").options(**KAFKA).load(store),
        "ready": lambda: spark.readStream.format("readystream").load(str(folder / "kafka")),
    }
    found = _in_turns(frames, rounds, folder, WARM_ROUNDS)
    share = median(sum(b) / sum(a) for a, b in zip(found["mqstore"], found["ready"], strict=True))
    note = " and ".join(f"{name} {median(map(sum, runs)):.0f} ms" for name, runs in found.items())
    section.add(Finding("AvailableNow, 100 B, Kafka's columns: of ready batches", share, "%", 0.70, note=note))


def _small(section: Section, spark: SparkSession, folder: Path, store: str, rounds: int) -> None:
    wanted = SMALL_ROWS * (SMALL_TRIGGERS + WARM_TRIGGERS)
    part = folder / "part"
    shutil.rmtree(part, ignore_errors=True)
    make_store(str(part), StoreShape(wanted, BODY_SIZE))
    ready = {"triggers": str(SMALL_TRIGGERS + WARM_TRIGGERS), "rows": str(SMALL_ROWS)}
    frames = {
        "mqstore": lambda: spark.readStream.format("mqstore")
        .options(**KAFKA, maxOffsetsPerTrigger=str(SMALL_ROWS)).load(str(part)),
        "ready": lambda: spark.readStream.format("readystream").options(**ready).load(str(folder / "kafka")),
    }  # fmt: skip
    found = _in_turns(frames, rounds, folder, 1)
    times = {name: median(median(run[WARM_TRIGGERS:]) for run in runs) for name, runs in found.items()}
    note = " and ".join(f"{name} {time:.0f} ms" for name, time in times.items())
    section.add(
        Finding("a trigger of 100 rows: above ready batches", times["mqstore"] - times["ready"], "ms", 15, True, note)
    )


def _sink(section: Section, spark: SparkSession, folder: Path, rounds: int) -> None:
    def frame() -> DataFrame:
        return spark.readStream.format("readystream").load(str(folder / "native"))

    targets = {"mqstore": str(folder / "target"), "droppingstream": None}
    found: dict[str, list[list[int]]] = {name: [] for name in targets}
    for number in range(rounds + WARM_ROUNDS):
        for name, path in targets.items():
            run = _run(frame(), name, folder / "checkpoint", path)
            if number >= WARM_ROUNDS:
                found[name].append(run)
            shutil.rmtree(folder / "target", ignore_errors=True)
    share = median(sum(b) / sum(a) for a, b in zip(found["mqstore"], found["droppingstream"], strict=True))
    note = " and ".join(f"{name} {median(map(sum, runs)):.0f} ms" for name, runs in found.items())
    section.add(Finding("the sink: of a writer that drops its batches", share, "%", 0.60, note=note))


def _in_turns(frames: Frames, rounds: int, folder: Path, warm_ups: int) -> dict[str, list[list[int]]]:
    """The milliseconds of each micro-batch of each run, after uncounted warm-ups."""
    found: dict[str, list[list[int]]] = {name: [] for name in frames}
    for number in range(rounds + warm_ups):
        for name in list(frames) if number % 2 else reversed(list(frames)):
            run = _run(frames[name](), "noop", folder / "checkpoint")
            if number >= warm_ups:
                found[name].append(run)
    return found


def _run(frame: DataFrame, sink: str, checkpoint: Path, path: str | None = None) -> list[int]:
    """Runs a query to its end; returns the milliseconds of those micro-batches that had rows."""
    shutil.rmtree(checkpoint, ignore_errors=True)
    writer = frame.writeStream.format(sink).option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
    query = writer.start(path) if path else writer.start()
    query.awaitTermination()
    return [int(each["durationMs"]["triggerExecution"]) for each in query.recentProgress if each["numInputRows"]]


def _idle(section: Section, store: str) -> None:
    from connector.datasource import MqStoreDataSource

    source = MqStoreDataSource({"path": store})
    reader: Any = source.streamReader(source.schema())
    limit = reader.getDefaultReadLimit()
    offset = reader.latestOffset(reader.initialOffset(), limit)
    before = process_time()
    for _ in range(IDLE_TRIGGERS):
        offset = reader.latestOffset(offset, limit)
        reader.reportLatestOffset()
    value = (process_time() - before) / IDLE_TRIGGERS * 1000
    section.add(Finding("an idle trigger", value, "ms", 1, True))
    reader.stop()
