"""Stores of many queues: reading all their files at once gives what each file gives, and each is opened once."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from storage_core import open_store
from storage_core.files import system
from storage_core.files.file_chain import find_chain
from storage_core.files.open_files import OpenFiles
from storage_core.formats.rocketmq.consumequeue import QUEUE_ENTRY
from storage_core.rocketmq.disk import queue_starts
from storage_core.rocketmq.disk.consume_queue import ConsumeQueue
from storage_core.rocketmq.disk.queue_starts import valid_starts
from storage_core.rocketmq.read import partitioning
from storage_core.rocketmq.read import ranges as ranges_module
from storage_core.rocketmq.read.ranges import QueueRanges
from storage_core.rocketmq.recovery import recovery, recovery_cache
from storage_core.rocketmq.write import commit_plan
from storage_core.store import OffsetBound, ScanRequest
from tests.support.rocketmq_orders import orders, orders_store

QUEUES = 240


def some_queues(tmp_path: Path, random: np.random.Generator, count: int) -> list[ConsumeQueue]:
    """Queues of one file each, of any length: rising addresses followed by zeros, with damage in some."""
    queues = []
    for number in range(count):
        entries = np.zeros(int(random.choice([0, 1, 7, 203, 204, 205, 230, 900])), QUEUE_ENTRY.dtype)
        filled = int(random.integers(0, len(entries) + 1))
        entries["physical_offset"][:filled] = np.sort(random.integers(0, 50_000, filled))
        entries["size"][:filled] = 100
        if filled and number % 3 == 0:
            entries["physical_offset"][random.integers(0, filled, 4)] = random.integers(-5, 60_000, 4)
            entries["size"][random.integers(0, filled, 2)] = random.integers(-1, 2, 2)
        folder = tmp_path / "consumequeue" / "t" / str(number)
        folder.mkdir(parents=True)
        rest = bytes(int(random.integers(0, QUEUE_ENTRY.size)))
        (folder / f"{0:020d}").write_bytes(entries.tobytes() + rest)
        queues.append(ConsumeQueue("t", number, find_chain([str(folder)])))
    return queues


@pytest.mark.parametrize("seed", range(3))
def test_the_starts_of_many_files_are_those_of_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    monkeypatch.setattr(queue_starts, "FILES_AT_ONCE", 17)
    queues = [queue for queue in some_queues(tmp_path, np.random.default_rng(seed), 60) if queue.chain.files]
    starts = list(valid_starts([(queue.chain.files[0].path, queue.room(0)) for queue in queues]))
    with OpenFiles() as files:
        each = [queue.valid_entries(files, 0) for queue in queues]
    assert [(start, one) for start, one in zip(starts, each, strict=True) if start not in (None, one)] == []
    left = {one.count for start, one in zip(starts, each, strict=True) if start is None}
    assert left
    assert min(left) >= queue_starts.MOST


@pytest.mark.parametrize("seed", range(3))
def test_many_queues_are_cut_where_each_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    random = np.random.default_rng(seed)
    queues = [queue for queue in some_queues(tmp_path, random, 60) if queue.chain.files]
    sizes = np.array([queue.room(0) for queue in queues], np.int64)
    start = random.integers(0, sizes + 1)
    stop = np.minimum(start + random.integers(-3, 900, len(sizes)), sizes)
    ranges = QueueRanges(np.arange(len(queues), dtype=np.int32), start, stop)
    cuts = np.sort(random.integers(0, 55_000, 9))
    with OpenFiles() as files:
        expected = [
            queue.lower_bounds(files, low, max(low, high), cuts).tolist()
            for queue, low, high in zip(queues, start.tolist(), stop.tolist(), strict=True)
        ]
        for short, at_once, most in ((4096, 1 << 18, 1 << 20), (100, 300, 1 << 20), (4096, 1 << 18, 30), (0, 0, 0)):
            monkeypatch.setattr(ranges_module, "SHORT", short)
            monkeypatch.setattr(ranges_module, "ENTRIES_AT_ONCE", at_once)
            monkeypatch.setattr(ranges_module, "MOST_BOUNDS", most)
            pieces = ranges.cut(queues, cuts, files)
            spans = {(number, low): high for piece in pieces for number, low, high in piece}
            for number, bounds in enumerate(expected):
                edges = [int(start[number]), *bounds, int(max(start[number], stop[number]))]
                whole = [(low, high) for low, high in itertools.pairwise(edges) if high > low]
                assert [(low, high) for (of, low), high in spans.items() if of == number] == whole


def test_a_plan_opens_a_queue_file_once_and_stats_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It finds the end of the queue; the cuts are known by then. Nothing else grows with the number of queues."""
    monkeypatch.setattr(recovery_cache, "WORTH_KEEPING_S", float("inf"))
    root = orders_store(tmp_path / "store", 1_200, queues=QUEUES, commitLogFileSize=1 << 20)
    calls: Counter[str] = Counter()
    for name in ("open_read", "pread", "pread_into", "stamp", "stat", "names", "exists", "is_folder"):
        monkeypatch.setattr(system, name, counted(calls, name, getattr(system, name)))
    with open_store(str(root)) as store:
        parts = store.snapshot().plan(ScanRequest(min_partitions=3))
    assert sum(part.estimated_rows for part in parts) == 1_200
    assert calls["open_read"] <= QUEUES + 40
    assert calls["pread"] + calls["pread_into"] <= 2 * QUEUES + 60
    assert calls["stamp"] + calls["stat"] + calls["names"] + calls["exists"] + calls["is_folder"] < 60


