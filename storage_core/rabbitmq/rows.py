"""Rows of decoded messages: the native columns as Arrow arrays, and what `mode` makes of damaged ones.

Source: DESIGN 7.2, interface.md 28 to 34. Leaves to `message_batch` the decoding.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from storage_core.errors import CorruptionError
from storage_core.formats import spans
from storage_core.formats.columns import TIMESTAMP, masked
from storage_core.formats.layout import Positions
from storage_core.formats.rabbitmq import headers
from storage_core.formats.rabbitmq.cursor import offsets_of_rows, values_at
from storage_core.rabbitmq import schema
from storage_core.rabbitmq.entries import ACKED, MISSING, NOWHERE, PERSISTENT, REDELIVERED, SHARED, flagged
from storage_core.rabbitmq.message_batch import MessageBatch
from storage_core.store import Mode

LATEST_SECOND = 253402300799
"""The end of the year 9999: what lies behind it is no time of day that Python or Spark could show."""
MAX_EXPIRY = np.uint64(LATEST_SECOND * 1_000_000)

_HEX = np.frombuffer(b"".join(b"%02x" % i for i in range(256)), "<u2").copy()


@dataclass(frozen=True)
class RowPlace:
    """What all rows of a partition share: schema, mode, names. `root` is the store's path, for messages."""

    schema: pa.Schema
    mode: Mode
    root: str
    store: str
    vhost: str
    queues: tuple[str, ...]
    files: tuple[str, ...]


class Rows:
    """Makes record batches; `left_out` counts the messages that DROPMALFORMED left out."""

    def __init__(self, place: RowPlace) -> None:
        self.place = place
        self.left_out = 0
        self._queues = pa.array(place.queues, pa.string())
        self._files = pa.array(place.files, pa.string())

    def batch(self, found: MessageBatch) -> pa.RecordBatch:
        """The rows of one batch. Raises CorruptionError for the first damaged message with FAILFAST."""
        place = self.place
        damaged = np.zeros(len(found.entries), bool)
        damaged[list(found.reasons)] = True
        damaged &= ~found.dropped
        if place.mode is Mode.FAILFAST and damaged.any():
            raise self._error(found, int(np.flatnonzero(damaged)[0]))
        lacking = damaged | found.absent
        columns = []
        for name in place.schema.names:
            values = self._column(name, found, damaged)
            keeps = name in schema.PLACE_COLUMNS or name == "corruption" or not lacking.any()
            columns.append(values if keeps else masked(values, ~lacking))
        batch = pa.RecordBatch.from_arrays(columns, schema=place.schema)
        unwanted = found.dropped
        if place.mode is Mode.DROPMALFORMED:
            unwanted = unwanted | damaged
            self.left_out += int(damaged.sum())
        return batch.filter(pa.array(~unwanted)) if unwanted.any() else batch

    def _error(self, found: MessageBatch, row: int) -> CorruptionError:
        entry = found.entries[row]
        path = f"{self.place.root}/{self.place.files[int(entry['file'])]}"
        name = f"sequence id {int(entry['sequence_id'])} of queue {self.place.queues[int(entry['queue'])]}"
        return CorruptionError(path, int(entry["position"]), f"{name}: {found.reasons[row]}")

    def _column(self, name: str, found: MessageBatch, damaged: npt.NDArray[np.bool_]) -> pa.Array:
        entries = found.entries
        if name in ("vhost", "store"):
            return pa.repeat(pa.scalar(getattr(self.place, name), pa.string()), len(entries))
        if name == "queue":
            return self._queues.take(pa.array(entries["queue"]))
        if name == "file":
            return self._files.take(pa.array(entries["file"]))
        if name == "corruption":
            return self._corruption(found, damaged)
        if name in schema.TEXT_PROPERTIES:
            return _text_property(found, schema.TEXT_PROPERTIES[name])
        return _COLUMNS[name](found)

    def _corruption(self, found: MessageBatch, damaged: npt.NDArray[np.bool_]) -> pa.Array:
        texts: list[str | None] = [None] * len(damaged)
        for row in np.flatnonzero(damaged).tolist():
            texts[row] = str(self._error(found, row))
        return pa.array(texts, pa.string())


def _expanded(values: pa.Array, rows: npt.NDArray[np.int64], count: int) -> pa.Array:
    """`values` as the rows `rows` of `count`; the others are null."""
    if len(rows) == count:
        return values
    places = np.zeros(count, np.int64)
    places[rows] = np.arange(len(rows))
    valid = np.zeros(count, bool)
    valid[rows] = True
    return values.take(pa.array(places, mask=~valid))


def _text_property(found: MessageBatch, name: str) -> pa.Array:
    count = len(found.entries)
    field = found.properties.fields.get(name)
    if field is None:
        return pa.nulls(count, pa.string())
    return _expanded(spans.text(spans.gather(found.buffer, field.starts, field.stops)), field.rows, count)


