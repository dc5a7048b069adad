"""The output of a streaming query, as read by mqstore and as served by a stock store."""

from __future__ import annotations

import shutil
from pathlib import Path

from storage_core import open_store
from storage_core.store import ScanRequest
from tests.real.visit import Visit

Row = tuple[str, int, int, str, bytes]


def rows_of(store: Path, topic: str) -> list[Row]:
    """The rows of a topic, sorted by queue and offset."""
    wanted = ScanRequest(columns=("topic", "queueId", "queueOffset", "key", "body"), topics=(topic,))
    with open_store(str(store)) as opened:
        plan = opened.snapshot().plan(wanted)
        found = [tuple(row.values()) for part in plan for batch in part.read() for row in batch.to_pylist()]
    return sorted(found, key=lambda row: row[1:3])


def served(version: str, store: Path, settings: dict[str, int]) -> list[bytes]:
    """The bodies that a stock store serves from a copy, sorted."""
    copy = store.parent / "broker" / "store"
    shutil.copytree(store, copy)
    visit = Visit(version, copy, settings)
    shutil.rmtree(copy.parent)
    assert visit.loaded
    return sorted(visit.served)
