"""A streaming query through Spark whose whole job (driver, JVM, Python workers) is killed by SIGKILL again and again.

In the end every row is present once, in order per queue and key, for mqstore and for the stock stores of 4.9.3 and
5.3.3. `MQSTORE_STREAM_SPARK_KILLS` sets the number of kills, `MQSTORE_STREAM_BATCHES` the number of micro-batches of
the undisturbed query; `make test-real-full` sets both.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import pyarrow as pa
import pytest

from storage_core import open_store
from tests.real.job_phase import phase
from tests.real.spark_writer import OPTIONS, ROOT, SETTINGS
from tests.real.stream_rows import rows_of, served
from tests.support.streamed_driver import noted

pytestmark = pytest.mark.real

SEED = int(os.environ.get("MQSTORE_SEED", "20261121"))
KILLS = int(os.environ.get("MQSTORE_STREAM_SPARK_KILLS", "0"))
BATCHES = int(os.environ.get("MQSTORE_STREAM_BATCHES", "0"))
LIMIT, KEYS, BATCHES_PER_RUN = 40, 7, 8
ROWS, WARM = 10, 10
NO_LIMIT = 1_000_000
MOMENTS = ("any", "offset", "staging", "prepare", "publish", "cleaning up", "commit")
START_S, MOMENT_S = 240.0, 3.0


def append(store: Path, first: int, count: int) -> None:
    """Appends consecutively numbered rows, all in one queue."""
    numbers = range(first, first + count)
    with open_store(str(store), "rocketmq", commitLogFileSize=1 << 20) as opened:
        opened.append(pa.table({
            "topic": ["orders"] * count, "queueId": pa.array([0] * count, pa.int32()),
            "key": [f"k{number % KEYS}" for number in numbers],
            "body": [f"{number} {'x' * (number * 37 % 300)}" for number in numbers],
        }))  # fmt: skip


class Driver:
    """A Spark driver in its own session, so that everything it started can be found and killed."""

    def __init__(self, source: Path, target: Path, checkpoint: Path, limit: int) -> None:
        words = [str(source), str(target), str(checkpoint), str(limit)]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.real.stream_driver", *words], cwd=ROOT, start_new_session=True, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip

    def begin(self) -> None:
        """Waits for its session and starts its query."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        assert self._process.stdout.readline().strip() == "ready", "the driver ended"
        self._process.stdin.write("go\n")
        self._process.stdin.flush()

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def ended(self) -> list[int]:
        """Waits until everything is copied; returns the milliseconds of its batches."""
        assert self._process.stdout is not None
        lines = self._process.stdout.read().splitlines()
        assert self._process.wait() == 0
        found: list[int] = json.loads(lines[-1])
        return found

    def groups(self) -> set[int]:
        """The process groups of the session: the driver's own, and those of Python workers."""
        found = set()
        for name in filter(str.isdigit, os.listdir("/proc")):
            try:
                state, _, group, session = Path(f"/proc/{name}/stat").read_bytes().rpartition(b")")[2].split()[:4]
            except (OSError, ValueError):
                continue
            if int(session) == self._process.pid and state not in (b"Z", b"X"):
                found.add(int(group))
        return found

    def kill(self, known: set[int] | None = None) -> None:
        """Kills all processes, those of known groups first: finding the others takes time."""
        left = known or set()
        while left or (left := self.groups()):
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
def drivers(source: Path, target: Path, checkpoint: Path, count: int) -> Iterator[Iterator[Driver]]:
    """`count` drivers, one after another, then one without a limit; the session of the next one starts meanwhile."""
    started: list[Driver] = []

    def each() -> Iterator[Driver]:
        for number in range(count + 1):
            while len(started) < min(number + 2, count + 1):
                limit = LIMIT if len(started) < count else NO_LIMIT
                started.append(Driver(source, target, checkpoint, limit))
            yield started[number]

    try:
        yield each()
    finally:
        for driver in started:
            driver.kill()


def moment(target: Path, checkpoint: Path) -> str:
    """The phase of the query, as the disk shows it."""
    written, done = noted(checkpoint / "offsets"), noted(checkpoint / "commits")
    step = phase(target)
    if written == done:
        return "between batches"
    if step != "none":
        return step
    return "commit" if landed_batch(target) == written else "offset"


def landed_batch(target: Path) -> int:
    """The last batch recorded in the store, -1 if there is none."""
    notes = sorted((target / ".mqstore" / "queries").glob("*"))
    return max((json.loads(note.read_text())["version"] for note in notes), default=-1)


