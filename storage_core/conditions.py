"""Conditions on rows: the predicates of a request, true or false for each row of a batch. Independent of the engine.

`formats.predicate_ops` compares the values; each engine decides which columns are cheap enough to be evaluated first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from storage_core.formats.layout import Mask
from storage_core.formats.predicate_ops import holds
from storage_core.store import Predicate

Columns = Callable[[str], pa.Array]
"""Returns the column of a name, with a value for each row of the batch."""


@dataclass(frozen=True)
class Condition:
    """One condition on rows: the columns it reads, and the rows for which it is true, shape (n,)."""

    columns: frozenset[str]
    holds: Callable[[Columns], Mask]


def condition(predicate: Predicate) -> Condition:
    """A predicate as a condition. Evaluating it raises what `predicate_ops.holds` raises."""
    if predicate.op == "any of":
        return _any_of(predicate.value)
    return Condition(
        frozenset({predicate.column}),
        lambda columns: holds(columns(predicate.column), predicate.op, predicate.value),
    )


def all_hold(conditions: Iterable[Condition], columns: Columns, count: int) -> Mask:
    """The rows for which every condition is true. Shape (count,)."""
    mask = np.ones(count, bool)
    for one in conditions:
        mask &= one.holds(columns)
    return mask


def columns_of(conditions: Iterable[Condition]) -> frozenset[str]:
    """The columns that at least one of the conditions reads."""
    return frozenset().union(*(one.columns for one in conditions))


def _any_of(alternatives: Sequence[Sequence[Predicate]]) -> Condition:
    groups = [[condition(predicate) for predicate in group] for group in alternatives]

    def true(columns: Columns) -> Mask:
        whole: Mask | None = None
        for group in groups:
            masks = [one.holds(columns) for one in group]
            if masks:
                mask: Mask = np.logical_and.reduce(masks)
                whole = mask if whole is None else whole | mask
        return np.zeros(0, bool) if whole is None else whole

    return Condition(columns_of(one for group in groups for one in group), true)
