"""What a read of a store says that its rows do not: queues that are not read."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from storage_core import open_store
from tests.support.rocketmq_writes import GEOMETRY, rows, write


def warnings(directory: Path) -> Sequence[str]:
    with open_store(str(directory)) as store:
        return store.snapshot().warnings()


def test_batch_queues(tmp_path: Path) -> None:
    directory = tmp_path / "store"
    write(directory, rows(9), **GEOMETRY)
    assert warnings(directory) == []
    (directory / "batchconsumequeue" / "bulk" / "0").mkdir(parents=True)
    (line,) = warnings(directory)
    assert "1 batch queues (BatchCQ) are not read" in line
