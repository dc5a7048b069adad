"""The streaming examples do what they claim."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from examples import stream_kafka_job, stream_live_tail, stream_windows
from storage_core import open_store


def append(store: Path, first: int, count: int) -> None:
    with open_store(str(store), "rocketmq") as opened:
        bodies = [f"{number}" for number in range(first, first + count)]
        opened.append(pa.table({"topic": ["orders"] * count, "body": bodies, "key": bodies}))


def test_the_streaming_examples(spark, tmp_path: Path) -> None:
    found = stream_windows.run(spark, str(tmp_path / "readings"), 30)
    assert found["readings"] == found["in windows"] >= 30

    store = tmp_path / "store"
    append(store, 0, 40)
    for first, rows in ((40, 40), (45, 45)):
        assert stream_kafka_job.run(spark, str(store), "orders", str(tmp_path / "target")) == rows
        append(store, first, 5)
    for seconds in (8, 90):
        shown = stream_live_tail.run(spark, str(store), "orders", seconds, "earliest")
        if shown:  # else the machine was too busy to begin the query
            break
    assert sorted(map(int, shown)) == list(range(50))
