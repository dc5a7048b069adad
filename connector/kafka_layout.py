"""`layout=kafka`: the columns of Spark's Kafka source, built from native columns.

Leaves to others: reading native columns (engines), casts to the types a user asked for (`schema`).
Source of names, types and nullability: Spark's KafkaRecordToRowConverter; of their meaning: interface 25.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_HEADER = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
SCHEMA = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp", pa.timestamp("us", tz="UTC")),
        pa.field("timestampType", pa.int32()),
        pa.field("headers", pa.list_(_HEADER)),
    ]
)
LOG_APPEND_TIME = 1
"""Kafka's TimestampType.LOG_APPEND_TIME: the time is the broker's, as storeTimestamp is."""

_NATIVE = {
    "key": "key",
    "value": "body",
    "topic": "topic",
    "partition": "queueId",
    "offset": "queueOffset",
    "timestamp": "storeTimestamp",
    "headers": "properties",
}


def schema(include_headers: bool) -> pa.Schema:
    """All columns, the last one only when asked for."""
    return SCHEMA if include_headers else SCHEMA.remove(len(SCHEMA) - 1)


def native_columns(columns: Sequence[str]) -> tuple[str, ...]:
    """The native columns that `columns` are made of; never none, or the rows could not be counted."""
    return tuple(_NATIVE[name] for name in columns if name in _NATIVE) or ("queueOffset",)


def from_native(batch: pa.RecordBatch, columns: Sequence[str]) -> pa.RecordBatch:
    """The rows of a batch of `native_columns(columns)` in Kafka's `columns`."""
    arrays = [_column(batch, name) for name in columns]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema([SCHEMA.field(name) for name in columns]))


def _column(batch: pa.RecordBatch, name: str) -> pa.Array:
    if name == "timestampType":
        return pa.array(np.full(batch.num_rows, LOG_APPEND_TIME, np.int32))
    column = batch.column(_NATIVE[name])
    return _headers(column) if name == "headers" else column.cast(SCHEMA.field(name).type)


def _headers(properties: pa.MapArray) -> pa.Array:
    """All properties but KEYS; null where none is left, as Kafka's source says of a record without headers."""
    offsets = properties.offsets.to_numpy()
    keys, items = properties.keys, properties.items
    keep = pc.not_equal(keys, "KEYS")
    kept_before = np.zeros(len(keys) + 1, np.int32)
    np.cumsum(keep.to_numpy(zero_copy_only=False), out=kept_before[1:])
    starts = kept_before[offsets]
    pairs = pa.StructArray.from_arrays(
        [keys.filter(keep), items.filter(keep).cast(pa.binary())], fields=[_HEADER.field(0), _HEADER.field(1)]
    )
    without = pa.array(starts[1:] == starts[:-1])
    return pa.ListArray.from_arrays(pa.array(starts), pairs, type=SCHEMA.field("headers").type, mask=without)
