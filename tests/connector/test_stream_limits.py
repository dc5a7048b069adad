"""Trigger limits and several concurrent queries through Spark; requires `MQSTORE_SPARK_LIMITS` (`make test-real-full`).

`tests/contract/test_streams.py` tests the limits themselves; here Spark applies them.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from storage_core import open_store
from storage_core.store import ScanRequest

pytestmark = pytest.mark.skipif(
    "MQSTORE_SPARK_LIMITS" not in os.environ, reason="half a minute; make test-real-full sets MQSTORE_SPARK_LIMITS"
)

SIZE = 1000


def append(root: Path, first: int, count: int) -> None:
    bodies = [f"{number} ".ljust(SIZE, "x") for number in range(first, first + count)]
    with open_store(str(root), "rocketmq", commitLogFileSize=1 << 16, consumeQueueFileEntries=50) as store:
        store.append(pa.table({"topic": ["orders"] * count, "body": bodies}))


def numbers(bodies: list[bytes]) -> list[int]:
    return [int(body.split()[0]) for body in bodies]


def started(spark: Any, root: Path, checkpoint: Path, trigger: dict[str, Any], **options: str) -> tuple[Any, list]:
    """A running query, and the message numbers of each of its micro-batches."""
    batches: list[list[int]] = []

    def take(rows: Any, _: int) -> None:
        if found := numbers([bytes(row.body) for row in rows.collect()]):  # Spark runs an empty one at the start
            batches.append(found)

    frame = spark.readStream.format("mqstore").options(**options).load(str(root)).select("body")
    writer = frame.writeStream.foreachBatch(take)
    return writer.option("checkpointLocation", str(checkpoint)).trigger(**trigger).start(), batches


@pytest.fixture
def root(tmp_path: Path) -> Path:
    append(tmp_path / "store", 0, 50)
    return tmp_path / "store"


def test_bytes_of_a_micro_batch(spark, root: Path, tmp_path: Path) -> None:
    query, batches = started(spark, root, tmp_path / "c", {"availableNow": True}, maxBytesPerTrigger=str(10 * SIZE))
    query.awaitTermination()
    assert all(0 < len(batch) < 10 for batch in batches)
    assert sorted(number for batch in batches for number in batch) == list(range(50))


def test_a_micro_batch_waits_for_enough_messages_but_not_for_ever(spark, root: Path, tmp_path: Path) -> None:
    at_once = {"processingTime": "0 seconds"}
    waiting = {"minOffsetsPerTrigger": "60", "maxTriggerDelay": "1h"}
    query, batches = started(spark, root, tmp_path / "c", at_once, **waiting)
    query.processAllAvailable()
    assert batches == []
    append(root, 50, 10)
    query.processAllAvailable()
    assert [len(batch) for batch in batches] == [60]
    append(root, 60, 3)
    query.processAllAvailable()
    query.stop()
    assert [len(batch) for batch in batches] == [60]
    waiting["maxTriggerDelay"] = "0s"
    query, batches = started(spark, root, tmp_path / "c", at_once, **waiting)
    query.processAllAvailable()
    query.stop()
    assert [sorted(batch) for batch in batches] == [[60, 61, 62]]


def test_several_queries_at_once_into_one_store(spark, root: Path, tmp_path: Path) -> None:
    target, running = tmp_path / "target", []
    for number, limit in enumerate((9, 20, 50)):
        frame = spark.readStream.format("mqstore").option("maxOffsetsPerTrigger", limit).load(str(root))
        writer = frame.selectExpr(f"'copy-{number}' as topic", "body").writeStream.format("mqstore")
        checkpoint = str(tmp_path / f"checkpoint-{number}")
        running.append(writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start(str(target)))
    for query in running:
        query.awaitTermination()
    for number in range(len(running)):
        with open_store(str(target)) as store:
            plan = store.snapshot().plan(ScanRequest(columns=("body",), topics=(f"copy-{number}",)))
            bodies = [row["body"] for part in plan for batch in part.read() for row in batch.to_pylist()]
        assert sorted(numbers(bodies)) == list(range(50))
    assert sorted(path.name for path in (target / ".mqstore").iterdir()) == ["lock", "queries", "state.json"]
