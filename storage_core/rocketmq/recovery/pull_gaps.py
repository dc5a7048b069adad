"""Which entries of a queue a consumer gets when it pulls one by one: unreadable entries make a broker jump ahead.

After an entry whose record it cannot read, a broker skips every entry that points below the next log file, until it
serves one, the queue file ends, or it has looked at 800 entries. Source of the rule: rocketmq.md 3.3 (the trap), 6.1.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from storage_core.formats.layout import Positions

ENTRIES_PER_PULL = 800


def jumped_over(physical_offsets: Positions, readable: npt.NDArray[np.bool_], file_size: int) -> npt.NDArray[np.bool_]:
    """Which readable entries a pull jumps over. All entries are of one queue file, which begins with the first of them.

    Shape (n,). Intact queues need no loop: there, the log file of an unreadable entry contains nothing readable.
    """
    jumped = np.zeros(len(physical_offsets), bool)
    unreadable = np.flatnonzero(~readable)
    if not len(unreadable) or not file_size:
        return jumped
    floors = _next_file(physical_offsets, file_size)
    streak_ends = unreadable[np.append(np.diff(unreadable) > 1, True)] + 1
    streak_starts = unreadable[np.append(True, np.diff(unreadable) > 1)]
    floor = np.maximum.reduceat(np.where(readable, np.iinfo(np.int64).min, floors), streak_starts)
    inside = streak_ends < len(physical_offsets)
    suspects = streak_starts[inside][physical_offsets[streak_ends[inside]] < floor[inside]]
    done = 0
    for start in suspects.tolist():
        if start >= done:
            done = _pull_from(start, physical_offsets, readable, floors, jumped)
    return jumped


def first_pulled(physical_offsets: Positions, log_start: int, bisects: bool, begins_at_zero: bool) -> int:
    """The entry of a queue's first file at which consumers begin, as a broker finds it (rocketmq.md 3.5).

    4.9 uses the first that is not expired, 5.x bisects (`bisects`): damaged addresses may mislead either. 0 if none is
    found. `begins_at_zero`: whether the file is that of entry 0.
    """
    if not len(physical_offsets) or (physical_offsets[0] >= log_start and (begins_at_zero or not bisects)):
        return 0
    low, high = 0, len(physical_offsets) - 1
    while bisects and high - low > 1:
        middle = (low + high) // 2
        if physical_offsets[middle] >= log_start:
            high = middle
        if physical_offsets[middle] <= log_start:
            low = middle
    right = np.flatnonzero(physical_offsets[low : high + 1] >= log_start)
    return low + int(right[0]) if len(right) else 0


def left_open(physical_offsets: Positions, readable: npt.NDArray[np.bool_], file_size: int) -> tuple[int, int]:
    """The following entries that the last pull over these, all of one queue file, also jumps over: `(stop, floor)`, the
    entries before number `stop` that point below `floor`. (0, 0) if it jumps over no more.
    """
    served = np.flatnonzero(readable & ~jumped_over(physical_offsets, readable, file_size))
    begin = int(served[-1]) + 1 if len(served) else 0
    begin += (len(physical_offsets) - begin) // ENTRIES_PER_PULL * ENTRIES_PER_PULL
    lost = physical_offsets[begin:][~readable[begin:]]
    if not len(lost) or not file_size:
        return 0, 0
    return begin + ENTRIES_PER_PULL, int(_next_file(lost, file_size).max())


def jumped_over_fillers(
    queue_offsets: Positions,
    physical_offsets: Positions,
    filler: int,
    first: int,
    log_file_size: int,
    entries_per_file: int,
) -> npt.NDArray[np.bool_]:
    """`jumped_over` for a queue whose fillers [filler, first) were written by the broker start that serves it.

    Only possible when the log begins at 0: then a filler's address, 0, looks readable.
    """
    if first <= filler:
        return np.zeros(len(queue_offsets), bool)
    last_pull = filler + (first - 1 - filler) // ENTRIES_PER_PULL * ENTRIES_PER_PULL
    reach = min(last_pull + ENTRIES_PER_PULL, filler + entries_per_file)
    return (queue_offsets < reach) & (physical_offsets < log_file_size)


def _next_file(physical_offsets: Positions, file_size: int) -> Positions:
    """The start of the next log file, as Java computes it: an address below 0 has a remainder that is not positive, so
    its next file is the second one.
    """
    following: Positions = physical_offsets + file_size - np.fmod(physical_offsets, file_size)
    return following


def _pull_from(
    start: int,
    physical_offsets: Positions,
    readable: npt.NDArray[np.bool_],
    floors: Positions,
    jumped: npt.NDArray[np.bool_],
) -> int:
    """Simulates pulls from `start` and marks what they jump over, until one serves a message; returns the entry after
    it.
    """
    at = start
    while at < len(physical_offsets):
        floor: int | None = None
        for entry in range(at, min(at + ENTRIES_PER_PULL, len(physical_offsets))):
            if floor is not None and physical_offsets[entry] < floor:
                jumped[entry] = readable[entry]
            elif readable[entry]:
                return entry + 1
            else:
                floor = int(floors[entry])
        at += ENTRIES_PER_PULL
    return at
