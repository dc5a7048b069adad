"""How many requests the queries of a store in a bucket take, and how many of them wait for others: only counts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from storage_core import open_store
from storage_core.files.remote import pieces, registry, remote
from storage_core.rocketmq.disk import record_reader
from storage_core.rocketmq.index import joined_reads
from storage_core.store import OffsetBound, ScanRequest
from tests.support.memory_bucket import Bucket, served
from tests.support.request_rounds import Rounds, rounds_of

URI = "memory://b/x/store"
COUNT = 9000


def indexed(path: Path, files: int, topics: int) -> Path:
    """A store with the given number of index files or more, with four entries per slot."""
    entries = COUNT // files + 1
    rows = {
        "topic": [f"t{number % topics}" for number in range(COUNT)],
        "queueId": pa.array([number % 16 for number in range(COUNT)], pa.int32()),
        "body": [bytes(400)] * COUNT, "key": [f"k{number}" for number in range(COUNT)],
    }  # fmt: skip
    with open_store(str(path), "rocketmq") as store:
        store.append(rows, commitLogFileSize=1 << 20, indexSlots=entries // 4, indexEntries=entries)
    assert len(list((path / "index").iterdir())) >= files
    return path


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    """A bucket read in blocks so small that a header, slots and a chain's entries are in different blocks, as in files
    of 420 MB. Nothing of the log is retained from the walk, as with a log that is larger than memory.
    """
    monkeypatch.setattr(pieces, "SMALLEST_RETAINED", 1 << 40)
    for module in (pieces, remote, registry):
        monkeypatch.setattr(module, "BLOCK_SIZE", 256)
    for module in (joined_reads, record_reader):
        monkeypatch.setattr(module, "RECORD_AHEAD", 700)
    monkeypatch.setattr(remote, "SMALL", 64 << 10)
    with served(Bucket()) as made:
        yield made


def looked_up(bucket: Bucket, directory: Path, monkeypatch: pytest.MonkeyPatch, *keys: str) -> Rounds:
    """Looks up keys in a store whose recovery is known but whose index has not been read."""
    bucket.add_folder(directory, "x/store")
    with open_store(URI) as store:
        store.snapshot().plan(ScanRequest())
        with rounds_of(bucket, monkeypatch) as found:
            plan = store.snapshot().plan(ScanRequest(keys=keys))
            assert sum(batch.num_rows for piece in plan for batch in piece.read()) == len(keys)
    return found


def test_a_lookup_in_one_index_file(bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = looked_up(bucket, indexed(tmp_path / "store", 1, 1), monkeypatch, "k3000")
    assert 1 <= found.of("/index/") <= 12
    assert found.rounds <= 8


@pytest.mark.parametrize("count", [1, 20])
def test_lookups_in_ninety_index_files(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    keys = [f"k{number * 400}" for number in range(count)]
    found = looked_up(bucket, indexed(tmp_path / "store", 90, 4), monkeypatch, *keys)
    assert found.of("/index/") >= 90
    assert found.at_once >= 10


def test_a_plan_reads_no_further_than_the_queues_say(bucket: Bucket, tmp_path: Path) -> None:
    """If the queues list all messages, the zeros of a 64 MB log file with few messages are not read.

    Otherwise the bytes after the listed messages are read too.
    """
    path = tmp_path / "store"
    with open_store(str(path), "rocketmq") as store:
        rows = {"topic": ["t"] * 100, "queueId": pa.array([0] * 100, pa.int32()), "body": [bytes(400)] * 100}
        store.append(rows, commitLogFileSize=64 << 20)
    bucket.add_folder(path, "x/store")
    with open_store(URI) as store:
        plan = store.snapshot().plan(ScanRequest())
    assert sum(stop - start for _, name, start, stop in bucket.asked if "/commitlog/" in name) < 256 << 10
    queue = next(path.glob("consumequeue/t/0/*"))
    entries = queue.read_bytes()
    queue.write_bytes(entries[:1000] + bytes(len(entries) - 1000))
    registry.forget_all()
    bucket.add_folder(path, "x/store")
    with open_store(URI) as store:
        plan = store.snapshot().plan(ScanRequest())
        assert sum(batch.num_rows for piece in plan for batch in piece.read()) == 100


def test_a_scan_finds_what_recovery_read_of_a_small_log(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pieces, "SMALLEST_RETAINED", 256 << 10)
    path = tmp_path / "store"
    with open_store(str(path), "rocketmq") as store:
        store.append({"topic": ["t"] * 20_000, "body": [bytes(1000)] * 20_000}, commitLogFileSize=64 << 20)
    bucket.add_folder(path, "x/store")
    with open_store(URI) as store:
        plan = store.snapshot().plan(ScanRequest(min_partitions=1))
        bucket.asked.clear()
        assert sum(batch.num_rows for piece in plan for batch in piece.read()) == 20_000
    assert sum(stop - start for _, name, start, stop in bucket.asked if "/commitlog/" in name) < 1 << 20


QUEUES = 1100


@pytest.fixture(scope="module")
def many_queues(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of many queues whose last records are spread over its whole log."""
    path = tmp_path_factory.mktemp("queues") / "store"
    numbers = list(range(QUEUES)) * 2
    rows = {
        "topic": [f"t{number % 50}" for number in numbers],
        "queueId": pa.array([number // 50 for number in numbers], pa.int32()), "body": [bytes(400)] * len(numbers),
    }  # fmt: skip
    with open_store(str(path), "rocketmq") as store:
        store.append(rows, commitLogFileSize=1 << 20, consumeQueueFileEntries=100)
    return path


@pytest.mark.parametrize(
    "wanted",
    [
        ScanRequest(min_partitions=8),
        ScanRequest(start_ms=1),
        ScanRequest(start=OffsetBound(last=1)),
    ],
    ids=["all of it", "from a time on", "the last of each"],
)
def test_a_plan_of_many_queues(
    bucket: Bucket, many_queues: Path, monkeypatch: pytest.MonkeyPatch, wanted: ScanRequest
) -> None:
    """Takes one listing per thousand names and none per queue; the requests for the queues run concurrently."""
    monkeypatch.setattr(pieces, "MOST_BLOCKS", QUEUES // 4)  # far more queues than blocks, as with ten thousand
    bucket.add_folder(many_queues, "x/store")
    with rounds_of(bucket, monkeypatch) as found, open_store(URI) as store:
        plan = store.snapshot().plan(wanted)
    assert len(plan) >= wanted.min_partitions
    assert bucket.count("walk") + bucket.count("folder") <= len(bucket.objects) / 1000 + 5
    assert found.of("/consumequeue/") >= QUEUES
    assert found.at_once >= 10
