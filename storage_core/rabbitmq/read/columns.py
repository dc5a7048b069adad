"""The native columns of decoded messages as Arrow arrays, each built on request.

`message_batch` does the decoding, `batch_builder` selects the rows and columns. Source: interface.md 28 to 34.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from storage_core.arrays import as_array, as_scalar, text_array
from storage_core.formats import spans
from storage_core.formats.columns import TIMESTAMP, hex_text, masked
from storage_core.formats.layout import Positions, values_at
from storage_core.formats.rabbitmq.amqp import headers
from storage_core.formats.rabbitmq.binary_columns import fixed
from storage_core.formats.rabbitmq.erlang.cursor import offsets_of_rows
from storage_core.rabbitmq import schema
from storage_core.rabbitmq.index.entries import (
    ACKED,
    MISSING,
    NOWHERE,
    PERSISTENT,
    REDELIVERED,
    SHARED,
    Entries,
    flagged,
)
from storage_core.rabbitmq.read.message_batch import MessageBatch

LATEST_SECOND = 253402300799
"""The end of the year 9999: Python and Spark cannot represent a later time."""
MAX_EXPIRY = np.uint64(LATEST_SECOND * 1_000_000)


class IndexColumns:
    """The columns that entries provide without their messages. Entries refer to their queue and file by number."""

    queue_type = "classic"
    number_name = "sequence id"
    """The name of a row's number in error messages."""
    names = schema.INDEX_COLUMNS
    """The columns that `values` returns."""

    def __init__(self, vhost: str, store: str, queues: Sequence[str], files: Sequence[str]) -> None:
        self._constants = {"vhost": vhost, "store": store, "queueType": self.queue_type}
        self._names = {"queue": text_array(queues), "file": text_array(files)}

    def values(self, name: str, entries: Entries) -> pa.Array:
        """One of `schema.INDEX_COLUMNS`."""
        if name in self._constants:
            return pa.repeat(as_scalar(self._constants[name]), len(entries))
        if name in self._names:
            return self._names[name].take(as_array(entries[name]))
        made = _INDEX_COLUMNS.get(name)
        return pa.nulls(len(entries), schema.READABLE.field(name).type) if made is None else made(entries)


class LogColumns(IndexColumns):
    """The same for messages in a log of their own, from queues of several virtual hosts: `vhosts` corresponds to
    `queues`, with None where the virtual host is unknown.
    """

    def __init__(self, vhosts: Sequence[str | None], store: str, queues: Sequence[str], files: Sequence[str]) -> None:
        super().__init__("", store, queues, files)
        del self._constants["vhost"]
        self._constants["location"] = "log"
        self._vhosts = text_array(vhosts)

    def values(self, name: str, entries: Entries) -> pa.Array:
        """One of `names`."""
        if name == "vhost":
            return self._vhosts.take(as_array(entries["queue"]))
        return super().values(name, entries)


def message_column(name: str, messages: MessageBatch) -> pa.Array:
    """A column of the message itself; its values for rows that are damaged or have no message are meaningless."""
    if name in schema.TEXT_PROPERTIES:
        return _text_property(messages, schema.TEXT_PROPERTIES[name])
    return _MESSAGE_COLUMNS[name](messages)


def _expanded(values: pa.Array, rows: npt.NDArray[np.int64], count: int) -> pa.Array:
    """Places `values` in the rows `rows` of an array of length `count`; the other rows are null."""
    if len(rows) == count:
        return values
    indices = np.zeros(count, np.int64)
    indices[rows] = np.arange(len(rows))
    valid = np.zeros(count, bool)
    valid[rows] = True
    return values.take(as_array(indices, mask=~valid))


def _text_property(messages: MessageBatch, name: str) -> pa.Array:
    count = len(messages.entries)
    field = messages.properties.fields.get(name)
    if field is None:
        return pa.nulls(count, pa.string())
    return _expanded(spans.text(spans.gather(messages.buffer, field.starts, field.stops)), field.rows, count)


def _number_property(name: str) -> Callable[[MessageBatch], pa.Array]:
    def column(messages: MessageBatch) -> pa.Array:
        field = messages.properties.fields.get(name)
        if field is None:
            return pa.nulls(len(messages.entries), pa.int32())
        values = as_array(values_at(messages.buffer, "u1", field.starts).astype(np.int32))
        return _expanded(values, field.rows, len(messages.entries))

    return column


