"""Generates rows, and checks that a store serves exactly these."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from storage_core.rabbitmq import open_store
from storage_core.rabbitmq.store import VhostStore
from tests.rabbitmq import golden

HEADERS = pa.map_(pa.string(), pa.string())
KEYS, TIME = pa.list_(pa.string()), pa.timestamp("us", "UTC")


def rows(count: int, seed: int = 1) -> pa.Table:
    chance = random.Random(seed)
    sizes = [chance.choice([0, 5, 300, 4000, 5000]) for _ in range(count)]
    return pa.table(
        {
            "queue": [chance.choice(["a", "b", "é c"]) for _ in range(count)],
            "body": pa.array([chance.randbytes(size) for size in sizes], pa.binary()),
            "exchange": [chance.choice([None, "x"]) for _ in range(count)],
            "routingKeys": pa.array([chance.choice([None, ["k"], [], ["k", "l"]]) for _ in range(count)], KEYS),
            "headers": pa.array([chance.choice([None, [], [("h", str(n))]]) for n in range(count)], HEADERS),
            "priority": pa.array([chance.choice([None, 0, 3, 200]) for _ in range(count)], pa.int32()),
            "messageId": [str(n) for n in range(count)],
            "timestamp": pa.array([chance.choice([None, n * 1_000_000]) for n in range(count)], TIME),
            "expiresAt": pa.array([chance.choice([None, 5 * 10**15]) for _ in range(count)], TIME),
        }
    )  # fmt: skip


COLUMNS = ("body", "headers", "priority", "messageId", "timestamp", "expiresAt")


def check(store: VhostStore, table: pa.Table) -> None:
    """Checks that the store serves exactly the rows of `table`, in their order in each queue."""
    found = golden.table(Path(store.path))
    assert len(found) == len(table)
    for queue in table["queue"].unique().to_pylist():
        mine = table.filter(pc.equal(table["queue"], queue))
        read = found.filter(pc.equal(found["queue"], queue))
        for name in COLUMNS:
            assert read[name].to_pylist() == mine[name].to_pylist(), name
        assert read["exchange"].to_pylist() == [name or "" for name in mine["exchange"].to_pylist()]
        keys = [keys or [queue] for keys in mine["routingKeys"].to_pylist()]
        assert read["routingKeys"].to_pylist() == keys
    assert set(found["deliveryMode"].to_pylist()) <= {2}


VERSION_2 = {"x-queue-version": 2}


def append_as_version_2(store: VhostStore, table: pa.Table) -> None:
    """Writes rows to a new store: to a queue that requests version 2, and to others that are created like it."""
    asks = pc.equal(table["queue"], "a")
    store.append(table.filter(asks).drop_columns("queue"), queue="a", queueArguments=VERSION_2)
    store.append(table.filter(pc.invert(asks)))


def small(tmp_path: Path, **settings_given: Any) -> VhostStore:
    options = {"queue_index_segment_entry_count": 16, "msg_store_file_size_limit": 20000, **settings_given}
    return open_store(str(tmp_path / "vhosts" / "v"), options)
