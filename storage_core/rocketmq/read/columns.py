"""The native columns of one batch, from queue entries alone or from messages; each is made when first requested.

`batch_builder` decides what becomes of damaged messages; the partitions locate the messages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from storage_core.arrays import as_array, as_scalar, bytes_array, text_array
from storage_core.formats.columns import followed_by, hex_text, host_text, masked, timestamps, words
from storage_core.formats.compression import InflateError, inflate
from storage_core.formats.layout import Mask, Positions
from storage_core.formats.rocketmq.consumequeue import Expected
from storage_core.formats.rocketmq.message import (
    COMPRESSION_MASK,
    COMPRESSION_SHIFT,
    Flaw,
    Messages,
)
from storage_core.formats.rocketmq.properties import KEYS, TAGS, UNIQ_KEY, PropertyColumn
from storage_core.formats.span_equals import KnownTexts
from storage_core.rocketmq.schema import ENTRY_COLUMNS, NATIVE
from storage_core.store import QueueKey, ScanRequest

MOST_INFLATED = 16 << 20
"""Bytes of bodies that are inflated for one batch, unless a single one is larger."""


@dataclass(frozen=True)
class QueueEntries:
    """Entries of several queues: the queue (an index into `Queues`), the queue offset, and the address and size of the
    record.

    All arrays have shape (n,). `readable`: every record is known to be in the log.
    """

    queue: npt.NDArray[np.int32]
    queue_offsets: Positions
    physical_offsets: Positions
    sizes: Positions
    readable: bool = False

    def __len__(self) -> int:
        return len(self.physical_offsets)

    def take(self, rows: slice | Mask | Positions) -> QueueEntries:
        """Some of the entries; a slice copies nothing."""
        return QueueEntries(
            self.queue[rows], self.queue_offsets[rows], self.physical_offsets[rows], self.sizes[rows], self.readable
        )


def joined(parts: Sequence[QueueEntries]) -> QueueEntries:
    """The entries of all parts, in order."""
    if not parts:
        none = np.empty(0, np.int64)
        return QueueEntries(np.empty(0, np.int32), none, none, none)
    return QueueEntries(
        np.concatenate([part.queue for part in parts]),
        np.concatenate([part.queue_offsets for part in parts]),
        np.concatenate([part.physical_offsets for part in parts]),
        np.concatenate([part.sizes for part in parts]),
        all(part.readable for part in parts),
    )


class Queues:
    """The queues of a partition as columns, indexed by queue; empty if messages are read from the log alone."""

    def __init__(self, keys: Sequence[QueueKey]) -> None:
        self.keys = tuple(keys)
        self._topics = text_array(topic for topic, _ in keys)
        self._ids = np.array([queue_id for _, queue_id in keys], np.int32)
        self._texts = KnownTexts([topic.encode() for topic, _ in keys])

    def expected(self, entries: QueueEntries) -> Expected:
        """What entries state about their records."""
        return Expected(entries.physical_offsets, entries.queue_offsets, entries.queue, self._ids, self._texts)

    def topics(self, queue: npt.NDArray[np.int32]) -> pa.StringArray:
        """Topic names by queue index."""
        if len(self._topics) == 1:
            return pa.repeat(self._topics[0], len(queue))
        return self._topics.take(as_array(queue))

    def ids(self, queue: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
        """Queue ids by queue index."""
        return self._ids.take(queue)


@dataclass
class EntryColumns:
    """The columns of one batch of entries; null if only the messages have the values, unless `made` has the column."""

    entries: QueueEntries
    queues: Queues
    store_name: str
    made: dict[str, pa.Array] = field(default_factory=dict)

    def column(self, name: str) -> pa.Array:
        """One native column."""
        if name not in self.made:
            known = ENTRY_COLUMNS if self.queues.keys else ("store", "physicalOffset")
            self.made[name] = self._entry_column(name) if name in known else pa.nulls(len(self.entries), _TYPES[name])
        return self.made[name]

    def _entry_column(self, name: str) -> pa.Array:
        entries = self.entries
        if name == "topic":
            return self.queues.topics(entries.queue)
        if name == "queueId":
            return as_array(self.queues.ids(entries.queue))
        if name == "store":
            return pa.repeat(as_scalar(self.store_name), len(entries))
        if name == "size":
            return as_array(entries.sizes.astype(np.int32))
        return as_array(entries.queue_offsets if name == "queueOffset" else entries.physical_offsets)


_TYPES = {column.name: column.type for column in NATIVE}


@dataclass
class MessageColumns:
    """The columns of one batch of messages.

    `entries` are the queue entries through which they were found; None if the records name their queues themselves
    (scan=log).
    """

    messages: Messages
    physical_offsets: Positions
    request: ScanRequest
    store_name: str
    entries: EntryColumns | None = None
    made: dict[str, pa.Array] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.messages)

    def take(self, rows: Mask | slice) -> MessageColumns:
        """The columns of some of the messages."""
        entries = self.entries
        if entries is not None:
            entries = EntryColumns(entries.entries.take(rows), entries.queues, entries.store_name)
        messages, physical_offsets = self.messages.take(rows), self.physical_offsets[rows]
        return MessageColumns(messages, physical_offsets, self.request, self.store_name, entries)

    def column(self, name: str) -> pa.Array:
        """One native column; one made for a condition is reused. Its values for damaged messages are undefined.

        The body must have been made by `with_bodies`.
        """
        if self.entries is not None and name in ENTRY_COLUMNS:
            return self.entries.column(name)
        if name not in self.made:
            self.made[name] = _COLUMNS[name](self)
        return self.made[name]

    def shown(self, name: str) -> pa.Array:
        """One column as rows show it; null for a damaged message unless the column names its place."""
        values = self.column(name)
        is_shown = name in ("store", "corruption") or (self.entries is not None and name in ENTRY_COLUMNS)
        return values if is_shown else masked(values, self.messages.flaws == 0)

    def shown_columns(self, names: Sequence[str]) -> list[pa.Array]:
        """Several columns as rows show them."""
        column_of = self.shown if self.messages.flaws.any() else self.column
        self.properties.expect(properties_of(name for name in names if name not in self.made))
        if "properties" in names:
            self.column("properties")  # finds the values of each of them, too
        return [column_of(name) for name in names]

    @cached_property
    def properties(self) -> PropertyColumn:
        """The properties, split once."""
        return self.messages.property_column()

    @cached_property
    def keys(self) -> pa.StringArray:
        """The KEYS text."""
        return self.properties.values(KEYS)

    @cached_property
    def store_hosts(self) -> pa.BinaryArray:
        """Packed store hosts."""
        return self.messages.hosts("store")

    def with_bodies(self) -> Iterator[MessageColumns]:
        """The same columns with the body as a client receives it, in parts: a part's inflated bodies have at most
        MOST_INFLATED bytes in total, unless it has only one. Marks messages whose body is damaged.
        """
        messages, request = self.messages, self.request
        bodies = messages.bodies()
        if request.verify_crc and (wrong := messages.wrong_bodies()).any():
            messages.mark(wrong, Flaw.CRC)
        packed = np.empty(0, np.intp)
        if request.decompress and (compressed := messages.compressed()).any():
            packed = np.flatnonzero(compressed & (messages.flaws == 0) & (messages.body_size > 0))
        kinds = messages.column("sys_flag") >> COMPRESSION_SHIFT & COMPRESSION_MASK if len(packed) else packed
        start, rows, values, size = 0, list[int](), list[bytes | None](), 0
        for row in packed.tolist():
            value = _inflated(bodies[row].as_py(), int(kinds[row]))
            if values and size + len(value or b"") > MOST_INFLATED:
                yield self._part(slice(start, row), bodies, rows, values)
                start, rows, values, size = row, [], [], 0
            rows.append(row - start)
            values.append(value)
            size += len(value or b"")
        yield self._part(slice(start, len(self)), bodies, rows, values)

    def _part(self, span: slice, bodies: pa.BinaryArray, rows: list[int], values: list[bytes | None]) -> MessageColumns:
        """The messages of a span, in which `rows` have the inflated `values`."""
        part = self if span == slice(0, len(self)) else self.take(span)
        bodies = bodies[span]
        if rows:
            wrong = np.zeros(len(bodies), bool)
            wrong[rows] = [value is None for value in values]
            part.messages.mark(wrong, Flaw.BODY)
            source = np.arange(len(bodies))
            source[rows] = len(bodies) + np.arange(len(rows))
            inflated = bytes_array([value or b"" for value in values])
            bodies = pa.concat_arrays([bodies, inflated]).take(as_array(source))
        part.made["body"] = bodies
        return part

    def message_ids(self) -> pa.StringArray:
        """UNIQ_KEY, else the offset id."""
        unique = self.properties.values(UNIQ_KEY)
        return pc.coalesce(unique, self.offset_ids()) if unique.null_count else unique

    def offset_ids(self) -> pa.StringArray:
        """Store host and physical offset in hex (rocketmq.md 2.10)."""
        return hex_text(followed_by(self.store_hosts, self.messages.column("physical_offset")))


def _inflated(body: bytes, kind: int) -> bytes | None:
    """The inflated body of a message; None for a damaged one."""
    try:
        return inflate(body, kind)
    except InflateError:
        return None


def _header(name: str) -> Callable[[MessageColumns], pa.Array]:
    return lambda columns: as_array(columns.messages.column(name))


_PROPERTY_OF = {"key": KEYS, "keys": KEYS, "tags": TAGS, "msgId": UNIQ_KEY}


def properties_of(columns: Iterable[str]) -> tuple[str, ...]:
    """The properties that the columns show, each once."""
    return tuple(dict.fromkeys(_PROPERTY_OF[name] for name in columns if name in _PROPERTY_OF))


_COLUMNS: dict[str, Callable[[MessageColumns], pa.Array]] = {
    "topic": lambda columns: columns.messages.topics(),
    "queueId": _header("queue_id"),
    "queueOffset": _header("queue_offset"),
    "key": lambda columns: columns.keys,
    "keys": lambda columns: words(columns.keys),
    "tags": lambda columns: columns.properties.values(TAGS),
    "properties": lambda columns: columns.properties.pairs(columns.request.hidden_property),
    "bornTimestamp": lambda columns: timestamps(columns.messages.column("born_ms")),
    "storeTimestamp": lambda columns: timestamps(columns.messages.column("store_ms")),
    "msgId": lambda columns: columns.message_ids(),
    "offsetMsgId": lambda columns: columns.offset_ids(),
    "bornHost": lambda columns: host_text(columns.messages.hosts("born")),
    "storeHost": lambda columns: host_text(columns.store_hosts),
    "sysFlag": _header("sys_flag"),
    "flag": _header("flag"),
    "reconsumeTimes": _header("reconsume_times"),
    "preparedTransactionOffset": _header("prepared_offset"),
    "bodyCrc": _header("body_crc"),
    "physicalOffset": _header("physical_offset"),
    "size": _header("total_size"),
    "rawProperties": lambda columns: columns.messages.properties(),
    "store": lambda columns: pa.repeat(as_scalar(columns.store_name), len(columns)),
}
