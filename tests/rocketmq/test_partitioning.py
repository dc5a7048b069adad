"""Plans at scale: few reads to make them, few bytes to send them, and no byte of the log read for two partitions."""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from storage_core import open_store
from storage_core.files.file_chain import ChainFile, FileChain, find_chain
from storage_core.files.open_files import OpenFiles
from storage_core.formats.rocketmq.consumequeue import QUEUE_ENTRY
from storage_core.rocketmq.disk import consume_queue, entry_ranges
from storage_core.rocketmq.disk.consume_queue import ConsumeQueue
from storage_core.rocketmq.disk.entry_ranges import even_bounds
from storage_core.rocketmq.read import partitioning
from storage_core.rocketmq.read.queue_partition import QueuePartition
from storage_core.rocketmq.read.ranges import QueueRanges
from storage_core.rocketmq.recovery import recovery
from storage_core.store import Scan, ScanPartition, ScanRequest
from tests.support.bytes_read import counted_reads
from tests.support.rocketmq_orders import TOPICS, orders_store

GIB = 1 << 30
MESSAGES = 60


def rows_of(parts: list[ScanPartition]) -> list[tuple[object, ...]]:
    batches = [batch for part in parts for batch in part.read()]
    return [tuple(row.values()) for batch in batches for row in batch.to_pylist()]


# -- cutting queues


def queue_of(tmp_path: Path, physical_offsets: np.ndarray) -> ConsumeQueue:
    """A queue of three files with these addresses."""
    folder = tmp_path / "consumequeue" / "t" / "0"
    folder.mkdir(parents=True)
    per_file = -(-len(physical_offsets) // 3)
    for first in range(0, len(physical_offsets), per_file):
        entries = np.zeros(per_file, QUEUE_ENTRY.dtype)
        held = physical_offsets[first : first + per_file]
        entries["physical_offset"][: len(held)], entries["size"][: len(held)] = held, 100
        (folder / f"{first * QUEUE_ENTRY.size:020d}").write_bytes(entries.tobytes())
    return ConsumeQueue("t", 0, find_chain([str(folder)]))


@pytest.mark.parametrize("seed", range(5))
def test_bounds_by_reading_are_those_of_a_bisection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    random = np.random.default_rng(seed)
    count = int(random.integers(1, 3000))
    addresses = np.sort(random.integers(0, 50_000, count))
    queue = queue_of(tmp_path, addresses)
    wanted = np.sort(random.integers(-5, 50_010, 400))
    start = int(random.integers(0, count))
    expected = start + np.searchsorted(addresses[start:], wanted)
    for whole, at_once, per_read in ((0, 7, 1 << 20), (0, 1 << 18, 1 << 20), (0, 7, 0), (1 << 20, 50, 0)):
        monkeypatch.setattr(consume_queue, "READ_WHOLE", whole)
        monkeypatch.setattr(consume_queue, "ENTRIES_AT_ONCE", at_once)
        monkeypatch.setattr(consume_queue, "ENTRIES_PER_READ", per_read)
        with OpenFiles() as files:
            assert queue.lower_bounds(files, start, count, wanted).tolist() == expected.tolist()
            assert queue.lower_bounds(files, count, count, wanted[:2]).tolist() == [count, count]


@pytest.mark.parametrize("shape", ["even", "uneven", "steps"])
def test_even_bounds_are_those_of_a_bisection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shape: str) -> None:
    monkeypatch.setattr(entry_ranges, "GUESSED", 16)
    random = np.random.default_rng(3)
    count = 2_900
    gaps = {"even": 100, "uneven": random.integers(1, 4_000, count) ** 2, "steps": random.choice([1, 10**7], count)}
    addresses = np.cumsum(np.broadcast_to(gaps[shape], count))
    queue = queue_of(tmp_path, addresses)
    for _ in range(20):
        start, stop = np.sort(random.integers(0, count + 1, 2)).tolist()
        wanted = np.sort(random.integers(-5, addresses[-1] + 10, 4))
        expected = start + np.searchsorted(addresses[start:stop], wanted)
        with OpenFiles() as files:
            assert even_bounds(files, [(queue, start, stop)], wanted)[:, 0].tolist() == expected.tolist()


def test_even_bounds_of_a_damaged_queue_ascend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entry_ranges, "GUESSED", 16)
    random = np.random.default_rng(5)
    limit = 1 << 62
    for number in range(20):
        addresses = np.sort(random.integers(0, 50_000, 3_000))
        harmed = random.integers(0, 3_000, 300)
        addresses[harmed] = random.integers(-limit, limit, 300)
        queue = queue_of(tmp_path / str(number), addresses)
        wanted = np.sort(random.integers(-5, 50_010, 20))
        with OpenFiles() as files:
            found = even_bounds(files, [(queue, 10, 2_990)], wanted)[:, 0]
        assert (np.diff(found) >= 0).all()
        assert 10 <= found[0] <= found[-1] <= 2_990


def test_a_plan_of_many_cuts_reads_a_queue_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    count = 200_000
    queue = queue_of(tmp_path, np.arange(count) * 100)
    reads = counted_reads(monkeypatch)
    with OpenFiles() as files:
        few = queue.lower_bounds(files, 0, count, np.array([5_000_000]))
        assert sum(reads) <= 20 * QUEUE_ENTRY.size
        reads.clear()
        many = queue.lower_bounds(files, 0, count, np.arange(0, count * 100, 10_000))
    assert few.tolist() == [50_000]
    assert many.tolist() == list(range(0, count, 100))
    assert len(reads) <= 4
    assert sum(reads) == count * QUEUE_ENTRY.size


