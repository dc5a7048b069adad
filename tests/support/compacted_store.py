"""The files of compacted topics, and what a power failure loses of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from storage_core.formats.rocketmq.consumequeue import BATCH_ENTRY, QUEUE_ENTRY


def files_of(directory: Path, kind: str, topic: str, queue_id: int) -> list[Path]:
    """The files of one queue below `compaction/compactionLog` or `compaction/compactionCq`, as `kind` says."""
    return sorted(
        path for path in (directory / "compaction" / kind / topic / str(queue_id)).iterdir() if path.is_file()
    )


def lose_entries(directory: Path, most: int, also_queues: bool) -> set[tuple[str, int, int]]:
    """Zeroes the last entries in the last file of each compacted queue, and with `also_queues` those of the same
    messages in its consume queue; returns their topics, queue ids and queue offsets.
    """
    lost = set()
    for folder in sorted((directory / "compaction" / "compactionCq").glob("*/*")):
        topic, queue_id = folder.parent.name, int(folder.name)
        path = files_of(directory, "compactionCq", topic, queue_id)[-1]
        entries = np.frombuffer(path.read_bytes(), BATCH_ENTRY.dtype).copy()
        used = int((entries["count"] > 0).sum())
        gone = slice(max(0, used - most), used)
        for queue_offset in entries["queue_offset"][gone].tolist():
            lost.add((topic, queue_id, queue_offset))
            if also_queues:
                _lose_entry(directory / "consumequeue" / topic / str(queue_id), queue_offset)
        entries[gone] = np.zeros(1, BATCH_ENTRY.dtype)
        path.write_bytes(entries.tobytes())
    return lost


def _lose_entry(folder: Path, queue_offset: int) -> None:
    size = next(folder.iterdir()).stat().st_size
    position = queue_offset * QUEUE_ENTRY.size
    with (folder / f"{position // size * size:020d}").open("r+b") as file:
        file.seek(position % size)
        file.write(bytes(QUEUE_ENTRY.size))
