"""Streams through Spark: triggers, restarts from a checkpoint, progress, and error messages."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException

from storage_core import open_store
from storage_core.store import ScanRequest
from tests.connector.spark_rows import failure
from tests.rabbitmq.played_stream import Played
from tests.rabbitmq.stream_golden import rows as rows_of_streams

NO_COMPLETE = (
    "outputMode('complete') is refused: a message store only grows; use outputMode('append'), or write the result of "
    "each batch with foreachBatch"
)
COLUMNS = "topic,queueId,queueOffset,body"


def append(root: Path, count: int, first: int, topic: str = "orders") -> None:
    with open_store(str(root), "rocketmq", commitLogFileSize=1 << 14, consumeQueueFileEntries=50) as store:
        store.append(pa.table({"topic": [topic] * count, "body": [f"{first + n}" for n in range(count)]}))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    append(tmp_path / "store", 50, 0)
    return tmp_path / "store"


class Running:
    """A query that collects its micro-batches into a list."""

    def __init__(self, spark: Any, root: Path, checkpoint: Path) -> None:
        self.spark, self.root, self.checkpoint = spark, root, checkpoint
        self.batches: list[list[int]] = []

    def start(self, trigger: dict[str, Any], schema: str | None = None, **options: str) -> Any:
        reader = self.spark.readStream.format("mqstore").options(**options)
        frame = (reader.schema(schema) if schema else reader).load(str(self.root))
        writer = frame.writeStream.foreachBatch(self.take).option("checkpointLocation", str(self.checkpoint))
        return writer.trigger(**trigger).start()

    def take(self, frame: Any, number: int) -> None:
        name = "value" if "value" in frame.columns else "body"
        self.batches.append([int(bytes(row[name])) for row in frame.select(name).collect()])

    def run(self, trigger: dict[str, Any], **options: str) -> Any:
        query = self.start(trigger, **options)
        query.awaitTermination()
        return query


def test_triggers_restarts_and_progress(spark, root: Path, tmp_path: Path) -> None:
    running = Running(spark, root, tmp_path / "checkpoint")
    query = running.run({"availableNow": True}, maxOffsetsPerTrigger="20", columns=COLUMNS)
    assert [len(batch) for batch in running.batches] == [20, 20, 10]
    reported = json.loads(query.lastProgress["sources"][0]["latestOffset"])["queues"]
    assert sum(reported["orders"].values()) == 50
    append(root, 30, 50)
    append(root, 3, 80, "later")
    running.run({"once": True}, maxOffsetsPerTrigger="20", layout="kafka", schema="value binary")
    query = running.start({"processingTime": "0 seconds"})
    append(root, 7, 83)
    query.processAllAvailable()
    query.stop()
    assert len(running.batches[3]) == 33
    assert sorted(number for batch in running.batches for number in batch) == list(range(90))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            {"scan": "log"},
            "OptionError: option 'scan' = 'log': a stream goes through the queues; leave it out, or read a batch",
        ),
        (
            {"maxOffsetsPerTrigger": "few"},
            "OptionError: option 'maxOffsetsPerTrigger' = 'few': must be a whole number of at least 1",
        ),
        (
            {"endingTimestamp": "-1h"},
            "OptionError: option 'endingTimestamp' = '-1h': a stream has no end; leave it out, or read a batch",
        ),
        (
            {"view": "queues"},
            "OptionError: option 'view' = 'queues': a stream reads messages; leave it out, or read the view in a batch",
        ),
    ],
)
def test_bad_options_are_one_line(spark, root: Path, tmp_path: Path, options: dict[str, str], text: str) -> None:
    running = Running(spark, root, tmp_path / "checkpoint")
    assert failure(lambda: running.run({"availableNow": True}, **options)) == text


def test_a_checkpoint_of_another_store_is_one_line(spark, root: Path, tmp_path: Path) -> None:
    running = Running(spark, root, tmp_path / "checkpoint")
    running.run({"availableNow": True})
    running.root = tmp_path / "other"
    append(running.root, 70, 1000)
    with pytest.raises(StreamingQueryException) as caught:
        running.run({"availableNow": True})
    assert first_line(caught).startswith(
        f"CheckpointError: {running.root}: the checkpoint belongs to another store, or all queues that it can be told "
        "by were cut and written again: message "
    )


def first_line(caught: Any) -> str:
    """The first line of mqstore's message in a query's error."""
    found: str = str(caught.value).partition("mqstore: ")[2].splitlines()[0]
    return found


def test_a_checkpoint_of_another_version_and_a_topic_that_is_gone(spark, root: Path, tmp_path: Path) -> None:
    running = Running(spark, root, tmp_path / "checkpoint")
    append(root, 5, 100, "passing")
    append(root, 1, 49)  # the messages after the last one that a queue lists are listed again
    running.run({"availableNow": True}, columns=COLUMNS)
    shutil.rmtree(root / "consumequeue" / "passing")
    with pytest.raises(StreamingQueryException) as caught:
        running.run({"availableNow": True}, columns=COLUMNS)
    assert first_line(caught).startswith(f"DataLossError: {root}: passing/")
    assert "is gone, the checkpoint is at" in first_line(caught)
    append(root, 2, 50)
    running.run({"availableNow": True}, columns=COLUMNS, failOnDataLoss="false")
    assert sorted(running.batches[-1]) == [50, 51]
    for note in (tmp_path / "checkpoint" / "offsets").iterdir():
        if note.name.isdigit():
            note.write_text(note.read_text().replace('{"mqstore":1,', '{"mqstore":7,').replace(
                '{"mqstore": 1,', '{"mqstore": 7,'))  # fmt: skip
            (note.parent / f".{note.name}.crc").unlink()
    with pytest.raises(StreamingQueryException) as caught:
        running.run({"availableNow": True}, columns=COLUMNS, failOnDataLoss="false")
    assert first_line(caught).startswith(
        f"CheckpointError: {root}: the checkpoint holds offsets of version 7, this mqstore knows version 1; "
    )


def test_several_stores_and_update_are_refused(spark, root: Path, tmp_path: Path) -> None:
    append(tmp_path / "second", 1, 0)
    running = Running(spark, tmp_path, tmp_path / "checkpoint")
    message = failure(lambda: running.run({"availableNow": True}))
    assert message.startswith("OptionError: option 'path' = ")
    assert message.endswith("holds 2 stores, and a stream reads one store; name one of them")
    source = spark.readStream.format("mqstore").load(str(root)).select("topic", "body")
    writer = source.writeStream.format("mqstore").outputMode("update").option("checkpointLocation", str(tmp_path / "c"))
    with pytest.raises(StreamingQueryException, match="does not support Update mode"):
        writer.trigger(availableNow=True).start(str(tmp_path / "target")).awaitTermination()


def sink(spark, source: Any, root: Path, checkpoint: Path, **options: str) -> Any:
    """Runs a streaming write of `body` and `topic` until all available rows are written."""
    frame = source.selectExpr("'copy' as topic", "body")
    writer = frame.writeStream.format("mqstore").option("checkpointLocation", str(checkpoint)).options(**options)
    query = writer.trigger(availableNow=True).start(str(root))
    query.awaitTermination()
    return query


def copied(root: Path) -> list[int]:
    with open_store(str(root)) as store:
        plan = store.snapshot().plan(ScanRequest(columns=("body",), topics=("copy",)))
        return sorted(int(row["body"]) for piece in plan for batch in piece.read() for row in batch.to_pylist())


def test_a_sink_writes_each_micro_batch_once(spark, root: Path, tmp_path: Path) -> None:
    target, checkpoint = tmp_path / "target", tmp_path / "checkpoint"
    source = spark.readStream.format("mqstore").option("maxOffsetsPerTrigger", 20).load(str(root))
    sink(spark, source, target, checkpoint)
    assert copied(target) == list(range(50))
    # As if the query died after committing its last batch, before Spark recorded the commit: the batch is repeated.
    last = max((checkpoint / "commits").iterdir(), key=lambda path: path.name if path.name.isdigit() else "")
    for path in (last, last.with_name(f".{last.name}.crc")):
        path.unlink(missing_ok=True)
    append(root, 5, 50)
    sink(spark, source, target, checkpoint)
    assert copied(target) == list(range(55))
    sink(spark, source, target, tmp_path / "another query")
    assert copied(target) == sorted([*range(55), *range(55)])
    left = sorted(path.name for path in (target / ".mqstore").iterdir())
    assert left == ["lock", "queries", "state.json"]


def test_two_writes_of_one_foreach_batch_both_land(spark, root: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"

    def write(frame: Any, number: int) -> None:
        for _ in range(2):
            frame.selectExpr("'copy' as topic", "body").write.format("mqstore").mode("append").save(str(target))

    source = spark.readStream.format("mqstore").load(str(root))
    writer = source.writeStream.foreachBatch(write).option("checkpointLocation", str(tmp_path / "checkpoint"))
    writer.trigger(availableNow=True).start().awaitTermination()
    assert copied(target) == sorted([*range(50), *range(50)])


def test_a_batch_that_fails_leaves_no_file(spark, root: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    source = spark.readStream.format("mqstore").load(str(root))
    sink(spark, source, target, tmp_path / "checkpoint")
    before = sorted(str(path) for path in target.rglob("*"))
    bad = source.withColumn("body", source.body.substr(100, 1)).repartition(2)  # tasks refuse empty bodies
    with pytest.raises(StreamingQueryException, match="RowError"):
        sink(spark, bad, target, tmp_path / "another")
    assert sorted(str(path) for path in target.rglob("*")) == before


@pytest.mark.parametrize(
    ("mode", "options", "text"),
    [
        ("complete", {}, NO_COMPLETE),
        ("append", {"publish": "shards"},
         "OptionError: option 'publish' = 'shards': makes a new store of each write; leave it out"),
    ],
)  # fmt: skip
def test_bad_sinks_are_one_line(spark, root: Path, tmp_path: Path, mode: str, options: dict, text: str) -> None:
    source = spark.readStream.format("mqstore").load(str(root))
    frame = source.groupBy("topic").count().selectExpr("topic", "cast(count as string) as body")
    frame = frame if mode == "complete" else source.select("topic", "body")
    writer = frame.writeStream.format("mqstore").outputMode(mode).options(**options)
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
    assert failure(lambda: writer.start(str(tmp_path / "target")).awaitTermination()) == text
    assert not (tmp_path / "target").exists()


def test_a_rabbitmq_queue_is_read_while_it_is_consumed(spark, tmp_path: Path) -> None:
    root = tmp_path / "vhost"
    running = Running(spark, root, tmp_path / "checkpoint")
    with open_store(str(root), "rabbitmq") as store:
        with store.queue("orders") as queue:
            queue.publish_many([f"{number}" for number in range(30)])
        running.run({"availableNow": True}, maxOffsetsPerTrigger="20")
        with store.queue("orders") as queue:
            queue.ack(queue.fetch_many(30).sequence_ids.tolist())
            queue.publish_many([f"{number}" for number in range(30, 45)])
        running.run({"availableNow": True}, maxOffsetsPerTrigger="20")
    assert running.batches == [list(range(20)), list(range(20, 30)), list(range(30, 45))]


def test_a_stream_of_rabbitmq_is_read_while_it_grows(spark, tmp_path: Path) -> None:
    played = Played("s10_torn_segment", tmp_path)
    whole = [row["body"] for row in rows_of_streams(played.source)]
    taken: list[list[bytes]] = []

    def run() -> None:
        options = {"queueType": "stream", "maxOffsetsPerTrigger": "70"}
        frame = spark.readStream.format("mqstore").options(**options).load(str(played.target))
        writer = frame.writeStream.foreachBatch(
            lambda batch, _: taken.append([bytes(row["body"]) for row in batch.select("body").collect()])
        )
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
        writer.start().awaitTermination()

    played.grow(40)
    run()
    played.grow(len(played.steps))
    run()
    assert [body for batch in taken for body in batch] == whole
    assert max(map(len, taken)) == 70
