"""A streaming query whose driver is killed by SIGKILL again and again: in the end every row is there once, in order.

`MQSTORE_STREAM_KILLS` sets how often (8, or 100 with `MQSTORE_WHOLE=1`).
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from tests.support.sampling import SEED, WHOLE
from tests.support.stream_kills import check_rows, killed_often

pytestmark = pytest.mark.sampled

KILLS = int(os.environ.get("MQSTORE_STREAM_KILLS", "100" if WHOLE else "8"))


@pytest.mark.timeout(900)
def test_a_query_that_is_killed_again_and_again_writes_each_row_once(tmp_path: Path) -> None:
    store = tmp_path / "store"
    tally, last = killed_often(store, tmp_path / "checkpoint", KILLS, random.Random(SEED))
    print(f"{KILLS} kills, {last + 1} batches: {dict(tally.most_common())}")
    check_rows(store, last)
    assert {path.name for path in (store / ".mqstore").iterdir()} == {"lock", "queries", "state.json"}
    if KILLS >= 100:
        assert {"staging", "draft", "log", "queues", "index", "checkpoint", "done mark"} <= tally.keys()
