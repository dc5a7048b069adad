"""The addresses and queue offsets of appended records. Pure arithmetic.

Source of the rules: rocketmq.md 2.6 (blank records), 3.3 and 5.6 (queue offsets).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from storage_core.formats.grouping import numbered
from storage_core.formats.layout import Positions
from storage_core.formats.radix_sort import stable_order
from storage_core.formats.rocketmq.message import BLANK
from storage_core.rocketmq.recovery.dispatch import appended_offsets

MOST_MISSING = 10_000
"""The most files in a row that `preserve` fills with blanks."""


@dataclass(frozen=True)
class Blank:
    """A blank record: its address and the bytes from there to the end of the file."""

    offset: int
    size: int


@dataclass(frozen=True)
class Placement:
    """Addresses of records (shape (n,)), the blank records between them, and the address after the last record."""

    physical_offsets: Positions
    blanks: tuple[Blank, ...]
    stop: int


def placement_of(sizes: Positions, start: int, file_size: int) -> Placement:
    """Addresses of records of `sizes` that are appended at `start`, which may be the end of a full file.

    A record fits if 8 bytes are left after it; otherwise a blank record fills the file. No record may be larger than
    `file_size` - 8.
    """
    ends = np.cumsum(sizes)
    physical_offsets = np.empty(len(sizes), np.int64)
    blanks = []
    done, stop = 0, start
    while done < len(sizes):
        file_end = (stop // file_size + 1) * file_size
        before = int(ends[done - 1]) if done else 0
        fitting = int(np.searchsorted(ends, before + file_end - stop - BLANK.size, "right"))
        if fitting > done:
            placed = np.subtract(ends[done:fitting], sizes[done:fitting], out=physical_offsets[done:fitting])
            placed += stop - before
            stop += int(ends[fitting - 1]) - before
            done = fitting
        if done < len(sizes):
            if stop < file_end:
                blanks.append(Blank(stop, file_end - stop))
            stop = file_end
    return Placement(physical_offsets, tuple(blanks), stop)


def preserved_placement(physical_offsets: Positions, sizes: Positions, start: int, file_size: int) -> Placement:
    """The placement of records that keep their addresses, with the blank records needed if the log ends at `start`.

    Raises ValueError, one line, if a record begins before `start`, overlaps, leaves a hole or crosses a file's end.
    """
    ends = physical_offsets + sizes
    before = np.concatenate(([start], ends[:-1]))
    _check(physical_offsets, ends, before, file_size)
    blanks: list[Blank] = []
    for index in np.flatnonzero(physical_offsets != before).tolist():
        stop, target = int(before[index]), int(physical_offsets[index])
        while stop < target:
            file_end = (stop // file_size + 1) * file_size
            blanks.append(Blank(stop, file_end - stop))
            stop = file_end
    return Placement(physical_offsets, tuple(blanks), int(ends[-1]) if len(ends) else start)


def _check(physical_offsets: Positions, ends: Positions, before: Positions, file_size: int) -> None:
    wrong = np.flatnonzero(physical_offsets < before)
    if len(wrong):
        at = int(wrong[0])
        raise ValueError(
            f"physicalOffset {physical_offsets[at]} lies before {before[at]}, where the log ends by that time; "
            "preserve needs rows in the order of physicalOffset, after the end of the store"
        )
    wrong = np.flatnonzero((physical_offsets != before) & (physical_offsets % file_size != 0))
    if len(wrong):
        at = int(wrong[0])
        raise ValueError(
            f"physicalOffset {physical_offsets[at]} leaves a hole after {before[at]}; preserve needs every record of "
            "the log and its file size, so read with scan=log and no filter and set commitLogFileSize to that of the "
            "source, or write without preserve"
        )
    wrong = np.flatnonzero((physical_offsets - before) // file_size > MOST_MISSING)
    if len(wrong):
        at = int(wrong[0])
        raise ValueError(
            f"physicalOffset {physical_offsets[at]} leaves a hole of more than {MOST_MISSING:,} files after "
            f"{before[at]}; preserve fills holes with blank files: write the rows behind this one into their own store"
        )
    wrong = np.flatnonzero(physical_offsets % file_size + (ends - physical_offsets) + BLANK.size > file_size)
    if len(wrong):
        at = int(wrong[0])
        raise ValueError(
            f"the record at physicalOffset {physical_offsets[at]} does not fit into its file of {file_size} bytes; "
            "give the option commitLogFileSize that the records were written with"
        )


@dataclass(frozen=True)
class Numbering:
    """Queue offsets of records, -1 for those in no queue, and the records sorted by queue, in log order within each.

    `order[bounds[k]:bounds[k + 1]]` are the records of queue number `queues[k]`.
    """

    values: Positions
    order: Positions
    queues: npt.NDArray[np.int64]
    bounds: npt.NDArray[np.int64]


def number(queue: npt.NDArray[np.int64], counted: npt.NDArray[np.bool_], next_queue_offsets: Positions) -> Numbering:
    """Queue offsets for records in log order. `next_queue_offsets` (one per queue) is advanced in place."""
    return Numbering(*numbered(queue, counted, next_queue_offsets))


def number_preserved(
    queue: npt.NDArray[np.int64],
    counted: npt.NDArray[np.bool_],
    offsets: Positions,
    ends: Positions,
    next_queue_offsets: Positions,
    firsts: dict[int, int],
) -> Numbering:
    """Queue offsets that a broker's dispatcher assigns to records that bring their QUEUEOFFSET and end at `ends`.

    A queue whose next offset is -1 begins at the QUEUEOFFSET of its first record, which is noted in `firsts`.
    """
    rows = np.flatnonzero(counted)
    order = rows[stable_order(queue[rows])]
    first = np.flatnonzero(np.diff(queue[order], prepend=-1))
    values = np.full(len(queue), -1, np.int64)
    for group in np.split(order, first[1:]):
        if not len(group):
            continue
        number_of = int(queue[group[0]])
        expected = int(next_queue_offsets[number_of])
        if expected < 0:
            expected = firsts[number_of] = int(offsets[group[0]])
        values[group], next_queue_offsets[number_of], _ = appended_offsets(offsets[group], ends[group], expected, -1)
    listed = order[values[order] >= 0]
    first = np.flatnonzero(np.diff(queue[listed], prepend=-1))
    return Numbering(values, listed, queue[listed][first], np.append(first, len(listed)))
