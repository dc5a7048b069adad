"""Entries of many consume queues at once: read together, and searched by the addresses of their records."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice

import numpy as np
import numpy.typing as npt

from storage_core.files import system
from storage_core.files.file_chain import ChainFile
from storage_core.files.open_files import OpenFiles
from storage_core.files.window import shrunk, vanished
from storage_core.formats.bisection import first_where
from storage_core.formats.layout import Positions
from storage_core.formats.rocketmq.consumequeue import QUEUE_ENTRY
from storage_core.rocketmq.disk.consume_queue import ConsumeQueue

Span = tuple[ConsumeQueue, int, int]
"""A queue and a range of its queue offsets: the first, and the one after the last."""
GUESSED, GUESSES = 256, 4
"""Entries read around the estimated place of an address, and how many estimates precede a bisection."""
MOST_GUESSED = 1 << 10
"""Ranges in which an address is searched for at once."""


def read_ranges(files: OpenFiles, spans: Sequence[Span], bounds: Positions) -> npt.NDArray[np.void]:
    """The entries of all spans in disk byte order, those of span i at [bounds[i], bounds[i + 1]); those of a missing
    file are zeros.

    Raises CorruptionError when a file has vanished or become shorter since it was listed.
    """
    out = np.zeros(int(bounds[-1]), QUEUE_ENTRY.dtype)
    pieces = _pieces(spans, bounds)
    # The descriptors of this many files stay open at once.
    while some := list(islice(pieces, files.most)):
        descriptors = np.array([_descriptor(files, file) for file, *_ in some])
        rows = np.array([piece[1:] for piece in some], np.int64)
        ended = system.pread_runs(descriptors, out.view(np.uint8), *rows.T)
        if ended is not None:
            row, count = ended
            raise shrunk(some[row][0], some[row][3] + count)
    return out


def _descriptor(files: OpenFiles, file: ChainFile) -> int:
    try:
        return files.descriptor(file.path)
    except FileNotFoundError:
        raise vanished(file) from None


def _pieces(spans: Sequence[Span], bounds: Positions) -> Iterator[tuple[ChainFile, int, int, int]]:
    """The files of spans, the output bytes [start, stop) that each fills, and the position of the first in the file."""
    for (queue, start, stop), begin in zip(spans, bounds.tolist(), strict=False):
        moved = (begin - start) * QUEUE_ENTRY.size
        for file, low, high in queue.spans(start, stop):
            yield file, low + moved, high + moved, low - file.base_offset


def even_bounds(files: OpenFiles, spans: Sequence[Span], physical_offsets: Positions) -> Positions:
    """`ConsumeQueue.lower_bounds` of spans, one row per address and one column per span. Needs few reads if addresses
    increase evenly. Meant for cuts, which may be placed anywhere.

    If addresses do not increase, each bound may be a different one; the bounds are ascending all the same.
    """
    bounds = np.empty((len(physical_offsets), len(spans)), np.int64)
    few = len(physical_offsets) * GUESSED * GUESSES
    long: list[int] = []
    for column, (queue, start, stop) in enumerate(spans):
        if stop - start > few:
            long.append(column)
        else:
            bounds[:, column] = queue.lower_bounds(files, start, stop, physical_offsets)
    for first in range(0, len(long), MOST_GUESSED):
        columns = long[first : first + MOST_GUESSED]
        bounds[:, columns] = _guessed(files, [spans[column] for column in columns], physical_offsets)
    return bounds


def _guessed(files: OpenFiles, spans: Sequence[Span], physical_offsets: Positions) -> Positions:
    low, high = np.array([span[1:] for span in spans], np.int64).T
    first, last = _ends(files, spans)
    bounds = np.empty((len(physical_offsets), len(spans)), np.int64)
    for row, physical_offset in enumerate(physical_offsets.tolist()):
        bounds[row] = low = _bound(files, spans, physical_offset, (low.copy(), high.copy()), (first, last.copy()))
        first = np.full(len(spans), float(physical_offset))
    return bounds


def _ends(files: OpenFiles, spans: Sequence[Span]) -> npt.NDArray[np.float64]:
    """The addresses that the first and last entry of each span name; for one that names none, the entry before it."""
    places = [(queue, start) for queue, start, _ in spans] + [(queue, stop - 1) for queue, _, stop in spans]
    entries = read_ranges(files, [(queue, at, at + 1) for queue, at in places], np.arange(len(places) + 1))
    addresses = entries["physical_offset"].astype(np.float64)
    for row in np.flatnonzero((entries["size"] <= 0) | (entries["physical_offset"] < 0)).tolist():
        queue, at = places[row]
        addresses[row] = queue.last_physical_offset(files, at + 1)
    return addresses.reshape(2, -1)


def _bound(
    files: OpenFiles, spans: Sequence[Span], physical_offset: int, edges: tuple[Positions, Positions],
    addresses: tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]],
) -> Positions:  # fmt: skip
    """The first queue offset of each span, between its `edges`, whose record is at or after `physical_offset`.

    `addresses` are the approximate addresses of the edges. Modifies both.
    """
    (low, high), (first, last) = edges, addresses
    found = np.full(len(spans), -1)
    for _ in range(GUESSES):
        rows = np.flatnonzero((found < 0) & (high - low > GUESSED))
        if not len(rows):
            break
        share = np.clip((physical_offset - first[rows]) / np.maximum(last[rows] - first[rows], 1), 0, 1)
        middle = low[rows] + ((high - low)[rows] * share).astype(np.int64)
        begin = np.clip(middle - GUESSED // 2, low[rows], high[rows] - GUESSED)
        around = [(spans[row][0], at, at + GUESSED) for row, at in zip(rows.tolist(), begin.tolist(), strict=True)]
        entries = read_ranges(files, around, np.arange(len(rows) + 1) * GUESSED)
        offsets = entries["physical_offset"].astype(np.int64).reshape(-1, GUESSED)
        before = physical_offset <= offsets[:, 0]
        after = ~before & (physical_offset > offsets[:, -1])
        high[rows[before]], last[rows[before]] = begin[before], offsets[before, 0]
        low[rows[after]], first[rows[after]] = begin[after] + GUESSED, offsets[after, -1]
        inside = ~(before | after)
        found[rows[inside]] = begin[inside] + (offsets[inside] < physical_offset).sum(axis=1)
    for row in np.flatnonzero(found < 0).tolist():
        reaches = partial(spans[row][0].reaches, files, physical_offset)
        found[row] = first_where(int(low[row]), int(high[row]), reaches)
    return found
