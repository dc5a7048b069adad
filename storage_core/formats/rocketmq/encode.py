"""Encodes many messages as commit-log bytes, with one join for a whole batch.

Which rows may be written, and where the records are put, is up to the engine. Source of the rules: rocketmq.md 2.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from storage_core.arrays import as_scalar, bytes_array
from storage_core.compiled.loading import CompiledLoops
from storage_core.formats.checksum import body_crcs
from storage_core.formats.layout import Bytes, Positions
from storage_core.formats.rocketmq.message import (
    AFTER_HOSTS,
    BLANK,
    BORN_HOST_V6,
    HEADER,
    HEADER_V4,
    HOST_V4,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    MIN_SIZE,
    PHYSICAL_OFFSET_AT,
    QUEUE_OFFSET_AT,
    STORE_HOST_V6,
    STORE_MS_AT,
    STORE_MS_AT_V6,
)
from storage_core.formats.spans import data_of, joined, offsets_of

LONGEST_V1_TOPIC = 127

_loops = CompiledLoops("storage_core.formats.rocketmq.compiled.write_loops")
_record_loops = CompiledLoops("storage_core.formats.rocketmq.compiled.record_loops")
Numbers = npt.NDArray[Any]


@dataclass(frozen=True)
class Rows:
    """Messages to encode, as columns of n elements without nulls. There are few distinct topics.

    Numbers are arrays of shape (n,) or one value for all. Hosts are packed: 4 or 16 address bytes, 4 of port.
    """

    topics: pa.DictionaryArray
    bodies: pa.BinaryArray
    properties: pa.BinaryArray
    born_hosts: pa.BinaryArray
    store_hosts: pa.BinaryArray
    queue_id: Numbers
    flag: Numbers | int
    sys_flag: Numbers | int
    born_ms: Numbers
    reconsume_times: Numbers | int
    queue_offset: Numbers | int = 0
    physical_offset: Numbers | int = 0
    store_ms: Numbers | int = 0
    prepared_offset: Numbers | int = 0

    def __len__(self) -> int:
        return len(self.bodies)

    @cached_property
    def topic_lengths(self) -> Positions:
        """Byte length of each topic. Shape (n,)."""
        found: Positions = lengths(self.topics.dictionary)[self.topics.indices.to_numpy()]
        return found

    @cached_property
    def sizes(self) -> Positions:
        """TOTALSIZE that each row's record will have. Shape (n,)."""
        found = self.topic_lengths + (self.topic_lengths > LONGEST_V1_TOPIC)
        for texts in (self.bodies, self.properties):
            found += lengths(texts)
        found += MIN_SIZE
        for hosts in (self.born_hosts, self.store_hosts):
            if _has_v6(hosts):
                found += lengths(hosts) - HOST_V4
        return found

    @cached_property
    def sys_flags(self) -> npt.NDArray[np.int32]:
        """SYSFLAG that each row's record will have: the IPv6 bits follow from the hosts alone. Shape (n,)."""
        flags = np.empty(len(self), np.int32)
        flags[:] = self.sys_flag
        flags &= ~np.int32(BORN_HOST_V6 | STORE_HOST_V6)
        for hosts, bit in ((self.born_hosts, BORN_HOST_V6), (self.store_hosts, STORE_HOST_V6)):
            if _has_v6(hosts):
                flags[lengths(hosts) > HOST_V4] |= np.int32(bit)
        return flags

    def part(self, start: int, stop: int) -> Rows:
        """Rows [start, stop)."""
        if (start, stop) == (0, len(self)):
            return self

        def cut(column: Any) -> Any:
            if isinstance(column, pa.Array):
                return column.slice(start, stop - start)
            return column[start:stop] if isinstance(column, np.ndarray) and column.ndim else column

        part = Rows(**{field.name: cut(getattr(self, field.name)) for field in fields(self)})
        return self._derived(part, start, stop)

    def placed(self, queue_offset: Numbers, physical_offset: Numbers, store_ms: int) -> Rows:
        """The same messages at places in the log that are known now."""
        rows = replace(self, queue_offset=queue_offset, physical_offset=physical_offset, store_ms=store_ms)
        return self._derived(rows, 0, len(self))

    def _derived(self, rows: Rows, start: int, stop: int) -> Rows:
        """`rows`, which are those from `start` to `stop`, with what is already derived from them."""
        for name in ("topic_lengths", "sizes", "sys_flags"):
            if name in self.__dict__:
                rows.__dict__[name] = self.__dict__[name][start:stop]
        return rows


@dataclass(frozen=True)
class Encoded:
    """Consecutive records: their bytes, the n + 1 boundaries between them, and their SYSFLAG."""

    data: pa.Buffer
    bounds: npt.NDArray[np.int32]
    sys_flags: npt.NDArray[np.int32]

    @property
    def sizes(self) -> Positions:
        """TOTALSIZE of each record. Shape (n,)."""
        return np.diff(self.bounds).astype(np.int64)


def new_bytes(size: int) -> Bytes:
    """A new buffer of `size` bytes."""
    return np.empty(size, np.uint8)


def lengths(array: pa.Array) -> Positions:
    """Byte length of each element of a binary or string array. Shape (n,)."""
    offsets = offsets_of(array)
    return np.subtract(offsets[1:], offsets[:-1], dtype=np.int64)


def _has_v6(hosts: pa.BinaryArray) -> bool:
    offsets = offsets_of(hosts)
    return int(offsets[-1]) - int(offsets[0]) > HOST_V4 * len(hosts)


