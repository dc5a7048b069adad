"""The end of a store while a broker or a writer appends: never past what is written, never short of it for long."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from storage_core import open_store
from storage_core.files import system
from storage_core.rocketmq.recovery import recovery_cache
from storage_core.rocketmq.recovery.recovery import recover
from storage_core.rocketmq.stream import tail as tails
from storage_core.rocketmq.stream.growth import Growth
from storage_core.store import ScanRequest
from storage_core.stream.tail import StreamSnapshot, Tail
from tests.golden.archive import fingerprint
from tests.rocketmq.growing_store import GrowingStore

SMALL = {"commitLogFileSize": 2048, "consumeQueueFileEntries": 8, "indexSlots": 11, "indexEntries": 40}
COLUMNS = ("topic", "queueId", "queueOffset", "body")
Row = tuple[str, int, int, bytes]


def append(root: Path, count: int, seed: int, topics: str = "ab") -> None:
    chance = random.Random(seed)
    rows = {
        "topic": [chance.choice(topics) for _ in range(count)],
        "queueId": pa.array([chance.randrange(2) for _ in range(count)], pa.int32()),
        "body": [f"{seed}-{number}-".encode() + b"x" * chance.randrange(60) for number in range(count)],
    }
    with open_store(str(root), "rocketmq", **SMALL) as store:
        store.append(pa.table(rows))


def rows_between(snapshot: StreamSnapshot, positions: dict) -> list[Row]:
    """The rows from `positions` on; moves `positions` to the end."""
    ranges = {key: (positions.get(key, start), stop) for key, (start, stop) in snapshot.positions.items()}
    positions.update({key: stop for key, (_, stop) in ranges.items()})
    plan = snapshot.plan_ranges(ScanRequest(columns=COLUMNS), ranges)
    return [
        tuple(row.values()) for piece in plan for batch in piece.read() for row in batch.to_pylist()
    ]  # fmt: skip


def all_rows(root: Path) -> list[Row]:
    with open_store(str(root)) as store:
        plan = store.snapshot().plan(ScanRequest(columns=COLUMNS))
        return sorted(tuple(row.values()) for piece in plan for batch in piece.read() for row in batch.to_pylist())


@pytest.fixture
def model(tmp_path: Path) -> Path:
    for seed in range(4):
        append(tmp_path / "model", 40, seed)
    return tmp_path / "model"


def tail_of(root: Path) -> Tail:
    return open_store(str(root)).follow()


@pytest.mark.parametrize("seed", range(6))
def test_a_broker_is_followed_through_every_half_written_state(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(tails, "HOLD_S", float("inf"))
    chance = random.Random(seed)
    live = GrowingStore(model, tmp_path / "live")
    live.write(live.records[2]["physicalOffset"])
    live.list(1)
    found: list[Row] = []
    positions: dict = {}
    with tail_of(live.root) as tail:
        while sum(live.listed.values()) < len(live.records):
            if chance.random() < 0.6:
                live.write(min(live.end, live.written + chance.randrange(1, 700)))
            if chance.random() < 0.6:
                live.list(chance.randrange(6), chance.choice((0, 0, 3, 7, 8, 11)))
            before = fingerprint(live.root)
            found += rows_between(tail.look(), positions)
            assert fingerprint(live.root) == before
            whole = sum(live.listed.values())
            assert len(found) <= whole
            if chance.random() < 0.3:
                assert len(found) == whole, "what is listed and written is served at once"
    assert len(found) == len(set(found)) == len(live.records)
    assert sorted(found) == all_rows(model)


def test_an_entry_counts_when_its_tags_code_is_written(tmp_path: Path) -> None:
    """The last entry names its record before it has the tags code: a stream of that tag must not pass it by."""
    rows = {"topic": ["a"] * 9, "queueId": pa.array([0] * 9, pa.int32()), "tags": ["red"] * 9, "body": [b"x"] * 9}
    with open_store(str(tmp_path / "model"), "rocketmq", **SMALL) as store:
        store.append(pa.table(rows))
    live = GrowingStore(tmp_path / "model", tmp_path / "live")
    live.write(live.end)
    live.list(7)
    with tail_of(live.root) as tail:
        assert tail.look().positions == {("a", 0): (0, 7)}
        live.list(1, torn=19)
        assert tail.look().positions == {("a", 0): (0, 8)}
        live.list(1)
        snapshot = tail.look()
        assert snapshot.positions == {("a", 0): (0, 9)}
        plan = snapshot.plan_ranges(ScanRequest(columns=COLUMNS, tags=("red",)), snapshot.positions)
        assert sum(batch.num_rows for piece in plan for batch in piece.read()) == 9


def test_what_nobody_lists_counts_after_a_moment(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tails, "HOLD_S", 0.05)
    live = GrowingStore(model, tmp_path / "live")
    live.write(live.records[20]["physicalOffset"] + 30)
    live.list(9)
    positions: dict = {}
    with tail_of(live.root) as tail:
        assert len(rows_between(tail.look(), positions)) == 9
        found = rows_between(tail.settled(), positions)
        assert len(found) == 20 - 9
        assert tail.look() is tail.look(), "a record that is half there is not looked at again and again"
        live.list(11)  # a broker was started after all
        assert rows_between(tail.look(), positions) == []
        live.write(live.end)
        live.list(1000)
        assert len(rows_between(tail.look(), positions)) == len(live.records) - 20
    assert len(all_rows(live.root)) == len(live.records)


def test_a_broker_that_works_is_not_waited_for(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    live = GrowingStore(model, tmp_path / "live")
    live.write(live.records[50]["physicalOffset"])
    live.list(9)

    def work(seconds: float) -> None:
        live.list(3)

    monkeypatch.setattr(tails, "HOLD_S", float("inf"))  # however slow this machine is, nobody counts as gone
    monkeypatch.setattr(tails.time, "sleep", work)
    with tail_of(live.root) as tail:
        assert sum(stop for _, stop in tail.settled().positions.values()) in (12, 15)


def test_a_writer_of_mqstore_is_followed(tmp_path: Path) -> None:
    root = tmp_path / "store"
    append(root, 5, 0)
    found: list[Row] = []
    positions: dict = {}
    with tail_of(root) as tail:
        for seed in range(1, 30):
            found += rows_between(tail.look(), positions)
            assert tail.look() is tail.look()
            append(root, 7, seed, "abc"[: 1 + seed % 3])
        found += rows_between(tail.look(), positions)
    assert sorted(found) == all_rows(root)


def test_a_job_under_way_counts_as_absent(tmp_path: Path) -> None:
    """At each write of a commit, a reader sees either the messages from before or all of them."""
    root = tmp_path / "store"
    append(root, 20, 0)
    sizes = set()
    with tail_of(root) as tail:
        tail.look()
        writes = system.pwrite

        def looking(descriptor: int, data: bytes, position: int) -> None:
            for half in (data[: len(data) // 2], data):
                writes(descriptor, half, position)
                sizes.add(sum(stop for _, stop in tail.look().positions.values()))

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(system, "pwrite", looking)
            append(root, 30, 1)
        assert sum(stop for _, stop in tail.look().positions.values()) == 50
    assert sizes <= {20, 50}


def test_files_and_topics_that_go(model: Path, tmp_path: Path) -> None:
    live = GrowingStore(model, tmp_path / "live")
    live.write(live.end)
    live.list(1000)
    with tail_of(live.root) as tail:
        before = tail.look()
        assert tail.look() is before
        live.expire()
        after = tail.look()
        assert sum(start for start, _ in after.positions.values()) > 0
        assert {key: stop for key, (_, stop) in after.positions.items()} == {
            key: stop for key, (_, stop) in before.positions.items()
        }
        live.delete("a")
        assert {key[0] for key in tail.look().positions} == {"b"}


def test_a_queue_that_goes_and_leaves_its_topics_folder(model: Path, tmp_path: Path) -> None:
    """As 4.9.3 deletes a topic: what stays is served on, and nothing of the queue is served as it was."""
    live = GrowingStore(model, tmp_path / "live")
    live.write(live.records[100]["physicalOffset"])
    live.list(100)
    with tail_of(live.root) as tail:
        before = tail.settled()
        seals = before.seals({key: stop for key, (_, stop) in before.positions.items()})
        shutil.rmtree(live.root / "consumequeue" / "a" / "0")
        fresh = type(before)(before.served, "fresh")
        assert {key: fresh.holds(key, seal) for key, seal in seals.items()} == {
            key: None if key == ("a", 0) else True for key in seals
        }
        live.write(live.records[140]["physicalOffset"])
        after = tail.look()
        assert after.positions.get(("a", 0), (0, 0)) == (0, 0)
        assert {key: span for key, span in after.positions.items() if key != ("a", 0)} == {
            key: span for key, span in before.positions.items() if key != ("a", 0)
        }


def test_a_store_that_is_replaced_is_seen(tmp_path: Path) -> None:
    root = tmp_path / "store"
    append(root, 30, 0)
    with tail_of(root) as tail:
        assert sum(stop for _, stop in tail.look().positions.values()) == 30
        shutil.rmtree(root)
        append(root, 4, 1)
        assert sum(stop for _, stop in tail.look().positions.values()) == 4


@pytest.mark.parametrize("name", ["mixed-4.9.3", "mixed-5.3.3"])
def test_a_real_store_is_served_as_in_a_batch(tmp_path: Path, name: str) -> None:
    from tests.golden.archive import unpack

    root = unpack(name, tmp_path)
    with tail_of(root) as tail:
        assert sorted(rows_between(tail.settled(), {})) == all_rows(root)


def test_a_record_that_comes_right_after_the_walk_is_seen(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is written before anything reads the bytes where the next record will begin, and they never change again."""
    live = GrowingStore(model, tmp_path / "live")
    live.write(live.records[10]["physicalOffset"])
    live.list(10)
    grow = Growth.grow
    left = [30, 20]

    def late(self: Growth, *arguments: Any) -> None:
        grow(self, *arguments)
        if left:
            live.write(live.records[left.pop()]["physicalOffset"])
            live.list(1000)

    monkeypatch.setattr(Growth, "grow", late)
    with tail_of(live.root) as tail:
        tail.look()
        for _ in range(4):
            tail.look()
        assert sum(stop for _, stop in tail.look().positions.values()) == 30
        assert tail.look() is tail.look()


def test_a_batch_read_sees_a_record_that_came_right_after_the_walk(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = GrowingStore(model, tmp_path / "live")
    live.write(live.records[10]["physicalOffset"])
    live.list(10)

    def late(*arguments: Any) -> Any:
        verdict = recover(*arguments)
        live.write(live.records[20]["physicalOffset"])
        live.list(1000)
        return verdict

    monkeypatch.setattr(recovery_cache, "recover", late)
    monkeypatch.setattr(recovery_cache, "_has_same_files", lambda *_: True)  # a broker's map changes no time
    all_rows(live.root)
    assert len(all_rows(live.root)) == 20
