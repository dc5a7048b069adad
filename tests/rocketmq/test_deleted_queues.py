"""A write into a store whose queues were deleted since mqstore wrote it: the new messages are listed all the same."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pytest

from storage_core import open_store
from storage_core.errors import OptionError
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


@pytest.mark.parametrize("size", ["2g", "1T", 1 << 31])
def test_a_file_size_that_no_broker_has(tmp_path: Path, size: object) -> None:
    """`mappedFileSizeCommitLog` is an int of Java's."""
    opened = open_store(tmp_path / "new", "rocketmq", commitLogFileSize=size)
    with opened, pytest.raises(OptionError, match="a broker's files have at most 2,147,483,647 bytes"):
        opened.append({"topic": ["A"], "body": ["x"]})
    assert not (tmp_path / "new").exists()
