"""Rows as a user passes them, with native or Kafka column names: converted to the types of `encode`, bad ones refused.

`staging` chooses the queue of each row and stages its record. Source of the rules: interface.md 15, 16, 19, 23, 49.
"""

from __future__ import annotations

import datetime
import os
import re
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from storage_core.arrays import NUMPY_TYPES, as_array, as_mask, text_array
from storage_core.errors import ColumnError, OptionError, RowError, shorten
from storage_core.formats.columns import masked
from storage_core.formats.rocketmq.encode import lengths
from storage_core.formats.rocketmq.hosts import one_host, pack_hosts
from storage_core.formats.rocketmq.paths import SCHEDULE_TOPIC, has_folder
from storage_core.formats.rocketmq.property_pairs import PairColumn, no_pairs
from storage_core.formats.spans import first_malformed, holds_any
from storage_core.input_columns import as_binary, check_names, first_unfit, shown, spelled
from storage_core.rocketmq.schema import NATIVE
from storage_core.rocketmq.write.options import MAX_TOPIC_SIZE, WriteSettings

KAFKA_NAMES = {"value": "body", "partition": "queueId", "timestamp": "bornTimestamp", "headers": "properties"}
IGNORED = ("offset", "timestampType", "corruption")
PRESERVED = ("topic", "queueId", "queueOffset", "physicalOffset", "storeTimestamp", "storeHost", "sysFlag",
             "preparedTransactionOffset", "rawProperties", "body", "bornTimestamp", "bornHost", "flag",
             "reconsumeTimes")  # fmt: skip
WRITTEN = ("topic", "queueId", "key", "tags", "body", "properties", "bornTimestamp", "bornHost", "flag",
           "reconsumeTimes")  # fmt: skip
_NUMERIC = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal)
KNOWN = (*NATIVE.names, *KAFKA_NAMES, *IGNORED)
REFUSED_PROPERTIES = ("INNER_MULTI_DISPATCH", "INNER_NUM")
NUMBERS_AS_TEXT = ("key", "tags")
DROPPED_PROPERTY = "__CRC32#"
BORN_HOST = b"\x7f\x00\x00\x01\x00\x00\x00\x00"
ID_COUNTERS = 1 << 16
MOST_OFFSET = (1 << 58) - 1
"""The largest queue offset of a preserved row. Addresses are longs of Java, and an entry takes 20 bytes."""

_TOPIC = re.compile(r"[%|a-zA-Z0-9_-]+")


def check_columns(names: list[str], settings: WriteSettings) -> None:
    """Raises ColumnError if a frame cannot be written because a column is unknown, duplicated or missing."""
    written = PRESERVED if settings.preserve else WRITTEN
    check_names(names, written, [*NATIVE.names, *IGNORED], KAFKA_NAMES)
    have = {KAFKA_NAMES.get(name, name) for name in spelled(names, KNOWN)}
    needed = PRESERVED if settings.preserve else ("body", *(() if settings.topic is not None else ("topic",)))
    missing = [name for name in needed if name not in have]
    if missing:
        way = {"topic": "; or name one topic with option topic", "body": " (or value)"}.get(missing[0], "")
        if settings.preserve:
            way = "; preserve=true takes the rows of read(scan=log, decompress=false)"
        raise ColumnError(missing[0], f"a write needs this column{way}")
    if settings.preserve and settings.topic is not None:
        raise OptionError("topic", settings.topic, "excludes preserve=true, which keeps each record's topic")


