"""Generated rows to write into RocketMQ stores of several kinds, and the contents of a store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

from storage_core import open_store
from tests.golden import archive
from tests.reference.served import AS_BROKER, in_partitions, read
from tests.support.sampling import distance

GEOMETRY = {"commitLogFileSize": 4096, "consumeQueueFileEntries": 10, "indexSlots": 11, "indexEntries": 40}
PAIRS = pa.map_(pa.string(), pa.string())


def rows(count: int, start: int = 0, topics: tuple[str, ...] = ("orders", "audit")) -> pa.Table:
    return pa.table({
        "topic": [topics[i % len(topics)] for i in range(count)],
        "body": [f"body {start + i} {'x' * (i * 37 % 300)}".encode() for i in range(count)],
        "key": [f"k{start + i} all" for i in range(count)],
        "tags": [f"t{i % 3}" for i in range(count)],
        "properties": pa.array([[("UNIQ_KEY", f"U{start + i}")] for i in range(count)], PAIRS),
    })  # fmt: skip


def write(directory: Path, table: pa.Table, **options: Any) -> int:
    engine = {} if (directory / "commitlog").exists() else {"engine": "rocketmq"}
    with open_store(str(directory), **engine) as store:
        return store.append(table, **options)


def made_store(kind: str, directory: Path) -> Path:
    """A store to write into: none yet, one made by mqstore, or one that a broker left after a crash or a clean stop."""
    if kind == "own":
        write(directory, rows(40), **GEOMETRY)
        write(directory, rows(7, 40))
    elif kind != "new":
        return archive.unpack(kind, directory)
    return directory


def bodies(directory: Path) -> list[tuple[str, int, int, bytes]]:
    """All messages, sorted by place."""
    if not (directory / "commitlog").exists():
        return []
    got = read(directory, in_partitions(1, **AS_BROKER))
    return sorted((row["topic"], row["queueId"], row["queueOffset"], row["body"]) for row in got)


def contents(directory: Path) -> dict[str, tuple[int, str]]:
    """Length and digest of every file except the lock that writers use."""
    found = archive.fingerprint(directory) if directory.exists() else {}
    return {
        name: (size, digest)
        for name, (_, size, digest) in found.items()
        if name not in (".", ".mqstore", ".mqstore/lock")
    }


KINDS = ("new", "own", "damaged-torn-tail-abort-4.9.3", "damaged-queues-lost-4.9.3", "delay-4.9.3")
STEPS = distance(9)
"""Tests that stop a write at one of its steps try every `STEPS`-th step."""
NEW_ROWS = rows(60, 100, ("orders", "audit", "fresh"))


def options_of(kind: str) -> dict[str, Any]:
    """The options with which a store of a kind takes a write: without a queue file, nothing tells their length."""
    return {"new": GEOMETRY, "damaged-queues-lost-4.9.3": {"consumeQueueFileEntries": 50}}.get(kind, {})


def commit_point(log: list[str]) -> int:
    """The index of the call that commits the job, among the calls that a write makes."""
    return next(n for n, call in enumerate(log) if call.startswith("rename ") and call.endswith("/draft.json"))
