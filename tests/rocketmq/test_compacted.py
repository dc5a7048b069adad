"""Compacted topics: for every request, the rows are what a consumer received from the broker that made the store."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from storage_core import open_store
from storage_core.errors import CorruptionError, MqStoreError
from storage_core.files import system
from storage_core.formats.rocketmq.message import HEADER
from storage_core.store import EARLIEST, LATEST, Mode, OffsetBound, Predicate, Scan, ScanRequest
from tests.golden import archive
from tests.reference.consumed import got, shown_fields
from tests.reference.served import Row, by_place, partition_rows, place, read
from tests.support.compacted_store import files_of, lose_entries
from tests.support.golden_stores import name_and_directory
from tests.support.memory_bucket import Bucket, served
from tests.support.remote_answers import Twins

ENGINE = "rocketmq/compacted"
TOPICS = ("latest", "plain", "settings")
name, directory = name_and_directory(ENGINE)


def rows_of(directory: Path, partitions: int = 1, **request: Any) -> list[Row]:
    return by_place(directory, partitions, **{"topics": TOPICS} | request)


def logged(directory: Path) -> list[Row]:
    return rows_of(directory, scan=Scan.LOG)


def test_rows_are_what_a_consumer_got(name: str, directory: Path) -> None:
    before = archive.fingerprint(directory)
    truth = [got(message) for message in archive.truth(name, ENGINE)]
    for partitions in (1, 5):
        assert [shown_fields(row) for row in rows_of(directory, partitions)] == truth
    assert archive.fingerprint(directory) == before
    assert len(logged(directory)) > len(truth)


REQUESTS: list[tuple[dict[str, Any], Callable[[Row], bool]]] = [
    ({"keys": ("key-3",)}, lambda row: "key-3" in row["keys"]),
    ({"tags": ("red",)}, lambda row: row["tags"] == "red"),
    ({"topics": ("latest",)}, lambda row: row["topic"] == "latest"),
    ({"topics": None, "assign": (("settings", 1),)}, lambda row: place(row)[:2] == ("settings", 1)),
    ({"predicates": (Predicate("queueOffset", ">=", 30),)}, lambda row: row["queueOffset"] >= 30),
    ({"predicates": (Predicate("physicalOffset", "<", 2000),)}, lambda row: row["physicalOffset"] < 2000),
    ({"predicates": (Predicate("key", "=", "key-5"),)}, lambda row: row["key"] == "key-5"),
    ({"max_records_per_partition": 7}, lambda row: True),
    ({"columns": ("topic", "queueId", "queueOffset", "physicalOffset", "size")}, lambda row: True),
]


@pytest.mark.parametrize("case", REQUESTS, ids=lambda case: "-".join(case[0]))
def test_a_request_leaves_what_it_asks_for(directory: Path, case: tuple[dict[str, Any], Callable[[Row], bool]]) -> None:
    request, is_expected = case
    whole = [row for row in rows_of(directory) if is_expected(row)]
    for partitions in (1, 5):
        rows = rows_of(directory, partitions, **request)
        assert rows
        assert rows == [{column: row[column] for column in rows[0]} for row in whole]


def test_times_and_offsets(directory: Path) -> None:
    rows = rows_of(directory)
    middle = sorted(row["storeTimestamp"] for row in rows)[len(rows) // 2]
    assert rows_of(directory, start_ms=middle) == [row for row in rows if row["storeTimestamp"] >= middle]
    assert rows_of(directory, stop_ms=middle) == [row for row in rows if row["storeTimestamp"] < middle]
    own = [row for row in rows if place(row)[:2] == ("latest", 0)]
    first, last = own[2]["queueOffset"], own[-2]["queueOffset"]
    start, stop = OffsetBound(EARLIEST, {("latest", 0): first}), OffsetBound(LATEST, {("latest", 0): last})
    request = {"topics": None, "assign": (("latest", 0),), "start": start, "stop": stop}
    assert rows_of(directory, **request) == own[2:-2]
    for count in (0, 1, 5, len(own), 1_000):
        last = {"topics": None, "assign": (("latest", 0),), "start": OffsetBound(EARLIEST, last=count)}
        assert rows_of(directory, **last) == own[max(0, len(own) - count) :]
        before = last | {"start": OffsetBound(EARLIEST), "stop": OffsetBound(LATEST, last=count)}
        assert rows_of(directory, **before) == own[: max(0, len(own) - count)]
    with open_store(str(directory)) as store:
        found = store.snapshot().offsets_at(ScanRequest(topics=("latest",), start_ms=middle))
    late = [row["queueOffset"] for row in own if row["storeTimestamp"] >= middle]
    assert found["latest", 0] == min(late, default=own[-1]["queueOffset"] + 1)


def test_message_ids(directory: Path) -> None:
    rows = rows_of(directory)
    wanted = (rows[3]["msgId"], rows[-1]["msgId"])
    found = rows_of(directory, message_ids=wanted)
    assert found == [row for row in rows if row["msgId"] in wanted]


def test_views_count_what_is_served(directory: Path) -> None:
    rows = rows_of(directory)
    with open_store(str(directory)) as store:
        queues = pa.Table.from_batches(store.view("queues")).to_pylist()
        (line,) = store.snapshot().warnings()
    assert line == (
        "store: of compacted topics (latest, settings) the rows are those that a broker serves, without messages whose "
        "key was sent again; option scan=log reads every message of the log"
    )
    for queue in queues:
        own = [row for row in rows if place(row)[:2] == (queue["topic"], queue["queueId"])]
        assert (queue["messages"], queue["bytes"]) == (len(own), sum(row["size"] for row in own))
        assert queue["maxOffset"] == own[-1]["queueOffset"] + 1
        edges = [round(queue[edge].timestamp() * 1000) for edge in ("firstStoreTimestamp", "lastStoreTimestamp")]
        assert edges == [own[0]["storeTimestamp"], own[-1]["storeTimestamp"]]


def test_without_compaction_the_queues_count(directory: Path) -> None:
    every = logged(directory)
    with open_store(str(directory), recovery="4.9") as store:
        assert sum(batch.num_rows for batch in store.snapshot().read(ScanRequest(topics=TOPICS))) == len(every)
    shutil.rmtree(directory / "compaction")
    assert rows_of(directory) == every


def test_a_topic_that_was_never_compacted(directory: Path) -> None:
    """Its messages arrived before the topic became compacted, so no consumer gets them any more."""
    before = rows_of(directory)
    path = directory / "config" / "topics.json"
    path.write_text(path.read_text().replace('"topicName":"plain"', '"topicName":"plain","order":false'))
    topics = json.loads(path.read_text())
    topics["topicConfigTable"]["plain"]["attributes"] = {"cleanup.policy": "COMPACTION"}
    path.write_text(json.dumps(topics))
    rows = rows_of(directory)
    assert [row for row in rows if row["topic"] != "plain"] == [row for row in before if row["topic"] != "plain"]
    if not (directory / "abort").exists():
        assert rows_of(directory, topics=("plain",)) == []


@pytest.mark.parametrize("also_queues", [False, True])
def test_after_a_crash_a_start_dispatches_what_is_missing(tmp_path: Path, also_queues: bool) -> None:
    directory = archive.unpack("killed-5.3.3", tmp_path, ENGINE)
    before, every = rows_of(directory), {place(row): row for row in logged(directory)}
    lost = lose_entries(directory, 3, also_queues)
    assert len(lost) > 4
    rows = rows_of(directory)
    assert rows == [every[place(row)] if place(row) in lost else row for row in before]
    late = sorted(row["storeTimestamp"] for row in rows)[-3]
    assert rows_of(directory, start_ms=late) == [row for row in rows if row["storeTimestamp"] >= late]
    assert rows_of(directory, keys=("key-1",)) == [row for row in rows if "key-1" in row["keys"]]
    own = [row for row in rows if place(row)[:2] == ("settings", 1)]
    for count in range(1, 7):
        last = OffsetBound(EARLIEST, last=count)
        assert rows_of(directory, topics=None, assign=(("settings", 1),), start=last) == own[-count:]


def test_after_a_crash_a_queue_may_begin_later_than_it_did(tmp_path: Path) -> None:
    """Its files are lost, and the first message that the start finds in the log is not number 0."""
    directory = archive.unpack("killed-5.3.3", tmp_path, ENGINE)
    first = next(row for row in logged(directory) if place(row) == ("latest", 1, 0))
    with (directory / "commitlog" / f"{0:020d}").open("r+b") as log:
        log.seek(first["physicalOffset"] + HEADER.field("queue_offset").offset)
        log.write((3).to_bytes(8, "big"))
    for folder in ("consumequeue", "compaction/compactionLog", "compaction/compactionCq"):
        shutil.rmtree(directory / folder / "latest" / "1")
    rows = [row for row in rows_of(directory) if place(row)[:2] == ("latest", 1)]
    assert rows
    assert rows[0]["physicalOffset"] == first["physicalOffset"]
    assert rows_of(directory, 5, topics=None, assign=(("latest", 1),)) == rows
    with open_store(str(directory)) as store:
        assert list(store.view("queues"))


@pytest.mark.parametrize(
    ("blank", "is_served"),
    [
        ("     ", False),
        (" \t\n\r\x1c", False),
        ("\u3000  ", False),
        ("\u2028\x0b\x0c", False),
        ("\u00a0   ", True),
        ("  k  ", True),
    ],
    ids=ascii,
)
def test_a_start_dispatches_no_message_with_blank_keys(tmp_path: Path, blank: str, is_served: bool) -> None:
    directory = archive.unpack("killed-5.3.3", tmp_path, ENGINE)
    lost = lose_entries(directory, 3, also_queues=False)
    before = rows_of(directory)
    row = next(row for row in before if place(row) in lost and len(row["key"]) == len(blank.encode()))
    with (directory / "commitlog" / f"{0:020d}").open("r+b") as log:
        log.seek(row["physicalOffset"])
        record = log.read(row["size"])
        log.seek(row["physicalOffset"])
        log.write(record.replace(b"KEYS\x01" + row["key"].encode(), b"KEYS\x01" + blank.encode()))
    expected = [place(each) for each in before if is_served or each is not row]
    assert [place(each) for each in rows_of(directory)] == expected


def test_after_a_clean_stop_it_does_not(tmp_path: Path) -> None:
    directory = archive.unpack("stopped-5.3.3", tmp_path, ENGINE)
    before = rows_of(directory)
    lost = lose_entries(directory, 3, also_queues=False)
    assert rows_of(directory) == [row for row in before if place(row) not in lost]


def test_damage_is_reported(directory: Path) -> None:
    row = next(row for row in rows_of(directory) if place(row)[:2] == ("latest", 0))
    path = files_of(directory, "compactionLog", "latest", 0)[0]
    data = bytearray(path.read_bytes())
    data[data.index(row["body"])] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptionError, match=rf"{path}.*body") as caught, open_store(str(directory)) as store:
        list(store.snapshot().read(ScanRequest(topics=("latest",))))
    assert "mode=DROPMALFORMED" in str(caught.value)
    path.unlink()
    with pytest.raises(CorruptionError, match="no such file"), open_store(str(directory)) as store:
        list(store.snapshot().read(ScanRequest(topics=("latest",), mode=Mode.FAILFAST)))


def test_verify_tells_what_is_wrong(directory: Path) -> None:
    def findings() -> list[dict[str, Any]]:
        with open_store(str(directory)) as store:
            found = list(store.verify())
        assert not any(finding.repairable for finding in found)
        return [{name: getattr(finding, name) for name in ("file", "position", "kind", "queue")} for finding in found]

    assert findings() == []
    entries, log = (files_of(directory, kind, "latest", 0)[0] for kind in ("compactionCq", "compactionLog"))
    body = rows_of(directory)[0]["body"]
    data = bytearray(log.read_bytes())
    data[data.index(body)] ^= 1
    log.write_bytes(data)
    name = str(entries.relative_to(directory))
    damaged = {"file": name, "position": 0, "kind": "wrong compacted entry", "queue": "latest/0"}
    assert findings() == [damaged]
    with open_store(str(directory)) as store:
        assert store.repair() == []
    log.unlink()
    assert findings() == [damaged | {"kind": "wrong compaction file"}]


@pytest.mark.parametrize("kind", ["compactionLog", "compactionCq"])
def test_what_a_stopped_compaction_left_keeps_a_broker_from_its_start(directory: Path, kind: str) -> None:
    """A compaction renames the old files before it removes them."""
    rows, file = rows_of(directory), files_of(directory, kind, "settings", 1)[0]
    shutil.copy(file, f"{file}.delete")
    with open_store(str(directory)) as store:
        finding = next(each for each in store.verify() if each.file.endswith(".delete"))
        assert (finding.kind, finding.effect) == ("unexpected file", "does not load the store")
        assert finding.repairable
    assert rows_of(directory) == rows


def test_a_queue_whose_first_file_has_no_entry_serves_nothing(directory: Path) -> None:
    before = rows_of(directory)
    first = files_of(directory, "compactionCq", "settings", 0)[0]
    first.write_bytes(bytes(first.stat().st_size))
    assert rows_of(directory) == [row for row in before if place(row)[:2] != ("settings", 0)]
    with open_store(str(directory)) as store:
        (found,) = store.verify()
        assert (found.kind, found.queue, found.repairable) == ("unserved compacted queue", "settings/0", False)
        assert store.snapshot().warnings()[-1].startswith("store: of the compacted queues settings/0 a broker serves")
        ranges = {(queue.topic, queue.queue_id): (queue.start, queue.stop) for queue in store.queues()}
    assert ranges["settings", 0] == (0, 0)


@pytest.mark.parametrize("lost", ["compactionLog", "compactionCq"])
def test_a_queue_without_one_of_its_folders_serves_nothing(directory: Path, lost: str) -> None:
    before = rows_of(directory)
    shutil.rmtree(directory / "compaction" / lost / "settings")
    rows = [row for row in before if row["topic"] != "settings"]
    assert rows_of(directory) == sorted(read(directory, ScanRequest(topics=TOPICS)), key=place) == rows
    with open_store(str(directory)) as store:
        found = list(store.verify())
        assert [(each.file, each.kind, each.queue, each.repairable) for each in found] == [
            (f"compaction/{lost}/settings/{number}", "unserved compacted queue", f"settings/{number}", False)
            for number in range(2)
        ]
        assert "of the compacted queues settings/0, settings/1 a broker serves" in store.snapshot().warnings()[-1]
        assert list(store.view("queues"))


@pytest.mark.parametrize("topic", ["../../../other", "/", "a/b", "..", "a\0b", "x" * 300, "标" * 90])
def test_a_compacted_topic_that_cannot_have_a_folder(
    tmp_path: Path, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No name in topics.json leads out of the store, or keeps it from being read."""
    directory = archive.unpack("killed-5.3.3", tmp_path, ENGINE)
    shutil.copytree(directory / "compaction" / "compactionCq" / "settings", tmp_path / "other")
    before = rows_of(directory)
    path = directory / "config" / "topics.json"
    topics = json.loads(path.read_text())
    topics["topicConfigTable"][topic] = {"topicName": topic, "attributes": {"cleanup.policy": "COMPACTION"}}
    path.write_text(json.dumps(topics))
    listed, names = set[Path](), system.names

    def noted(path: str) -> list[str]:
        listed.add(Path(os.path.normpath(path)))
        return names(path)

    monkeypatch.setattr(system, "names", noted)
    assert rows_of(directory) == before
    with open_store(str(directory)) as store:
        assert list(store.verify()) == []
        assert not any(queue.topic == topic for queue in store.queues())
    assert listed
    assert not [path for path in listed if not path.is_relative_to(directory)]