def test_a_plan_is_the_same_whether_the_entries_were_just_seen_or_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = orders_store(tmp_path / "store", 1_200, queues=QUEUES, commitLogFileSize=1 << 20)
    with open_store(str(root)) as store:
        verdict = store.snapshot().served.verdict
        assert (len(verdict.seen.whole), verdict.seen.count) == (QUEUES, 1_200)
        requests = [ScanRequest(min_partitions=count) for count in (1, 3, 7)]
        requests += [ScanRequest(min_partitions=3, start=OffsetBound(offsets={("orders", 0): 2}))]
        plans = [[part.ranges for part in store.snapshot().plan(request)] for request in requests]
        monkeypatch.setattr(recovery, "MOST_CACHED_ADDRESSES", 1_199)
        recovery_cache._cache.clear()
        with open_store(str(root)) as again:
            assert not again.snapshot().served.verdict.seen.count
            for request, plan in zip(requests, plans, strict=True):
                assert [list(part.ranges) for part in again.snapshot().plan(request)] == [list(each) for each in plan]


@pytest.mark.parametrize("allowed", [4 * (QUEUES + 1), 4 * 20])
def test_slices_and_chunks_come_back_to_files_that_are_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, allowed: int
) -> None:
    """`allowed`: how many files the process may have open; a quarter of it is, or is not, enough for all queues."""
    monkeypatch.setattr(system, "open_file_limit", lambda: allowed)
    monkeypatch.setattr(commit_plan, "CHUNK_COUNT", 2 * QUEUES)
    monkeypatch.setattr(partitioning, "SLICE_SIZE", 32 << 10)
    calls: Counter[str] = Counter()
    for name in ("open_read", "open_write"):
        monkeypatch.setattr(system, name, counted(calls, name, getattr(system, name)))
    root = orders_store(tmp_path / "store", 1_200, queues=QUEUES, commitLogFileSize=1 << 20)
    assert (calls["open_write"] < 2 * QUEUES + 40) == (allowed > 4 * QUEUES)
    with open_store(str(root)) as store:
        (part,) = store.snapshot().plan(ScanRequest())
        assert len(part.cuts) > 3
        calls.clear()
        rows = pa.Table.from_batches(part.read())
    assert rows.column("key").to_pylist() == orders(range(1_200)).column("key").to_pylist()
    assert (calls["open_read"] <= QUEUES + 1) == (allowed > 4 * QUEUES)


def counted(calls: Counter[str], name: str, function):  # type: ignore[no-untyped-def]
    def call(*args: object, **named: object) -> object:
        calls[name] += 1
        return function(*args, **named)

    return call
