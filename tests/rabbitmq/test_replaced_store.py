"""Another vhost's store takes the place of the one that was opened: the open store reads and writes the new one."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from storage_core.errors import OptionError, StoreNotFoundError
from storage_core.rabbitmq.store import VhostStore
from storage_core.store import ScanRequest


def made(path: Path, vhost: str, entry_count: int, count: int) -> Path:
    """A store of one queue, whose segments hold so many entries."""
    bodies = [f"{vhost}-{number}".encode() for number in range(count)]
    options = {"vhost": vhost, "queue_index_segment_entry_count": entry_count}
    with VhostStore(str(path), options) as store:
        store.append(pa.table({"queue": ["q"] * count, "body": bodies}))
    return path


def read(store: VhostStore) -> list[tuple[str, bytes]]:
    batches = store.snapshot().read(ScanRequest(columns=("vhost", "body")))
    return [(row["vhost"], row["body"]) for batch in batches for row in batch.to_pylist()]


def test_the_store_that_is_there_is_read_and_written(tmp_path: Path) -> None:
    path = made(tmp_path / "store", "one", 8, 30)
    other = made(tmp_path / "other", "two", 64, 200)
    store = VhostStore(str(path))
    assert len(read(store)) == 30
    path.rename(tmp_path / "away")
    other.rename(path)
    expected = [("two", f"two-{number}".encode()) for number in range(200)]
    assert read(store) == expected
    assert list(store.verify()) == []
    store.append(pa.table({"queue": ["q"], "body": [b"new"]}))
    with store.queue("q") as queue:
        queue.publish(b"newer")
    expected += [("two", b"new"), ("two", b"newer")]
    assert read(store) == expected == read(VhostStore(str(path)))


def test_a_store_of_another_vhost_than_the_option_says(tmp_path: Path) -> None:
    path, other = made(tmp_path / "store", "one", 8, 3), made(tmp_path / "other", "two", 8, 3)
    store = VhostStore(str(path), {"vhost": "one"})
    path.rename(tmp_path / "away")
    with pytest.raises(StoreNotFoundError, match="there is no store yet"):
        store.snapshot()
    other.rename(path)
    with pytest.raises(OptionError, match="is the store of the vhost two"):
        store.snapshot()
