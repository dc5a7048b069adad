"""Stores with a DLedger log, of 4.9.3 and 5.3.3: the rows are what a consumer receives after the real broker's next
start, after a clean stop, a kill, and damage to the files.

`MQSTORE_LEDGERS` sets the number of seeds per version (1; 12 in `make test-real-full`), `MQSTORE_SEED` the first one.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.real.ledgers import TOPICS, VERSIONS, Story
from tests.reference.consumed import got, shown_fields
from tests.reference.served import AS_BROKER, Row, in_partitions, read
from tests.support.ledger_store import HARMS

pytestmark = pytest.mark.real

FIRST_SEED = int(os.environ.get("MQSTORE_SEED", "20261129"))
SEEDS = range(FIRST_SEED, FIRST_SEED + int(os.environ.get("MQSTORE_LEDGERS", "1")))


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("seed", SEEDS)
def test_rows_are_what_a_consumer_gets(seed: int, version: str, tmp_path: Path) -> None:
    r = random.Random(f"{seed} {version}")
    story = Story(version, tmp_path / "store", r)
    plain = r.randrange(2)
    for visit in range(plain + r.randrange(1, 4)):
        story.visit(with_ledger=visit >= plain, kill=r.random() < 0.6, pause_s=r.choice((0, 4)))
    harm = r.choice((*HARMS, None, None))
    if harm is not None:
        harm(story.store, r)
    rows = read(story.store, in_partitions(r.randrange(1, 5), topics=TOPICS, **AS_BROKER))
    messages = story.consumed(len(rows))
    note = "no harm" if harm is None else harm.__name__
    assert (note, shown(map(got, messages))) == (note, shown(map(shown_fields, rows)))


def shown(rows: Iterable[Row]) -> list[Row]:
    """The rows by address, without queue offsets. A client shows the offset that the record states; a row has its
    offset in the queue, which is smaller after entries were permanently lost.
    """
    return [row | {"queueOffset": None} for row in sorted(rows, key=lambda row: int(row["physicalOffset"]))]
