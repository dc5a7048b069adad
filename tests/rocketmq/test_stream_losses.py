"""A stream of a RocketMQ store whose queues were written again: the loss is named, and what is new is read once."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from connector.stream.source import Json
from storage_core import open_store
from storage_core.errors import CheckpointError, DataLossError
from storage_core.store import ScanRequest
from tests.support.stream_query import Query

SMALL = {"commitLogFileSize": 4096, "consumeQueueFileEntries": 10, "indexSlots": 11, "indexEntries": 40}
COLUMNS = ("topic", "queueOffset", "body")
Row = tuple[str, int, bytes]


def append(root: Path, topics: str, name: str) -> None:
    """Writes a message of each topic named by a letter, later than all that were written before."""
    time.sleep(0.002)
    rows = {"topic": list(topics), "queueId": pa.array([0] * len(topics), pa.int32())}
    bodies = [f"{name} {number}".encode() for number in range(len(topics))]
    with open_store(str(root), "rocketmq", **SMALL) as store:
        store.append(pa.table({**rows, "body": bodies}))


def rows(root: Path) -> list[Row]:
    with open_store(str(root)) as store:
        plan = store.snapshot().plan(ScanRequest(columns=COLUMNS))
        return sorted(tuple(row.values()) for piece in plan for batch in piece.read() for row in batch.to_pylist())


def started(root: Path, **options: str) -> Query:
    query = Query(root, {"columns": ",".join(COLUMNS), **options})
    query.start()
    query.run()
    return query


def read(query: Query) -> list[Row]:
    return [tuple(row.values()) for table in query.tables for row in table.to_pylist()]


def queues(offset: Json) -> dict[str, Any]:
    return {topic: each["0"] for topic, each in offset["queues"].items()}


def cut(root: Path, log: str, lost: str) -> Query:
    """A query that read all of a log, whose end a restart of the broker then cut."""
    append(root, log, "first")
    query = started(root)
    kept = shutil.copytree(root, root.with_name("kept"))
    append(root, lost, "lost")
    query.run()
    query.stop()
    shutil.rmtree(root)
    kept.rename(root)
    return query


@pytest.mark.parametrize("again", ["b" * 9, "bbbbb", "ab" * 7])
def test_a_queue_that_was_cut_and_written_again(tmp_path: Path, again: str) -> None:
    """Also where more was read of other queues, and where the queue ends just where it was cut."""
    root = tmp_path / "store"
    query = cut(root, "a" * 30 + "bb", "bbbbb")
    append(root, again, "again")
    query.start()
    for _ in range(2):
        with pytest.raises(
            DataLossError, match=r"b/0 was cut or made again and has other messages now, the checkpoint is at 7"
        ):
            query.trigger()
        query.start()
    query.options["failOnDataLoss"] = "false"
    query.start()
    query.trigger(dies=lambda: True)
    query.start()
    query.run()
    found = read(query)
    assert len(found) == len(set(found))
    assert set(rows(root)) <= set(found)
    assert {row[2].split()[0] for row in set(found) - set(rows(root))} == {b"lost"}
    query.options["failOnDataLoss"] = "true"
    query.start()
    append(root, "ab", "last")
    query.run()
    assert len(read(query)) == len(found) + 2


def test_a_batch_that_was_planned_before_the_cut(tmp_path: Path) -> None:
    """Its lost messages stay away, and its others are read once."""
    root = tmp_path / "store"
    append(root, "aabb", "first")
    query = started(root, failOnDataLoss="false")
    append(root, "b", "second")
    kept = shutil.copytree(root, tmp_path / "kept")
    append(root, "bbbb", "lost")
    query.trigger(dies=lambda: True)
    query.stop()
    shutil.rmtree(root)
    kept.rename(root)
    append(root, "b" * 9, "again")
    query.start()
    query.run()
    assert sorted(read(query)) == rows(root)


def test_where_no_queue_is_left_as_it_was_it_is_another_store(tmp_path: Path) -> None:
    root = tmp_path / "store"
    query = cut(root, "b", "bbb")
    append(root, "b" * 9, "again")
    query.options["failOnDataLoss"] = "false"
    query.start()
    with pytest.raises(CheckpointError, match="message 3 of b/0 is not the one that was read"):
        query.trigger()


def test_a_queue_that_is_shorter_goes_on_at_its_end(tmp_path: Path) -> None:
    root = tmp_path / "store"
    query = cut(root, "abb", "bbbb")
    query.start()
    with pytest.raises(DataLossError, match="b/0 ends at 2 now, the checkpoint is at 6"):
        query.trigger()
    query.options["failOnDataLoss"] = "false"
    query.start()
    query.run()
    assert queues(query.offsets[-1]) == {"a": 1, "b": 2}
    append(root, "bbbb", "again")
    query.run()
    assert set(rows(root)) <= set(read(query))


@pytest.mark.parametrize("count", [4, 10, 13])
def test_a_topic_that_a_running_broker_deletes_and_makes_again(tmp_path: Path, count: int) -> None:
    """4.9.3 removes the folders of its queues and leaves the topic's own, so no other folder changes."""
    root, model = tmp_path / "store", tmp_path / "model"
    append(root, "b" * 5 + "a" * 10, "first")
    shutil.rmtree(root / ".mqstore")
    shutil.copytree(root, model)
    (root / "abort").touch()
    query = started(root, failOnDataLoss="false")
    append(model, "c" * count + "b", "again")
    shutil.rmtree(root / "consumequeue" / "a" / "0")
    shutil.copytree(model / "consumequeue" / "c" / "0", root / "consumequeue" / "a" / "0")
    for name in ("commitlog", "consumequeue/b/0"):
        for file in (model / name).iterdir():
            target = root / name / file.name
            with target.open("r+b" if target.exists() else "wb") as out:
                out.write(file.read_bytes().replace(b"\1c", b"\1a"))  # a topic with its length
    query.run()
    assert queues(query.offsets[-1]) == {"a": count, "b": 6}
    again = {row for row in read(query) if row[2].startswith(b"again")}
    assert len(again) == (count if count >= 10 else 0) + 1, "a shorter queue goes on at its end"
    assert len(read(query)) == 15 + len(again)
