"""Rows on their way into a store: checked, and turned into the columns that a message is made of.

Leaves to `task_writer` the bytes and the files. Source: interface.md 35, DESIGN 7.5.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from storage_core.errors import OptionError, RowError, closest, shorten
from storage_core.formats.rabbitmq import headers, properties
from storage_core.formats.rabbitmq.cursor import values_at
from storage_core.formats.rabbitmq.message_columns import encode_headers, encode_properties, lengths, map_items
from storage_core.formats.spans import data_of, offsets_of
from storage_core.rabbitmq.schema import NATIVE, TEXT_PROPERTIES

SHORT_LIMIT = 255
PERSISTENT_MODE = 2
ALIASES = {"topic": "queue", "value": "body"}
WRITTEN = frozenset(
    {"queue", "body", "exchange", "routingKeys", "rawProperties", "headers", "deliveryMode", "priority", "timestamp",
     "expiresAt", *TEXT_PROPERTIES}
)  # fmt: skip

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class IncomingRows:
    """Rows that may be written, all persistent. Binary columns; `keys` is list<binary>; `priorities` are 0 where a
    message has none; `expiries` µs since 1970, 0 for none.
    """

    queues: pa.BinaryArray
    bodies: pa.BinaryArray
    exchanges: pa.BinaryArray
    keys: pa.ListArray
    properties: pa.BinaryArray
    priorities: npt.NDArray[np.int64]
    expiries: npt.NDArray[np.uint64]

    def __len__(self) -> int:
        return len(self.bodies)


class Incoming:
    """Takes the batches of one task. `queue` and `exchange` are the options; `transient` counts the rows that are
    not written because they would not survive a node's start.
    """

    def __init__(self, queue: str | None, exchange: str | None) -> None:
        self._queue, self._exchange = queue, exchange
        self._row = 0
        self.transient = 0

    def rows(self, batch: pa.RecordBatch) -> IncomingRows:
        """The rows of `batch` that are to be written. RowError for the first bad one, OptionError for a column that
        does not exist.
        """
        check_columns(batch.schema.names, self._queue)
        columns = _known(batch)
        queues = self._constant(self._queue, columns.get("queue"), batch.num_rows)
        self._refuse("queue", queues, queues.is_null(), "a queue name is wanted")
        self._refuse("queue", queues, pa.array(lengths(queues) == 0), "a queue name is wanted")
        self._limit("queue", queues)
        bodies = columns["body"].cast(pa.binary())
        self._refuse("body", bodies, bodies.is_null(), "an empty body is a body, null is none")
        exchanges = self._constant(self._exchange, columns.get("exchange"), batch.num_rows)
        exchanges = exchanges.fill_null(b"")
        self._limit("exchange", exchanges)
        keys = self._keys(columns.get("routingKeys"), queues)
        listed = self._properties(columns, batch.num_rows)
        persistent, priorities = self._modes(listed)
        expiries = self._expiries(columns.get("expiresAt"), batch.num_rows)
        self._row += batch.num_rows
        self.transient += int((~persistent).sum())
        keep = pa.array(persistent)
        return IncomingRows(
            queues.filter(keep), bodies.filter(keep), exchanges.filter(keep), keys.filter(keep), listed.filter(keep),
            priorities[persistent], expiries[persistent],
        )  # fmt: skip

    def _constant(self, option: str | None, column: pa.Array | None, count: int) -> pa.BinaryArray:
        if option is not None:
            return pa.array([option.encode()] * count, pa.binary())
        found = _binary(column)
        return pa.array([b""] * count, pa.binary()) if found is None else found

    def _refuse(self, column: str, values: pa.Array, bad: pa.Array, rule: str) -> None:
        """RowError for the first row where `bad` is true."""
        row = pc.index(bad, pa.scalar(True)).as_py()
        if row < 0:
            return
        value = values[row].as_py()
        raise RowError(column, _shown(value), rule, self._row + row)

    def _limit(self, column: str, values: pa.BinaryArray) -> None:
        bad = pa.array(lengths(values) > SHORT_LIMIT)
        self._refuse(column, values, bad, f"longer than {SHORT_LIMIT} bytes, the limit of a short string")

    def _keys(self, column: pa.Array | None, queues: pa.BinaryArray) -> pa.ListArray:
        own = pa.ListArray.from_arrays(pa.array(np.arange(len(queues) + 1, dtype=np.int32)), queues)
        if column is None:
            return own
        keys = column.cast(pa.list_(pa.binary()))
        flat = keys.flatten()
        parents = pc.list_parent_indices(keys)
        for bad, rule in (
            (flat.is_null(), "holds null; a routing key is text"),
            (pa.array(lengths(flat) > SHORT_LIMIT), f"holds a key longer than {SHORT_LIMIT} bytes"),
        ):
            item = pc.index(bad, pa.scalar(True)).as_py()
            if item >= 0:
                raise RowError("routingKeys", _shown(flat[item].as_py()), rule, self._row + parents[item].as_py())
        if not keys.null_count:
            return pa.ListArray.from_arrays(_rebased(keys), flat)
        pairs = zip(keys.to_pylist(), own.to_pylist(), strict=True)
        return pa.array([queue if mine is None else mine for mine, queue in pairs], pa.list_(pa.binary()))

    def _properties(self, columns: dict[str, pa.Array], count: int) -> pa.BinaryArray:
        given: dict[str, pa.Array] = {}
        for name, field in TEXT_PROPERTIES.items():
            column = _binary(columns.get(name))
            if column is not None:
                self._limit(name, column)
                given[field] = column
        mode = columns.get("deliveryMode")
        modes = pa.array(np.full(count, PERSISTENT_MODE)) if mode is None else mode.fill_null(PERSISTENT_MODE)
        given["delivery_mode"] = modes
        self._refuse("deliveryMode", modes, pc.invert(pc.is_in(modes, pa.array([1, 2], modes.type))), "it is 1 or 2")
        if "priority" in columns:
            given["priority"] = column = columns["priority"]
            bad = pc.or_(pc.less(column, 0), pc.greater(column, 255)).fill_null(False)
            self._refuse("priority", column, bad, "it is 0 to 255")
        if "timestamp" in columns:
            given["timestamp"] = column = _seconds(columns["timestamp"])
            self._refuse("timestamp", column, pc.less(column, 0).fill_null(False), "it lies before 1970")
        if "headers" in columns:
            given["headers"] = self._headers(columns["headers"])
        made = encode_properties(given, count)
        raw = _binary(columns.get("rawProperties"))
        if raw is None or raw.null_count == count:
            return made
        self._parsed(raw)
        return raw if not raw.null_count else pc.if_else(raw.is_valid(), raw, made)

    def _headers(self, column: pa.Array) -> pa.BinaryArray:
        maps = column.cast(headers.MAP_TYPE)
        keys, _, offsets = map_items(maps)
        wide = np.flatnonzero(lengths(keys) > SHORT_LIMIT)
        if len(wide):
            row = int(np.searchsorted(offsets, int(wide[0]), side="right")) - 1
            rule = f"a name longer than {SHORT_LIMIT} bytes, the limit of a short string"
            raise RowError("headers", _shown(keys[int(wide[0])].as_py()), rule, self._row + row)
        return encode_headers(maps)

    def _parsed(self, raw: pa.BinaryArray) -> None:
        """RowError for a property list that does not parse."""
        present = raw.is_valid().to_numpy(zero_copy_only=False)
        buffer, offsets = data_of(raw), offsets_of(raw).astype(np.int64)
        found = properties.locate(buffer, offsets[:-1], offsets[1:])
        good = found.ok.copy()
        table = found.fields.get("headers")
        if table is not None:
            spans = headers.locate(buffer, table.starts, table.stops)
            headers.check_nested(buffer, spans)
            good[table.rows] &= spans.ok
        bad = np.flatnonzero(present & ~good)
        if len(bad):
            shown = shorten(raw[int(bad[0])].as_py().hex())
            raise RowError("rawProperties", shown, "it is no AMQP 0-9-1 property list", self._row + int(bad[0]))

    def _modes(self, listed: pa.BinaryArray) -> tuple[Mask, npt.NDArray[np.int64]]:
        """Which rows are persistent, and their priorities, as their property lists say."""
        buffer, offsets = data_of(listed), offsets_of(listed).astype(np.int64)
        found = properties.locate(buffer, offsets[:-1], offsets[1:])
        values = []
        for name in ("delivery_mode", "priority"):
            column = np.zeros(len(listed), np.int64)
            field = found.fields.get(name)
            if field is not None:
                column[field.rows] = values_at(buffer, "u1", field.starts)
            values.append(column)
        return values[0] == PERSISTENT_MODE, values[1]

    def _expiries(self, column: pa.Array | None, count: int) -> npt.NDArray[np.uint64]:
        if column is None:
            return np.zeros(count, np.uint64)
        micros = column.cast(pa.timestamp("us")).cast(pa.int64())
        self._refuse("expiresAt", micros, pc.less(micros, 0).fill_null(False), "it lies before 1970")
        found: npt.NDArray[np.uint64] = micros.fill_null(0).to_numpy(zero_copy_only=False).astype(np.uint64)
        return found


def check_columns(names: Sequence[str], queue: str | None) -> None:
    """OptionError for a column that no message has, and for one that is wanted and not there.

    Columns of a read that a store assigns anew are fine: they are ignored.
    """
    readable = {*NATIVE.names, *ALIASES, "corruption", "acked"}
    for name in names:
        if name not in readable:
            near = closest(name, sorted(WRITTEN))
            hint = f"did you mean {' or '.join(near)}? " if near else ""
            listed = ", ".join(sorted(WRITTEN))
            raise OptionError("columns", name, f"a RabbitMQ message has no such column; {hint}It has {listed}")
    if not {"body", "value"} & set(names):
        raise OptionError("columns", ", ".join(names), "a column body (or value) is wanted")
    if queue is None and not {"queue", "topic"} & set(names):
        raise OptionError("columns", ", ".join(names), "a column queue (or topic), or the option queue, is wanted")


def _known(batch: pa.RecordBatch) -> dict[str, pa.Array]:
    """The columns that are written, under their names."""
    found: dict[str, pa.Array] = {}
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        canonical = ALIASES.get(name, name)
        if canonical in WRITTEN and not (name in ALIASES and canonical in batch.schema.names):
            found[canonical] = column
    return found


def _shown(value: object) -> str:
    """A value for an error message."""
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else value
    return "null" if value is None else "empty" if text == "" else shorten(repr(text))


def _binary(column: pa.Array | None) -> pa.BinaryArray | None:
    return None if column is None else column.cast(pa.binary())


def _rebased(keys: pa.ListArray) -> pa.Array:
    """Offsets that begin at 0, for the flattened values."""
    sizes = pc.list_value_length(keys).to_numpy(zero_copy_only=False)
    return pa.array(np.concatenate(([0], np.cumsum(sizes))).astype(np.int32))


def _seconds(column: pa.Array) -> pa.Array:
    if pa.types.is_timestamp(column.type):
        micros = column.cast(pa.timestamp("us")).cast(pa.int64())
        return pa.array(
            np.floor_divide(micros.fill_null(0).to_numpy(), 1_000_000), mask=column.is_null().to_numpy(False)
        )
    return column.cast(pa.int64())
