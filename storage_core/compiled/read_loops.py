"""Many short reads of one file: a call to the system each, with nothing of Python between two.

Only `storage_core.files.system` calls it, which does by itself what a call here did not.
"""

from __future__ import annotations

from numba import njit, types

from storage_core.compiled.calls import pread
from storage_core.compiled.span_loops import OUT_BYTES, POSITIONS, Bytes, Positions
from storage_core.compiled.span_loops import positions as as_positions


def read_runs(descriptor: int, target: Bytes, starts: Positions, stops: Positions, positions: Positions) -> int:
    """Fills each [start, stop) of `target` from its position in the file; how many were filled before the first that
    one call did not fill, or that does not lie in `target`.
    """
    return int(_read_runs(descriptor, target, as_positions(starts), as_positions(stops), as_positions(positions)))


@njit(types.int64(types.int64, OUT_BYTES, POSITIONS, POSITIONS, POSITIONS), nogil=True, cache=True)
def _read_runs(descriptor: int, target: Bytes, starts: Positions, stops: Positions, positions: Positions) -> int:
    for row in range(len(starts)):
        size = stops[row] - starts[row]
        if not 0 <= starts[row] <= stops[row] <= len(target):
            return row
        if pread(descriptor, target, starts[row], size, positions[row]) != size:
            return row
    return len(starts)
