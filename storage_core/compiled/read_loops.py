"""Many short reads: one system call each, with no Python code in between.

Only `storage_core.files.system` calls this, and does itself what a call here did not do.
"""

from __future__ import annotations

from numba import njit, types

from storage_core.compiled.calls import pread
from storage_core.compiled.span_loops import OUT_BYTES, POSITIONS, Bytes, Positions
from storage_core.compiled.span_loops import positions as as_positions


def read_runs(descriptors: Positions, target: Bytes, starts: Positions, stops: Positions, positions: Positions) -> int:
    """Fills each [start, stop) of `target` from its position in the file of its descriptor. Returns how many were
    filled before the first one that a single call did not fill, or that is not inside `target`.
    """
    rows = (as_positions(column) for column in (starts, stops, positions))
    return int(_read_runs(as_positions(descriptors), target, *rows))


@njit(types.int64(POSITIONS, OUT_BYTES, POSITIONS, POSITIONS, POSITIONS), nogil=True, cache=True)
def _read_runs(descriptors: Positions, target: Bytes, starts: Positions, stops: Positions, positions: Positions) -> int:
    for row in range(len(starts)):
        size = stops[row] - starts[row]
        if not 0 <= starts[row] <= stops[row] <= len(target):
            return row
        if pread(descriptors[row], target, starts[row], size, positions[row]) != size:
            return row
    return len(starts)
