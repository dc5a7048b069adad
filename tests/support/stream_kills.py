"""Kills of a streaming query's entire driver, which is restarted each time, and the steps that they hit."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
import time
from collections import Counter, defaultdict
from pathlib import Path

from storage_core import open_store
from storage_core.store import ScanRequest
from tests.support.streamed_driver import ROWS, noted

ROOT = Path(__file__).resolve().parents[2]
WHERE = (
    ("Spark's checkpoint", r"/(offsets|commits)/"),
    ("done mark", r"/queries"),
    ("state", r"/state\.json"),
    ("draft", r"/draft\.json"),
    ("intent", r"/intent\.json"),
    ("prepared files", r"/staging/[^/]+/new"),
    ("staging", r"/staging"),
    ("guard", r"mqstore-unfinished-write"),
    ("log", r"/commitlog"),
    ("queues", r"/consumequeue"),
    ("index", r"/index"),
    ("config", r"/config"),
    ("checkpoint", r"/checkpoint(\.tmp)?$"),
    ("locks", r"/(\.mqstore/)?lock$"),
)
"""The step that a change of the disk belongs to, by its path; the first match counts."""


def landed(path: str) -> str:
    """The step that a path belongs to."""
    return next((name for name, pattern in WHERE if re.search(pattern, path)), "folders")


def run(store: Path, checkpoint: Path, last: int, kill_at: int = -1, half: bool = False, after_s: float = 0) -> str:
    """Runs a driver until it ends or is killed; returns its last line. With `after_s` it is killed from outside."""
    command = [sys.executable, "-m", "tests.support.streamed_driver", str(store), str(checkpoint)]
    process = subprocess.Popen(
        [*command, str(last), str(kill_at), str(int(half))], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    if after_s:
        process.stdout.readline()
        time.sleep(after_s)
        process.kill()
    lines = process.stdout.read().splitlines()
    process.stdout.close()
    process.wait()
    return lines[-1] if lines else ""


def killed_often(store: Path, checkpoint: Path, kills: int, chance: random.Random) -> tuple[Counter[str], int]:
    """Kills a query `kills` times at random moments, then lets it end; returns the steps hit, and its last batch.

    One kill in five comes from outside, at a random time; the others happen at a random change of the disk.
    """
    changes = int(run(store, checkpoint, 1).split()[1])
    tally: Counter[str] = Counter()
    while sum(tally.values()) < kills:
        if chance.random() < 0.2:
            run(store, checkpoint, 1 << 20, after_s=chance.random() * 0.2)
            tally["at any time"] += 1
            continue
        end = run(store, checkpoint, 1 << 20, chance.randrange(1, changes + 1), chance.random() < 0.5)
        assert end.startswith("killed "), end
        tally[landed(end.split()[2])] += 1
    assert run(store, checkpoint, noted(checkpoint / "offsets")).startswith("done")
    age_ownerless(store)
    last = noted(checkpoint / "offsets") + 2
    assert run(store, checkpoint, last).startswith("done")
    return tally, last


def age_ownerless(store: Path) -> None:
    """Lets a minute pass, so that a staging folder whose driver was killed before it recorded its ownership may be
    removed.
    """
    for folder in (store / ".mqstore").glob("staging/*"):
        assert [path.name for path in folder.iterdir()] in ([], ["owner.json.tmp"]), "only this may outlive a kill"
        os.utime(folder, (time.time() - 100, time.time() - 100))


def check_rows(store: Path, last: int) -> None:
    """Asserts that every row is present exactly once, in order in each queue and for each key."""
    wanted = ScanRequest(columns=("queueId", "queueOffset", "key", "body"))
    with open_store(str(store)) as opened:
        found = [row for part in opened.snapshot().plan(wanted) for b in part.read() for row in b.to_pylist()]
    found.sort(key=lambda row: (row["queueId"], row["queueOffset"]))
    numbers = [int(row["body"].split()[0]) for row in found]
    assert sorted(numbers) == list(range((last + 1) * ROWS)), "a row is missing or there twice"
    of_queue, of_key = defaultdict(list), defaultdict(list)
    for row, number in zip(found, numbers, strict=True):
        of_queue[row["queueId"]].append((row["queueOffset"], number))
        of_key[row["key"]].append(number)
    for rows in of_queue.values():
        assert [offset for offset, _ in rows] == list(range(len(rows)))
        assert [number for _, number in rows] == sorted(number for _, number in rows)
    assert all(each == sorted(each) for each in of_key.values())