def _number_property(name: str) -> Callable[[MessageBatch], pa.Array]:
    def column(found: MessageBatch) -> pa.Array:
        field = found.properties.fields.get(name)
        if field is None:
            return pa.nulls(len(found.entries), pa.int32())
        values = pa.array(values_at(found.buffer, "u1", field.starts).astype(np.int32))
        return _expanded(values, field.rows, len(found.entries))

    return column


def _timestamp(found: MessageBatch) -> pa.Array:
    """Seconds since 1970; null when they lie behind the year 9999 (rawProperties keeps them)."""
    field = found.properties.fields.get("timestamp")
    if field is None:
        return pa.nulls(len(found.entries), TIMESTAMP)
    seconds = values_at(found.buffer, ">u8", field.starts).astype(np.uint64)
    shown = seconds <= LATEST_SECOND
    micros = np.where(shown, seconds, 0).astype(np.int64) * 1_000_000
    values = masked(pa.array(micros).view(TIMESTAMP), shown)
    return _expanded(values, field.rows, len(found.entries))


def _expires_at(found: MessageBatch) -> pa.Array:
    expiry = found.entries["expiry"]
    shown = (expiry > 0) & (expiry <= MAX_EXPIRY)
    return masked(pa.array(np.where(shown, expiry, 0).astype(np.int64)).view(TIMESTAMP), shown)


def _usable(starts: Positions, stops: Positions, ok: npt.NDArray[np.bool_]) -> tuple[Positions, Positions]:
    """The spans of rows that are right; empty ones for the others, whose numbers mean nothing."""
    return (starts, stops) if ok.all() else (np.where(ok, starts, 0), np.where(ok, stops, 0))


def _bytes(starts: str, stops: str) -> Callable[[MessageBatch], pa.Array]:
    def column(found: MessageBatch) -> pa.Array:
        part = found.messages
        return spans.gather(found.buffer, *_usable(getattr(part, starts), getattr(part, stops), part.ok))

    return column


_BODY = _bytes("body_starts", "body_stops")
_EXCHANGE = _bytes("exchange_starts", "exchange_stops")


def _routing_keys(found: MessageBatch) -> pa.Array:
    part = found.messages
    rows, starts, stops = part.key_rows, part.key_starts, part.key_stops
    if not part.ok.all():
        kept = part.ok[rows]
        rows, starts, stops = rows[kept], starts[kept], stops[kept]
    keys = spans.text(spans.gather(found.buffer, starts, stops))
    offsets = pa.array(offsets_of_rows(rows, len(found.entries)))
    return pa.ListArray.from_arrays(offsets, keys)


def _headers(found: MessageBatch) -> pa.Array:
    return headers.to_map(found.buffer, found.headers, found.header_rows, len(found.entries))


def _guid(found: MessageBatch) -> pa.Array:
    part = found.messages
    ids = values_at(found.buffer, "V16", np.where(part.ok, part.id_starts, 0))
    digits = _HEX[ids.view(np.uint8)]
    offsets = np.arange(0, 32 * len(ids) + 1, 32, dtype=np.int32)
    return pa.StringArray.from_buffers(len(ids), pa.py_buffer(offsets), pa.py_buffer(digits))


def _size(found: MessageBatch) -> pa.Array:
    starts, stops = _usable(found.messages.body_starts, found.messages.body_stops, found.messages.ok)
    return pa.array(stops - starts)


def _flag(flag: int) -> Callable[[MessageBatch], pa.Array]:
    return lambda found: pa.array(flagged(found.entries, flag))


def _location(found: MessageBatch) -> pa.Array:
    kinds = found.entries["kind"]
    shared = (kinds == SHARED) | (kinds == NOWHERE) | flagged(found.entries, MISSING)
    return pc.if_else(pa.array(shared), pa.scalar("store"), pa.scalar("index"))


_COLUMNS: dict[str, Callable[[MessageBatch], pa.Array]] = {
    "sequenceId": lambda found: pa.array(found.entries["sequence_id"]),
    "body": _BODY,
    "exchange": lambda found: spans.text(_EXCHANGE(found)),
    "routingKeys": _routing_keys,
    "headers": _headers,
    "deliveryMode": _number_property("delivery_mode"),
    "priority": _number_property("priority"),
    "timestamp": _timestamp,
    "expiresAt": _expires_at,
    "persistent": _flag(PERSISTENT),
    "redelivered": _flag(REDELIVERED),
    "guid": _guid,
    "rawProperties": _bytes("property_starts", "property_stops"),
    "location": _location,
    "position": lambda found: pa.array(found.entries["position"]),
    "size": _size,
    "acked": _flag(ACKED),
}
