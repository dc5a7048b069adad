"""RocketMQ stores of many small messages of the same size; the key of each is `ORD-` and ten digits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

from storage_core import open_store

TOPICS = ("orders", "ship00", "refund", "paymnt")
BODY_SIZE = 98


def orders(numbers: range, queues: int = 16) -> pa.Table:
    """Messages with these numbers, spread over `queues` queues of four topics."""
    per_topic = queues // len(TOPICS)
    return pa.table({
        "topic": [TOPICS[number % queues // per_topic] for number in numbers],
        "queueId": pa.array([number % queues % per_topic for number in numbers], pa.int32()),
        "key": [f"ORD-{number:010d}" for number in numbers],
        "body": [f"{number:010d}".ljust(BODY_SIZE, "x").encode() for number in numbers],
        "properties": pa.array(
            [[("UNIQ_KEY", f"7F000001{number:024X}")] for number in numbers], pa.map_(pa.string(), pa.string())
        ),
    })  # fmt: skip


def orders_store(directory: Path, count: int, queues: int = 16, **options: Any) -> Path:
    """Makes a store of `count` messages; `options` are those of the write."""
    with open_store(str(directory), "rocketmq") as store:
        store.append(orders(range(count), queues), **options)
    return directory


def record_size(directory: Path) -> int:
    """The size of each message's record in the log, in bytes."""
    with sorted((directory / "commitlog").iterdir())[0].open("rb") as file:
        return int.from_bytes(file.read(4), "big")
