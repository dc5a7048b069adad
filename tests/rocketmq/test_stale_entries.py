"""A queue that ends early in its file gets entries from the log at startup; the old ones after those are served again.

Source of the rule: rocketmq.md 3.4. `tests/real/test_stale_entries.py` runs both real stores on the same stores.
"""

from __future__ import annotations

import struct
from pathlib import Path

import pyarrow as pa
import pytest

from storage_core import open_store
from storage_core.errors import CorruptionError
from storage_core.rocketmq.disk.directory import list_store
from storage_core.rocketmq.recovery import recovery_cache, verdict_file
from storage_core.rocketmq.recovery.queue_scan import StaleEntries
from storage_core.store import OffsetBound, Scan, ScanRequest
from tests.golden import archive
from tests.reference.rocketmq_recovery import Recovered
from tests.reference.served import AS_BROKER, in_partitions, read
from tests.support.rocketmq_files import overwrite, records
from tests.support.rocketmq_stale import ENTRY, KINDS, LOG_SIZE, QUEUE_SIZE, stale_store

KEY = ("orders", 0)
RECOVERY = {"493": "4.9", "533": "5.x"}
ALL = "all of them"


def numbers(store: Path, version: str = "493", partitions: int = 1, **request: object) -> list[int]:
    """The numbers of the messages that are read from `orders`, in queue order."""
    everything = {**AS_BROKER, "topics": ("orders",), "columns": ("queueOffset", "key"), **request}
    rows = read(store, in_partitions(partitions, **everything), recovery=RECOVERY[version])
    return [int(row["key"][1:]) for row in sorted(rows, key=lambda row: row["queueOffset"])]


@pytest.mark.parametrize("version", RECOVERY)
@pytest.mark.parametrize("kind", KINDS)
def test_old_entries_are_served_up_to_the_first_that_a_broker_cuts(kind: str, version: str, tmp_path: Path) -> None:
    store = stale_store(tmp_path, kind)
    twin = Recovered(store, version, LOG_SIZE, QUEUE_SIZE)
    expected = sorted((topic, queue_offset, at) for topic, _, queue_offset, at, _ in twin.served())
    for partitions in (1, 5):
        rows = read(store, in_partitions(partitions, **AS_BROKER), recovery=RECOVERY[version])
        assert sorted((row["topic"], row["queueOffset"], row["physicalOffset"]) for row in rows) == expected
    assert numbers(store, version) == KINDS[kind]
    with open_store(str(store), recovery=RECOVERY[version]) as opened:
        ends = {(queue.topic, queue.queue_id): queue.stop for queue in opened.queues()}
        assert ends[KEY] == len(KINDS[kind]) == twin.queues[KEY].chain.stop // ENTRY
        (total,) = (row for batch in opened.view("queues") for row in batch.to_pylist() if row["topic"] == "orders")
        assert (total["messages"], total["maxOffset"]) == (len(KINDS[kind]), len(KINDS[kind]))


def test_the_verdict_says_where_they_lie(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in a verdict of another process."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(recovery_cache, "WORTH_KEEPING_S", -1)
    monkeypatch.setattr(verdict_file, "SETTLED_NS", -(10**18))
    store = stale_store(tmp_path, ALL)
    *_, last_of_orders, _ = records(store)
    listing = list_store(str(store))
    found = recovery_cache.cached_verdict(listing, None)
    bounds, reach = found.queues[KEY], last_of_orders.physical_offset + last_of_orders.size
    assert (bounds.disk_stop, bounds.stop, bounds.stale) == (2, 11, StaleEntries(5, 11, reach))
    recovery_cache._cache.clear()
    monkeypatch.setattr(recovery_cache, "recover", None)
    assert recovery_cache.cached_verdict(list_store(listing.root), None) == found


def test_a_message_that_is_listed_twice_is_found_twice(tmp_path: Path) -> None:
    store = stale_store(tmp_path, ALL)
    assert numbers(store, keys=("k9",)) == [9, 9]
    assert numbers(store, keys=("k6", "k2", "k0")) == [0, 6]
    assert numbers(store, keys=("k9",), use_index=False) == [9, 9]


def test_ranges_of_the_queue(tmp_path: Path) -> None:
    store = stale_store(tmp_path, ALL)
    for start in range(12):
        for stop in range(start, 12):
            request = {"start": OffsetBound(offsets={KEY: start}), "stop": OffsetBound(offsets={KEY: stop})}
            assert numbers(store, **request) == KINDS[ALL][start:stop]


def test_unreadable_old_entries_make_a_pull_jump(tmp_path: Path) -> None:
    """As in 4.9.3 and 5.3.3; those that the start overwrites do not."""
    store = stale_store(tmp_path, ALL)
    overwrite(store / "consumequeue" / "orders" / "0" / f"{0:020}", 5 * ENTRY + 8, struct.pack(">i", 1 << 30))
    twin = Recovered(store, "493", LOG_SIZE, QUEUE_SIZE)
    expected = [queue_offset for topic, _, queue_offset, _, _ in twin.served() if topic == "orders"]
    rows = read(store, in_partitions(1, topics=("orders",), **AS_BROKER))
    assert sorted(row["queueOffset"] for row in rows) == expected == [0, 1, 2, 3, 4, 8, 9, 10]


def test_a_time_is_found_among_them(tmp_path: Path) -> None:
    store = stale_store(tmp_path, ALL)
    rows = read(store, in_partitions(1, scan=Scan.LOG))
    (time_ms,) = {row["storeTimestamp"] for row in rows}
    for start_ms, expected in ((time_ms, 0), (time_ms + 1, 11)):
        with open_store(str(store)) as opened:
            found = opened.snapshot().offsets_at(ScanRequest(topics=("orders",), start_ms=start_ms))
        assert found == {KEY: expected}


def test_a_write_is_refused_until_the_store_is_repaired(tmp_path: Path) -> None:
    store = stale_store(tmp_path, ALL)
    row = pa.table({"topic": ["orders"], "queueId": pa.array([0], pa.int32()), "body": [b"new"], "key": ["k12"]})
    before = archive.fingerprint(store / "consumequeue"), archive.fingerprint(store / "commitlog")
    with open_store(str(store)) as opened, pytest.raises(CorruptionError, match=r"queue offset 2 is not valid.*repair"):
        opened.append(row)
    assert before == (archive.fingerprint(store / "consumequeue"), archive.fingerprint(store / "commitlog"))
    assert numbers(store) == KINDS[ALL]
    with open_store(str(store)) as opened:
        opened.repair()
        assert list(opened.verify()) == []
        opened.append(row)
    assert numbers(store) == [*range(11), 12]
