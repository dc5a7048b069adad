"""The native columns of decoded messages, each made when it is asked for.

What becomes of damaged messages is for `row_builder`; where messages lie and which queue serves them for `partition`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from storage_core.formats.checksum import body_crcs
from storage_core.formats.columns import followed_by, hex_text, host_text, timestamps, words
from storage_core.formats.compression import InflateError, inflate
from storage_core.formats.layout import Positions
from storage_core.formats.rocketmq.message import (
    COMPRESSED,
    COMPRESSION_MASK,
    COMPRESSION_SHIFT,
    Flaw,
    Messages,
)
from storage_core.formats.rocketmq.properties import KEYS, TAGS, UNIQ_KEY, PropertyColumn
from storage_core.formats.spans import text
from storage_core.store import QueueKey, ScanRequest


@dataclass(frozen=True)
class Found:
    """Where messages were found: through which queue (an index into `Queues`) and as which ordinal.

    All arrays have shape (n,); `places` are physical offsets. `readable`: every record is known to lie in the log.
    """

    queue: npt.NDArray[np.int32]
    ordinals: Positions
    places: Positions
    sizes: Positions
    readable: bool = False

    def __len__(self) -> int:
        return len(self.places)

    def take(self, rows: npt.NDArray[Any]) -> Found:
        """The same for some rows (indices or a mask)."""
        return Found(self.queue[rows], self.ordinals[rows], self.places[rows], self.sizes[rows], self.readable)

    def part(self, start: int, stop: int) -> Found:
        """The messages [start, stop), without a copy."""
        rows = slice(start, stop)
        return Found(self.queue[rows], self.ordinals[rows], self.places[rows], self.sizes[rows], self.readable)


def joined(parts: Sequence[Found]) -> Found:
    """The messages of several parts, one behind the other."""
    if not parts:
        none = np.empty(0, np.int64)
        return Found(np.empty(0, np.int32), none, none, none)
    return Found(
        np.concatenate([part.queue for part in parts]),
        np.concatenate([part.ordinals for part in parts]),
        np.concatenate([part.places for part in parts]),
        np.concatenate([part.sizes for part in parts]),
        all(part.readable for part in parts),
    )


class Queues:
    """The queues of a partition as columns, to be taken by index."""

    def __init__(self, keys: Sequence[QueueKey]) -> None:
        self.keys = tuple(keys)
        self._topics = pa.array([topic for topic, _ in keys], pa.string())
        self._ids = np.array([queue_id for _, queue_id in keys], np.int32)

    def topics(self, queue: npt.NDArray[np.int32]) -> pa.StringArray:
        """Topic names by queue index."""
        if len(self._topics) == 1:
            return pa.repeat(self._topics[0], len(queue))
        return self._topics.take(pa.array(queue))

    def ids(self, queue: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
        """Queue ids by queue index."""
        return self._ids[queue]


def unit_column(name: str, found: Found, queues: Queues, store_name: str) -> pa.Array:
    """A column of `schema.UNIT_COLUMNS`, out of the consume queue alone."""
    if name == "topic":
        return queues.topics(found.queue)
    if name == "queueId":
        return pa.array(queues.ids(found.queue))
    if name == "store":
        return pa.repeat(pa.scalar(store_name), len(found))
    if name == "size":
        return pa.array(found.sizes.astype(np.int32))
    return pa.array(found.ordinals if name == "queueOffset" else found.places)


@dataclass
class Rows:
    """The columns of one batch of messages.

    `found` is None when the records' own fields name their place in a queue (scan=log).
    """

    messages: Messages
    places: Positions
    request: ScanRequest
    store_name: str
    _made: dict[str, pa.Array] = field(default_factory=dict)

    @cached_property
    def properties(self) -> PropertyColumn:
        """The properties, split once."""
        messages = self.messages
        return PropertyColumn(messages.buffer, messages.properties_start, messages.properties_size)

    @cached_property
    def keys(self) -> pa.StringArray:
        """The KEYS text."""
        return self.properties.values(KEYS)

    @cached_property
    def store_hosts(self) -> pa.BinaryArray:
        """Packed store hosts."""
        return self.messages.hosts("store")

    def column(self, name: str) -> pa.Array:
        """A native column out of the records' own fields; not `body`. What a condition asked is not made again."""
        found = self._made.get(name)
        if found is None:
            found = self._made[name] = _COLUMNS[name](self)
        return found

    def checked_bodies(self) -> pa.BinaryArray:
        """Bodies as a client gets them; messages whose body is damaged are marked."""
        messages, request = self.messages, self.request
        bodies = messages.bodies()
        if request.verify_crc:
            wrong = (body_crcs(bodies) != messages.column("body_crc")) & (messages.body_size > 0)
            if wrong.any():
                messages.mark(wrong, Flaw.CRC)
        flags = messages.column("sys_flag")
        packed = np.flatnonzero((flags & COMPRESSED != 0) & (messages.flaws == 0))
        return self._inflated(bodies, packed, flags) if request.decompress and len(packed) else bodies

    def _inflated(
        self, bodies: pa.BinaryArray, rows: npt.NDArray[np.intp], flags: npt.NDArray[np.int32]
    ) -> pa.BinaryArray:
        values: list[bytes] = []
        bad = np.zeros(len(bodies), bool)
        for row in rows.tolist():
            try:
                kind = int(flags[row]) >> COMPRESSION_SHIFT & COMPRESSION_MASK
                values.append(inflate(bodies[row].as_py(), kind))
            except InflateError:
                values.append(b"")
                bad[row] = True
        self.messages.mark(bad, Flaw.BODY)
        source = np.arange(len(bodies))
        source[rows] = len(bodies) + np.arange(len(rows))
        return pa.concat_arrays([bodies, pa.array(values, pa.binary())]).take(pa.array(source))

    def message_ids(self) -> pa.StringArray:
        """UNIQ_KEY, else the offset id."""
        unique = self.properties.values(UNIQ_KEY)
        return pc.coalesce(unique, self.offset_ids()) if unique.null_count else unique

    def offset_ids(self) -> pa.StringArray:
        """Store host and physical offset in hex (rocketmq.md 2.10)."""
        return hex_text(followed_by(self.store_hosts, self.messages.column("physical_offset")))


