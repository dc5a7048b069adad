"""Writes into a store with batch queues, and repairs of these queues."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from storage_core import open_store
from storage_core.errors import MqStoreError
from storage_core.formats.rocketmq.consumequeue import BATCH_ENTRY
from storage_core.rocketmq.recovery.batch_queues import BatchEntries
from tests.golden import archive
from tests.reference.served import Row, by_place, place
from tests.support.batch_store import lose_batch_entries
from tests.support.golden_stores import name_and_directory

ENGINE = "rocketmq/batched"
TOPICS = ("bulk", "orders", "plain")
BATCHED = TOPICS[:2]
name, directory = name_and_directory(ENGINE)


def rows_of(directory: Path) -> list[Row]:
    return by_place(directory, 1, topics=TOPICS)


def test_nothing_is_written_to_a_batch_queue(directory: Path) -> None:
    (directory / "abort").unlink(missing_ok=True)
    before = rows_of(directory)
    with open_store(str(directory)) as store:
        with pytest.raises(MqStoreError, match=r"bulk is in batch queues \(queue.type=BatchCQ in topics.json\)"):
            store.append(pa.table({"topic": ["plain", "bulk"], "body": [b"1", b"2"]}))
        assert rows_of(directory) == before
        assert store.append(pa.table({"topic": ["plain"], "body": [b"1"]})) == 1
    assert len(rows_of(directory)) == len(before) + 1
    assert not any((directory / "consumequeue" / topic).exists() for topic in BATCHED)


def test_a_write_takes_no_message_from_a_consumer(tmp_path: Path) -> None:
    """If the queues were complete, a start would not dispatch what batch queues lack. A repair completes these too."""
    directory = archive.unpack("killed-5.3.3", tmp_path, ENGINE)
    before, files = rows_of(directory), batch_files(directory)
    lose_batch_entries(directory, lambda: 3)
    with open_store(str(directory)) as store:
        assert store.repair() == [], "nothing is wrong, so nothing is done"
        untouched = archive.fingerprint(directory)
        with pytest.raises(
            MqStoreError, match=r"compacted or in batch queues \(bulk, orders\).*start it and stop it first"
        ):
            store.append(pa.table({"topic": ["plain"], "body": [b"1"]}))
        after = archive.fingerprint(directory)
        assert [path for path in untouched if untouched[path][1:] != after[path][1:]] == []
        (directory / "checkpoint").write_bytes(b"")
        assert "batchconsumequeue/orders/1: rebuilt from the log" in store.repair()
        assert batch_files(directory) == files
        assert rows_of(directory) == before
        assert list(store.verify()) == []
        assert store.append(pa.table({"topic": ["plain"], "body": [b"1"]})) == 1


def batch_files(directory: Path) -> dict[str, bytes]:
    """The bytes of each file of the batch queues."""
    found = (directory / "batchconsumequeue").glob("*/*/*")
    return {str(path.relative_to(directory)): path.read_bytes() for path in found}


def test_messages_before_the_last_first_one_belong_to_a_deleted_queue() -> None:
    queue, queue_offsets = np.array([0, 1, 0, 1, 0, 1], np.int32), np.array([0, 7, 4, 9, 0, 10])
    entries = BatchEntries((("bulk", 0), ("bulk", 1)), queue, *[queue_offsets] * 4, np.arange(6))
    assert [(rows.tolist(), begins) for rows, begins in map(entries.of, (0, 1))] == [([4], True), ([1, 3, 5], False)]


@pytest.mark.parametrize("harm", ["lost", "turned", "gone"])
def test_a_repair_rebuilds_queues_as_a_broker_made_them(tmp_path: Path, harm: str) -> None:
    directory = archive.unpack("stopped-5.3.3", tmp_path, ENGINE)
    before, files = rows_of(directory), batch_files(directory)
    if harm == "lost":
        lose_batch_entries(directory, lambda: 2)
    elif harm == "gone":
        shutil.rmtree(directory / "batchconsumequeue" / "bulk")
    else:
        for path in (directory / "batchconsumequeue" / "orders" / "1").iterdir():
            entries = np.frombuffer(path.read_bytes(), BATCH_ENTRY.dtype).copy()
            entries["physical_offset"][0] += 3
            path.write_bytes(entries.tobytes())
    assert batch_files(directory) != files
    with open_store(str(directory)) as store:
        assert all(finding.repairable for finding in store.verify())
        done = store.repair()
        assert done
        assert all(line.startswith("batchconsumequeue/") for line in done)
        assert list(store.verify()) == []
    assert batch_files(directory) == files
    assert rows_of(directory) == before


def test_a_repair_leaves_no_gap_between_batches(tmp_path: Path) -> None:
    """From a queue offset in a gap, a broker would serve the record before it for ever."""
    directory = archive.unpack("stopped-5.3.3", tmp_path, ENGINE)
    before, damaged = rows_of(directory), set()
    for key in sorted({place(row)[:2] for row in before if row["topic"] in BATCHED}):
        records = sorted({row["physicalOffset"] for row in before if place(row)[:2] == key})
        damaged.add(records[len(records) // 2])
        damage_record(directory, records[len(records) // 2])
    with open_store(str(directory)) as store:
        assert store.repair()
        assert list(store.verify()) == []
    for data in batch_files(directory).values():
        entries = np.frombuffer(data, BATCH_ENTRY.dtype)
        entries = entries[entries["size"] > 0]
        assert (entries["queue_offset"][1:] == entries["queue_offset"][:-1] + entries["count"][:-1]).all()
    assert rows_of(directory) == [row for row in before if row["physicalOffset"] not in damaged]


def damage_record(directory: Path, physical_offset: int) -> None:
    """Overwrites the magic code of a record."""
    path = max(file for file in (directory / "commitlog").iterdir() if int(file.name) <= physical_offset)
    with path.open("r+b") as log:
        log.seek(physical_offset - int(path.name) + 4)
        log.write(b"gone")
