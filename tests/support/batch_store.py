"""Damage to the queues of batch topics."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from storage_core.formats.rocketmq.consumequeue import BATCH_ENTRY


def lose_batch_entries(directory: Path, most: Callable[[], int]) -> int:
    """Zeroes the last entries in the last file of each batch queue, at most `most()` in each; returns how many."""
    lost = 0
    for folder in sorted((directory / "batchconsumequeue").glob("*/*")):
        path = max(folder.iterdir())
        entries = np.frombuffer(path.read_bytes(), BATCH_ENTRY.dtype).copy()
        used = int((entries["count"] > 0).sum())
        gone = slice(max(0, used - most()), used)
        entries[gone] = np.zeros(1, BATCH_ENTRY.dtype)
        path.write_bytes(entries.tobytes())
        lost += gone.stop - gone.start
    return lost


def queues_that_go_back(directory: Path) -> set[tuple[str, int]]:
    """Topic and queue id of the batch queues in which an entry has a lower queue offset than one before it."""
    found = set()
    for folder in (directory / "batchconsumequeue").glob("*/*"):
        data = b"".join(path.read_bytes() for path in sorted(folder.iterdir()))
        entries = np.frombuffer(data, BATCH_ENTRY.dtype)
        offsets = entries["queue_offset"][entries["count"] > 0].astype(np.int64)
        if (np.diff(offsets) < 0).any() or len(np.unique(offsets)) < len(offsets):
            found.add((folder.parent.name, int(folder.name)))
    return found


def add_queue(directory: Path, topic: str) -> None:
    """Adds an empty consume queue to a topic, with a file of the same size as the others."""
    other = min((directory / "consumequeue").glob("*/*/*"))
    folder = directory / "consumequeue" / topic / "0"
    folder.mkdir(parents=True)
    (folder / other.name).write_bytes(bytes(other.stat().st_size))
