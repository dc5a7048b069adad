"""Reads small spans at scattered positions of many files by `pread`.

Which positions, and what the bytes mean, is up to the engines.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from storage_core.files import system

PAGE_SIZE = 4096
MANY = 512
GAP = 2 * PAGE_SIZE
LONGEST_RUN = MOST_AT_ONCE = 8 << 20


def read_scattered(
    descriptors: Sequence[int], file: npt.NDArray[np.integer], positions: npt.NDArray[np.int64], width: int
) -> npt.NDArray[np.uint8]:
    """`width` bytes at each position; `file` is the index of its descriptor. Shape (n, width); zeros past a file's end.

    Many positions of one file are read in runs: those less than two pages apart together.
    """
    if len(positions) < MANY:
        wanted = zip(file.tolist(), positions.tolist(), strict=True)
        parts = system.pread_each([(descriptors[number], width, position) for number, position in wanted])
        data = b"".join(part if len(part) == width else part.ljust(width, b"\0") for part in parts)
        return np.frombuffer(data, np.uint8).reshape(-1, width)
    out = np.zeros((len(positions), width), np.uint8)
    runs, held = list[_Run](), 0
    for number in sorted(set(file.tolist())):
        rows = np.flatnonzero(file == number)
        rows = rows[np.argsort(positions[rows], kind="stable")]
        for run in _runs(descriptors[number], positions[rows], width, rows):
            runs.append(run)
            held += run.size
            if held > MOST_AT_ONCE:
                _read(runs, positions, out)
                runs, held = [], 0
    _read(runs, positions, out)
    return out


class _Run(NamedTuple):
    """A span of one file, and the rows whose bytes are in it."""

    descriptor: int
    begin: int
    size: int
    rows: npt.NDArray[np.intp]


def _runs(descriptor: int, positions: npt.NDArray[np.int64], width: int, rows: npt.NDArray[np.intp]) -> Iterator[_Run]:
    """Ascending positions of one file as spans, with the row of each position."""
    first = 0
    bounds = [*(np.flatnonzero(np.diff(positions) > GAP) + 1).tolist(), len(positions)]
    for bound in bounds:
        while first < bound:
            begin = int(positions[first])
            stop = min(int(np.searchsorted(positions, begin + LONGEST_RUN, "right")), bound)
            yield _Run(descriptor, begin, int(positions[stop - 1]) + width - begin, rows[first:stop])
            first = stop


def _read(runs: Sequence[_Run], positions: npt.NDArray[np.int64], out: npt.NDArray[np.uint8]) -> None:
    """Reads spans, remote ones concurrently, into the rows of `out`."""
    parts = system.pread_each([(run.descriptor, run.size, run.begin) for run in runs])
    for run, part in zip(runs, parts, strict=True):
        data = np.frombuffer(part.ljust(run.size, b"\0"), np.uint8)
        windows = np.lib.stride_tricks.sliding_window_view(data, out.shape[1])
        out[run.rows] = windows[positions[run.rows] - run.begin]
