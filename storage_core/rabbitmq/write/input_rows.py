"""Checks the rows of a write, and converts them into the columns from which messages are encoded.

`staging` encodes the messages and writes the files, `input_columns` converts the types. Source: interface.md 35,
docs/rabbitmq.md "Writing".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from storage_core.arrays import as_array, as_mask, bytes_array
from storage_core.errors import ColumnError, RowError, shorten
from storage_core.formats.columns import masked
from storage_core.formats.layout import Mask, values_at
from storage_core.formats.rabbitmq.amqp import headers, properties
from storage_core.formats.rabbitmq.amqp.properties import PropertySpans
from storage_core.formats.rabbitmq.amqp.property_columns import encode_headers, encode_properties
from storage_core.formats.rabbitmq.binary_columns import lengths
from storage_core.formats.spans import data_of, first_malformed, gather, offsets_of
from storage_core.input_columns import InputColumns, as_binary, check_names, shown
from storage_core.rabbitmq.schema import READABLE, TEXT_PROPERTIES

SHORT_LIMIT = 255
EXPIRATION = "^([+]?[0-9]+|-0+)$"
"""What a node reads as the milliseconds of an expiration."""
MOST_EXPIRATION_MS = 315_360_000_000
"""The longest expiration that a node accepts of a publisher: ten years."""
WHY = ", and a write makes classic queues; choose another name, or publish to the running node"
ALIASES = {"topic": "queue", "value": "body"}
WRITTEN = (
    "queue", "body", "exchange", "routingKeys", "headers", *TEXT_PROPERTIES, "deliveryMode", "priority", "timestamp",
    "expiresAt", "rawProperties",
)  # fmt: skip


@dataclass(frozen=True)
class MessageColumns:
    """Messages that passed the checks, all persistent. Binary columns; `keys` is list<binary>; `priorities` are 0 for
    none; `expiries` are µs since 1970, 0 for none.
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

    def slice(self, start: int, stop: int) -> MessageColumns:
        """The messages [start, stop)."""
        count = stop - start
        return MessageColumns(
            self.queues.slice(start, count), self.bodies.slice(start, count), self.exchanges.slice(start, count),
            self.keys.slice(start, count), self.properties.slice(start, count),
            self.priorities[start:stop], self.expiries[start:stop],
        )  # fmt: skip

    def filter(self, mask: Mask) -> MessageColumns:
        """The messages where `mask` is true."""
        if mask.all():
            return self
        chosen = as_array(mask)
        return MessageColumns(
            self.queues.filter(chosen), self.bodies.filter(chosen), self.exchanges.filter(chosen),
            self.keys.filter(chosen), self.properties.filter(chosen), self.priorities[mask], self.expiries[mask],
        )  # fmt: skip


class InputRows:
    """Converts the batches of one task. `queue` and `exchange` are the options, `other_types` the types of queues that
    are not classic; `transient` counts the rows that are not written because they would not survive a node's restart.
    """

    def __init__(self, queue: str | None, exchange: str | None, other_types: Mapping[bytes, str]) -> None:
        self._queue, self._exchange, self._other_types = queue, exchange, other_types
        self._row = 0
        self.transient = 0

    def messages(self, batch: pa.RecordBatch) -> MessageColumns:
        """The rows of `batch` to write. Raises RowError for the first invalid row, and ColumnError for a column that is
        unknown, missing or of the wrong type.
        """
        check_columns(batch.schema.names, self._queue)
        inputs = InputColumns(batch, self._row, READABLE.names, ALIASES)
        queues = _constant(self._queue, inputs.binary("queue"))
        inputs.refuse("queue", queues, queues.is_null(), "a queue name is wanted")
        inputs.refuse("queue", queues, lengths(queues) == 0, "a queue name is wanted")
        _check_short(inputs, "queue", queues)
        for kind in sorted(set(self._other_types.values())):
            names = [name for name, each in self._other_types.items() if each == kind]
            inputs.refuse("queue", queues, pc.is_in(queues, bytes_array(names)), f"a {kind} queue has this name{WHY}")
        _check_text(inputs, "queue", queues)
        bodies = inputs.binary("body")
        inputs.refuse("body", bodies, bodies.is_null(), "an empty body is a body, null is none")
        exchanges = _constant(self._exchange, inputs.binary("exchange")).fill_null(b"")
        _check_short(inputs, "exchange", exchanges)
        keys = _routing_keys(inputs, queues)
        listed, modes, priorities = _properties(inputs)
        rows = MessageColumns(queues, bodies, exchanges, keys, listed, priorities, _expiries(inputs))
        persistent = modes == properties.PERSISTENT_MODE
        self._row += inputs.count
        self.transient += int((~persistent).sum())
        return rows.filter(persistent)


