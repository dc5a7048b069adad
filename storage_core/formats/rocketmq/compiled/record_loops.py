"""Makes records with IPv4 hosts from their columns in one pass; each body's CRC is computed while it is in the cache.

The numpy twin, `encode.encode`, documents the rules. No loop reads or writes outside the arrays that it is given.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from numba import njit, types

from storage_core.compiled.calls import CRC32_ADDRESS, copy, crc32, store_int16, store_int32, store_int64
from storage_core.compiled.span_loops import BYTES, NUMBERS, OUT_BYTES, OUT_NUMBERS, POSITIONS, Numbers, Positions
from storage_core.formats.checksum import MASK
from storage_core.formats.layout import Bytes
from storage_core.formats.rocketmq.encode import LONGEST_V1_TOPIC, Rows
from storage_core.formats.rocketmq.message import (
    HEADER_V4,
    HOST_V4,
    MAGIC_V1,
    MAGIC_V2,
    PHYSICAL_OFFSET_AT,
    QUEUE_OFFSET_AT,
    STORE_MS_AT,
)
from storage_core.formats.spans import data_of, offsets_of

ANY_INT32, ANY_INT64 = (types.Array(kind, 1, "A", readonly=True) for kind in (types.int32, types.int64))
MAGICS = np.array([MAGIC_V1, MAGIC_V2], np.uint32).view(np.int32)
HEADER_SIZE, SIZE_SIZE = HEADER_V4.size, 2
(
    MAGIC_AT, CRC_AT, QUEUE_ID_AT, FLAG_AT, SYS_FLAG_AT, BORN_MS_AT, BORN_HOST_AT, STORE_HOST_AT, RECONSUME_TIMES_AT,
    PREPARED_OFFSET_AT, BODY_LENGTH_AT,
) = (
    HEADER_V4.field(name).offset
    for name in (
        "magic", "body_crc", "queue_id", "flag", "sys_flag", "born_ms", "born_address", "store_address",
        "reconsume_times", "prepared_offset", "body_length",
    )
)  # fmt: skip


def records(rows: Rows, topics: list[bytes], sys_flags: Numbers, room: Callable[[int], Bytes]) -> tuple[Bytes, Numbers]:
    """Bytes and bounds of `encode.Encoded`. `topics`: each topic preceded by its length."""
    count = len(rows)
    size = int(rows.sizes.sum())
    packed, bounds = room(size), np.empty(count + 1, np.int32)
    lone = [_of_all(column, np.int32, count) for column in (rows.queue_id, rows.flag, rows.reconsume_times)]
    times = rows.queue_offset, rows.physical_offset, rows.born_ms, rows.store_ms, rows.prepared_offset
    wide = [_of_all(column, np.int64, count) for column in times]
    long = np.array([len(topic) > 1 + LONGEST_V1_TOPIC for topic in topics], np.int32)
    made = _records(
        CRC32_ADDRESS, data_of(rows.bodies), offsets_of(rows.bodies), data_of(rows.properties),
        offsets_of(rows.properties), np.frombuffer(b"".join(topics), np.uint8),
        np.cumsum([0, *map(len, topics)], dtype=np.int64), MAGICS[long], rows.topics.indices.to_numpy(),
        _hosts(rows.born_hosts), _hosts(rows.store_hosts), sys_flags, *lone, *wide, packed, bounds,
    )  # fmt: skip
    if made != size:
        raise ValueError("a part of a record lies outside of its column")
    return packed, bounds


def _of_all(column: npt.NDArray[Any] | int, kind: Any, count: int) -> npt.NDArray[Any]:
    """The column as an array; one value for all rows becomes a view of `count` elements."""
    found = np.asarray(column, kind)
    return found if found.ndim else np.ndarray((count,), kind, found, strides=(0,))


def _hosts(hosts: pa.BinaryArray) -> Bytes:
    return data_of(hosts)[int(offsets_of(hosts)[0]) :][: len(hosts) * HOST_V4]


@njit(
    types.int64(
        types.int64, BYTES, NUMBERS, BYTES, NUMBERS, BYTES, POSITIONS, NUMBERS, NUMBERS, BYTES, BYTES, NUMBERS,
        ANY_INT32, ANY_INT32, ANY_INT32, ANY_INT64, ANY_INT64, ANY_INT64, ANY_INT64, ANY_INT64, OUT_BYTES, OUT_NUMBERS,
    ),
    nogil=True,
    cache=True,
)  # fmt: skip
def _records(
    crc_address: int, bodies: Bytes, body_bounds: Numbers, properties: Bytes, property_bounds: Numbers, topics: Bytes,
    topic_bounds: Positions, magics: Numbers, topic_of: Numbers, born: Bytes, stored: Bytes, sys_flags: Numbers,
    queue_ids: Numbers, flags: Numbers, reconsume_times: Numbers, queue_offsets: Positions,
    physical_offsets: Positions, born_ms: Positions, store_ms: Positions, prepared: Positions, out: Bytes,
    bounds: Numbers,
) -> int:  # fmt: skip
    """Returns the number of bytes made; -1 if a part lies outside its column, or `out` is too short for them."""
    at = 0
    for row in range(len(topic_of)):
        bounds[row] = at
        body, body_stop = body_bounds[row], body_bounds[row + 1]
        some, some_stop = property_bounds[row], property_bounds[row + 1]
        number = topic_of[row]
        if not 0 <= body <= body_stop <= len(bodies) or not 0 <= some <= some_stop <= len(properties):
            return -1
        if not 0 <= number < len(magics) or 8 * row + 8 > min(len(born), len(stored)):
            return -1
        topic, topic_stop = topic_bounds[number], topic_bounds[number + 1]
        topic_at = at + HEADER_SIZE + body_stop - body
        sized_at = topic_at + topic_stop - topic
        stop = sized_at + SIZE_SIZE + some_stop - some
        if stop > len(out):
            return -1
        store_int32(out, at, np.int32(stop - at))
        store_int32(out, at + MAGIC_AT, magics[number])
        store_int32(out, at + QUEUE_ID_AT, queue_ids[row])
        store_int32(out, at + FLAG_AT, flags[row])
        store_int64(out, at + QUEUE_OFFSET_AT, queue_offsets[row])
        store_int64(out, at + PHYSICAL_OFFSET_AT, physical_offsets[row])
        store_int32(out, at + SYS_FLAG_AT, sys_flags[row])
        store_int64(out, at + BORN_MS_AT, born_ms[row])
        copy(out, at + BORN_HOST_AT, born, 8 * row, 8)
        store_int64(out, at + STORE_MS_AT, store_ms[row])
        copy(out, at + STORE_HOST_AT, stored, 8 * row, 8)
        store_int32(out, at + RECONSUME_TIMES_AT, reconsume_times[row])
        store_int64(out, at + PREPARED_OFFSET_AT, prepared[row])
        store_int32(out, at + BODY_LENGTH_AT, np.int32(body_stop - body))
        copy(out, at + HEADER_SIZE, bodies, body, body_stop - body)
        total = crc32(crc_address, out, at + HEADER_SIZE, np.int64(body_stop - body))
        store_int32(out, at + CRC_AT, np.int32(total & MASK))
        copy(out, topic_at, topics, topic, topic_stop - topic)
        store_int16(out, sized_at, np.int16(some_stop - some))
        copy(out, sized_at + SIZE_SIZE, properties, some, some_stop - some)
        at = stop
    bounds[len(topic_of)] = at
    return at
