"""Converts the columns of a frame to write to the types that an engine requires. Independent of the engine.

A column of the wrong type raises ColumnError, a bad value RowError with the number of its row in the task. The engines
define which columns exist, and which values may be written.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from storage_core.arrays import as_array
from storage_core.errors import ColumnError, RowError, choices, shorten
from storage_core.formats.layout import Mask

_CAST_ERRORS = (pa.ArrowInvalid, pa.ArrowNotImplementedError)
_NUMERIC = (
    pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal, pa.types.is_string, pa.types.is_large_string,
)  # fmt: skip
_TEXT = (
    pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view, pa.types.is_binary,
    pa.types.is_large_binary, pa.types.is_binary_view, pa.types.is_fixed_size_binary,
)  # fmt: skip


def spelled(names: Sequence[str], known: Iterable[str]) -> list[str]:
    """`names` as `known` spells them: case does not matter, as in Spark. Unknown names are returned unchanged."""
    by_lower = {name.lower(): name for name in known}
    return [by_lower.get(name.lower(), name) for name in names]


def check_names(
    given: Sequence[str], written: Sequence[str], ignored: Iterable[str], aliases: Mapping[str, str]
) -> None:
    """Raises ColumnError for an unknown name, and for two columns with the same meaning.

    `written` are the columns of a write, `ignored` those that only a read has, `aliases` maps other names to theirs.
    """
    names = spelled(given, [*written, *ignored, *aliases])
    for name in names:
        own = aliases.get(name, name)
        if own not in written and name not in ignored:
            listed = choices(name, [*written, *aliases], "columns", 40)
            raise ColumnError(name, f"there is no such column; {listed}")
        if names.count(name) > 1 or (own != name and own in names):
            raise ColumnError(name, f"says the same as column {own}; drop one of the two")


def first_unfit(name: str, column: pa.Array, kind: pa.DataType) -> tuple[int, Any]:
    """The row and the value of the first element that cannot be cast to `kind`. Raises ColumnError if each can, but not
    the column.
    """
    for row, value in enumerate(column):
        try:
            value.cast(kind)
        except _CAST_ERRORS:
            return row, value.as_py()
    raise ColumnError(name, f"is {column.type}; it must be {kind}")


class InputColumns:
    """The columns of one batch by their main names. `first_row` is the number of its first row in the task.

    A column of Arrow's null type counts as absent, a dictionary as its values.
    """

    def __init__(self, batch: pa.RecordBatch, first_row: int, known: Iterable[str], aliases: Mapping[str, str]) -> None:
        columns = zip(spelled(batch.schema.names, [*known, *aliases]), batch.columns, strict=True)
        self._columns = {aliases.get(name, name): _plain(column) for name, column in columns}
        self.first_row, self.count = first_row, batch.num_rows

    def has(self, name: str) -> bool:
        """Whether there is a column of this name, and its type is not Arrow's null type."""
        return name in self._columns and not pa.types.is_null(self._columns[name].type)

    def column(self, name: str) -> pa.Array:
        """The column as it was given. Raises KeyError if there is none."""
        return self._columns[name]

    def error(self, name: str, row: int, value: object, rule: str) -> RowError:
        """The error for row `row` of the batch, whose value violates `rule`."""
        return RowError(name, shown(value), rule, self.first_row + int(row))

    def refuse(self, name: str, values: pa.Array, bad: pa.Array | Mask, rule: str) -> None:
        """Raises RowError for the first row where `bad` is true; null counts as false."""
        row = pc.index(as_array(bad) if isinstance(bad, np.ndarray) else bad, pa.scalar(True)).as_py()
        if row >= 0:
            raise self.error(name, row, values[row].as_py(), rule)

    def binary(self, name: str, numbers: bool = False) -> pa.BinaryArray:
        """Text or bytes as bytes, null if there is none; with `numbers` also whole numbers, as their digits."""
        if not self.has(name):
            return pa.nulls(self.count, pa.binary())
        return as_binary(name, self._columns[name], numbers)

    def numbers(self, name: str) -> pa.Int64Array:
        """Whole numbers, also from texts and from fractional types with whole values; null if there is none."""
        if not self.has(name):
            return pa.nulls(self.count, pa.int64())
        column = self._columns[name]
        if not any(check(column.type) for check in _NUMERIC):
            raise ColumnError(name, f"is {column.type}; it must be whole numbers")
        try:
            return column.cast(pa.int64())
        except _CAST_ERRORS:
            row, value = first_unfit(name, column, pa.int64())
            raise self.error(name, row, value, "a 64-bit integer is required") from None

    def times_us(self, name: str) -> pa.Int64Array:
        """Microseconds since 1970 of times or dates, null if there is none."""
        if not self.has(name):
            return pa.nulls(self.count, pa.int64())
        column = self._columns[name]
        if not (pa.types.is_timestamp(column.type) or pa.types.is_date(column.type)):
            raise ColumnError(name, f"is {column.type}; it must be a timestamp")
        nanoseconds = pa.types.is_timestamp(column.type) and column.type.unit == "ns"
        zone = column.type.tz if pa.types.is_timestamp(column.type) else None
        try:
            return column.cast(pa.timestamp("us", zone), safe=not nanoseconds).cast(pa.int64())
        except _CAST_ERRORS:
            raise ColumnError(name, f"is {column.type} with a time that 64 bits of microseconds cannot hold") from None

    def pairs(self, name: str) -> tuple[pa.Array, pa.Array, npt.NDArray[np.int64]]:
        """The names, the values, and the n + 1 bounds of the rows, of a map or of Kafka's array of key and value.

        The bounds index names and values; a null row has none. Raises KeyError if there is no such column.
        """
        column = self._columns[name]
        if pa.types.is_map(column.type):
            names, values = column.keys, column.items
        elif _is_list_of_pairs(column.type):
            names, values = (pc.struct_field(column.values, part) for part in ("key", "value"))
        else:
            wanted = "map<string, string>, or Kafka's array of key and value"
            raise ColumnError(name, f"is {column.type}; it must be {wanted}")
        return names, values, column.offsets.to_numpy().astype(np.int64)


def as_binary(name: str, values: pa.Array, numbers: bool = False) -> pa.BinaryArray:
    """Text or bytes of column `name` as bytes; with `numbers` also whole numbers. Raises ColumnError for others."""
    if values.type in (pa.string(), pa.binary()):
        return values.view(pa.binary())
    if numbers and pa.types.is_integer(values.type):
        values = values.cast(pa.string())
    if pa.types.is_null(values.type):
        return pa.nulls(len(values), pa.binary())
    if not is_text(values.type):
        also = " (or whole numbers)" if numbers else ""
        raise ColumnError(name, f"holds {values.type}; it must be text or bytes{also}")
    return values.cast(pa.binary())


def shown(value: object) -> str:
    """A value for an error message, on one line and not too long."""
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else value
    return "null" if value is None else "empty" if text == "" else shorten(repr(text))


def is_text(kind: pa.DataType) -> bool:
    """Whether a column of the type holds text or bytes."""
    return any(check(kind) for check in _TEXT)


def _plain(column: Any) -> pa.Array:
    return column.dictionary_decode() if isinstance(column, pa.DictionaryArray) else column


def _is_list_of_pairs(kind: pa.DataType) -> bool:
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)) or not pa.types.is_struct(kind.value_type):
        return False
    return {field.name for field in kind.value_type} == {"key", "value"}