def test_nothing_is_written_to_a_compacted_topic(directory: Path) -> None:
    rows = {"topic": ["plain", "latest"], "body": [b"1", b"2"]}
    (directory / "abort").unlink(missing_ok=True)
    before = rows_of(directory)
    with open_store(str(directory)) as store:
        with pytest.raises(MqStoreError, match=r"latest is compacted \(cleanup.policy=COMPACTION in topics.json\)"):
            store.append(pa.table(rows))
        assert rows_of(directory) == before
        assert store.append(pa.table({"topic": ["plain"], "body": [b"1"]})) == 1
    assert len(rows_of(directory)) == len(before) + 1


def test_a_write_or_a_repair_takes_no_message_from_a_consumer(tmp_path: Path) -> None:
    """If the queues were complete, a broker start would not dispatch what the compacted topics lack."""
    directory = archive.unpack("killed-5.3.3", tmp_path, ENGINE)
    lose_entries(directory, 3, also_queues=False)
    with open_store(str(directory)) as store:
        assert store.repair() == [], "nothing is wrong, so nothing is refused"
        assert (directory / "abort").exists()
        (directory / "checkpoint").write_bytes(b"")
        before = archive.fingerprint(directory)
        for change in (lambda: store.append(pa.table({"topic": ["plain"], "body": [b"1"]})), store.repair):
            with pytest.raises(MqStoreError, match=r"\(latest, settings\).*start it and stop it first"):
                change()
            after = archive.fingerprint(directory)
            assert [name for name in before if before[name][1:] != after[name][1:]] == []


