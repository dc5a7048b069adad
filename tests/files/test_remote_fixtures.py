"""Every fixture of real systems, read from a bucket in memory and from disk: the same tables, errors and findings."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from storage_core import find_stores, open_store
from storage_core.errors import MqStoreError
from storage_core.store import Mode, Scan, ScanRequest, Store
from tests.golden import archive
from tests.rabbitmq import golden
from tests.support.memory_bucket import Bucket, served
from tests.support.sampling import sample

pytestmark = pytest.mark.sampled

ROOT = "memory://backups/nightly"
ROCKETMQ_VIEWS = ("queues", "topics", "segments", "index", "offsets", "damage")
RABBITMQ_VIEWS = ("queues", "segments", "damage")


@pytest.fixture(params=sample(archive.names(), 8, "remote"))
def rocketmq(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, Path, Bucket]]:
    directory = archive.unpack(request.param, tmp_path)
    with served(Bucket()) as bucket:
        bucket.add_folder(directory, "nightly/store")
        yield request.param, directory, bucket


@pytest.fixture(params=sample(golden.NAMES, 5, "remote"))
def rabbitmq(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Path, Bucket]]:
    directory = golden.unpack(request.param, tmp_path)
    with served(Bucket()) as bucket:
        bucket.add_folder(directory, "nightly/store")
        yield directory, bucket


def rows_of(store: Store, request: ScanRequest) -> pa.Table:
    snapshot = store.snapshot()
    batches = [batch for piece in snapshot.plan(request) for batch in piece.read()]
    return pa.Table.from_batches(batches, snapshot.schema(request))


def view_of(store: Store, name: str) -> pa.Table:
    return pa.Table.from_batches(list(store.view(name)), store.view_schema(name))


def same_paths(table: pa.Table, directory: Path) -> pa.Table:
    """The table with the URI of the store said as its directory."""
    for number, field in enumerate(table.schema):
        if field.type == pa.string():
            column = pc.replace_substring(table.column(number), f"{ROOT}/store", str(directory))
            table = table.set_column(number, field, column)
    return table


def assert_same(directory: Path, question: object, **options: str) -> None:
    """The same table, or the same error, whatever the store answers."""
    assert callable(question)
    told = []
    for path in (str(directory), f"{ROOT}/store"):
        try:
            with open_store(path, **options) as store:
                told.append(same_paths(question(store), directory))
        except MqStoreError as error:
            told.append(str(error).replace(f"{ROOT}/store", str(directory)))
    assert type(told[0]) is type(told[1]), told
    assert told[0].equals(told[1]) if isinstance(told[0], pa.Table) else told[0] == told[1]


def test_rocketmq_stores_read_the_same(rocketmq: tuple[str, Path, Bucket]) -> None:
    name, directory, _ = rocketmq
    assert find_stores(ROOT) == [f"{ROOT}/store"]
    for scan in Scan:
        for mode in (Mode.FAILFAST, Mode.PERMISSIVE):
            request = ScanRequest(scan=scan, mode=mode, min_partitions=3 if scan is Scan.QUEUES else 1)
            if name != "defaults-4.9.3" or (scan, mode) != (Scan.LOG, Mode.PERMISSIVE):  # a gigabyte of zeros: once
                assert_same(directory, lambda store, request=request: rows_of(store, request))
    for view in ROCKETMQ_VIEWS:
        if name != "defaults-4.9.3" or view not in ("damage", "index"):  # 400 MB of zeros, and the gigabyte
            assert_same(directory, lambda store, view=view: view_of(store, view))


def test_recorded_questions_are_answered_the_same(rocketmq: tuple[str, Path, Bucket]) -> None:
    name, directory, _ = rocketmq
    asked = archive.queries(name)
    keys = sorted({(line["topic"], line["key"]) for line in asked if line["kind"] == "key"})
    times = sorted({line["ts"] for line in asked if line["kind"] == "time"})
    ids = sorted({line["msgId"] for line in asked if line["kind"] == "client-id"})
    requests = [ScanRequest(topics=(topic,), keys=(key,)) for topic, key in sample(keys, 3, f"keys {name}")]
    requests += [ScanRequest(message_ids=(each,)) for each in sample(ids, 1, f"ids {name}")]
    requests += [ScanRequest(start_ms=each) for each in sample(times, 2, f"times {name}")]
    assert len(requests) >= 3
    for request in requests:
        assert_same(directory, lambda store, request=request: rows_of(store, request))


def test_rabbitmq_stores_read_the_same(rabbitmq: tuple[Path, Bucket]) -> None:
    directory, _ = rabbitmq
    assert find_stores(f"{ROOT}/store") == [
        path.replace(str(directory), f"{ROOT}/store") for path in find_stores(str(directory))
    ]
    for path in find_stores(str(directory)):
        below = path.removeprefix(str(directory))
        with open_store(path) as local, open_store(f"{ROOT}/store{below}") as remote:
            for mode in (Mode.DROPMALFORMED, Mode.PERMISSIVE):
                request = ScanRequest(mode=mode, min_partitions=2)
                assert same_paths(rows_of(remote, request), directory).equals(rows_of(local, request))
            for view in RABBITMQ_VIEWS:
                assert same_paths(view_of(remote, view), directory).equals(view_of(local, view))
            assert remote.state() == local.state()