def encode(rows: Rows, room: Callable[[int], Bytes] = new_bytes) -> Encoded:
    """The records of `rows`, in order. Together they must be shorter than 2 GiB.

    `room` returns a buffer of the given size, for records that are made in one pass. A record whose topic has more than
    127 bytes gets the V2 magic.
    """
    flags = rows.sys_flags
    mixed = bool((flags & (BORN_HOST_V6 | STORE_HOST_V6)).any())
    if not mixed and (loops := _record_loops.after(int(rows.sizes.sum()))) is not None:
        made, edges = loops.records(rows, _topic_parts(rows.topics), flags, room)
        return Encoded(pa.py_buffer(made), edges, flags)
    heads = _mixed_headers(rows, flags) if mixed else [_v4_headers(rows, flags)]
    sized = fixed_width(lengths(rows.properties).astype(">i2"))
    records = joined([*heads, rows.bodies, _sized_topics(rows.topics), sized, rows.properties], len(rows))
    bounds = offsets_of(records)
    data = records.buffers()[2]
    if bounds[0]:
        data = data.slice(int(bounds[0]))
        bounds = bounds - bounds[0]
    return Encoded(data, bounds, flags)


def fixed_width(values: npt.NDArray[Any]) -> pa.BinaryArray:
    """The bytes of each element of a contiguous array as a binary array, without a copy."""
    offsets = np.arange(0, (len(values) + 1) * values.itemsize, values.itemsize, dtype=np.int32)
    parts = [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(values).view(np.uint8))]
    return pa.BinaryArray.from_buffers(pa.binary(), len(values), parts)


def _v4_headers(rows: Rows, flags: npt.NDArray[np.int32]) -> pa.BinaryArray:
    head = np.empty(len(rows), HEADER_V4.dtype)
    _fill(head, rows, flags)
    for name, hosts in (("born", rows.born_hosts), ("store", rows.store_hosts)):
        packed = data_of(hosts)[int(offsets_of(hosts)[0]) :][: len(rows) * HOST_V4]
        pairs = packed.view([("address", ">u4"), ("port", ">i4")])
        head[f"{name}_address"], head[f"{name}_port"] = pairs["address"], pairs["port"]
    head["store_ms"] = rows.store_ms
    _fill_tail(head, rows)
    return fixed_width(head)


def _mixed_headers(rows: Rows, flags: npt.NDArray[np.int32]) -> list[pa.BinaryArray]:
    """Headers whose hosts have different widths, in five columns."""
    head, tail = np.empty(len(rows), HEADER.dtype), np.empty(len(rows), AFTER_HOSTS.dtype)
    _fill(head, rows, flags)
    _fill_tail(tail, rows)
    stored = np.broadcast_to(np.asarray(rows.store_ms), len(rows)).astype(">i8")
    return [fixed_width(head), rows.born_hosts, fixed_width(stored), rows.store_hosts, fixed_width(tail)]


def _fill(head: npt.NDArray[Any], rows: Rows, flags: npt.NDArray[np.int32]) -> None:
    head["total_size"] = rows.sizes
    head["magic"] = np.where(rows.topic_lengths > LONGEST_V1_TOPIC, np.uint32(MAGIC_V2), np.uint32(MAGIC_V1))
    head["body_crc"] = body_crcs(rows.bodies)
    head["queue_id"], head["flag"] = rows.queue_id, rows.flag
    head["queue_offset"], head["physical_offset"] = rows.queue_offset, rows.physical_offset
    head["sys_flag"], head["born_ms"] = flags, rows.born_ms


def _fill_tail(tail: npt.NDArray[Any], rows: Rows) -> None:
    tail["reconsume_times"], tail["prepared_offset"] = rows.reconsume_times, rows.prepared_offset
    tail["body_length"] = lengths(rows.bodies)


def _sized_topics(topics: pa.DictionaryArray) -> pa.BinaryArray | pa.BinaryScalar:
    """`_topic_parts` of each row; a scalar if there is only one topic."""
    sized = _topic_parts(topics)
    if len(sized) == 1:
        return as_scalar(sized[0])
    return bytes_array(sized).take(topics.indices)


def _topic_parts(topics: pa.DictionaryArray) -> list[bytes]:
    """Each topic of the dictionary, preceded by its length in one byte, or in two if it is long."""
    return [
        len(topic).to_bytes(2 if len(topic) > LONGEST_V1_TOPIC else 1, "big") + topic
        for topic in topics.dictionary.view(pa.binary()).to_pylist()
    ]


def patch(
    data: Bytes, starts: Positions, offsets: Positions, physical_offsets: Positions, store_ms: int, v6: Numbers
) -> None:
    """Writes QUEUEOFFSET, PHYSICALOFFSET and STORETIMESTAMP into the records that begin at `starts` of `data`.

    `v6` (shape (n,)) marks records whose born host is IPv6, which shifts the store time.
    """
    if (loops := _loops.after(len(data))) is not None:
        loops.patch(data, starts, offsets, physical_offsets, store_ms, v6)
        return
    longs = _longs(data)
    longs[starts + QUEUE_OFFSET_AT] = offsets
    longs[starts + PHYSICAL_OFFSET_AT] = physical_offsets
    longs[starts + np.where(v6, STORE_MS_AT_V6, STORE_MS_AT)] = store_ms


def blank_record(size: int) -> bytes:
    """The blank record that fills a file's last `size` bytes."""
    return np.array([(size, MAGIC_BLANK)], BLANK.dtype).tobytes()


def own_addresses(data: Bytes, starts: Positions) -> Positions:
    """PHYSICALOFFSET of the records that begin at `starts` of `data`."""
    return _longs(data)[starts + PHYSICAL_OFFSET_AT].astype(np.int64)


def _longs(data: Bytes) -> npt.NDArray[Any]:
    """The eight bytes from each position on, as one number."""
    return np.ndarray((len(data) - 7,), ">i8", data, strides=(1,))
