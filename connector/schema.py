"""Converts between Arrow and Spark schemas, checks a user's schema, and casts batches to the types that Spark expects.

Which columns exist is up to the engines; the Kafka columns belong to `kafka_layout`.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from storage_core.errors import OptionError, choices, either, listing

# The types that a user's schema may declare instead of the column's own type.
_CASTS = {
    pa.int32(): (pa.int64(),),
    pa.string(): (pa.binary(),),
    pa.binary(): (pa.string(),),
    pa.timestamp("us", tz="UTC"): (pa.timestamp("us"),),
}


def to_spark(schema: pa.Schema) -> StructType:
    """The Spark schema of an Arrow schema."""
    return from_arrow_schema(schema)


def to_arrow(schema: StructType) -> pa.Schema:
    """The Arrow schema that Spark compares the first batch of each partition with."""
    try:
        return to_arrow_schema(schema, timezone="UTC")
    except TypeError:  # PySpark 4.1 has no such argument
        return to_arrow_schema(schema)


def projected(available: pa.Schema, columns: Sequence[str] | None) -> pa.Schema:
    """`available` restricted to the option `columns`, in that order. Raises OptionError for an unknown column."""
    if columns is None:
        return available
    for name in columns:
        if name not in available.names:
            raise OptionError("columns", ",".join(columns), _no_column(name, available))
    return pa.schema([available.field(name) for name in columns])


def check_user_schema(wanted: StructType, available: pa.Schema) -> None:
    """Raises OptionError if a column of the user's `.schema(...)` is unknown or cannot have the declared type."""
    if not wanted.fields:
        raise OptionError("schema", "", f"names no column; the columns are {listing(available.names, 40)}")
    if len(set(wanted.fieldNames())) < len(wanted.fields):
        twice = next(name for name in wanted.fieldNames() if wanted.fieldNames().count(name) > 1)
        raise OptionError("schema", wanted.simpleString(), f"names the column {twice} twice")
    types = to_arrow(wanted)
    for field, spark_field in zip(types, wanted.fields, strict=True):
        if field.name not in available.names:
            raise OptionError("schema", wanted.simpleString(), _no_column(field.name, available))
        own = available.field(field.name).type
        if field.type != own and field.type not in _CASTS.get(own, ()):
            allowed = to_spark(pa.schema([pa.field("c", each) for each in (own, *_CASTS.get(own, ()))]))
            names = either([each.dataType.simpleString() for each in allowed.fields])
            raise OptionError(
                "schema",
                wanted.simpleString(),
                f"column {field.name} is {names}, not {spark_field.dataType.simpleString()}",
            )


def fit(batch: pa.RecordBatch, target: pa.Schema) -> pa.RecordBatch:
    """The batch with exactly the schema `target`: unchanged if it has it already, otherwise cast column by column.

    Bytes become text unchecked, because Spark can show invalid UTF-8. Raises OptionError for a null in a column that
    the user's schema declares NOT NULL: Spark's JVM would crash on it.
    """
    if batch.schema.equals(target):
        return batch
    arrays = []
    for field in target:
        column = batch.column(field.name)
        if column.type != field.type:
            column = pc.cast(column, options=pc.CastOptions(target_type=field.type, allow_invalid_utf8=True))
        if not field.nullable and column.null_count:
            raise OptionError(
                "schema", f"{field.name} NOT NULL", "the column has nulls in this store; leave NOT NULL out"
            )
        arrays.append(column)
    return pa.RecordBatch.from_arrays(arrays, schema=target)


def _no_column(name: str, available: pa.Schema) -> str:
    return f"there is no column {name}; {choices(name, available.names, 'columns', 40)}"
