"""Counts rows by group and puts them in group order, in two passes. The rule is in `formats/grouping`.

No loop reads or writes outside the arrays that it is given.
"""

from __future__ import annotations

import numpy as np
from numba import njit, types

from storage_core.compiled.span_loops import MASKS, OUT_POSITIONS, POSITIONS, Mask, Positions, positions


def numbered(
    group: Positions, counted: Mask, following: Positions
) -> tuple[Positions, Positions, Positions, Positions]:
    """Implements `grouping.numbered`. Raises ValueError for a group that does not exist."""
    values, order = np.empty(len(group), np.int64), np.empty(len(group), np.int64)
    groups, bounds = (np.empty(len(following) + more, np.int64) for more in (0, 1))
    found = _numbered(positions(group), np.ascontiguousarray(counted, bool), following, values, order, groups, bounds)
    if found < 0:
        raise ValueError("there is no such group")
    return values, order[: bounds[found]], groups[:found], bounds[: found + 1]


@njit(
    types.int64(POSITIONS, MASKS, OUT_POSITIONS, OUT_POSITIONS, OUT_POSITIONS, OUT_POSITIONS, OUT_POSITIONS),
    nogil=True,
    cache=True,
)
def _numbered(
    group: Positions, counted: Mask, following: Positions, values: Positions, order: Positions, groups: Positions,
    bounds: Positions,
) -> int:  # fmt: skip
    """Returns the number of groups that have records; -1 if a group does not exist."""
    places = np.zeros(len(following), np.int64)
    for row in range(len(group)):
        if not 0 <= group[row] < len(following):
            return -1
        places[group[row]] += counted[row]
    found = stop = 0
    for number in range(len(following)):
        count = places[number]
        places[number] = stop
        if count:
            groups[found], bounds[found] = number, stop
            found += 1
        stop += count
    bounds[found] = stop
    for row in range(len(group)):
        number = group[row]
        values[row] = following[number] if counted[row] else -1
        if counted[row]:
            order[places[number]] = row
            places[number] += 1
            following[number] += 1
    return found
