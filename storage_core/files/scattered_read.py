"""Small spans at scattered positions of many files, by `pread`.

Which positions, and what the bytes mean, belongs to the engines.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from storage_core.files import system

PAGE_SIZE = 4096
MANY = 512
GAP = 2 * PAGE_SIZE
LONGEST_RUN = 8 << 20


def read_scattered(
    descriptors: Sequence[int], file: npt.NDArray[np.integer], positions: npt.NDArray[np.int64], width: int
) -> npt.NDArray[np.uint8]:
    """`width` bytes at each position; `file` says which descriptor. Shape (n, width); zeros after a file's end.

    Many positions of one file are read in runs: those that lie closer than two pages together.
    """
    if len(positions) < MANY:
        wanted = zip(file.tolist(), positions.tolist(), strict=True)
        parts = system.pread_each([(descriptors[number], width, position) for number, position in wanted])
        data = b"".join(part if len(part) == width else part.ljust(width, b"\0") for part in parts)
        return np.frombuffer(data, np.uint8).reshape(-1, width)
    out = np.zeros((len(positions), width), np.uint8)
    for number in np.unique(file).tolist():
        rows = np.flatnonzero(file == number)
        rows = rows[np.argsort(positions[rows], kind="stable")]
        _read_runs(descriptors[number], positions[rows], width, out, rows)
    return out


def _read_runs(
    descriptor: int,
    positions: npt.NDArray[np.int64],
    width: int,
    out: npt.NDArray[np.uint8],
    rows: npt.NDArray[np.intp],
) -> None:
    """Reads rising positions of one file, run by run, into their rows of `out`."""
    first = 0
    bounds = [*(np.flatnonzero(np.diff(positions) > GAP) + 1).tolist(), len(positions)]
    for bound in bounds:
        while first < bound:
            begin = int(positions[first])
            stop = min(int(np.searchsorted(positions, begin + LONGEST_RUN, "right")), bound)
            size = int(positions[stop - 1]) + width - begin
            data = np.frombuffer(system.pread(descriptor, size, begin).ljust(size, b"\0"), np.uint8)
            windows = np.lib.stride_tricks.sliding_window_view(data, width)
            out[rows[first:stop]] = windows[positions[first:stop] - begin]
            first = stop
