"""The valid entries at the start of many queue files, found for all files together.

A store of ten thousand queues has ten thousand small files, so each gets only one open, one read and one close, and no
array. The meaning of the entries belongs to `consume_queue`, which continues reading where a file has more.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from storage_core.files import system
from storage_core.formats.layout import Positions
from storage_core.formats.rocketmq.consumequeue import QUEUE_ENTRY
from storage_core.rocketmq.disk.consume_queue import FIRST_CHUNK, NO_ENTRIES, ValidEntries

FILES_AT_ONCE = 512
MOST = FIRST_CHUNK // QUEUE_ENTRY.size


def valid_starts(
    files: Sequence[tuple[str, int]], seen: list[Positions] | None = None
) -> Iterator[ValidEntries | None]:
    """The result of `ConsumeQueue.valid_entries` for each local file (its path, and how many entries it has room for).

    None where the first chunk of a file does not suffice. The physical offsets of valid entries are added to `seen`.
    Raises FileNotFoundError.
    """
    for first in range(0, len(files), FILES_AT_ONCE):
        yield from _starts(files[first : first + FILES_AT_ONCE], seen)


def _starts(files: Sequence[tuple[str, int]], seen: list[Positions] | None) -> Iterator[ValidEntries | None]:
    chunks = np.zeros((len(files), MOST), QUEUE_ENTRY.dtype)
    room = np.array([count for _, count in files], np.int64)
    read = _read(files, chunks)
    physical_offsets, sizes = chunks["physical_offset"].astype(np.int64), chunks["size"].astype(np.int64)
    numbers = np.arange(MOST)
    valid = (physical_offsets >= 0) & (sizes > 0) & (numbers < read[:, None])
    count = np.where(valid.all(1), MOST, valid.argmin(1))
    valid &= numbers < count[:, None]
    peak = np.where(valid, physical_offsets, -1).max(1)
    if seen is not None:
        seen.append(physical_offsets[valid])
    rows, last = np.arange(len(files)), np.maximum(count - 1, 0)
    last_physical_offset = physical_offsets[rows, last]
    columns = (
        count, physical_offsets[:, 0], sizes[:, 0], last_physical_offset, last_physical_offset + sizes[rows, last],
        peak,
    )  # fmt: skip
    summaries = zip(*(column.tolist() for column in columns), strict=True)
    for found, has_more in zip(summaries, ((count == MOST) & (room > MOST)).tolist(), strict=True):
        if has_more:
            yield None
        else:
            yield ValidEntries(*found) if found[0] else NO_ENTRIES


def _read(files: Sequence[tuple[str, int]], chunks: npt.NDArray[np.void]) -> Positions:
    """Fills a row of entries for each file; returns how many entries each had."""
    raw = chunks.reshape(-1).view(np.uint8).data
    read = []
    for at, (path, room) in zip(range(0, len(raw), FIRST_CHUNK), files, strict=True):
        descriptor = system.open_read(path)
        try:
            read.append(system.pread_into(descriptor, raw[at : at + min(room * QUEUE_ENTRY.size, FIRST_CHUNK)], 0))
        finally:
            system.close(descriptor)
    return np.array(read, np.int64) // QUEUE_ENTRY.size
