"""A process that damages stores and reads them in every way, within bounds of memory and time.

    python -m tests.mutations.runner --seed 1 --count 500

Case N of a seed is always the same (`--first N --count 1`). Each case that fails is one line of JSON; the last line
counts them. Each case is announced before it runs, so that the caller sees which one ended the process itself.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import random
import resource
import signal
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import cast

from click.testing import CliRunner

from command_line.main import main as mqstore
from storage_core import open_store
from storage_core.errors import MqStoreError
from storage_core.rabbitmq.stream_queues import tail
from storage_core.store import Mode, Scan, ScanRequest, Store
from storage_core.stream.tail import FollowedStore
from tests.golden import archive
from tests.mutations.harms import copied, harmed
from tests.mutations.rows import (
    OTHER_KINDS,
    OtherRows,
    QuorumRows,
    RabbitRows,
    RocketRows,
    StreamRows,
    rabbit_folder,
)
from tests.rabbitmq import golden, quorum_golden, stream_golden

CPU_SECONDS, WALL_SECONDS = 10, 120
"""Bounds of one call: the first for its CPU time, the second for its elapsed time on a busy machine."""
MEMORY = 1 << 30
"""Bytes of address space allowed on top of what the interpreter and its libraries use: half of 2^31."""
MOST_LINES = 4
CALLS = (
    "info {}", "info {} --json", "ls {}", "topics {}", "offsets {}", "offsets {} --at 2026-11-20T21:37:00", "verify {}",
    "verify {} --json", "offsets reset {} --group slow --to earliest", "cat {} -n 3 --mode dropmalformed",
    "cat {} --last 3", "cat {} --scan log -n 3 --mode permissive", "cat {} --mode permissive", "find {} no-such-key",
    "repair {} --dry-run", "definitions {}", "report {} -o {}.html --force",
)  # fmt: skip
CALLS_A_CASE = 4
RARE = {"shop-4.9.3": 0.05, "broker-killed-4.9.3": 0.3, "s5_16384_kill9": 0.1, "s6_2048_clean_busy": 0.5,
        "s11_cqv2_clean": 0.5, "defaults-4.9.3": 0.2}  # fmt: skip
"""Weights of slow fixtures in the random choice; any other fixture has weight 1."""

OTHER_STORES = [f"{kind}/{name}" for kind in OTHER_KINDS for name in archive.names(f"rocketmq/{kind}")]

# Nothing can read the fixture whose log is damaged in its middle.
QUORUM = sorted(set(quorum_golden.NAMES) - {"q24_wal_bad_middle"})


class TooLong(BaseException):
    """A call exceeded its time limit."""


def _too_long(number: int, frame: FrameType | None) -> None:
    raise TooLong(number)


@contextmanager
def bounded() -> Iterator[None]:
    """Limits the block: TooLong is raised after CPU_SECONDS of CPU time, the process ends after WALL_SECONDS."""
    signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
    faulthandler.dump_traceback_later(WALL_SECONDS, exit=True)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        faulthandler.cancel_dump_traceback_later()


Rows = RocketRows | OtherRows | RabbitRows | QuorumRows | StreamRows


@dataclass
class Fixture:
    """A store of a real system, a copy of it to damage, and its expected rows."""

    name: str
    store: Path
    original: Path
    rows: Rows

    @classmethod
    def unpacked(cls, name: str, folder: Path) -> Fixture:
        """Unpacks a fixture of either engine below `folder`."""
        folder.mkdir(parents=True)
        if name in golden.NAMES:
            original = rabbit_folder(name, folder / "original")
            rows: Rows = RabbitRows(original)
        elif name in quorum_golden.NAMES:
            original = quorum_golden.unpack(name, folder / "original")
            rows = QuorumRows(original)
        elif name in stream_golden.NAMES:
            original = stream_golden.unpack(name, folder / "original")
            copied(original.parent, folder / "node")  # with the tables that name the streams
            return cls(name, folder / "node" / "stream", original, StreamRows(original))
        elif name in OTHER_STORES:
            kind, own_name = name.split("/")
            original = archive.unpack(own_name, folder / "original", f"rocketmq/{kind}")
            rows = OtherRows(original)
        else:
            original = archive.unpack(name, folder / "original")
            rows = RocketRows(name, original)
        store = folder / "store"
        copied(original, store)
        return cls(name, store, original, rows)


@dataclass
class Outcome:
    """The results of the calls on one damaged store."""

    problems: list[str] = field(default_factory=list)
    ends: Counter[str] = field(default_factory=Counter)

    def call(self, name: str, work: Callable[[], object]) -> None:
        """One call of the library: it must return or raise a one-line mqstore error."""
        try:
            with bounded():
                work()
            self.ends["answered"] += 1
        except MqStoreError as error:
            self.ends[type(error).__name__] += 1
            if "\n" in str(error):
                self.problems.append(f"{name}: more than a line: {error}")
        except BaseException as error:  # noqa: BLE001 - any other exception is what this test looks for
            where = traceback.format_exception(error)[-6:]
            self.problems.append(f"{name}: {type(error).__name__}: {error}\n{''.join(where)}")

    def command(self, text: str) -> None:
        """One call of the command line: it must exit with 0, 1 or 2 and print few lines on stderr."""
        try:
            with bounded():
                done = CliRunner().invoke(mqstore, text.split())
        except BaseException as error:  # noqa: BLE001
            self.problems.append(f"mqstore {text}: {type(error).__name__}")
            return
        self.ends[f"exit code {done.exit_code}"] += 1
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            where = "".join(traceback.format_exception(done.exception)[-6:])
            self.problems.append(f"mqstore {text}: {where}")
        elif done.exit_code not in (0, 1, 2) or (
            _lines(done.stderr) > MOST_LINES and not text.startswith("definitions")
        ):
            self.problems.append(f"mqstore {text}: {done.exit_code}, {done.stderr}")


def _lines(text: str) -> int:
    """The number of lines, not counting what each partition of a read says of messages that it left out."""
    return sum("damaged messages left out" not in line for line in text.splitlines())


def _views(store: Store, name: str) -> None:
    for batch in store.view(name):
        batch.validate(full=True)


def _read(store: Store, **request: object) -> None:
    for piece in store.snapshot().plan(ScanRequest(**request)):  # type: ignore[arg-type]
        for batch in piece.read():
            batch.validate(full=True)


def _followed(store: FollowedStore) -> None:
    """Reads everything in two micro-batches."""
    with store.follow() as follower:
        snapshot = follower.settled()
        half = {key: (start + stop) // 2 for key, (start, stop) in snapshot.positions.items()}
        first = {key: (snapshot.positions[key][0], middle) for key, middle in half.items()}
        second = {key: (middle, snapshot.positions[key][1]) for key, middle in half.items()}
        for ranges in (first, second):
            for key, span in ranges.items():
                snapshot.fitting(key, *span, snapshot.after(key, span[0], 3))
            for piece in snapshot.plan_ranges(ScanRequest(mode=Mode.DROPMALFORMED), ranges):
                for batch in piece.read():
                    batch.validate(full=True)


def tried(fixture: Fixture, r: random.Random) -> Outcome:
    """Calls everything that reads on a damaged store."""
    found, path = Outcome(), str(fixture.store)

    def opened(work: Callable[[Store], object]) -> Callable[[], None]:
        def call() -> None:
            with open_store(path) as store:
                work(store)

        return call

    found.call("rows", lambda: found.problems.extend(fixture.rows.problems(fixture.store, r.choice(("493", "533")))))
    found.call("queues", opened(lambda store: store.queues()))
    found.call("state", opened(lambda store: (store.state(), store.snapshot().warnings(), store.virtual_host)))
    for name in ("queues", "topics", "segments", "index", "offsets", "damage"):
        found.call(f"view {name}", opened(lambda store, name=name: _views(store, name)))  # type: ignore[misc]
    found.call("FAILFAST", opened(_read))
    found.call("scan=log", opened(lambda store: _read(store, scan=Scan.LOG, mode=Mode.DROPMALFORMED)))
    found.call("find a key", opened(lambda store: _read(store, keys=tuple(r.sample(fixture.rows.keys or ["k"], 1)))))
    found.call("find an id", opened(lambda store: _read(store, message_ids=("7F00000100002A9F0000000000000000",))))
    found.call("repair", opened(lambda store: store.repair(dry_run=True)))
    if isinstance(fixture.rows, StreamRows):
        found.call("DROPMALFORMED", opened(lambda store: _read(store, mode=Mode.DROPMALFORMED)))
        found.call("followed", opened(lambda store: _followed(cast("FollowedStore", store))))
    for text in r.sample(CALLS, CALLS_A_CASE):
        found.command(text.format(path, path))
    return found


def run(seed: int, first: int, count: int, folder: Path, names: Sequence[str]) -> int:
    """Runs cases on these fixtures and returns how many failed."""
    fixtures: dict[str, Fixture] = {}
    ends, wrong, kinds = Counter[str](), 0, Counter[str]()
    for number in range(first, first + count):
        r = random.Random(f"{seed} {number}")
        name = r.choices(names, [RARE.get(each, 1.0) for each in names])[0]
        if name not in fixtures:
            fixtures[name] = Fixture.unpacked(name, folder / name)
        print(f"case {seed} {number} {name}", file=sys.stderr, flush=True)
        with harmed(fixtures[name].store, fixtures[name].original, r) as done:
            found = tried(fixtures[name], r)
        ends += found.ends
        kinds.update(line.split(": ")[1] for line in done.story)
        if found.problems:
            wrong += 1
            print(json.dumps({"case": [seed, number], "fixture": name, "story": done.story,
                              "problems": found.problems}), flush=True)  # fmt: skip
    print(json.dumps({"seed": seed, "first": first, "cases": count, "wrong": wrong, "ends": ends, "harms": kinds}))
    return wrong


def _limited() -> None:
    """Limits the memory of this process, once everything that it needs is loaded."""
    with open("/proc/self/statm") as statm:
        now = int(statm.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + MEMORY, now + MEMORY))


def main() -> None:
    """Parses the command line and runs the cases."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--only", help="one fixture")
    parser.add_argument("--quorum", action="store_true", help="quorum queues instead of the other stores")
    parser.add_argument("--streams", action="store_true", help="streams instead of the other stores")
    given = parser.parse_args()
    tail.HOLD_S = 0.01
    signal.signal(signal.SIGPROF, _too_long)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = folder + "/cache"
        warm = Fixture.unpacked("collisions-4.9.3", Path(folder) / "warm")
        tried(warm, random.Random(1))
        _limited()
        whole = [*archive.names(), *OTHER_STORES, *golden.NAMES]
        whole = QUORUM if given.quorum else stream_golden.NAMES if given.streams else whole
        names = [given.only] if given.only else whole
        wrong = run(given.seed, given.first, given.count, Path(folder), names)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
