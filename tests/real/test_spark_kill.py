"""SIGKILL of a whole Spark job (driver, JVM, Python workers) at random moments of its write.

For mqstore's readers and for a stock store the job is complete or absent; the next append works, finishes what was
committed, and leaves nothing behind. `MQSTORE_KILLS` sets the number of kills (2), `MQSTORE_SEED` the first seed.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from storage_core import open_store
from storage_core.rocketmq.write.commit_point import GUARD
from tests.real.job_phase import phase
from tests.real.spark_writer import OPTIONS, ROOT, ROWS, SETTINGS
from tests.real.visit import Visit
from tests.support.rocketmq_writes import bodies, rows, write

pytestmark = pytest.mark.real

SEED = int(os.environ.get("MQSTORE_SEED", "20261121"))
KILLS = int(os.environ.get("MQSTORE_KILLS", "2"))
PHASES = ("publish", "prepare", "staging")
WARM_UP, WATCHED, KILLED = range(3)
POLL_S = 0.0005


class Driver:
    """A Spark driver in its own session, so that everything it started can be found and killed."""

    def __init__(self, store: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.real.spark_writer", str(store)], cwd=ROOT, start_new_session=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        self.answer()

    def begin(self, job: int) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{job}\n")
        self._process.stdin.flush()

    def answer(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the driver ended"
        return line.strip()

    def members(self) -> list[tuple[int, int]]:
        """Live processes of the session (driver, JVM, Python daemons and their workers), and their groups."""
        found = []
        for name in filter(str.isdigit, os.listdir("/proc")):
            try:
                state, _, group, session = Path(f"/proc/{name}/stat").read_bytes().rpartition(b")")[2].split()[:4]
            except (OSError, ValueError):
                continue
            if int(session) == self._process.pid and state not in (b"Z", b"X"):
                found.append((int(name), int(group)))
        return found

    def kill(self, groups: set[int] | None = None) -> None:
        """Kills all of them, those of known groups first: finding the others takes time."""
        left = set() if groups is None else groups
        while left or (left := {group for _, group in self.members()}):
            for group in left:
                try:
                    os.killpg(group, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            left = set()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()


@contextmanager
def driver(store: Path) -> Iterator[Driver]:
    running = Driver(store)
    try:
        yield running
    finally:
        running.kill()


def watched_job(running: Driver, store: Path) -> dict[str, float]:
    """Runs a complete job; returns the seconds that it spends in each phase."""
    end = store / ".mqstore" / "state.json"
    before, last, since = end.stat().st_mtime_ns, "none", time.monotonic()
    running.begin(WATCHED)
    spent: Counter[str] = Counter()
    while end.stat().st_mtime_ns == before or last != "none":
        last = phase(store)
        now = time.monotonic()
        spent[last] += now - since
        since = now
        time.sleep(POLL_S)
    assert running.answer() == str(WATCHED)
    return spent


def served(store: Path) -> Counter[int]:
    """The number of rows of each job, as mqstore reads them."""
    return jobs_of(body for *_, body in bodies(store))


def stock(version: str, store: Path) -> Counter[int] | None:
    """The number of rows of each job that a stock store serves from a copy; None if it refuses to load it."""
    copy = store.parent / "broker" / "store"
    shutil.copytree(store, copy)
    visit = Visit(version, copy, SETTINGS)
    shutil.rmtree(copy.parent)
    return jobs_of(iter(visit.served)) if visit.loaded else None


def jobs_of(found: Iterator[bytes]) -> Counter[int]:
    distinct = [re.match(rb"job (\d+) row (\d+) ", body) for body in found]
    pairs = Counter((int(match[1]), int(match[2])) for match in distinct if match)
    assert set(pairs.values()) <= {1}, "a row that is there twice"
    return Counter(job for job, _ in pairs)


def killed_at(aim: str, store: Path, r: random.Random) -> None:
    """Runs a driver and kills it in its third job, aiming at a random moment of a phase."""
    with driver(store) as running:
        running.begin(WARM_UP)
        assert running.answer() == str(WARM_UP)
        spent = watched_job(running, store)
        members = running.members()
        assert len(members) >= 3, "a driver, its JVM and Python daemons"
        groups = {group for _, group in members}
        until = time.monotonic() + 60
        running.begin(KILLED)
        while phase(store) != aim and time.monotonic() < until:
            time.sleep(POLL_S)
        time.sleep(r.random() * spent[aim])
        running.kill(groups)


def check_after(store: Path, fell: str, version: str) -> str:
    """Asserts everything that must hold after a kill; returns whether the job was there at once, after redo, or not."""
    done = Counter({WARM_UP: ROWS, WATCHED: ROWS})
    whole = done + Counter({KILLED: ROWS})
    seen = served(store)
    assert seen in (done, whole), f"half a job after a kill in {fell}: {seen}"
    answer = stock(version, store)
    assert answer in (done, whole, None), f"a stock {version} serves half a job: {fell}"
    assert answer is not None or (store / "commitlog" / GUARD).exists(), f"refused without a guard: {fell}"

    write(store, rows(5, 9000), **{name: int(value) for name, value in OPTIONS.items()})

    after = served(store)
    assert after in (done, whole), f"half a job after the redo of a kill in {fell}: {after}"
    assert after == whole or fell in ("staging", "prepare", "none"), f"a committed job was lost: {fell}"
    assert after == whole or seen == done, "a job that was served is gone"
    assert sum(1 for *_, body in bodies(store) if body.startswith(b"body 90")) == 5
    with open_store(str(store)) as opened:
        found = sum(batch.num_rows for batch in opened.find(key=f"k-{KILLED}-77"))
        assert found == (1 if after == whole else 0)
    left = {path.name for path in (store / ".mqstore").iterdir()}
    for folder in (store / ".mqstore" / "staging").glob("*"):
        # A folder whose driver was killed before the owner's name was in it is removed a minute later.
        assert [path.name for path in folder.iterdir()] in ([], ["owner.json.tmp"]), "only this may outlive a kill"
    assert left - {"staging"} == {"lock", "state.json"}
    assert not (store / "commitlog" / GUARD).exists()
    assert [path.name for path in store.parent.iterdir()] == ["store"]
    assert stock(version, store) == after, f"a stock {version} and mqstore disagree after the redo"
    return "whole at once" if seen == whole else "whole after the redo" if after == whole else "absent"


@pytest.mark.timeout(0 if KILLS > 2 else 900)
def test_a_killed_spark_job_is_whole_or_absent(tmp_path: Path) -> None:
    tally: Counter[str] = Counter()
    for number in range(KILLS):
        r = random.Random(f"{SEED} {number}")
        store = tmp_path / str(number) / "store"
        store.parent.mkdir()
        killed_at(PHASES[number % len(PHASES)], store, r)
        fell = phase(store)
        outcome = check_after(store, fell, ("493", "533")[number % 2])
        print(f"kill {number}: in {fell}, {outcome}", flush=True)
        tally.update([f"in {fell}", outcome])
        shutil.rmtree(store.parent)
    print(f"{KILLS} kills: {dict(tally)}", flush=True)
    if KILLS >= 12:
        assert all(tally[f"in {each}"] for each in PHASES), "the kills were not spread over the phases"