class GivenColumns:
    """The columns of one batch under their native names. `first_row` is the number of its first row in the task.

    `nulls` counts the properties that are left out because their name or value is null.
    """

    def __init__(self, batch: pa.RecordBatch, first_row: int) -> None:
        names = [KAFKA_NAMES.get(name, name) for name in spelled(batch.schema.names, KNOWN)]
        self._columns = dict(zip(names, batch.columns, strict=True))
        self.first_row = first_row
        self.count = batch.num_rows
        self.nulls = 0

    def has(self, name: str) -> bool:
        """Whether the column exists and is not of the null type."""
        return name in self._columns and not pa.types.is_null(self._columns[name].type)

    def error(self, column: str, row: int, value: str, rule: str) -> RowError:
        """The error for one row of the batch."""
        return RowError(column, value, rule, self.first_row + int(row))

    def binary(self, name: str, numbers: bool = False) -> pa.BinaryArray:
        """A column as bytes, null where it has no value; with `numbers`, integers are accepted too, as their digits."""
        if not self.has(name):
            return pa.nulls(self.count, pa.binary())
        column = self._columns[name]
        if isinstance(column, pa.DictionaryArray):
            column = column.dictionary_decode()
        return as_binary(name, column, numbers)

    def text(self, name: str) -> pa.StringArray:
        """A column as text, null where it has no value; in NUMBERS_AS_TEXT, integers become their digits.

        Raises RowError for invalid UTF-8.
        """
        return self.as_text(self.binary(name, numbers=name in NUMBERS_AS_TEXT), name)

    def topics(self) -> pa.DictionaryArray:
        """The topics, dictionary-encoded."""
        return self.text("topic").dictionary_encode()

    def as_text(self, column: pa.BinaryArray, name: str, rows: npt.NDArray[np.int32] | None = None) -> pa.StringArray:
        """Bytes as text; `rows` is the row of the batch that each element belongs to."""
        index = first_malformed(column)
        if index is not None:
            row = index if rows is None else int(rows[index])
            raise self.error(name, row, shorten(repr(column[index].as_py())), "it is not UTF-8 text")
        return column.view(pa.string())

    def numbers(self, name: str, kind: pa.DataType, default: int) -> npt.NDArray[Any]:
        """A column as integers, `default` for null. Raises RowError for a value that is none of `kind`."""
        if not self.has(name):
            return np.full(self.count, default, NUMPY_TYPES[kind])
        column = self._columns[name]
        if _is_no_number(column.type):
            raise ColumnError(name, f"is {column.type}; it must be whole numbers")
        try:
            column = column if column.type == kind else column.cast(kind)
        except pa.ArrowNotImplementedError as error:
            raise ColumnError(name, f"is not {kind}: {shorten(str(error))}") from None
        except pa.ArrowInvalid:
            row, value = first_unfit(name, column, kind)
            raise self.error(name, row, shown(value), f"it must be a whole number of {kind.bit_width} bits") from None
        column = column.fill_null(default) if column.null_count else column
        out: npt.NDArray[Any] = column.to_numpy(zero_copy_only=False)
        return out

    def valid(self, name: str) -> npt.NDArray[np.bool_]:
        """Which rows have a value."""
        return as_mask(self._columns[name].is_valid()) if self.has(name) else np.zeros(self.count, bool)

    def times_ms(self, name: str, default: int) -> npt.NDArray[np.int64]:
        """A column of timestamps or of integer milliseconds, as epoch milliseconds; `default` for null."""
        if self.has(name) and isinstance(self._columns[name], pa.DictionaryArray):
            self._columns[name] = self._columns[name].dictionary_decode()
        if self.has(name) and pa.types.is_timestamp(self._columns[name].type):
            column = self._columns[name]
            finer = {"us": 1000, "ns": 1_000_000}.get(column.type.unit, 1)
            try:
                # Only seconds may be too many. What is finer than a millisecond is cut off, before 1970 as well.
                whole = column.cast(pa.timestamp("ms", column.type.tz)) if finer == 1 else column
            except pa.ArrowInvalid as error:
                raise ColumnError(name, f"is not a time: {shorten(str(error))}") from None
            out: npt.NDArray[np.int64] = whole.cast(pa.int64()).fill_null(default * finer).to_numpy()
            return out if finer == 1 else out // finer
        column = self._columns[name] if self.has(name) else None
        if column is not None and not any(check(column.type) for check in _NUMERIC):
            wanted = ColumnError(name, f"is {column.type}; it must be a timestamp, or whole milliseconds")
            if _is_no_number(column.type):
                raise wanted
            try:
                self._columns[name] = column.cast(pa.int64())
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
                raise wanted from None
        return self.numbers(name, pa.int64(), default)

    def hosts(self, name: str, default: bytes) -> pa.BinaryArray:
        """Packed hosts. Raises RowError for a text that is not a host."""
        if not self.has(name):
            return one_host(default, self.count)
        texts = self.text(name)
        packed, wrong = pack_hosts(texts, default)
        if wrong is not None:
            rule = "it must be ip:port, or [ip]:port, and a port has 16 bits"
            raise self.error(name, wrong, shorten(repr(texts[wrong].as_py())), rule)
        return packed

    def pairs(self) -> PairColumn:
        """The properties of each row; null names, values and rows are left out."""
        if not self.has("properties"):
            return no_pairs(self.count)
        column = self._columns["properties"]
        names, values, bounds = _flat_pairs(column)
        sizes = np.diff(bounds) * as_mask(column.is_valid())
        rows = np.repeat(np.arange(self.count, dtype=np.int32), sizes)
        if int(sizes.sum()) == int(bounds[-1] - bounds[0]):
            names, values = (each.slice(int(bounds[0]), len(rows)) for each in (names, values))
        else:
            starts = np.repeat(bounds[:-1] - (np.cumsum(sizes) - sizes), sizes)
            at = as_array(starts + np.arange(len(rows)))
            names, values = names.take(at), values.take(at)
        there = pc.and_(names.is_valid(), values.is_valid())
        before = np.concatenate(([0], np.cumsum(sizes))).astype(np.int32)
        # The value of a Kafka header is bytes; the store keeps it as text.
        out = PairColumn(
            self.as_text(as_binary("properties", names, numbers=True), "properties", rows),
            self.as_text(as_binary("properties", values, numbers=True), "properties", rows),
            before,
        )
        if names.null_count == 0 == values.null_count:
            return out
        self.nulls += len(there) - there.true_count
        return out.keep(as_mask(there))


