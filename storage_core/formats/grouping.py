"""Rows that belong to groups: the distinct groups, the number of each row within its group, the rows in group order.

The callers decide what a group is.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from storage_core.compiled.loading import CompiledLoops
from storage_core.formats.layout import Mask, Positions
from storage_core.formats.radix_sort import stable_order

_loops = CompiledLoops("storage_core.compiled.group_loops")


def numbered(
    group: npt.NDArray[np.int64], counted: Mask, following: Positions
) -> tuple[Positions, Positions, npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Numbers the rows of each group, in row order. `following` has the next number of each group, and is advanced.

    Returns values, order, groups, bounds: `values` has the number of each row, -1 if it is not `counted`; `order` has
    the counted rows, and `order[bounds[k]:bounds[k + 1]]` are those of group `groups[k]`. Groups without rows are
    left out.
    """
    if (loops := _loops.after(group.nbytes)) is not None:
        found: tuple[Positions, Positions, Positions, Positions] = loops.numbered(group, counted, following)
        return found
    rows = np.flatnonzero(counted)
    order = rows[stable_order(group[rows])]
    ordered = group[order]
    first = np.flatnonzero(np.diff(ordered, prepend=-1))
    bounds = np.append(first, len(order))
    groups, counts = ordered[first], np.diff(bounds)
    values = np.full(len(group), -1, np.int64)
    values[order] = np.arange(len(order)) - np.repeat(first, counts) + np.repeat(following[groups], counts)
    following[groups] += counts
    return values, order, groups, bounds


def distinct_below(limit: int, values: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The distinct values of numbers in [0, limit), ascending, and for each number the index of its distinct value."""
    if limit > 4 * len(values):
        distinct, inverse = np.unique(values, return_inverse=True)
        return distinct, inverse
    numbers = np.zeros(limit, np.int64)
    numbers[values] = 1
    distinct = np.flatnonzero(numbers)
    numbers[distinct] = np.arange(len(distinct))
    return distinct, numbers[values]