def check_columns(names: Sequence[str], queue: str | None) -> None:
    """Raises ColumnError for an unknown column, for one given twice, and for a required one that is missing.

    Columns of a read that the store assigns itself are accepted and ignored.
    """
    check_names(names, WRITTEN, READABLE.names, ALIASES)
    lower = {name.lower() for name in names}
    if not {"body", "value"} & lower:
        raise ColumnError("body", "a write needs this column (or value)")
    if queue is None and not {"queue", "topic"} & lower:
        raise ColumnError("queue", "a write needs this column (or topic); or name one queue with the option queue")


def _constant(option: str | None, column: pa.BinaryArray) -> pa.BinaryArray:
    return column if option is None else bytes_array([option.encode()] * len(column))


def _check_short(inputs: InputColumns, name: str, values: pa.BinaryArray) -> None:
    rule = f"longer than {SHORT_LIMIT} bytes, the limit of a short string"
    inputs.refuse(name, values, lengths(values) > SHORT_LIMIT, rule)


def _check_text(inputs: InputColumns, name: str, values: pa.BinaryArray) -> None:
    """Refuses bytes that are not UTF-8: no definitions can name a queue by them, so no node would keep its files."""
    row = first_malformed(values)
    if row is not None:
        raise inputs.error(name, row, values[row].as_py(), "it is not UTF-8 text")


def _routing_keys(inputs: InputColumns, queues: pa.BinaryArray) -> pa.ListArray:
    """The keys of each row; the queue's name if a row has none, because a node cannot deliver a message without one."""
    own = pa.ListArray.from_arrays(as_array(np.arange(len(queues) + 1, dtype=np.int32)), queues)
    if not inputs.has("routingKeys"):
        return own
    column = inputs.column("routingKeys")
    if not (pa.types.is_list(column.type) or pa.types.is_large_list(column.type)):
        raise ColumnError("routingKeys", f"is {column.type}; it must be an array of texts")
    column = column.cast(pa.list_(column.type.value_type))
    keys, rows = as_binary("routingKeys", column.flatten()), pc.list_parent_indices(column)
    for bad, rule in (
        (keys.is_null(), "holds null; a routing key is text"),
        (as_array(lengths(keys) > SHORT_LIMIT), f"holds a key longer than {SHORT_LIMIT} bytes"),
    ):
        item = pc.index(bad, pa.scalar(True)).as_py()
        if item >= 0:
            raise inputs.error("routingKeys", rows[item].as_py(), keys[item].as_py(), rule)
    sizes = pc.list_value_length(column).fill_null(0).to_numpy(zero_copy_only=False)
    listed = pa.ListArray.from_arrays(as_array(np.concatenate(([0], np.cumsum(sizes))).astype(np.int32)), keys)
    return listed if sizes.all() else pc.if_else(as_array(sizes > 0), listed, own)