def _header(name: str) -> Callable[[Rows], pa.Array]:
    return lambda rows: pa.array(rows.messages.column(name))


_COLUMNS: dict[str, Callable[[Rows], pa.Array]] = {
    "topic": lambda rows: text(rows.messages.topics()),
    "queueId": _header("queue_id"),
    "queueOffset": _header("queue_offset"),
    "key": lambda rows: rows.keys,
    "keys": lambda rows: words(rows.keys),
    "tags": lambda rows: rows.properties.values(TAGS),
    "properties": lambda rows: rows.properties.pairs(),
    "bornTimestamp": lambda rows: timestamps(rows.messages.column("born_ms")),
    "storeTimestamp": lambda rows: timestamps(rows.messages.column("store_ms")),
    "msgId": lambda rows: rows.message_ids(),
    "offsetMsgId": lambda rows: rows.offset_ids(),
    "bornHost": lambda rows: host_text(rows.messages.hosts("born")),
    "storeHost": lambda rows: host_text(rows.store_hosts),
    "sysFlag": _header("sys_flag"),
    "flag": _header("flag"),
    "reconsumeTimes": _header("reconsume_times"),
    "preparedTransactionOffset": _header("prepared_offset"),
    "bodyCrc": _header("body_crc"),
    "physicalOffset": _header("physical_offset"),
    "size": _header("total_size"),
    "rawProperties": lambda rows: rows.messages.properties(),
    "store": lambda rows: pa.repeat(pa.scalar(rows.store_name), len(rows.messages)),
}
