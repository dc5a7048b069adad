"""Batch queues: for every request, the rows are what a consumer received from the broker that made the store."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from storage_core import open_store
from storage_core.errors import CorruptionError
from storage_core.formats.rocketmq.consumequeue import BATCH_ENTRY
from storage_core.formats.rocketmq.message import HEADER
from storage_core.rocketmq.disk.directory import list_store
from storage_core.rocketmq.read import batch_builder
from storage_core.rocketmq.recovery.recovery import recover
from storage_core.store import EARLIEST, LATEST, Mode, OffsetBound, Predicate, Scan, ScanRequest
from tests.golden import archive
from tests.reference.batches import got, shown_fields
from tests.reference.served import Row, by_place, in_partitions, partition_rows, place, table_rows
from tests.support.batch_store import add_queue, lose_batch_entries
from tests.support.compiled import either_loops
from tests.support.golden_stores import name_and_directory
from tests.support.memory_bucket import Bucket, served
from tests.support.remote_answers import Twins

__all__ = ["either_loops"]

ENGINE = "rocketmq/batched"
TOPICS = ("bulk", "orders", "plain")
BATCHED = TOPICS[:2]
name, directory = name_and_directory(ENGINE)


def rows_of(directory: Path, partitions: int = 1, **request: Any) -> list[Row]:
    return by_place(directory, partitions, **{"topics": TOPICS} | request)


def test_rows_are_what_a_consumer_got(name: str, directory: Path) -> None:
    before = archive.fingerprint(directory)
    messages = archive.truth(name, ENGINE)
    for partitions in (1, 5):
        rows = rows_of(directory, partitions)
        assert [shown_fields(row) for row in rows] == [got(message) for message in messages]
    apart = [message for message in messages if message["size"] == 0]
    assert len(messages) - len(apart) > 20 < len(apart), "some came in batches, some did not"
    assert archive.fingerprint(directory) == before


def test_scan_log_takes_batches_apart_too(directory: Path) -> None:
    assert rows_of(directory, 3, scan=Scan.LOG) == rows_of(directory)
    some = (("bulk", 0),)
    start = OffsetBound(EARLIEST, {("bulk", 0): 3})
    own = [row for row in rows_of(directory) if place(row)[:2] == ("bulk", 0) and row["queueOffset"] >= 3]
    assert rows_of(directory, topics=None, assign=some, start=start, scan=Scan.LOG) == own


REQUESTS: list[tuple[dict[str, Any], Callable[[Row], bool]]] = [
    ({"keys": ("key-3",)}, lambda row: "key-3" in row["keys"]),
    ({"tags": ("red",)}, lambda row: row["tags"] == "red"),
    ({"topics": ("bulk",)}, lambda row: row["topic"] == "bulk"),
    ({"topics": None, "assign": (("orders", 1),)}, lambda row: place(row)[:2] == ("orders", 1)),
    ({"predicates": (Predicate("queueOffset", ">=", 11),)}, lambda row: row["queueOffset"] >= 11),
    ({"predicates": (Predicate("queueOffset", "=", 5),)}, lambda row: row["queueOffset"] == 5),
    ({"predicates": (Predicate("physicalOffset", "<", 9000),)}, lambda row: row["physicalOffset"] < 9000),
    ({"predicates": (Predicate("key", "=", "key-5"),)}, lambda row: row["key"] == "key-5"),
    ({"predicates": (Predicate("sysFlag", "=", 0),)}, lambda row: row["sysFlag"] == 0),
    ({"max_records_per_partition": 7}, lambda row: True),
    ({"columns": ("topic", "queueId", "queueOffset", "physicalOffset", "size")}, lambda row: True),
    ({"columns": ("flag", "body", "tags")}, lambda row: True),
]


@pytest.mark.parametrize("scan", [Scan.QUEUES, Scan.LOG])
@pytest.mark.parametrize("case", REQUESTS, ids=lambda case: "-".join(case[0]))
def test_a_request_leaves_what_it_asks_for(
    directory: Path, case: tuple[dict[str, Any], Callable[[Row], bool]], scan: Scan
) -> None:
    request, is_expected = case
    whole = [row for row in rows_of(directory) if is_expected(row)]
    for partitions in (1, 5):
        places = {"columns": (*request["columns"], "topic", "queueId", "queueOffset")} if "columns" in request else {}
        rows = rows_of(directory, partitions, scan=scan, **request | places)
        assert rows
        assert rows == [{column: row[column] for column in rows[0]} for row in whole]


@pytest.mark.parametrize("scan", [Scan.QUEUES, Scan.LOG])
def test_a_batch_of_rows_is_no_larger_than_others(directory: Path, scan: Scan, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = rows_of(directory)
    monkeypatch.setattr(batch_builder, "ROWS", 3)
    with open_store(str(directory)) as store:
        plan = store.snapshot().plan(in_partitions(1, topics=TOPICS, scan=scan))
        batches = [batch for partition in plan for batch in partition.read()]
    assert max(batch.num_rows for batch in batches if "plain" not in batch["topic"].to_pylist()) == 3
    assert sorted((row for batch in batches for row in table_rows(pa.Table.from_batches([batch]))), key=place) == whole


def test_no_partition_has_more_rows_than_asked_for(directory: Path) -> None:
    for most in (1, 4, 13):
        request = in_partitions(1, topics=BATCHED, max_records_per_partition=most)
        with open_store(str(directory)) as store:
            partitions = [partition_rows(one) for one in store.snapshot().plan(request)]
        listed = [part for part in partitions if part]
        assert max(map(len, listed)) <= most
        assert sorted((row for part in listed for row in part), key=place) == rows_of(directory, topics=BATCHED)


def test_times_and_offsets(directory: Path) -> None:
    rows = rows_of(directory)
    middle = sorted(row["storeTimestamp"] for row in rows)[len(rows) // 2]
    assert rows_of(directory, start_ms=middle) == [row for row in rows if row["storeTimestamp"] >= middle]
    assert rows_of(directory, stop_ms=middle) == [row for row in rows if row["storeTimestamp"] < middle]
    own = [row for row in rows if place(row)[:2] == ("bulk", 0)]
    assert [row["queueOffset"] for row in own] == list(range(len(own)))
    for first, last in ((2, len(own) - 2), (5, 6), (0, len(own)), (4, 4)):
        start, stop = OffsetBound(EARLIEST, {("bulk", 0): first}), OffsetBound(LATEST, {("bulk", 0): last})
        request = {"topics": None, "assign": (("bulk", 0),), "start": start, "stop": stop}
        assert rows_of(directory, **request) == own[first:last]
    for count in (0, 1, 5, len(own), 1_000):
        latest = {"topics": None, "assign": (("bulk", 0),), "start": OffsetBound(EARLIEST, last=count)}
        assert rows_of(directory, **latest) == own[max(0, len(own) - count) :]
    with open_store(str(directory)) as store:
        found = store.snapshot().offsets_at(ScanRequest(topics=("bulk",), start_ms=middle))
    late = [row["queueOffset"] for row in own if row["storeTimestamp"] >= middle]
    assert found["bulk", 0] == min(late, default=len(own))


def test_lookups(directory: Path) -> None:
    rows = rows_of(directory)
    wanted = (rows[3]["msgId"], rows[-1]["msgId"])
    assert rows_of(directory, message_ids=wanted) == [row for row in rows if row["msgId"] in wanted]
    with open_store(str(directory)) as store:
        found = [each for batch in store.find(key="key-7") for each in batch.column("msgId").to_pylist()]
    assert sorted(found) == sorted(row["msgId"] for row in rows if "key-7" in row["keys"])


def test_views_count_what_is_served(directory: Path) -> None:
    rows = rows_of(directory)
    with open_store(str(directory)) as store:
        queues = pa.Table.from_batches(store.view("queues")).to_pylist()
        assert store.snapshot().warnings() == []
        assert list(store.verify()) == []
    assert {(queue["topic"], queue["queueId"]) for queue in queues} >= {place(row)[:2] for row in rows}
    for queue in queues:
        own = [row for row in rows if place(row)[:2] == (queue["topic"], queue["queueId"])]
        if not own:
            continue
        records = {row["physicalOffset"]: row["size"] for row in own}
        assert (queue["messages"], queue["bytes"]) == (len(own), sum(records.values()))
        assert (queue["minOffset"], queue["maxOffset"]) == (0, own[-1]["queueOffset"] + 1)
        edges = [round(queue[edge].timestamp() * 1000) for edge in ("firstStoreTimestamp", "lastStoreTimestamp")]
        assert edges == [own[0]["storeTimestamp"], own[-1]["storeTimestamp"]]


def test_the_view_of_files(directory: Path) -> None:
    logged = {row["physicalOffset"]: row["storeTimestamp"] for row in rows_of(directory, topics=None, scan=Scan.LOG)}
    rows = rows_of(directory)
    with open_store(str(directory)) as store:
        found = pa.Table.from_batches(store.view("segments")).to_pylist()
    files = {str(path.relative_to(directory)) for path in directory.glob("batchconsumequeue/*/*/*")}
    assert {row["file"] for row in found if row["kind"] == "batchconsumequeue"} == files
    for topic in BATCHED:
        own = [row for row in found if row["file"].startswith(f"batchconsumequeue/{topic}/")]
        assert sum(row["messages"] for row in own) == sum(row["topic"] == topic for row in rows)
        assert all(row["usedBytes"] <= row["bytes"] for row in own)
    for row in (row for row in found if row["kind"] == "commitlog"):
        at = [each for each in sorted(logged) if row["baseOffset"] <= each < row["baseOffset"] + row["bytes"]]
        assert row["messages"] == len(at)
        edges = [
            row[edge] and round(row[edge].timestamp() * 1000) for edge in ("firstStoreTimestamp", "lastStoreTimestamp")
        ]
        assert edges == ([logged[at[0]], logged[at[-1]]] if at else [None, None])


def test_after_a_crash_a_start_dispatches_what_is_missing(tmp_path: Path) -> None:
    directory = archive.unpack("killed-5.3.3", tmp_path, ENGINE)
    before = rows_of(directory)
    assert lose_batch_entries(directory, lambda: 3) > 4
    for partitions in (1, 5):
        assert rows_of(directory, partitions) == before
    late = sorted(row["storeTimestamp"] for row in before)[-3]
    assert rows_of(directory, start_ms=late) == [row for row in before if row["storeTimestamp"] >= late]
    assert rows_of(directory, keys=("key-1",)) == [row for row in before if "key-1" in row["keys"]]
    own = [row for row in before if place(row)[:2] == ("orders", 1)]
    for count in range(1, 7):
        last = OffsetBound(EARLIEST, last=count)
        assert rows_of(directory, topics=None, assign=(("orders", 1),), start=last) == own[-count:]
    test_views_count_what_is_served(directory)


def test_a_walk_that_goes_on_finds_what_is_missing_again(tmp_path: Path) -> None:
    """As it does if a broker has appended to the log since."""
    directory = archive.unpack("killed-5.3.3", tmp_path, ENGINE)
    lose_batch_entries(directory, lambda: 3)
    listing = list_store(str(directory))
    verdict = recover(listing)
    assert len(verdict.batches) == 4
    assert recover(listing, None, verdict).batches == verdict.batches
    for path in (directory / "batchconsumequeue").glob("*/*/*"):
        first = BATCH_ENTRY.size * (path.name == "0" * 20)
        path.write_bytes(path.read_bytes()[:first].ljust(path.stat().st_size, b"\0"))
    lost_more = recover(list_store(str(directory)))
    assert recover(list_store(str(directory)), None, verdict) == lost_more != verdict


def test_after_a_clean_stop_it_does_not(tmp_path: Path) -> None:
    """Except for messages after the last record that some queue lists."""
    directory = archive.unpack("stopped-5.3.3", tmp_path, ENGINE)
    before = rows_of(directory)
    assert lose_batch_entries(directory, lambda: 2)
    rows = rows_of(directory)
    places = [place(row) for row in before]
    assert len(rows) < len(before)
    assert [place(row) for row in rows] == [at for at in places if at in {place(row) for row in rows}]
    lost = Counter("/".join(map(str, at[:2])) for at in places if at not in {place(row) for row in rows})
    with open_store(str(directory)) as store:
        findings = list(store.verify())
    assert {finding.kind for finding in findings} == {"unlisted batches"}
    assert {finding.queue: int(finding.reason.split(": ")[1].split()[0]) for finding in findings} == lost


def test_a_queue_that_no_broker_has_started_yet(tmp_path: Path) -> None:
    """Only topics.json states that its messages belong in batch queues."""
    directory = archive.unpack("killed-5.3.3", tmp_path, ENGINE)
    before = rows_of(directory)
    for topic in BATCHED:
        for folder in (directory / "batchconsumequeue" / topic).iterdir():
            for file in folder.iterdir():
                file.unlink()
            folder.rmdir()
        (directory / "batchconsumequeue" / topic).rmdir()
    (directory / "batchconsumequeue").rmdir()
    found = rows_of(directory)
    log_start = min(row["physicalOffset"] for row in found if row["topic"] in BATCHED)
    assert [row for row in found if row["topic"] in BATCHED] == [
        row for row in before if row["topic"] in BATCHED and row["physicalOffset"] >= log_start
    ]


def test_what_the_log_lost_is_not_served(tmp_path: Path) -> None:
    directory = archive.unpack("killed-5.3.3", tmp_path, ENGINE)
    before = rows_of(directory)
    last = max(row["physicalOffset"] for row in before)
    files = sorted((directory / "commitlog").iterdir())
    file = max(path for path in files if int(path.name) <= last)
    with file.open("r+b") as log:
        log.seek(last - int(file.name))
        log.write(bytes(8))
    assert rows_of(directory) == [row for row in before if row["physicalOffset"] != last]


@pytest.mark.parametrize("in_batch", [False, True])
def test_damage_is_reported(directory: Path, in_batch: bool) -> None:
    """A damaged batch stays one row, because nobody knows which of its messages the damaged bytes belong to."""
    before = rows_of(directory, topics=("bulk",))
    sizes = Counter(row["physicalOffset"] for row in before)
    row = next(row for row in before if (sizes[row["physicalOffset"]] > 1) == in_batch and len(row["body"]) > 20)
    harm(directory, row)
    with pytest.raises(CorruptionError, match="the body does not fit BODYCRC; option mode=DROPMALFORMED"):
        rows_for(directory, ScanRequest(topics=("bulk",)))
    with open_store(str(directory), recovery="5.x") as store:
        kinds = {finding.kind for finding in store.verify()}
    assert "wrong checksum" in kinds
    assert "wrong batch entry" not in kinds
    rest = [each for each in before if each["physicalOffset"] != row["physicalOffset"]]
    fields = {"topics": ("bulk",), "min_partitions": 1}
    for scan in (Scan.QUEUES, Scan.LOG):
        assert rows_for(directory, ScanRequest(mode=Mode.DROPMALFORMED, scan=scan, **fields)) == rest
    columns = ("topic", "queueId", "queueOffset", "physicalOffset", "body", "corruption")
    shown = rows_for(directory, ScanRequest(mode=Mode.PERMISSIVE, columns=columns, **fields))
    assert [each["physicalOffset"] for each in shown if each["corruption"]] == [row["physicalOffset"]]
    assert len(shown) == len(rest) + 1
    unchecked = rows_for(directory, ScanRequest(mode=Mode.DROPMALFORMED, verify_crc=False, **fields))
    assert [place(each) for each in unchecked] == [place(each) for each in before]


def harm(directory: Path, row: Row) -> None:
    """Flips a bit in the body of a row."""
    path = max(path for path in (directory / "commitlog").iterdir() if int(path.name) <= row["physicalOffset"])
    data = bytearray(path.read_bytes())
    data[data.index(row["body"], row["physicalOffset"] - int(path.name))] ^= 1
    path.write_bytes(data)


def rows_for(directory: Path, request: ScanRequest) -> list[Row]:
    with open_store(str(directory), recovery="none") as store:
        return sorted((row for piece in store.snapshot().plan(request) for row in partition_rows(piece)), key=place)


def test_entries_of_another_message_are_damage(directory: Path) -> None:
    before = rows_of(directory)
    path = min((directory / "batchconsumequeue" / "bulk" / "1").iterdir())
    entries = np.frombuffer(path.read_bytes(), BATCH_ENTRY.dtype).copy()
    for name in ("physical_offset", "size"):
        entries[name][1] = entries[name][0]
    path.write_bytes(entries.tobytes())
    first = int(entries["queue_offset"][1])
    gone = {("bulk", 1, offset) for offset in range(first, first + int(entries["count"][1]))}
    assert rows_of(directory) == [row for row in before if place(row) not in gone]
    with open_store(str(directory)) as store:
        with pytest.raises(CorruptionError, match="are not those of the queue"):
            list(store.snapshot().read(ScanRequest(topics=("bulk",))))
        wrong, unlisted = store.verify()
    assert (wrong.kind, wrong.queue, wrong.position) == ("wrong batch entry", "bulk/1", BATCH_ENTRY.size)
    assert "are not those of the queue" in wrong.reason
    assert (unlisted.kind, unlisted.queue) == ("unlisted batches", "bulk/1")
    assert f" {len(gone)} message" in unlisted.reason


@pytest.mark.parametrize("change", ["a queue besides", "another type"])
def test_verify_tells_of_what_keeps_a_broker_from_its_start(directory: Path, change: str) -> None:
    """tests/real/test_batch_queues.py tests the same with a real broker."""
    if change == "another type":
        topics = directory / "config" / "topics.json"
        topics.write_text(topics.read_text().replace("BatchCQ", "SimpleCQ"))
        wrong = [f"batchconsumequeue/{topic}/{queue_id}" for topic in BATCHED for queue_id in (0, 1)]
    else:
        add_queue(directory, "bulk")
        wrong = ["consumequeue/bulk/0"]
    with open_store(str(directory)) as store:
        findings = [each for each in store.verify() if each.kind == "queue of another type"]
        assert [each.file for each in findings] == wrong
        assert {each.effect for each in findings} == {"does not load the store"}
        assert not any(each.repairable for each in findings)


@pytest.mark.parametrize("offset", [0, 7, 1 << 40, (1 << 63) - 1])
def test_an_entry_with_an_impossible_queue_offset(directory: Path, offset: int) -> None:
    rows, file = rows_of(directory), sorted((directory / "batchconsumequeue" / "bulk" / "0").iterdir())[0]
    for number in range(file.stat().st_size // BATCH_ENTRY.size):
        before = file.read_bytes()
        with file.open("r+b") as entries:
            entries.seek(number * BATCH_ENTRY.size + BATCH_ENTRY.field("queue_offset").offset)
            entries.write(offset.to_bytes(8, "big"))
        found = rows_of(directory)
        assert rows_of(directory, 5) == found
        assert all(row in rows for row in found)
        file.write_bytes(before)


def test_an_entry_that_a_repair_would_make_again_is_left(directory: Path) -> None:
    """A dispatcher lists an inner batch at its INNER_BASE, whatever its QUEUEOFFSET."""
    (address, _), *_ = Counter(row["physicalOffset"] for row in rows_of(directory, topics=("bulk",))).most_common(1)
    file = max(file for file in (directory / "commitlog").iterdir() if int(file.name) <= address)
    with file.open("r+b") as log:
        log.seek(address - int(file.name) + HEADER.field("queue_offset").offset)
        log.write((1 << 40).to_bytes(8, "big"))
    with open_store(str(directory)) as store:
        assert [(each.kind, each.repairable) for each in store.verify()] == [("wrong batch entry", False)]
        assert store.repair() == []


@pytest.mark.parametrize("change", [-46, -7, 0, 30])
def test_a_broker_loads_no_batch_queue_with_an_odd_file(directory: Path, change: int) -> None:
    rows, file = rows_of(directory), next((directory / "batchconsumequeue" / "bulk" / "0").iterdir())
    size = file.stat().st_size
    shutil.copy(file, f"{file}.copy")
    os.truncate(file, size + change)
    with open_store(str(directory)) as store:
        found = {(Path(each.file).name, each.kind, each.effect) for each in store.verify()}
        odd, wrong = (f"{file.name}.copy", "unexpected file"), (file.name, "wrong file length")
        assert {(*each, "does not load the store") for each in ((odd, wrong) if change else (odd,))} <= found
        assert store.repair()
        assert list(store.verify()) == []
    assert file.stat().st_size == size
    assert rows_of(directory) == rows


def test_from_a_bucket_the_rows_are_the_same(directory: Path) -> None:
    requests = (ScanRequest(topics=TOPICS), ScanRequest(keys=("key-3",)), ScanRequest(scan=Scan.LOG))
    with served(Bucket()) as bucket:
        bucket.add_folder(directory, "nightly/store")
        twins = Twins(directory, "memory://backups/nightly/store")
        for request in requests:
            twins.assert_same(lambda store, request=request: pa.Table.from_batches(store.snapshot().read(request)))
        twins.assert_same(lambda store: pa.Table.from_batches(store.view("queues")))


def test_a_stream_gets_the_same(directory: Path) -> None:
    with open_store(str(directory)) as store:
        tail = store.follow()
        snapshot = tail.look()
        plan = snapshot.plan_ranges(ScanRequest(), snapshot.positions)
        halves = {key: (start, start + 5) for key, (start, _) in snapshot.positions.items()}
        first = snapshot.plan_ranges(ScanRequest(), halves)
        tail.close()
    expected = rows_of(directory, topics=None)
    assert sorted((row for piece in plan for row in partition_rows(piece)), key=place) == expected
    some = sorted((row for piece in first for row in partition_rows(piece)), key=place)
    assert some == [row for row in expected if row["queueOffset"] < 5]
