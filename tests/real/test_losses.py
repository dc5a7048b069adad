"""The power fails while mqstore writes, with any unconfirmed writes lost, and a stock store of 4.9.3 or 5.3.3 is
started on what is left: it refuses to load because of the guard, or serves the job completely or not at all.

`MQSTORE_LOSSES` sets the number of such states of each store (4), `MQSTORE_SEED` selects them.
"""

from __future__ import annotations

import os
import random
import shutil
from collections import Counter
from pathlib import Path

import pytest

from storage_core.rocketmq.write.commit_point import GUARD
from tests.faults import owned_by_nobody
from tests.lost_writes import left_behind, recorded, survivors
from tests.real.crash_kinds import disagreements, options_of, settings_of
from tests.real.visit import Visit
from tests.support.rocketmq_writes import NEW_ROWS, bodies, made_store, rows, write

pytestmark = pytest.mark.real

SEED = int(os.environ.get("MQSTORE_SEED", "20261121"))
COUNT = int(os.environ.get("MQSTORE_LOSSES", "4"))


@pytest.mark.parametrize("version", ["493", "533"])
@pytest.mark.parametrize("kind", ["own", "damaged-torn-tail-abort-4.9.3"])
def test_a_stock_store_after_a_power_failure(kind: str, version: str, tmp_path: Path) -> None:
    origin = tmp_path / "origin"
    made_store(kind, origin / "made").rename(origin / "store")
    work = shutil.copytree(origin, tmp_path / "work")
    with owned_by_nobody(), recorded(work) as changes:
        write(work / "store", NEW_ROWS, **options_of(kind))
    before, job = Counter(row[3] for row in bodies(origin / "store")), Counter(NEW_ROWS["body"].to_pylist())
    chance = random.Random(f"{SEED} {kind} {version}")
    states = list(survivors(changes, chance.randrange(1 << 30)))
    refused = loaded = 0
    for moment, survives in chance.sample(states, min(COUNT, len(states))):
        directory = left_behind(origin, changes, survives, tmp_path / "left") / "store"
        where = f"{kind}, {version}, power lost at {moment} of {len(changes)}"
        committed = (directory / ".mqstore" / "intent.json").exists()
        visit = Visit(version, directory, settings_of(kind))
        if visit.loaded:
            loaded += 1
            assert Counter(visit.served) in (before, before + job), f"half a job: {where}"
        else:
            refused += 1
            assert (directory / "commitlog" / GUARD).exists(), f"refused without a guard: {where}"
        write(directory, rows(1, 900), **options_of(kind))
        there = Counter(row[3] for row in bodies(directory)) - Counter(rows(1, 900)["body"].to_pylist())
        whole = committed or job <= Counter(visit.served)
        assert there == before + Counter(visit.taken) + (job if whole else Counter()), where
        assert not disagreements(directory, settings_of(kind), version), where
        shutil.rmtree(tmp_path / "left")
    print(f"{kind} {version}: {len(states)} states after a power failure, {refused} refused, {loaded} loaded")
    assert refused + loaded
