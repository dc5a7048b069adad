"""Which units of a queue a consumer gets when it pulls one by one: unreadable units make a broker jump.

After a unit whose record it cannot read, a broker skips every unit that points below the next log file, until it
serves one, the queue file ends, or it has looked at 800 units. Source of the rule: rocketmq.md 3.3 (the trap), 6.1.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from storage_core.formats.layout import Positions

UNITS_PER_PULL = 800


def jumped_over(places: Positions, readable: npt.NDArray[np.bool_], file_size: int) -> npt.NDArray[np.bool_]:
    """Readable units that a pull jumps over. All are of one queue file, the first one begins it. Shape (n,).

    Sane queues are answered without a loop: there an unreadable unit's log file holds nothing readable.
    """
    jumped = np.zeros(len(places), bool)
    unreadable = np.flatnonzero(~readable)
    if not len(unreadable) or not file_size:
        return jumped
    floors = _next_file(places, file_size)
    streak_ends = unreadable[np.append(np.diff(unreadable) > 1, True)] + 1
    streak_starts = unreadable[np.append(True, np.diff(unreadable) > 1)]
    floor = np.maximum.reduceat(np.where(readable, np.iinfo(np.int64).min, floors), streak_starts)
    inside = streak_ends < len(places)
    suspects = streak_starts[inside][places[streak_ends[inside]] < floor[inside]]
    done = 0
    for start in suspects.tolist():
        if start >= done:
            done = _pull_from(start, places, readable, floors, jumped)
    return jumped


def jumped_over_fillers(
    ordinals: Positions, places: Positions, filler: int, first: int, log_file_size: int, units_per_file: int
) -> npt.NDArray[np.bool_]:
    """The same for a queue whose fillers [filler, first) were written by the very start that serves it.

    Only possible when the log begins at 0: there a filler's address, 0, looks readable.
    """
    if first <= filler:
        return np.zeros(len(ordinals), bool)
    last_pull = filler + (first - 1 - filler) // UNITS_PER_PULL * UNITS_PER_PULL
    reach = min(last_pull + UNITS_PER_PULL, filler + units_per_file)
    return (ordinals < reach) & (places < log_file_size)


def _next_file(places: Positions, file_size: int) -> Positions:
    return places + file_size - places % file_size


def _pull_from(
    start: int, places: Positions, readable: npt.NDArray[np.bool_], floors: Positions, jumped: npt.NDArray[np.bool_]
) -> int:
    """Plays pulls from `start`, marking what they jump over, until one serves a message; returns the unit behind it."""
    at = start
    while at < len(places):
        floor: int | None = None
        for unit in range(at, min(at + UNITS_PER_PULL, len(places))):
            if floor is not None and places[unit] < floor:
                jumped[unit] = readable[unit]
            elif readable[unit]:
                return unit + 1
            else:
                floor = int(floors[unit])
        at += UNITS_PER_PULL
    return at
