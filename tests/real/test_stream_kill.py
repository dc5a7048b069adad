"""A streaming query's driver killed by SIGKILL again and again, without Spark.

In the end every row is there once, in order per queue and key, for mqstore and for the stock stores of 4.9.3 and
5.3.3. `MQSTORE_STREAM_KILLS` says how many kills there are (20).
"""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

import pytest

from storage_core import open_store
from storage_core.store import ScanRequest
from tests.real.visit import Visit
from tests.support.stream_kills import check_rows, killed_often

pytestmark = pytest.mark.real

SEED = int(os.environ.get("MQSTORE_SEED", "20261121"))
KILLS = int(os.environ.get("MQSTORE_STREAM_KILLS", "20"))
SMALL = {"mappedFileSizeCommitLog": 1 << 14, "mappedFileSizeConsumeQueue": 1000, "maxHashSlotNum": 101,
         "maxIndexNum": 400}  # fmt: skip
Row = tuple[str, int, int, str, bytes]


def rows_of(store: Path, topic: str) -> list[Row]:
    """The rows of a topic by queue and offset."""
    wanted = ScanRequest(columns=("topic", "queueId", "queueOffset", "key", "body"), topics=(topic,))
    with open_store(str(store)) as opened:
        plan = opened.snapshot().plan(wanted)
        found = [tuple(row.values()) for part in plan for batch in part.read() for row in batch.to_pylist()]
    return sorted(found, key=lambda row: row[1:3])


def served(version: str, store: Path, settings: dict[str, int]) -> list[bytes]:
    """The bodies that a stock store serves from a copy."""
    copy = store.parent / "broker" / "store"
    shutil.copytree(store, copy)
    visit = Visit(version, copy, settings)
    shutil.rmtree(copy.parent)
    assert visit.loaded
    return sorted(visit.served)


def test_a_query_without_spark(tmp_path: Path) -> None:
    store = tmp_path / "store"
    tally, last = killed_often(store, tmp_path / "checkpoint", KILLS, random.Random(SEED))
    print(f"{KILLS} kills, {last + 1} batches: {dict(tally.most_common())}")
    check_rows(store, last)
    mine = sorted(row[-1] for row in rows_of(store, "orders"))
    for version in ("493", "533"):
        assert served(version, store, SMALL) == mine, f"a stock {version} serves other rows"