def _timestamp(messages: MessageBatch) -> pa.Array:
    """The property timestamp, stored as seconds since 1970; null after the year 9999 (rawProperties keeps it)."""
    field = messages.properties.fields.get("timestamp")
    if field is None:
        return pa.nulls(len(messages.entries), TIMESTAMP)
    seconds = values_at(messages.buffer, ">u8", field.starts).astype(np.uint64)
    shown = seconds <= LATEST_SECOND
    micros = np.where(shown, seconds, 0).astype(np.int64) * 1_000_000
    values = masked(as_array(micros).view(TIMESTAMP), shown)
    return _expanded(values, field.rows, len(messages.entries))


def _expires_at(messages: MessageBatch) -> pa.Array:
    expiry = messages.entries["expiry"]
    shown = (expiry > 0) & (expiry <= MAX_EXPIRY)
    if not shown.any():
        return pa.nulls(len(expiry), TIMESTAMP)
    return masked(as_array(np.where(shown, expiry, 0).astype(np.int64)).view(TIMESTAMP), shown)


def _usable(starts: Positions, stops: Positions, ok: npt.NDArray[np.bool_]) -> tuple[Positions, Positions]:
    """The spans of valid rows; empty spans for the others, whose numbers are meaningless."""
    return (starts, stops) if ok.all() else (np.where(ok, starts, 0), np.where(ok, stops, 0))


def _bytes(starts: str, stops: str) -> Callable[[MessageBatch], pa.Array]:
    def column(messages: MessageBatch) -> pa.Array:
        part = messages.messages
        return spans.gather(messages.buffer, *_usable(getattr(part, starts), getattr(part, stops), part.ok))

    return column


_EXCHANGE = _bytes("exchange_starts", "exchange_stops")


def _routing_keys(messages: MessageBatch) -> pa.Array:
    part = messages.messages
    rows, starts, stops = part.keys.rows, part.keys.starts, part.keys.stops
    if not part.ok.all():
        right = part.ok[rows]
        rows, starts, stops = rows[right], starts[right], stops[right]
    keys = spans.text(spans.gather(messages.buffer, starts, stops))
    offsets = as_array(offsets_of_rows(rows, len(messages.entries)))
    return pa.ListArray.from_arrays(offsets, keys)


def _headers(messages: MessageBatch) -> pa.Array:
    if not len(messages.header_rows):
        return pa.nulls(len(messages.entries), headers.MAP_TYPE)
    return headers.to_map(messages.buffer, messages.headers, messages.header_rows, len(messages.entries))


def _guid(messages: MessageBatch) -> pa.Array:
    part = messages.messages
    ids = values_at(messages.buffer, "V16", np.where(part.ok, part.id_starts, 0))
    return hex_text(fixed(ids), lower=True)


def _size(messages: MessageBatch) -> pa.Array:
    starts, stops = _usable(messages.messages.body_starts, messages.messages.body_stops, messages.messages.ok)
    return as_array(stops - starts)


def _flag(flag: int) -> Callable[[Entries], pa.Array]:
    return lambda entries: as_array(flagged(entries, flag))


def _location(entries: Entries) -> pa.Array:
    kinds = entries["kind"]
    shared = (kinds == SHARED) | (kinds == NOWHERE) | flagged(entries, MISSING)
    if len(shared) and (shared == shared[0]).all():
        return pa.repeat(as_scalar("store" if shared[0] else "index"), len(shared))
    return pc.if_else(as_array(shared), as_scalar("store"), as_scalar("index"))


_INDEX_COLUMNS: dict[str, Callable[[Entries], pa.Array]] = {
    "sequenceId": lambda entries: as_array(entries["sequence_id"]),
    "redelivered": _flag(REDELIVERED),
    "location": _location,
    "position": lambda entries: as_array(entries["position"]),
    "acked": _flag(ACKED),
}
_MESSAGE_COLUMNS: dict[str, Callable[[MessageBatch], pa.Array]] = {
    "body": _bytes("body_starts", "body_stops"),
    "exchange": lambda messages: spans.text(_EXCHANGE(messages)),
    "routingKeys": _routing_keys,
    "headers": _headers,
    "deliveryMode": _number_property("delivery_mode"),
    "priority": _number_property("priority"),
    "timestamp": _timestamp,
    "expiresAt": _expires_at,
    "persistent": lambda messages: as_array(flagged(messages.entries, PERSISTENT)),
    "guid": _guid,
    "rawProperties": _bytes("property_starts", "property_stops"),
    "size": _size,
}
