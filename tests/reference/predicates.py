"""Evaluates predicates on one row at a time with SQL's three-valued logic. Times in rows are epoch microseconds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from storage_core.store import Predicate


def true(predicate: Predicate, row: Mapping[str, Any]) -> bool:
    """Whether the predicate is true for the row, that is, neither false nor null."""
    op, wanted = predicate.op, predicate.value
    if op == "any of":
        return any(all(true(one, row) for one in group) for group in wanted)
    value = row[predicate.column]
    if op in ("is null", "is not null"):
        return (value is None) == (op == "is null")
    if value is None:
        return False
    if op == "not in":
        return None not in wanted and value not in wanted
    if isinstance(value, str) and op in ("<", "<=", ">", ">="):
        value, wanted = value.encode(), wanted.encode()
    return ANSWERS[op](value, wanted)


ANSWERS: dict[str, Callable[[Any, Any], bool]] = {
    "=": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
    "in": lambda a, b: a in b,
    "starts with": lambda a, b: a.startswith(b),
    "not starts with": lambda a, b: not a.startswith(b),
    "contains": lambda a, b: b in a,
}
