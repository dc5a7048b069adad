"""A writer dies at a step of a commit, and a stock store of 4.9.3 or 5.3.3 is then started: it refuses to load, or
serves the job completely or not at all; what it then accepts is still there after mqstore's redo, and all agree.

`MQSTORE_STOPS=1` tries every step, as `make test-real-full` does; without it a sample is tried, from a position that
`MQSTORE_SEED` selects. Steps that leave the same files for a broker are tried once.
"""

from __future__ import annotations

import os
import random
import shutil
from collections import Counter
from pathlib import Path

import pytest

from storage_core.rocketmq.write.commit_point import GUARD
from tests.faults import Died, stopped_at
from tests.real.crash_kinds import SMALL, disagreements, options_of, settings_of
from tests.real.visit import Visit
from tests.support.rocketmq_visits import served
from tests.support.rocketmq_writes import KINDS, NEW_ROWS, bodies, contents, made_store, rows, write

pytestmark = pytest.mark.real

SEED = int(os.environ.get("MQSTORE_SEED", "20261121"))
DISTANCE = int(os.environ.get("MQSTORE_STOPS", "120"))
AGREES = 5


def for_a_broker(directory: Path) -> dict[str, tuple[int, str]]:
    """The files that a broker reads."""
    return {name: found for name, found in contents(directory).items() if not name.startswith(".mqstore")}


def stop(kind: str, last: int, original: Path, directory: Path) -> None:
    """Makes the store of a writer that died at its call number `last`."""
    shutil.rmtree(directory.parent, ignore_errors=True)
    directory.parent.mkdir(parents=True)
    if original.exists():
        shutil.copytree(original, directory)
    with pytest.raises(Died), stopped_at(last):
        write(directory, NEW_ROWS, **options_of(kind))


def calls_of(kind: str, tmp_path: Path) -> int:
    """The number of calls of a write that change the disk."""
    directory = made_store(kind, tmp_path / "counted")
    with stopped_at(None) as clock:
        write(directory, NEW_ROWS, **options_of(kind))
    return clock.count


@pytest.mark.parametrize("version", ["493", "533"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_stock_store_at_every_step_refuses_or_serves_whole_or_absent(kind: str, version: str, tmp_path: Path) -> None:
    total = calls_of(kind, tmp_path)
    original, directory = made_store(kind, tmp_path / "original"), tmp_path / "stopped" / "store"
    before, job = Counter(row[3] for row in bodies(original)), Counter(NEW_ROWS["body"].to_pylist())
    checked = set()
    refused = loaded = 0
    for last in range(random.Random(f"{SEED} {kind} {version}").randrange(DISTANCE), total, DISTANCE):
        stop(kind, last, original, directory)
        state = for_a_broker(directory)
        committed = (directory / ".mqstore" / "intent.json").exists()
        known = tuple(sorted(state.items())), committed
        if known in checked or not (directory / "commitlog").exists():
            continue
        checked.add(known)
        visit = Visit(version, directory, settings_of(kind))
        where = f"{kind}, {version}, {last} of {total} calls"
        if visit.loaded:
            loaded += 1
            assert Counter(visit.served) in (before, before + job), f"half a job: {where}"
        else:
            refused += 1
            assert (directory / "commitlog" / GUARD).exists(), f"refused without a guard: {where}"
            kept = for_a_broker(directory)
            assert not [name for name in state if kept.get(name) != state[name] and not name.startswith("config/")], (
                where
            )
        write(directory, rows(1, 900), **options_of(kind))
        there = Counter(row[3] for row in bodies(directory)) - Counter(rows(1, 900)["body"].to_pylist())
        whole = committed or job <= Counter(visit.served)
        assert there == before + Counter(visit.taken) + (job if whole else Counter()), where
        if visit.loaded or len(checked) % AGREES == 1:
            assert not disagreements(directory, settings_of(kind), version), where
    print(f"{kind} {version}: {total} calls, {len(checked)} states, {refused} refused, {loaded} loaded")
    assert checked


@pytest.mark.parametrize("version", ["493", "533"])
def test_a_stock_store_that_was_let_in_by_hand_keeps_what_it_took(version: str, tmp_path: Path) -> None:
    total = calls_of("own", tmp_path)
    original, directory = made_store("own", tmp_path / "original"), tmp_path / "stopped" / "store"
    job, visits = Counter(NEW_ROWS["body"].to_pylist()), 0
    for last in range(random.Random(f"let in {SEED} {version}").randrange(DISTANCE), total, DISTANCE):
        stop("own", last, original, directory)
        guard = directory / "commitlog" / GUARD
        if not (directory / ".mqstore" / "intent.json").exists() or not guard.exists():
            continue
        guard.unlink()
        visit = Visit(version, directory, SMALL)
        there = served(directory)
        where = f"{version}, {last} of {total} calls"
        write(directory, rows(1, 900))
        after = served(directory)
        assert not [at for at in there if after.get(at) != there[at]], where
        assert Counter(body for _, body in after.values()) & job == job, where
        copy = shutil.copytree(directory, tmp_path / "copy" / "store")
        again = Visit(version, copy, SMALL)
        assert not Counter(visit.served + visit.taken) - Counter(again.served), where
        shutil.rmtree(copy)
        visits += 1
    print(f"let in by hand, {version}: {visits} visits")