def _flat_pairs(column: pa.Array) -> tuple[pa.Array, pa.Array, npt.NDArray[np.int64]]:
    """Names, values and row bounds of a map column, or of a list column of key and value structs."""
    if pa.types.is_map(column.type):
        return column.keys, column.items, column.offsets.to_numpy().astype(np.int64)
    if (pa.types.is_list(column.type) or pa.types.is_large_list(column.type)) and pa.types.is_struct(
        column.type.value_type
    ):
        inner = column.type.value_type
        if {field.name for field in inner} == {"key", "value"}:
            structs = column.values
            return structs.field("key"), structs.field("value"), column.offsets.to_numpy().astype(np.int64)
    raise ColumnError(
        "properties", f"is {column.type}; it must be map<string, string>, or Kafka's array of key and value"
    )


@dataclass(frozen=True)
class Message:
    """The checked topics, bodies and properties of a batch. Nothing is null except absent keys and tags."""

    topics: pa.DictionaryArray
    bodies: pa.BinaryArray
    pairs: PairColumn
    key: pa.StringArray
    tags: pa.StringArray


def checked(given: GivenColumns, settings: WriteSettings) -> Message:
    """Checks topics, bodies and properties by RocketMQ's rules. Raises RowError for the first row that breaks one."""
    topics = given.topics() if settings.topic is None else _all_of(settings.topic, given.count)
    check_topics(given, topics)
    bodies = given.binary("body")
    check_bodies(given, bodies)
    for name in ("queueId", "reconsumeTimes"):
        _refuse_out_of_range(given, name, pa.int32())
    key, tags = (_no_empty(given.text(name)) for name in ("key", "tags"))
    for name, texts in (("key", key), ("tags", tags)):
        _refuse_controls(given, texts, name)
    pairs = given.pairs()
    if len(pairs.names):
        plain, (has_dropped, *refused) = pairs.look((DROPPED_PROPERTY, *REFUSED_PROPERTIES))
        if has_dropped:
            pairs = pairs.keep(~pairs.named(DROPPED_PROPERTY))
        if not plain or any(refused):
            _check_pairs(given, pairs)
    return Message(topics, bodies, pairs, key, tags)


def check_places(given: GivenColumns) -> None:
    """Refuses places of preserved rows that no file has: a broker does not load a queue file of a negative address."""
    for name, kind, most in (
        ("queueId", pa.int32(), None), ("queueOffset", pa.int64(), MOST_OFFSET), ("physicalOffset", pa.int64(), None),
    ):  # fmt: skip
        _refuse_out_of_range(given, name, kind, most)


def _refuse_out_of_range(given: GivenColumns, name: str, kind: pa.DataType, most: int | None = None) -> None:
    """Refuses a number below 0, or above `most`."""
    if not given.has(name):
        return
    numbers = given.numbers(name, kind, 0)
    if numbers.min(initial=0) < 0:
        row = int((numbers < 0).argmax())
        raise given.error(name, row, str(int(numbers[row])), "it must be 0 or more")
    if most is not None and numbers.max(initial=0) > most:
        row = int((numbers > most).argmax())
        raise given.error(
            name, row, str(int(numbers[row])), f"it must be at most {most}, the last with a place in files"
        )


def _no_empty(texts: pa.StringArray) -> pa.StringArray:
    """Replaces empty keys or tags with null: for a reader, a property without a value does not exist."""
    return masked(texts, lengths(texts) > 0)


def _all_of(topic: str, count: int) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(as_array(np.zeros(count, np.int32)), text_array([topic]))


def check_topics(given: GivenColumns, topics: pa.DictionaryArray) -> None:
    """Refuses topics that a broker would refuse."""
    for number, topic in enumerate(topics.dictionary.to_pylist()):
        rule = _topic_rule(topic)
        if rule:
            row = topics.indices.to_pylist().index(number)
            raise given.error("topic", row, shorten(repr(topic)) if topic else "empty", rule)
    if topics.null_count:
        raise given.error("topic", _first(topics.is_null()), "null", "every row needs a topic")