def test_slices_of_a_partition_hold_its_rows_in_the_order_of_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = orders_store(tmp_path / "store", 2_000, commitLogFileSize=1 << 20)
    with open_store(str(root)) as store:
        whole = rows_of(store.snapshot().plan(ScanRequest()))
        monkeypatch.setattr(partitioning, "SLICE_SIZE", 20_000)
        parts = store.snapshot().plan(ScanRequest(min_partitions=3))
        assert [len(part.cuts) > 5 for part in parts if isinstance(part, QueuePartition)] == [True] * 3
        assert rows_of(parts) == whole
        assert len(whole) == 2_000


# -- what a partition costs to send


def chain_of(folder: str, file_size: int, count: int) -> FileChain:
    files = (ChainFile(at, file_size, f"{folder}/{at:020d}") for at in range(0, count * file_size, file_size))
    return FileChain(tuple(files), file_size)


@pytest.mark.parametrize(
    "change",
    [
        lambda files: files,
        lambda files: (*files[:3], *files[5:]),
        lambda files: (*files[:-1], ChainFile(files[-1].base_offset, 7, files[-1].path)),
        lambda files: (ChainFile(files[0].base_offset, 1 << 20, "/disk2/" + files[0].path[-20:]), *files[1:]),
        lambda files: (*files[:2], ChainFile(files[2].base_offset, 1 << 20, "/moved/away")),
        lambda files: (),
    ],
)
def test_a_chain_is_the_same_after_its_journey(
    change: Callable[[tuple[ChainFile, ...]], tuple[ChainFile, ...]],
) -> None:
    chain = FileChain(change(chain_of("/store/commitlog", 1 << 20, 8).files), 1 << 20)
    assert pickle.loads(pickle.dumps(chain)) == chain


def test_a_partition_of_a_terabyte_travels_light() -> None:
    """1 TiB in 1,000 queues of four files each; previously, a partition took 600 KB."""
    queues = tuple(
        ConsumeQueue(f"topic-{number:04d}", 0, chain_of(f"/store/consumequeue/topic-{number:04d}/0", 6_000_000, 4))
        for number in range(1000)
    )
    numbers = np.arange(1000)
    partition = QueuePartition(
        log=chain_of("/store/commitlog", GIB, 1024), log_start=0, log_end=1024 * GIB, queues=queues,
        request=ScanRequest(), store_name="store",
        ranges=QueueRanges(numbers.astype(np.int32), numbers * 1000, numbers * 1000 + 250),
        cuts=(10 * GIB, 11 * GIB, 12 * GIB), weight=256 << 20,
    )  # fmt: skip
    sent = pickle.dumps(partition)
    assert len(sent) < 120_000
    assert pickle.loads(sent).queues == partition.queues


# -- the log alone


@pytest.mark.parametrize("partitions", [1, 4, 16, 64])
@pytest.mark.parametrize(("is_sparse", "most"), [(True, 0.1), (False, 1.1)])
def test_what_follows_the_last_record_is_read_once_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_sparse: bool, most: float, partitions: int
) -> None:
    """A file of 256 MiB with a few messages at its start: the zeros after them are read once, a hole is not read."""
    size = 256 << 20
    root = orders_store(tmp_path / "store", MESSAGES, queues=4, commitLogFileSize=size)
    if not is_sparse:
        log = next((root / "commitlog").iterdir())
        log.write_bytes(log.read_bytes())
    with open_store(str(root)) as store:
        whole = rows_of(store.snapshot().plan(ScanRequest(scan=Scan.LOG)))
        parts = store.snapshot().plan(ScanRequest(scan=Scan.LOG, min_partitions=partitions))
        assert len(parts) == partitions
        reads = counted_reads(monkeypatch)
        assert rows_of(parts) == whole
    assert len(whole) == MESSAGES
    assert 0 < sum(reads) <= most * size


# -- queues that only the log has


@pytest.mark.parametrize("topics", [None, ("orders",)])
def test_a_lost_queue_is_read_by_many_tasks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, topics: tuple[str, ...] | None
) -> None:
    """Each task dispatches its own part of the log, based on what the plan saw before it; no task waits for another."""
    store = orders_store(tmp_path / "store", 3_000, commitLogFileSize=50_000)
    shutil.rmtree(store / ".mqstore")
    request = ScanRequest(columns=("topic", "queueId", "queueOffset", "key"), topics=topics)
    with open_store(str(store)) as opened:
        expected = sorted(rows_of(opened.snapshot().plan(request)))
    shutil.rmtree(store / "consumequeue")
    monkeypatch.setattr(recovery, "REPLAY_SIZE", 40_000)
    with open_store(str(store)) as opened:
        parts = opened.snapshot().plan(request)
    shares = [rows_of([pickle.loads(pickle.dumps(part))]) for part in reversed(parts)]

    assert len(parts) >= 12
    assert max(map(len, shares)) < len(expected) / 6
    assert sorted(row for share in shares for row in share) == expected
    assert all(isinstance(part, QueuePartition) and part.verdict is not None for part in parts)
    assert {len(part.verdict.queues) for part in parts} == {len(topics or TOPICS) * 4}  # type: ignore[attr-defined]


def test_a_plan_of_lost_queues_stays_small_however_long_the_log_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = orders_store(tmp_path / "store", 3_000, commitLogFileSize=50_000)
    shutil.rmtree(store / "consumequeue")
    shutil.rmtree(store / ".mqstore")
    monkeypatch.setattr(recovery, "REPLAY_SIZE", 1)
    monkeypatch.setattr(recovery, "MOST_REPLAYS", 5)
    with open_store(str(store)) as opened:
        assert 3 <= len(opened.snapshot().plan(ScanRequest())) <= 6