def _properties(inputs: InputColumns) -> tuple[pa.BinaryArray, npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Property lists, delivery modes and priorities (0 for none); `rawProperties` take precedence where given."""
    raw = inputs.binary("rawProperties")

    def own(column: pa.Array) -> pa.Array:
        """A column without its values in rows whose rawProperties are taken."""
        unused = pa.scalar(None, column.type)
        return column if raw.null_count == inputs.count else pc.if_else(raw.is_valid(), unused, column)

    columns = {
        field: own(inputs.binary(name, numbers=True)) for name, field in TEXT_PROPERTIES.items() if inputs.has(name)
    }
    for name, field in TEXT_PROPERTIES.items():
        if field in columns:
            _check_short(inputs, name, columns[field])
    if "expiration" in columns:
        _check_expirations(inputs, columns["expiration"])
    mode, priority = own(inputs.numbers("deliveryMode")), own(inputs.numbers("priority"))
    mode = mode.fill_null(properties.PERSISTENT_MODE)
    inputs.refuse("deliveryMode", mode, pc.invert(pc.is_in(mode, as_array(np.array([1, 2])))), "it is 1 or 2")
    inputs.refuse("priority", priority, pc.or_(pc.less(priority, 0), pc.greater(priority, 255)), "it is 0 to 255")
    seconds = own(_seconds(inputs))
    inputs.refuse("timestamp", seconds, pc.less(seconds, 0), "it lies before 1970")
    columns |= {"delivery_mode": mode, "priority": priority, "timestamp": seconds}
    if inputs.has("headers"):
        columns["headers"] = _headers(inputs)
    made = encode_properties(columns, inputs.count)
    modes, priorities = (values.fill_null(0).to_numpy().astype(np.int64) for values in (mode, priority))
    if raw.null_count == inputs.count:
        return made, modes, priorities
    spans = _checked_lists(inputs, raw)
    present = raw.is_valid().to_numpy(zero_copy_only=False)
    for values, field in ((modes, "delivery_mode"), (priorities, "priority")):
        values[present] = _octets(raw, spans, field)[present]
    return (raw if not raw.null_count else pc.if_else(raw.is_valid(), raw, made)), modes, priorities


def _check_expirations(inputs: InputColumns, values: pa.BinaryArray) -> None:
    """Refuses what a node refuses of a publisher."""
    digits = pc.utf8_ltrim(masked(values, as_mask(_is_expiration(values))).cast(pa.string()), "+-0")
    sizes, most = pc.binary_length(digits), str(MOST_EXPIRATION_MS)
    large = pc.or_(pc.greater(sizes, len(most)), pc.and_(pc.equal(sizes, len(most)), pc.greater(digits, most)))
    bad = pc.or_(pc.invert(_is_expiration(values)), large.fill_null(False))
    inputs.refuse("expiration", values, bad, f"a whole number of milliseconds is wanted, at most {MOST_EXPIRATION_MS}")


def _is_expiration(values: pa.BinaryArray) -> pa.BooleanArray:
    return pc.match_substring_regex(values, EXPIRATION)


def _seconds(inputs: InputColumns) -> pa.Int64Array:
    """The column timestamp in seconds since 1970; numbers in it are seconds already."""
    if not inputs.has("timestamp") or pa.types.is_integer(inputs.column("timestamp").type):
        return inputs.numbers("timestamp")
    micros = inputs.times_us("timestamp")
    seconds = np.floor_divide(micros.fill_null(0).to_numpy(), 1_000_000)
    return as_array(seconds, mask=micros.is_null().to_numpy(zero_copy_only=False))


def _headers(inputs: InputColumns) -> pa.BinaryArray:
    """Header tables of long strings, null where a row has none."""
    names, values, bounds = inputs.pairs("headers")
    size = int(bounds[-1] - bounds[0])
    names, values = (as_binary("headers", part.slice(int(bounds[0]), size), True) for part in (names, values))
    for bad, rule in (
        (names.is_null(), "a header needs a name"),
        (
            as_array(lengths(names) > SHORT_LIMIT),
            f"a name longer than {SHORT_LIMIT} bytes, the limit of a short string",
        ),
    ):
        item = pc.index(bad, pa.scalar(True)).as_py()
        if item >= 0:
            row = int(np.searchsorted(bounds, bounds[0] + item, side="right")) - 1
            raise inputs.error("headers", row, names[item].as_py(), rule)
    tables = encode_headers(names, values, bounds - bounds[0])
    return masked(tables, as_mask(inputs.column("headers").is_valid()))


def _checked_lists(inputs: InputColumns, raw: pa.BinaryArray) -> PropertySpans:
    """The fields of property lists. Raises RowError for a list that does not parse."""
    buffer, offsets = data_of(raw), offsets_of(raw).astype(np.int64)
    located = properties.locate(buffer, offsets[:-1], offsets[1:])
    good = located.ok.copy()
    table = located.fields.get("headers")
    if table is not None:
        spans = headers.locate(buffer, table.starts, table.stops)
        headers.check_nested(buffer, spans)
        good[table.rows] &= spans.ok
    bad = np.flatnonzero(raw.is_valid().to_numpy(zero_copy_only=False) & ~good)
    if len(bad):
        raise _wrong_list(inputs, raw, int(bad[0]), "it is not an AMQP 0-9-1 property list")
    expiry = located.fields.get("expiration")
    if expiry is not None:
        texts = gather(buffer, expiry.starts, expiry.stops)
        item = pc.index(_is_expiration(texts), pa.scalar(False)).as_py()
        if item >= 0:
            rule = f"its expiration is {shown(texts[item].as_py())}, not a whole number of milliseconds"
            raise _wrong_list(inputs, raw, int(expiry.rows[item]), rule)
    return located


def _wrong_list(inputs: InputColumns, raw: pa.BinaryArray, row: int, rule: str) -> RowError:
    return RowError("rawProperties", shorten(raw[row].as_py().hex()), rule, inputs.first_row + row)


def _octets(raw: pa.BinaryArray, spans: PropertySpans, field: str) -> npt.NDArray[np.int64]:
    """A one-byte field of each property list, 0 where a list does not have it."""
    values = np.zeros(len(raw), np.int64)
    located = spans.fields.get(field)
    if located is not None:
        values[located.rows] = values_at(data_of(raw), "u1", located.starts)
    return values


def _expiries(inputs: InputColumns) -> npt.NDArray[np.uint64]:
    micros = inputs.times_us("expiresAt")
    inputs.refuse("expiresAt", micros, pc.less(micros, 0), "it lies before 1970")
    expiries: npt.NDArray[np.uint64] = micros.fill_null(0).to_numpy().astype(np.uint64)
    return expiries