def _topic_rule(topic: str) -> str:
    if len(topic.encode()) > MAX_TOPIC_SIZE:
        return f"a topic has at most {MAX_TOPIC_SIZE} bytes, this one {len(topic.encode())}"
    if not _TOPIC.fullmatch(topic):
        return "a topic has letters, digits, %, |, _ and - and is not empty"
    if topic == SCHEDULE_TOPIC:
        return "no producer may send to the broker's own topic of delayed messages"
    return ""


def check_bodies(given: GivenColumns, bodies: pa.BinaryArray) -> None:
    """Refuses null and empty bodies: producers refuse them, and a 4.9.3 push consumer gets stuck on one."""
    if bodies.null_count:
        raise given.error("body", _first(bodies.is_null()), "null", "every message needs a body")
    empty = lengths(bodies) == 0
    if empty.any():
        raise given.error("body", int(empty.argmax()), "empty", "RocketMQ's producers refuse an empty body")


def _check_pairs(given: GivenColumns, pairs: PairColumn) -> None:
    rows = pairs.rows
    for name in REFUSED_PROPERTIES:
        at = np.flatnonzero(pairs.named(name))
        if len(at):
            value = shorten(repr(pairs.values[int(at[0])].as_py()))
            rule = "messages of several queues or batches are only copied, with preserve=true; leave the property out"
            raise given.error(name, rows[at[0]], value, rule)
    for texts, what in ((pairs.names, "a property's name"), (pairs.values, "a property's value")):
        empty = np.flatnonzero(lengths(texts) == 0)
        if len(empty):
            name = pairs.names[int(empty[0])].as_py() or "properties"
            raise given.error(name, rows[empty[0]], "empty", f"{what} must not be empty")
        _refuse_controls(given, texts, pairs.names if texts is pairs.values else "properties", rows)


def _refuse_controls(
    given: GivenColumns, texts: pa.StringArray, names: pa.StringArray | str, rows: npt.NDArray[np.int32] | None = None
) -> None:
    """Refuses texts that contain the bytes 0x01 or 0x02.

    `names`: the name of each text, or one for all; `rows`: the row of the batch of each text, its index by default.
    """
    if not holds_any(texts, (0x01, 0x02)):
        return
    found = as_mask(pc.match_substring_regex(texts, "[\x01\x02]"))
    if found.any():
        at = int(found.argmax())
        name = names if isinstance(names, str) else names[at].as_py()
        rule = "the bytes 0x01 and 0x02 separate properties and may not be in one"
        raise given.error(name, at if rows is None else rows[at], shorten(repr(texts[at].as_py())), rule)


def _first(found: pa.BooleanArray) -> int:
    return int(as_mask(found).argmax())


def need_values(given: GivenColumns, names: Mapping[str, str]) -> None:
    """Refuses nulls in the columns that `preserve` needs."""
    for name, why in names.items():
        missing = np.flatnonzero(~given.valid(name))
        if len(missing):
            raise given.error(name, missing[0], "null", why)


def check_folder_names(given: GivenColumns, topics: pa.DictionaryArray) -> None:
    """Refuses topics that cannot be the name of a folder, the only requirement of `preserve` for a topic."""
    for number, topic in enumerate(topics.dictionary.to_pylist()):
        if not has_folder(topic, 0):
            row = topics.indices.to_pylist().index(number)
            raise given.error("topic", row, shorten(repr(topic)), "no queue folder can have this name")


def new_ids(count: int) -> pa.StringArray:
    """`count` message ids as a RocketMQ client makes them, each 32 hex digits: address, process, four random bytes,
    time, counter (rocketmq.md 2.10).
    """
    head = BORN_HOST[:4] + (os.getpid() & 0xFFFF).to_bytes(2, "big") + secrets.token_bytes(4)
    now = datetime.datetime.now(datetime.UTC)
    month = datetime.datetime(now.year, now.month, 1, tzinfo=datetime.UTC)
    first = int(time.time() * 1000) - int(month.timestamp() * 1000)
    numbers = np.arange(count)
    tail = np.empty(count, [("ms", ">u4"), ("counter", ">u2")])
    tail["ms"], tail["counter"] = first + numbers // ID_COUNTERS, numbers % ID_COUNTERS
    prefix, digits = head.hex().upper(), tail.tobytes().hex().upper()
    return text_array(prefix + digits[at : at + 12] for at in range(0, 12 * count, 12))


def _is_no_number(kind: pa.DataType) -> bool:
    """Whether values of a type are no numbers, although Arrow's cast takes them for some."""
    return bool(pa.types.is_boolean(kind) or pa.types.is_temporal(kind))
