"""Translates row filters into predicates of the store: those that Spark pushes, and those of `pyspark_mqstore.read`.

All of Spark's filters are also returned to Spark, so one that no predicate expresses is left out. Those of `read` are
evaluated by the engine alone, so one that no predicate expresses is an error. Evaluation belongs to the engines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from connector.kafka_layout import native_name
from storage_core.errors import OptionError, choices
from storage_core.store import Predicate

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter

PUSHED = (
    "topic", "queueId", "queueOffset", "physicalOffset", "storeTimestamp", "bornTimestamp", "key", "msgId", "tags",
    "queue", "vhost", "sequenceId",
)  # fmt: skip
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_OPPOSITE = {
    "=": "!=", "!=": "=", "<": ">=", ">=": "<", ">": "<=", "<=": ">", "in": "not in", "not in": "in",
    "is null": "is not null", "is not null": "is null", "starts with": "not starts with",
}  # fmt: skip
_OF_CLASS = {
    "EqualTo": "=", "EqualNullSafe": "<=>", "GreaterThan": ">", "GreaterThanOrEqual": ">=", "LessThan": "<",
    "LessThanOrEqual": "<=", "In": "in", "IsNull": "is null", "IsNotNull": "is not null",
    "StringStartsWith": "starts with",
}  # fmt: skip
OPERATORS = ("=", "==", "!=", "<", "<=", ">", ">=", "in", "not in", "is null", "is not null", "starts with",
             "not starts with", "contains")  # fmt: skip
UNARY = ("is null", "is not null")
_EXAMPLE = '("topic", "=", "orders")'

Triple = Sequence[Any]


def pushed(filters: Iterable[Filter], schema: pa.Schema, kafka: str | None = None) -> tuple[Predicate, ...]:
    """Predicates for those filters that can be pushed; Spark requires all filters to be true.

    `schema` has the native columns; `kafka` is the engine of the stores if the filters name Kafka's columns.
    """
    found = (_pushed(each, schema, kafka) for each in filters)
    return tuple(predicate for predicate in found if predicate is not None)


def _pushed(each: Filter, schema: pa.Schema, kafka: str | None) -> Predicate | None:
    kind = type(each).__name__
    if kind == "Not":
        inner = _as_predicate(each.child, schema, kafka)  # type: ignore[attr-defined]
        return None if inner is None else _negated(inner)
    inner = _as_predicate(each, schema, kafka)
    if inner is not None and inner.op == "<=>":
        # `null <=> 'a'` is false and `null = 'a'` is null: neither keeps the row.
        return Predicate(inner.column, "is null" if inner.value is None else "=", inner.value)
    return inner


def _negated(inner: Predicate) -> Predicate | None:
    if inner.op == "<=>":
        # `not (x <=> 'a')` keeps nulls, which no single predicate expresses.
        return Predicate(inner.column, "is not null") if inner.value is None else None
    opposite = _OPPOSITE.get(inner.op)
    return None if opposite is None else Predicate(inner.column, opposite, inner.value)


def _as_predicate(each: Any, schema: pa.Schema, kafka: str | None) -> Predicate | None:
    """A Spark filter as a predicate of the store, with `<=>` for EqualNullSafe; None if it cannot be pushed."""
    op = _OF_CLASS.get(type(each).__name__)
    if op is None or len(each.attribute) != 1:
        return None
    name = each.attribute[0]
    column = name if kafka is None else native_name(name, kafka)
    if column not in PUSHED or column not in schema.names:
        return None
    try:
        value = getattr(each, "value", None)
        return Predicate(column, op, _converted(op, value, schema.field(column).type))
    except _WrongTypeError:
        return None


def predicates(filters: Sequence[Any] | None, schema: pa.Schema) -> tuple[Predicate, ...]:
    """The predicates of `read(filters=...)`: triples that must all hold, or lists of triples, one of which must hold.

    Raises OptionError for anything else, an unknown column, or an operator or value that does not fit.
    """
    if filters is None:
        return ()
    if not isinstance(filters, list | tuple) or not filters:
        raise _malformed(filters)
    if all(isinstance(each, list | tuple) and each and isinstance(each[0], str) for each in filters):
        return tuple(_of_triple(each, schema) for each in filters)
    groups = []
    for group in filters:
        if not isinstance(group, list | tuple) or not group:
            raise _malformed(filters)
        groups.append(tuple(_of_triple(each, schema) for each in group))
    return groups[0] if len(groups) == 1 else (Predicate("", "any of", tuple(groups)),)


def _of_triple(triple: Any, schema: pa.Schema) -> Predicate:
    if not isinstance(triple, list | tuple) or len(triple) not in (2, 3) or not isinstance(triple[0], str):
        raise _malformed(triple)
    column, op, value = triple if len(triple) == 3 else (*triple, None)
    if column not in schema.names:
        hint = choices(column, schema.names, "columns", 40)
        raise OptionError("filters", repr(triple), f"there is no column {column}; {hint}")
    if op not in OPERATORS:
        raise OptionError("filters", repr(triple), f"there is no operator {op!r}; there are {', '.join(OPERATORS)}")
    if len(triple) == 2 and op not in UNARY:
        raise OptionError("filters", repr(triple), f"has no value; only {' and '.join(UNARY)} take none")
    op = "=" if op == "==" else op
    if value is None and op in ("=", "!="):
        op = "is null" if op == "=" else "is not null"
    kind = schema.field(column).type
    try:
        return Predicate(column, op, _converted(op, value, kind))
    except _WrongTypeError as error:
        raise OptionError("filters", repr(triple), str(error)) from None


class _WrongTypeError(Exception):
    """A value that a column cannot be compared with."""


def _converted(op: str, value: Any, kind: pa.DataType) -> Any:
    """The value as the store represents it: text, number, bytes or epoch microseconds; a tuple for `in`."""
    if op in ("is null", "is not null"):
        return None
    if op == "<=>" and value is None:
        return None
    if pa.types.is_list(kind):
        if op != "contains":
            raise _WrongTypeError("a list can only be searched for a word: (column, 'contains', word)")
        return _scalar(value, kind.value_type)
    if pa.types.is_nested(kind):
        raise _WrongTypeError("this column can only be filtered with where(...)")
    if op in ("starts with", "not starts with", "contains") and not pa.types.is_string(kind):
        raise _WrongTypeError(f"{op} asks a text, and the column is {kind}")
    if op in ("in", "not in"):
        if isinstance(value, str | bytes) or not isinstance(value, Iterable):
            raise _WrongTypeError(f"{op} takes a list of values")
        return tuple(None if each is None else _scalar(each, kind) for each in value)
    return _scalar(value, kind)


def _scalar(value: Any, kind: pa.DataType) -> Any:
    convert = _text if pa.types.is_string(kind) else _CONVERTERS.get(str(kind).partition("[")[0])
    if convert is None:
        raise _WrongTypeError(f"a column of type {kind} can only be filtered with where(...)")
    return convert(value)


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            raise _WrongTypeError(f"{value!r} is no UTF-8 text") from None
    if not isinstance(value, str):
        raise _WrongTypeError(f"the column is text, {value!r} is not")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise _WrongTypeError(f"{value!r} is no Unicode text") from None
    return value


def _number(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not -(1 << 63) <= value < 1 << 63:
        raise _WrongTypeError(f"the column holds whole numbers of 64 bits, {value!r} is not one")
    return value


def _bytes(value: Any) -> bytes:
    if isinstance(value, str):
        return value.encode()
    if not isinstance(value, bytes | bytearray):
        raise _WrongTypeError(f"the column is binary, {value!r} is not")
    return bytes(value)


def _boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise _WrongTypeError(f"the column is true or false, {value!r} is neither")
    return value


def _microseconds(value: Any) -> int:
    """Epoch microseconds of a datetime or an ISO 8601 text; UTC if it names no zone."""
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            raise _WrongTypeError(f"{value!r} is not an ISO 8601 time such as 2024-06-01T12:00:00Z") from None
    if not isinstance(value, datetime):
        raise _WrongTypeError(f"the column is a time, {value!r} is not one; give a datetime, or ISO 8601 text")
    moment = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
    return (moment - _EPOCH) // timedelta(microseconds=1)


_CONVERTERS: Mapping[str, Callable[[Any], Any]] = {
    "int32": _number, "int64": _number, "binary": _bytes, "bool": _boolean, "timestamp": _microseconds,
}  # fmt: skip


def _malformed(value: Any) -> OptionError:
    return OptionError(
        "filters", repr(value), f"must be a list of triples such as [{_EXAMPLE}], or of such lists, for either-or"
    )
