"""Compacted topics of 5.3.3: the rows are what a consumer of the real broker gets, before and after compactions, and
after the broker was killed and lost what it had not forced to the disk.

`MQSTORE_COMPACTED` says how many seeds (1; `make test-real-full` takes 8), `MQSTORE_SEED` where they start.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from tests.real.compacted import NEVER_MS, OFTEN_MS, TOPICS, Story
from tests.reference.consumed import got, told
from tests.reference.served import AS_BROKER, Row, in_partitions, place, read
from tests.support.compacted_store import lose_entries

pytestmark = pytest.mark.real

FIRST_SEED = int(os.environ.get("MQSTORE_SEED", "20261129"))
SEEDS = range(FIRST_SEED, FIRST_SEED + int(os.environ.get("MQSTORE_COMPACTED", "1")))
VISITS = 2


@pytest.mark.parametrize("seed", SEEDS)
def test_rows_are_what_a_consumer_gets(seed: int, tmp_path: Path) -> None:
    r = random.Random(seed)
    story = Story(tmp_path / "store", r)
    for visit in range(VISITS):
        kill = visit == VISITS - 1 or r.random() < 0.5
        story.visit(OFTEN_MS if visit == 1 else r.choice((OFTEN_MS, NEVER_MS)), kill)
        lost = lose_entries(story.store, r.randrange(4), also_queues=r.random() < 0.5) if kill else set()
        rows = read(story.store, in_partitions(r.randrange(1, 5), topics=TOPICS, **AS_BROKER))
        messages = story.consumed()
        assert [shown(got(each), lost) for each in in_order(messages)] == [
            shown(told(row), lost) for row in in_order(rows)
        ]


def in_order(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=place)


def shown(row: Row, lost: set[tuple[str, int, int]]) -> Row:
    """Without the address of a message that only the broker's start puts into the log of its queue."""
    return row | {"physicalOffset": None, "offsetMsgId": None} if place(row) in lost else row
