"""Random stores whose queue files have a few wrong entries, or end without any: written by mqstore, then damaged."""

from __future__ import annotations

import random
import shutil
import struct
from pathlib import Path

import pyarrow as pa

from storage_core import open_store
from tests.support.rocketmq_files import log_files, overwrite, queue_files, records, used_entries

ENTRY = 20
SEEDS = {
    258: "a damaged entry between expired and readable ones",
    379: "the first entry of the last file points below the log",
    537: "a readable entry points to 0",
    190: "the last entry is none, so 5.x takes all of the queue for expired",
    817: "a start appends an entry to one of no address, which a pull jumps over",
}
"""Seeds whose stores mqstore once read differently from a broker, and why."""


def misled_store(folder: Path, seed: int) -> tuple[Path, dict[str, int]]:
    """Makes a store of one topic with one to three queues; returns it and the settings for opening it in a broker."""
    draw, store = random.Random(f"stale {seed}"), folder / "store"
    count, queues = draw.randrange(6, 60), draw.choice((1, 1, 2, 3))
    per_file, log_size = draw.choice((5, 8, 20, 1000)), draw.choice((1500, 3000, 6000))
    rows = pa.table({
        "topic": ["o"] * count,
        "queueId": pa.array([draw.randrange(queues) for _ in range(count)], pa.int32()),
        "body": [b"x" * draw.randrange(1, 300) for _ in range(count)],
        "key": [f"k{number}" for number in range(count)],
    })  # fmt: skip
    with open_store(str(store), "rocketmq") as opened:
        geometry = {"consumeQueueFileEntries": per_file, "indexSlots": 50, "indexEntries": 100}
        opened.append(rows, commitLogFileSize=log_size, **geometry)
    shutil.rmtree(store / ".mqstore")
    _harm_log(store, draw)
    for queue in sorted({path.parent for path in queue_files(store)}):
        files = sorted(queue.iterdir())
        for _ in range(draw.choice((0, 1, 1, 2, 3))):
            path = draw.choice(files[-3:])
            if used := used_entries(path):
                _harm_entry(path, draw.randrange(used) * ENTRY, draw)
    return store, {"mappedFileSizeCommitLog": log_size, "mappedFileSizeConsumeQueue": per_file * ENTRY}


def _harm_log(store: Path, draw: random.Random) -> None:
    """Makes the store crashed in most cases, often with a checkpoint that makes recovery scan little; sometimes removes
    old files, or ends the log earlier.
    """
    if draw.random() < 0.85:
        (store / "abort").touch()
    chance = draw.random()
    if chance < 0.7:
        overwrite(store / "checkpoint", 0, struct.pack(">qqq", *[1 << 50] * 3))
    elif chance < 0.85:
        (store / "checkpoint").unlink(missing_ok=True)
    logs = log_files(store)
    if draw.random() < 0.3:
        for path in logs[: draw.randrange(len(logs))]:
            path.unlink()
    if draw.random() < 0.3 and (last := list(records(store))[-draw.randrange(1, 6) :]):
        overwrite(last[0].path, last[0].position, bytes(last[0].size))
    draw.random()


def _harm_entry(path: Path, at: int, draw: random.Random) -> None:
    chance = draw.random()
    if chance < 0.4:
        overwrite(path, at, struct.pack(">q", -1))
    elif chance < 0.7:
        overwrite(path, at + 8, struct.pack(">i", 0))
    elif chance < 0.8:
        overwrite(path, at, struct.pack(">q", draw.choice((1 << 40, 0, 100, 1400))))
    elif chance < 0.9:
        overwrite(path, at, bytes(ENTRY))
    else:
        overwrite(path, at + 8, struct.pack(">i", draw.choice((1, 1 << 30, 50))))
