"""The totals that `view=queues` computes at once equal those of each queue's rows, whatever its entries are like."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

from storage_core import open_store
from storage_core.files.file_chain import ChainFile, FileChain
from storage_core.rocketmq.views import queue_totals
from storage_core.store import Mode, ScanRequest
from tests.support.rocketmq_misled import misled_store
from tests.support.rocketmq_orders import orders_store
from tests.support.rocketmq_stale import KINDS, stale_store

COLUMNS = ("topic", "queueId", "queueOffset", "physicalOffset", "size")
Totals = dict[tuple[str, int], tuple[int, int, int, int]]


def by_rows(store: Path) -> Totals:
    """Messages, bytes, first and last address of each queue, from the rows of a read that uses only entries."""
    request = ScanRequest(columns=COLUMNS, mode=Mode.DROPMALFORMED)
    found: dict[tuple[str, int], list[tuple[int, int, int]]] = defaultdict(list)
    with open_store(str(store)) as opened:
        for batch in opened.snapshot().read(request):
            for topic, queue_id, *entry in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                found[topic, queue_id].append(tuple(entry))
    sums = {}
    for key, entries in found.items():
        entries.sort()
        _, addresses, sizes = zip(*entries, strict=True)
        sums[key] = len(entries), sum(sizes), addresses[0], addresses[-1]
    return sums


def by_view(store: Path) -> Totals:
    """The same, as the view computes it."""
    with open_store(str(store)) as opened:
        totals = queue_totals.queue_totals(opened.snapshot(), ScanRequest())
    return {key: (each.messages, each.size, each.first, each.last) for key, each in totals.items()}


def check(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = by_rows(store)
    assert expected
    for at_once in (1, 7, 1 << 16):
        monkeypatch.setattr(queue_totals, "ENTRIES_AT_ONCE", at_once)
        assert by_view(store) == expected
    monkeypatch.setattr(queue_totals, "BLANK_SIZE", 0)
    assert by_view(store) == expected


@pytest.mark.parametrize("seed", range(12))
def test_of_stores_whose_entries_mislead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    check(misled_store(tmp_path, seed)[0], monkeypatch)


@pytest.mark.parametrize("kind", KINDS)
def test_of_stale_entries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    check(stale_store(tmp_path, kind), monkeypatch)


def test_of_an_intact_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check(orders_store(tmp_path / "store", 400, commitLogFileSize=9_000, consumeQueueFileEntries=10), monkeypatch)


@pytest.mark.parametrize("seed", range(40))
def test_spans_in_order_lie_in_files_as_each_alone_does(seed: int) -> None:
    """If the chain reports it for all spans at once, it holds for each; and intact chains do report it."""
    random = np.random.default_rng(seed)
    bases = np.cumsum(random.integers(50, 120, 4)) - 50
    sizes = random.choice([50, 60, 49, 130], 4, p=[0.7, 0.1, 0.1, 0.1])
    files = tuple(ChainFile(int(base), int(size), "") for base, size in zip(bases, sizes, strict=True))
    chain = FileChain(files, 50)
    found_in_order = 0
    for _ in range(300):
        starts = np.sort(random.choice(np.arange(-5, 500), random.integers(0, 6), replace=False)).astype(np.int64)
        stops = starts + random.integers(0 if random.random() < 0.1 else 1, 20, len(starts))
        if random.random() < 0.05 and len(stops):
            stops[random.integers(len(stops))] += np.int64(-(1 << 63))
        if chain.holds_in_order(starts, stops):
            found_in_order += 1
            assert chain.contains(starts, stops).all()
            assert (stops > starts).all()
        elif len(starts) and chain.contains(starts, stops).all() and (starts[1:] >= stops[:-1]).all():
            assert (stops <= starts).any() or (chain.end_array[:-1] > chain.base_array[1:]).any()
    assert found_in_order or (chain.end_array[:-1] > chain.base_array[1:]).any()
    assert not FileChain((), 0).holds_in_order(np.zeros(1, np.int64), np.ones(1, np.int64))
