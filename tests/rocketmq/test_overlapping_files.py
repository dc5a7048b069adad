"""A file that is too long reaches into the next one: what both hold is read once, from the file that begins there."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from storage_core import open_store
from storage_core.store import Mode, Scan, ScanRequest
from tests.golden import archive

COLUMNS = ("topic", "queueId", "queueOffset", "physicalOffset", "corruption")


def rows(store: Path, scan: Scan, partitions: int) -> list[dict[str, Any]]:
    request = ScanRequest(scan=scan, mode=Mode.PERMISSIVE, min_partitions=partitions, columns=COLUMNS)
    with open_store(str(store)) as opened:
        plan = opened.snapshot().plan(request)
        return [row for partition in plan for batch in partition.read() for row in batch.to_pylist()]


def extend(folder: Path, extra: bytes | None) -> None:
    """Appends bytes to the first file of a folder, without `extra` those of the second one."""
    first, second = sorted(folder.iterdir())[:2]
    with first.open("ab") as file:
        file.write(second.read_bytes() if extra is None else extra)


@pytest.mark.parametrize("partitions", [1, 5])
@pytest.mark.parametrize("extra", [None, bytes(100), b"\1" * 100], ids=["the next file", "zeros", "garbage"])
def test_entries_are_read_once(extra: bytes | None, partitions: int, tmp_path: Path) -> None:
    """Also if the log is damaged, where queues are read one by one."""
    store = archive.unpack("damaged-torn-tail-4.9.3", tmp_path)
    os.truncate(min((store / "commitlog").iterdir()), 10_129)
    before = rows(store, Scan.QUEUES, partitions)
    assert any(row["corruption"] for row in before)
    extend(store / "consumequeue" / "orders" / "1", extra)
    assert rows(store, Scan.QUEUES, partitions) == before


@pytest.mark.parametrize("partitions", [1, 5])
def test_records_are_read_once(partitions: int, tmp_path: Path) -> None:
    store = archive.unpack("damaged-torn-tail-4.9.3", tmp_path)
    before = rows(store, Scan.LOG, partitions)
    extend(store / "commitlog", None)
    assert rows(store, Scan.LOG, partitions) == before
