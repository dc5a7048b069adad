"""`layout=kafka`: the columns of Spark's Kafka source, built from native columns.

Reading native columns belongs to the engines, casts to the types of a user's schema to `schema`. Source of names, types
and nullability: Spark's KafkaRecordToRowConverter; of their meaning: interface.md 25, docs/options.md "layout=kafka".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from storage_core.arrays import as_array, as_mask, as_numbers
from storage_core.store import ScanRequest

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
LOG_APPEND_TIME, CREATE_TIME = 1, 0
"""Kafka's TimestampType: 1 for the broker's time, which storeTimestamp is; 0 accompanies a null timestamp."""

_NATIVE = {
    "rocketmq": {
        "key": "key",
        "value": "body",
        "topic": "topic",
        "partition": "queueId",
        "offset": "queueOffset",
        "timestamp": "storeTimestamp",
        "headers": "properties",
    },
    "rabbitmq": {
        "key": "routingKeys",
        "value": "body",
        "topic": "queue",
        "offset": "sequenceId",
        "headers": "headers",
    },
}
"""The native source of each column, by engine. A RabbitMQ queue is one partition, 0, and its store keeps no time."""


def schema(include_headers: bool) -> pa.Schema:
    """All columns; the last one only if requested."""
    return SCHEMA if include_headers else SCHEMA.remove(len(SCHEMA) - 1)


def native_name(column: str, engine: str) -> str | None:
    """The native column that compares like a Kafka column; None if there is none, as for keys, which are bytes here."""
    return None if column == "key" else _NATIVE[engine].get(column)


def native_columns(columns: Sequence[str], engine: str) -> tuple[str, ...]:
    """The native columns that `columns` are built from; at least one, or the rows could not be counted."""
    names = _NATIVE[engine]
    return tuple(names[name] for name in columns if name in names) or (names["offset"],)


def native_request(request: ScanRequest, columns: Sequence[str], engine: str) -> ScanRequest:
    """The request for the native columns of Kafka's `columns`. KEYS is the key, so it is not also a header."""
    hidden = "KEYS" if engine == "rocketmq" and "headers" in columns else None
    return replace(request, columns=native_columns(columns, engine), hidden_property=hidden)


def from_native(batch: pa.RecordBatch, columns: Sequence[str], engine: str) -> pa.RecordBatch:
    """The rows of a batch read with `native_request`, in Kafka's `columns`."""
    arrays = [_column(batch, name, engine) for name in columns]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema([SCHEMA.field(name) for name in columns]))


def _column(batch: pa.RecordBatch, name: str, engine: str) -> pa.Array:
    source = _NATIVE[engine].get(name)
    if source is None:
        return _constant(name, batch.num_rows, engine)
    column = batch.column(source)
    if name == "headers":
        return _headers(column)
    if pa.types.is_list(column.type):
        column = _first(column)
    return column.cast(SCHEMA.field(name).type)


def _constant(name: str, count: int, engine: str) -> pa.Array:
    kind = SCHEMA.field(name).type
    if name == "timestamp":
        return pa.nulls(count, kind)
    stamped = name == "timestampType" and engine == "rocketmq"
    return as_array(np.full(count, LOG_APPEND_TIME if stamped else CREATE_TIME, np.int32)).cast(kind)


def _first(lists: pa.ListArray) -> pa.Array:
    """The first item of each list; null for an empty or missing one."""
    offsets = as_numbers(lists.offsets)
    filled = (offsets[1:] > offsets[:-1]) & as_mask(lists.is_valid())
    return lists.values.take(as_array(offsets[:-1], mask=~filled))


def _headers(properties: pa.MapArray) -> pa.Array:
    """All pairs; null if there are none, as Kafka's source returns for a record without headers."""
    starts = as_numbers(properties.offsets)
    values = properties.items.cast(pa.binary())
    pairs = pa.StructArray.from_arrays([properties.keys, values], fields=[_HEADER.field(0), _HEADER.field(1)])
    none = as_array(starts[1:] == starts[:-1])
    return pa.ListArray.from_arrays(as_array(starts), pairs, type=SCHEMA.field("headers").type, mask=none)