def test_a_repair_that_has_begun_is_finished(tmp_path: Path) -> None:
    """A broker would cut messages after damage, so none of them waits for its start until the damage is repaired."""
    directory = archive.unpack("killed-5.3.3", tmp_path, ENGINE)
    lost = lose_entries(directory, 3, also_queues=False)
    every = logged(directory)
    at = min(row["physicalOffset"] for row in every if place(row) in lost)
    damaged = max((row for row in every if row["physicalOffset"] < at), key=lambda row: row["physicalOffset"])
    path = directory / "commitlog" / ("0" * 20)
    data = bytearray(path.read_bytes())
    data[data.index(damaged["body"], damaged["physicalOffset"])] ^= 1
    path.write_bytes(data)
    with open_store(str(directory)) as store:
        assert any("checksum" in line for line in store.repair())
        assert [finding.kind for finding in store.verify()] == []
    assert [path.name for path in (directory / "commitlog").iterdir()] == ["0" * 20]
    assert len(logged(directory)) == len(every)


def test_a_stream_gets_the_same(directory: Path) -> None:
    with open_store(str(directory)) as store:
        tail = store.follow()
        snapshot = tail.look()
        plan = snapshot.plan_ranges(ScanRequest(), snapshot.positions)
        tail.close()
    expected = rows_of(directory, topics=None)
    assert sorted((row for piece in plan for row in partition_rows(piece)), key=place) == expected


def test_from_a_bucket(directory: Path) -> None:
    with served(Bucket()) as bucket:
        bucket.add_folder(directory, "nightly/store")
        twins = Twins(directory, "memory://backups/nightly/store")
        twins.assert_same(lambda store: pa.Table.from_batches(store.snapshot().read(ScanRequest(topics=TOPICS))))
        twins.assert_same(lambda store: pa.Table.from_batches(store.view("queues")))
