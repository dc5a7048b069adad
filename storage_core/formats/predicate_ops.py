"""Which values of an Arrow column satisfy `op value`, with SQL's null: neither true nor false, so never kept.

Which predicates apply to which column is up to the engines; the operators are named as in `store.Predicate`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage_core.arrays import as_array
from storage_core.formats.layout import Mask


def holds(column: pa.Array, op: str, value: Any) -> Mask:
    """Whether `op value` is true for each value of `column`. Timestamps are compared with epoch microseconds.

    Text is compared by its UTF-8 bytes, as in Spark. `contains` looks for an element of a list, or a substring of a
    text. Raises KeyError for an unknown operator, and pa.ArrowInvalid, TypeError or OverflowError for a value that the
    column's type cannot hold.
    """
    if pa.types.is_timestamp(column.type):
        column = column.view(pa.int64())
    if pa.types.is_integer(column.type):
        column = column.cast(pa.int64())
    return _true(_OPERATORS[op](column, value))


def has_any(listed: pa.ListArray, wanted: pa.Array) -> Mask:
    """Whether each list has an element that is in `wanted`."""
    hit = pc.is_in(listed.flatten(), wanted).to_numpy(zero_copy_only=False)
    parents = pc.list_parent_indices(listed).to_numpy()
    kept = np.zeros(len(listed), bool)
    kept[parents[hit]] = True
    return kept


def _true(answer: pa.BooleanArray) -> Mask:
    found: Mask = answer.fill_null(False).to_numpy(zero_copy_only=False)
    return found


def _compared(function: Callable[[pa.Array, pa.Scalar], pa.Array]) -> Callable[[pa.Array, Any], pa.Array]:
    return lambda column, value: function(column, pa.scalar(value, column.type))


def _is_in(column: pa.Array, values: Any) -> pa.Array:
    return pc.is_in(column, pa.array([value for value in values if value is not None], column.type))


def _is_not_in(column: pa.Array, values: Any) -> pa.Array:
    # `x not in (1, null)` is never true: x might be the null.
    if any(value is None for value in values):
        return pa.repeat(pa.scalar(False), len(column))
    return pc.and_(column.is_valid(), pc.invert(_is_in(column, values)))


def _contains(column: pa.Array, value: Any) -> pa.Array:
    if pa.types.is_list(column.type):
        return as_array(has_any(column, pa.array([value], column.type.value_type)))
    return pc.match_substring(column, value)


_NOT_BLANK = r"[^\x09-\x0D\x1C-\x20\x{1680}\x{2000}-\x{2006}\x{2008}-\x{200A}\x{2028}\x{2029}\x{205F}\x{3000}]"
"""A character that is not white space for Java's `Character.isWhitespace`."""

_OPERATORS: dict[str, Callable[[pa.Array, Any], pa.Array]] = {
    "=": _compared(pc.equal),
    "!=": _compared(pc.not_equal),
    "<": _compared(pc.less),
    "<=": _compared(pc.less_equal),
    ">": _compared(pc.greater),
    ">=": _compared(pc.greater_equal),
    "in": _is_in,
    "not in": _is_not_in,
    "is null": lambda column, _: column.is_null(),
    "is not null": lambda column, _: column.is_valid(),
    "starts with": pc.starts_with,
    "not starts with": lambda column, value: pc.invert(pc.starts_with(column, value)),
    "contains": _contains,
    "not blank": lambda column, _: pc.match_substring_regex(column, _NOT_BLANK),
}
