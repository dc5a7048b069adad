"""`layout=kafka`: the columns of Spark's Kafka source, built from native columns.

Leaves to others: reading native columns (engines), casts to the types a user asked for (`schema`). Source of names,
types and nullability: Spark's KafkaRecordToRowConverter; of their meaning: interface.md 25, docs/options.md
"layout=kafka".
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

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
LOG_APPEND_TIME, CREATE_TIME = 1, 0
"""Kafka's TimestampType: the time is the broker's, as storeTimestamp is; 0 is the type beside a null timestamp."""

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
"""What each column is made of, by engine. A RabbitMQ queue is one partition, 0, and its store keeps no time."""


def schema(include_headers: bool) -> pa.Schema:
    """All columns, the last one only when asked for."""
    return SCHEMA if include_headers else SCHEMA.remove(len(SCHEMA) - 1)


def native_name(column: str, engine: str) -> str | None:
    """The native column that compares as one of Kafka's does; None where there is none: keys are bytes here."""
    return None if column == "key" else _NATIVE[engine].get(column)


def native_columns(columns: Sequence[str], engine: str) -> tuple[str, ...]:
    """The native columns that `columns` are made of; never none, or the rows could not be counted."""
    names = _NATIVE[engine]
    return tuple(names[name] for name in columns if name in names) or (names["offset"],)


def from_native(batch: pa.RecordBatch, columns: Sequence[str], engine: str) -> pa.RecordBatch:
    """The rows of a batch of `native_columns(columns, engine)` in Kafka's `columns`."""
    arrays = [_column(batch, name, engine) for name in columns]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema([SCHEMA.field(name) for name in columns]))


def _column(batch: pa.RecordBatch, name: str, engine: str) -> pa.Array:
    source = _NATIVE[engine].get(name)
    if source is None:
        return _constant(name, batch.num_rows, engine)
    column = batch.column(source)
    if name == "headers":
        return _headers(column, "KEYS" if engine == "rocketmq" else None)
    if pa.types.is_list(column.type):
        column = _first(column)
    return column.cast(SCHEMA.field(name).type)


def _constant(name: str, count: int, engine: str) -> pa.Array:
    kind = SCHEMA.field(name).type
    if name == "timestamp":
        return pa.nulls(count, kind)
    stamped = name == "timestampType" and engine == "rocketmq"
    return pa.array(np.full(count, LOG_APPEND_TIME if stamped else CREATE_TIME, np.int32), kind)


def _first(lists: pa.ListArray) -> pa.Array:
    """The first item of each list; null for an empty or missing one."""
    offsets = lists.offsets.to_numpy()
    filled = (offsets[1:] > offsets[:-1]) & lists.is_valid().to_numpy(zero_copy_only=False)
    return lists.values.take(pa.array(offsets[:-1], mask=~filled))


def _headers(properties: pa.MapArray, without: str | None) -> pa.Array:
    """All properties but `without`; null where none is left, as Kafka's source says of a record without headers."""
    keys, items, starts = properties.keys, properties.items, properties.offsets.to_numpy()
    names = () if without is None else _repeated_names(properties)
    if without in names:
        kept = tuple(name for name in names if name != without)
        keep = np.tile([name != without for name in names], len(properties))
        keys, items = _repeated(kept, len(properties)), items.filter(pa.array(keep))
        starts = np.arange(len(properties) + 1, dtype=np.int32) * len(kept)
    elif without is not None and not names:
        kept_before = np.zeros(len(keys) + 1, np.int32)
        keep = pc.not_equal(keys, without)
        np.cumsum(keep.to_numpy(zero_copy_only=False), out=kept_before[1:])
        keys, items, starts = keys.filter(keep), items.filter(keep), kept_before[starts]
    pairs = pa.StructArray.from_arrays([keys, items.cast(pa.binary())], fields=[_HEADER.field(0), _HEADER.field(1)])
    none_left = pa.array(starts[1:] == starts[:-1])
    return pa.ListArray.from_arrays(pa.array(starts), pairs, type=SCHEMA.field("headers").type, mask=none_left)


def _repeated_names(properties: pa.MapArray) -> tuple[str, ...]:
    """The names of the first message, if every message has just these in this order; else none."""
    offsets, keys, count = properties.offsets.to_numpy(), properties.keys, len(properties)
    each = int(offsets[1]) if count else 0
    if not each or len(keys) != each * count or not np.array_equal(offsets, np.arange(0, len(keys) + 1, each)):
        return ()
    names = tuple(keys.slice(0, each).to_pylist())
    return names if keys.equals(_repeated(names, count)) else ()


@lru_cache(maxsize=8)
def _repeated(names: tuple[str, ...], count: int) -> pa.StringArray:
    """The names so many times over; kept, as most batches of a partition have one length and the same names."""
    texts = [name.encode() for name in names]
    once = b"".join(texts)
    offsets = np.zeros(count * len(texts) + 1, np.int32)
    begins = np.arange(count, dtype=np.int32)[:, None] * len(once)
    np.add(begins, np.cumsum([len(text) for text in texts], dtype=np.int32), out=offsets[1:].reshape(count, -1))
    return pa.StringArray.from_buffers(len(offsets) - 1, pa.py_buffer(offsets), pa.py_buffer(once * count))
