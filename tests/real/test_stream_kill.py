"""A streaming query's driver, without Spark, killed by SIGKILL again and again.

In the end every row is present once, in order per queue and key, for mqstore and for the stock stores of 4.9.3 and
5.3.3. `MQSTORE_STREAM_KILLS` sets the number of kills.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from tests.real.stream_rows import rows_of, served
from tests.support.stream_kills import check_rows, killed_often

pytestmark = pytest.mark.real

SEED = int(os.environ.get("MQSTORE_SEED", "20261121"))
KILLS = int(os.environ.get("MQSTORE_STREAM_KILLS", "12"))
SMALL = {"mappedFileSizeCommitLog": 1 << 14, "mappedFileSizeConsumeQueue": 1000, "maxHashSlotNum": 101,
         "maxIndexNum": 400}  # fmt: skip


def test_a_query_without_spark(tmp_path: Path) -> None:
    store = tmp_path / "store"
    tally, last = killed_often(store, tmp_path / "checkpoint", KILLS, random.Random(SEED))
    print(f"{KILLS} kills, {last + 1} batches: {dict(tally.most_common())}")
    check_rows(store, last)
    mine = sorted(row[-1] for row in rows_of(store, "orders"))
    for version in ("493", "533"):
        assert served(version, store, SMALL) == mine, f"a stock {version} serves other rows"
