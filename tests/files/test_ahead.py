"""Read-ahead hints: the same answers with fewer waits; and how many requests a plan and a lookup take."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from storage_core import open_store
from storage_core.files.remote import pieces
from storage_core.store import ScanRequest
from tests.support.memory_bucket import Bucket, served

URI = "memory://b/x/store"
COUNT = 3000
LATENCY_S = 0.03


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("ahead") / "store"
    rows = {
        "topic": ["orders"] * COUNT, "queueId": pa.array([n % 64 for n in range(COUNT)], pa.int32()),
        "body": [bytes([n % 251]) * 1000 for n in range(COUNT)], "key": [f"k{n}" for n in range(COUNT)],
    }  # fmt: skip
    with open_store(str(target), "rocketmq") as store:
        store.append(rows, commitLogFileSize=1 << 20, consumeQueueFileEntries=100, indexSlots=1000, indexEntries=4000)
    return target


@pytest.fixture
def bucket(directory: Path) -> Iterator[Bucket]:
    with served(Bucket()) as made:
        made.add_folder(directory, "x/store")
        yield made


def read(path: str, **fields: object) -> pa.Table:
    with open_store(path) as store:
        snapshot = store.snapshot()
        request = ScanRequest(**fields)  # type: ignore[arg-type]
        batches = [batch for piece in snapshot.plan(request) for batch in piece.read()]
        return pa.Table.from_batches(batches, snapshot.schema(request))


@pytest.mark.parametrize("room", [0, 100_000, 64 << 20])
def test_hints_change_no_row(bucket: Bucket, directory: Path, monkeypatch: pytest.MonkeyPatch, room: int) -> None:
    """With no room for read-ahead, with little, and with enough."""
    monkeypatch.setattr(pieces, "MOST_AHEAD", room)
    monkeypatch.setattr(pieces, "PIECE_SIZE", 50_000)
    assert read(URI).equals(read(str(directory)))


def test_a_cold_read_waits_for_many_at_once(bucket: Bucket) -> None:
    bucket.latency_s = LATENCY_S
    begin = time.monotonic()
    read(URI)
    assert bucket.most_at_once >= 16
    assert time.monotonic() - begin < len(bucket.asked) * LATENCY_S


def test_every_byte_of_the_log_comes_once_for_the_scan(bucket: Bucket, directory: Path) -> None:
    with open_store(URI) as store:
        plan = store.snapshot().plan(ScanRequest(min_partitions=1))
    bucket.asked.clear()
    for piece in plan:
        list(piece.read())
    log = sum(path.stat().st_size for path in (directory / "commitlog").iterdir())
    read_bytes = sum(stop - start for kind, path, start, stop in bucket.asked if "/commitlog/" in path)
    assert read_bytes <= log * 1.1


def test_a_lookup_takes_few_requests(bucket: Bucket, directory: Path) -> None:
    with open_store(URI) as store:
        store.snapshot().plan(ScanRequest())
        bucket.asked.clear()
        found = [batch for piece in store.snapshot().plan(ScanRequest(keys=("k77",))) for batch in piece.read()]
    assert sum(batch.num_rows for batch in found) == 1
    index = [request for request in bucket.asked if "/index/" in request[1]]
    assert 1 <= len(index) <= 12, json.dumps(index)