def age_ownerless(target: Path) -> None:
    """Lets a minute pass, so that a staging folder whose driver was killed before it recorded its ownership may be
    removed.
    """
    for folder in (target / ".mqstore" / "staging").glob("*"):
        if not (folder / "owner.json").exists():
            os.utime(folder, (time.time() - 100, time.time() - 100))


def check_copy(source: Path, target: Path) -> int:
    """Asserts that every row of the source is there once, in order per queue and key; returns their number."""
    wanted = [(key, body) for *_, key, body in rows_of(source, "orders")]
    found = rows_of(target, "copy")
    assert sorted((key, body) for *_, key, body in found) == sorted(wanted)
    for number in range(KEYS):
        key = f"k{number}"
        in_order = [body for *_, each, body in found if each == key]
        assert len({row[1] for row in found if row[3] == key}) == 1
        assert in_order == [body for each, body in wanted if each == key]
    return len(found)


def check_files(target: Path) -> None:
    """Asserts that no batch left a file behind, and that no folder has more files than its rows need."""
    assert {path.name for path in (target / ".mqstore").iterdir()} == {"lock", "queries", "state.json"}
    with open_store(str(target)) as store:
        files = [row for batch in store.view("segments") for row in batch.to_pylist()]
        counts = [info.stop for info in store.queues()]
    assert all(row["messages"] for row in files), "a file that holds nothing"
    queue_files = sum(1 for path in (target / "consumequeue").rglob("*") if path.is_file())
    assert queue_files == sum(-(-count // int(OPTIONS["consumeQueueFileEntries"])) for count in counts)


@pytest.mark.skipif(not KILLS, reason="a session for each kill; make test-real-full sets MQSTORE_STREAM_SPARK_KILLS")
@pytest.mark.timeout(300 + 120 * KILLS)
def test_a_killed_spark_query_writes_every_row_once(tmp_path: Path) -> None:
    source, target, checkpoint = (tmp_path / name for name in ("source", "target", "checkpoint"))
    r, tally, rows, began = random.Random(SEED), Counter[str](), 0, time.monotonic()
    with drivers(source, target, checkpoint, KILLS) as running:
        for number in range(KILLS):
            append(source, rows, BATCHES_PER_RUN * LIMIT)
            rows += BATCHES_PER_RUN * LIMIT
            done, driver = noted(checkpoint / "commits"), next(running)
            driver.begin()
            until = time.monotonic() + START_S
            while noted(checkpoint / "commits") <= done and driver.is_running and time.monotonic() < until:
                time.sleep(0.005)
            known, wanted, until = driver.groups(), r.choice(MOMENTS), time.monotonic() + MOMENT_S
            time.sleep(r.random() * 0.3)
            while wanted != "any" and moment(target, checkpoint) != wanted and time.monotonic() < until:
                time.sleep(0.0005)
            time.sleep(r.choice((0.0, r.random() * 0.02)))
            driver.kill(known)
            tally[moment(target, checkpoint)] += 1
            if number % 10 == 9:
                print(f"{number + 1} kills in {time.monotonic() - began:.0f} s", flush=True)
        age_ownerless(target)
        last = next(running)
        last.begin()
        last.ended()
    print(f"{KILLS} kills of Spark, {rows} rows, in {time.monotonic() - began:.0f} s: {dict(tally.most_common())}")
    assert check_copy(source, target) == rows
    mine = sorted(row[-1] for row in rows_of(target, "copy"))
    for version in ("493", "533"):
        assert served(version, target, SETTINGS) == mine, f"a stock {version} serves other rows"
    check_files(target)


@pytest.mark.skipif(not BATCHES, reason="a second a batch; make test-real-full sets MQSTORE_STREAM_BATCHES")
@pytest.mark.timeout(900)
def test_every_micro_batch_costs_what_the_first_did(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    append(source, 0, (BATCHES + WARM) * ROWS)
    driver = Driver(source, target, tmp_path / "checkpoint", ROWS)
    try:
        driver.begin()
        costs = driver.ended()[WARM:]
    finally:
        driver.kill()
    first, last = median(costs[:10]), median(costs[-10:])
    files = sum(path.is_file() for path in target.rglob("*"))
    print(
        f"{len(costs)} micro-batches of {ROWS} rows: the last ten {last:.0f} ms, the first ten {first:.0f} ms, "
        f"{last / first:.2f}; {files} files; load {os.getloadavg()[0]:.1f}"
    )
    assert len(costs) == BATCHES
    assert check_copy(source, target) == (BATCHES + WARM) * ROWS
    check_files(target)
