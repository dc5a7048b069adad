"""Where appended records go: addresses in the log, ordinals in their queues. Pure arithmetic.

Source of the rules: rocketmq.md 2.6 (blank records), 3.3 and 5.6 (ordinals).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from storage_core.formats.layout import Positions
from storage_core.formats.ordering import stable_order
from storage_core.formats.rocketmq.message import BLANK, COMMIT, TRANSACTION_MASK

UNIT_SIZE = 20


@dataclass(frozen=True)
class Blank:
    """A blank record: its address and the bytes from there to the end of the file."""

    offset: int
    size: int


@dataclass(frozen=True)
class Placed:
    """Addresses of records (shape (n,)), the blank records between them, and the address behind the last record."""

    places: Positions
    blanks: tuple[Blank, ...]
    stop: int


def place(sizes: Positions, start: int, file_size: int) -> Placed:
    """Addresses of records of `sizes` that are appended at `start`, which may be the end of a full file.

    A record fits when 8 bytes are left behind it; else a blank record fills the file. No record may be larger than
    `file_size` - 8.
    """
    ends = np.cumsum(sizes)
    places = np.empty(len(sizes), np.int64)
    blanks = []
    done, stop = 0, start
    while done < len(sizes):
        file_end = (stop // file_size + 1) * file_size
        before = int(ends[done - 1]) if done else 0
        fitting = int(np.searchsorted(ends, before + file_end - stop - BLANK.size, "right"))
        if fitting > done:
            places[done:fitting] = stop + (ends[done:fitting] - sizes[done:fitting]) - before
            stop += int(ends[fitting - 1]) - before
            done = fitting
        if done < len(sizes):
            if stop < file_end:
                blanks.append(Blank(stop, file_end - stop))
            stop = file_end
    return Placed(places, tuple(blanks), stop)


def place_preserved(places: Positions, sizes: Positions, start: int, file_size: int) -> Placed:
    """The blank records that records with addresses of their own need when the log ends at `start`.

    Raises ValueError, one line, when a record lies before `start`, overlaps, leaves a hole or crosses a file's end.
    """
    ends = places + sizes
    before = np.concatenate(([start], ends[:-1]))
    _check(places, ends, before, file_size)
    blanks: list[Blank] = []
    for index in np.flatnonzero(places != before).tolist():
        stop, target = int(before[index]), int(places[index])
        while stop < target:
            file_end = (stop // file_size + 1) * file_size
            blanks.append(Blank(stop, file_end - stop))
            stop = file_end
    return Placed(places, tuple(blanks), int(ends[-1]) if len(ends) else start)


def _check(places: Positions, ends: Positions, before: Positions, file_size: int) -> None:
    wrong = np.flatnonzero(places < before)
    if len(wrong):
        at = int(wrong[0])
        raise ValueError(
            f"physicalOffset {places[at]} lies before {before[at]}, where the log ends by then; "
            "preserve needs rows in the order of physicalOffset, behind the end of the store"
        )
    wrong = np.flatnonzero((places != before) & (places % file_size != 0))
    if len(wrong):
        at = int(wrong[0])
        raise ValueError(
            f"physicalOffset {places[at]} leaves a hole behind {before[at]}; preserve needs every record of the log, "
            "so read with scan=log and no filter, or write without preserve"
        )
    wrong = np.flatnonzero(places % file_size + (ends - places) + BLANK.size > file_size)
    if len(wrong):
        at = int(wrong[0])
        raise ValueError(
            f"the record at physicalOffset {places[at]} does not fit into its file of {file_size} bytes; "
            "give the option commitLogFileSize that the records were written with"
        )


def queued(sys_flags: npt.NDArray[np.int32]) -> npt.NDArray[np.bool_]:
    """Which records get a consume-queue unit and an ordinal: plain and committed ones."""
    kind = sys_flags & TRANSACTION_MASK
    found: npt.NDArray[np.bool_] = (kind == 0) | (kind == COMMIT)
    return found


@dataclass(frozen=True)
class Ordinals:
    """Ordinals of records in their queues, -1 for those in none, and the records sorted by queue, each in log order.

    `order[bounds[k]:bounds[k + 1]]` are the records of queue number `queues[k]`.
    """

    values: Positions
    order: Positions
    queues: npt.NDArray[np.int64]
    bounds: npt.NDArray[np.int64]


def number(queue: npt.NDArray[np.int64], counted: npt.NDArray[np.bool_], next_ordinals: Positions) -> Ordinals:
    """Ordinals for records in log order. `next_ordinals` (one a queue) is moved on in place."""
    rows = np.flatnonzero(counted)
    order = rows[stable_order(queue[rows])]
    sorted_queue = queue[order]
    first = np.flatnonzero(np.diff(sorted_queue, prepend=-1))
    bounds = np.append(first, len(order))
    queues, counts = sorted_queue[first], np.diff(bounds)
    values = np.full(len(queue), -1, np.int64)
    values[order] = np.arange(len(order)) - np.repeat(first, counts) + np.repeat(next_ordinals[queues], counts)
    next_ordinals[queues] += counts
    return Ordinals(values, order, queues, bounds)


def number_preserved(
    queue: npt.NDArray[np.int64],
    counted: npt.NDArray[np.bool_],
    offsets: Positions,
    next_ordinals: Positions,
    firsts: dict[int, int],
) -> Ordinals:
    """Ordinals for records that bring their QUEUEOFFSET, as a broker's dispatcher gives them (rocketmq.md 3.3).

    A queue whose next ordinal is -1 begins at its first record's offset, which `firsts` notes. An offset that is too
    small is ignored unless it is 0, one that is too large closes up.
    """
    rows = np.flatnonzero(counted)
    order = rows[stable_order(queue[rows])]
    first = np.flatnonzero(np.diff(queue[order], prepend=-1))
    values = np.full(len(queue), -1, np.int64)
    for group in np.split(order, first[1:]):
        if not len(group):
            continue
        number_of = int(queue[group[0]])
        expected = int(next_ordinals[number_of])
        if expected < 0:
            expected = int(offsets[group[0]])
            firsts[number_of] = expected
        straight = np.arange(expected, expected + len(group))
        if (offsets[group] == straight).all():
            values[group] = straight
            next_ordinals[number_of] = expected + len(group)
            continue
        for row in group.tolist():
            if offsets[row] == 0 or offsets[row] >= expected:
                values[row] = expected
                expected += 1
        next_ordinals[number_of] = expected
    kept = order[values[order] >= 0]
    first = np.flatnonzero(np.diff(queue[kept], prepend=-1))
    return Ordinals(values, kept, queue[kept][first], np.append(first, len(kept)))
