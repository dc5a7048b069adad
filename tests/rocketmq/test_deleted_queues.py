"""A write into a store whose queues were deleted since mqstore wrote it: the new messages are listed all the same."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pytest

from storage_core import open_store
from tests.reference.served import by_place

SMALL = {"commitLogFileSize": 4096, "consumeQueueFileEntries": 20, "indexSlots": 11, "indexEntries": 40}


def write(store: Path, topic: str, count: int, **options: int) -> None:
    with open_store(str(store), "rocketmq", **options) as opened:
        rows = {"topic": [topic] * count, "body": [topic] * count, "queueId": pa.array([0] * count, pa.int32())}
        opened.append(pa.table(rows))


@pytest.fixture
def store(tmp_path: Path) -> Path:
    write(tmp_path / "store", "A", 25, **SMALL)
    write(tmp_path / "store", "B", 10)
    return tmp_path / "store"


def test_a_topic_that_a_broker_deleted_begins_again(store: Path) -> None:
    """`deleteTopic` removes the folder. Its broker may leave the same checkpoint as before."""
    shutil.rmtree(store / "consumequeue" / "A")
    write(store, "A", 3)
    write(store, "B", 2)
    assert len(by_place(store, 1, topics=("A",))) == 3
    assert len(by_place(store, 1, topics=("B",))) == 12


def test_all_queues_are_rebuilt_with_files_of_their_size(store: Path) -> None:
    shutil.rmtree(store / "consumequeue")
    write(store, "A", 3)
    assert len(by_place(store, 1)) == 38
    sizes = {path.stat().st_size for path in (store / "consumequeue").rglob("0*") if path.is_file()}
    assert sizes == {20 * 20}


def test_a_queue_file_that_is_missing(store: Path) -> None:
    """A broker, too, lists the next message where the queue ends now: the five that the file listed are lost to it."""
    (store / "consumequeue" / "A" / "0" / f"{400:020}").unlink()
    write(store, "A", 3)
    assert len(by_place(store, 1, topics=("A",))) == 23
