"""The redo of a committed job after somebody removed the guard and a broker appended: nothing accepted is lost.

What the broker accepted stays where it is. The job's records are in queues once: those that the broker found as it
listed them, the others after its own. `make test-real-full` tries every step after the commit point.
"""

from __future__ import annotations

import errno
import shutil
from collections import Counter
from pathlib import Path

import pytest

from storage_core.errors import MqStoreError
from tests.faults import Died, stopped_at
from tests.golden import archive
from tests.reference.served import AS_BROKER, in_partitions, place, read
from tests.support.rocketmq_copies import write_options
from tests.support.rocketmq_visits import foreign_rows, served, visit
from tests.support.rocketmq_writes import GEOMETRY, NEW_ROWS, STEPS, commit_point, made_store, options_of, rows, write
from tests.support.sampling import first_step

pytestmark = pytest.mark.sampled

KINDS = ("new", "own", "damaged-torn-tail-abort-4.9.3", "damaged-queues-lost-4.9.3", "delay-4.9.3")

TAKEN = 3
DISTANCE = STEPS if STEPS == 1 else 5 * STEPS

Served = dict[tuple[str, int, int], tuple[int, bytes]]


def stopped_store(kind: str, last: int, original: Path, directory: Path) -> Path:
    """The store of a writer that died at its call number `last`."""
    shutil.rmtree(directory.parent, ignore_errors=True)
    directory.parent.mkdir(parents=True)
    if original.exists():
        shutil.copytree(original, directory)
    with pytest.raises(Died), stopped_at(last):
        write(directory, NEW_ROWS, **options_of(kind))
    return directory


def committed_steps(kind: str, directory: Path) -> list[int]:
    """The calls after the commit point of a write: a stop there leaves an intent and an unfinished job."""
    directory = made_store(kind, directory)
    with stopped_at(None) as clock:
        write(directory, NEW_ROWS, **options_of(kind))
    removed = next(number for number, call in enumerate(clock.log) if call.endswith("/intent.json"))
    return list(range(commit_point(clock.log) + 1, removed))


def problems(accepted: Served, after: Served, directory: Path) -> list[str]:
    """What the redo lost, repeated or moved."""
    texts = Counter(body for _, body in after.values() if not body.startswith(b"body 900 "))
    job = Counter(NEW_ROWS["body"].to_pylist())
    wanted = (Counter(body for _, body in accepted.values()) - job) + job
    lines = [
        f"{text!r:.30} is there {texts[text]} times, not {wanted[text]}"
        for text in texts | wanted
        if texts[text] != wanted[text]
    ]
    lines += [f"{at} {row!r:.60} is gone or elsewhere" for at, row in accepted.items() if after.get(at) != row]
    for key in ("k100", "k133", "k159", "k5000", "k5002", "k900", "all"):
        by_index = read(directory, in_partitions(1, keys=(key,), **AS_BROKER))
        scanned = read(directory, in_partitions(1, keys=(key,), use_index=False, **AS_BROKER))
        if sorted(map(place, by_index)) != sorted(map(place, scanned)):
            lines.append(f"key {key}: {len(by_index)} rows by the index, {len(scanned)} without")
    return lines


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", KINDS)
def test_a_broker_that_appended_in_the_middle_keeps_its_records(kind: str, tmp_path: Path) -> None:
    # A broker knows its geometry, even if the job left an index file that cannot be proven right.
    geometry = GEOMETRY if kind in ("new", "own") else write_options(archive.info(kind)["settings"])
    original = made_store(kind, tmp_path / "original")
    directory = tmp_path / "visited" / "store"
    committed = committed_steps(kind, tmp_path / "counted")
    chosen = committed[first_step(min(DISTANCE, len(committed)), f"redo {kind}") :: DISTANCE]
    assert chosen
    for last in chosen:
        stopped_store(kind, last, original, directory)
        visit(directory, TAKEN, **geometry)
        accepted = served(directory)
        assert not Counter(foreign_rows(TAKEN)["body"].to_pylist()) - Counter(body for _, body in accepted.values())
        write(directory, rows(1, 900), **options_of(kind))
        lines = problems(accepted, served(directory), directory)
        assert not lines, (last, lines[:6])
        assert not (directory / ".mqstore" / "intent.json").exists()
        assert not any((directory / ".mqstore" / "staging").glob("*/new"))


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("error", [None, OSError(errno.ENOSPC, "No space left on device")])
def test_a_redo_after_a_visit_may_be_stopped_as_well(error: OSError | None, tmp_path: Path) -> None:
    committed = committed_steps("own", tmp_path / "counted")
    visited = tmp_path / "visited" / "store"
    stopped_store("own", committed[len(committed) // 3], made_store("own", tmp_path / "original"), visited)
    visit(visited, TAKEN, **GEOMETRY)
    accepted = served(visited)
    whole = shutil.copytree(visited, tmp_path / "whole" / "store")
    with stopped_at(None) as clock:
        write(whole, rows(1, 900))
    stopped = 0
    for last in range(first_step(DISTANCE, "second stop"), clock.count, DISTANCE):
        directory = tmp_path / "stopped" / "store"
        shutil.copytree(visited, directory)
        try:
            with stopped_at(last, error=error):
                write(directory, rows(1, 900))
        except (Died, MqStoreError, OSError) as caught:
            stopped += 1
            assert "\n" not in str(caught)  # noqa: PT017
        write(directory, rows(1, 900))
        lines = problems(accepted, served(directory), directory)
        assert not lines, (last, clock.count, lines[:6])
        shutil.rmtree(directory)
    assert stopped
