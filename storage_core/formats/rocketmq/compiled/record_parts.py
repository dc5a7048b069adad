"""Many records of a commit log found, and their parts checked, in one pass. The rules stand at `message.decode`."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit, types

from storage_core.compiled.span_loops import BYTES, OUT_BYTES, OUT_POSITIONS, POSITIONS, positions
from storage_core.formats.layout import Bytes, Mask, Positions
from storage_core.formats.rocketmq.message import (
    BLANK,
    BORN_HOST_V6,
    FLAWS,
    HEADER,
    HEADER_V4,
    HOST_V4,
    HOST_V6,
    MAGIC_V1,
    MAGIC_V2,
    MIN_SIZE,
    STORE_HOST_V6,
    Flaw,
)

MAGIC_AT, FLAGS_AT = HEADER.field("magic").offset, HEADER.field("sys_flag").offset
BODY_AT = HEADER_V4.size - 2 * HOST_V4
AROUND = MIN_SIZE - 2 * HOST_V4
BLANK_SIZE = BLANK.size
NONE, TOO_SHORT, MAGIC, SIZE, LENGTHS = (
    FLAWS.index(flaw) for flaw in (Flaw.NONE, Flaw.TOO_SHORT, Flaw.MAGIC, Flaw.SIZE, Flaw.LENGTHS)
)


def place_parts(
    buffer: Bytes, starts: Positions, sizes: Positions, flaws: npt.NDArray[np.uint8], parts: npt.NDArray[np.int64]
) -> Mask | None:
    """Fills `flaws`, as numbers in FLAWS, and `parts`, shape (6, n): start and size of body, topic and properties.

    Returns which records have IPv6 hosts and room for them; None when no record has any. Raises ValueError when a
    record lies outside of its buffer.
    """
    sixes = np.zeros(len(starts), bool)
    seen = _place_parts(buffer, positions(starts), positions(sizes), flaws, parts, sixes)
    if seen < 0:
        raise ValueError("a record lies outside of its buffer")
    return sixes if seen else None


def steps(buffer: Bytes, start: int) -> Positions:
    """`record_walk`'s steps from record to record."""
    out = np.empty(max(len(buffer) - start, 0) // MIN_SIZE + 1, np.int64)
    return out[: _steps(buffer, start, out)]


@njit(types.int64(BYTES, types.int64), nogil=True, cache=True)
def _int32_at(buffer: Bytes, at: int) -> np.int64:
    value = np.uint32(0)
    for byte in range(4):
        value = value << np.uint32(8) | np.uint32(buffer[at + byte])
    return np.int64(np.int32(np.uint32(value)))


@njit(types.int64(BYTES, types.int64, OUT_POSITIONS), nogil=True, cache=True)
def _steps(buffer: Bytes, position: int, out: Positions) -> int:
    count, last = 0, len(buffer) - BLANK_SIZE
    while position <= last and count < len(out):
        out[count] = position
        count += 1
        size = _int32_at(buffer, position)
        if size < MIN_SIZE:
            break
        position += size
    return count


@njit(types.int64(BYTES, types.int64), nogil=True, cache=True)
def _int16_at(buffer: Bytes, at: int) -> np.int64:
    return np.int64(np.int16(np.uint16(buffer[at]) << np.uint16(8) | np.uint16(buffer[at + 1])))


@njit(types.int64(types.int64), nogil=True, cache=True)
def _hosts_size(flags: int) -> int:
    born = HOST_V6 if flags & BORN_HOST_V6 else HOST_V4
    return born + (HOST_V6 if flags & STORE_HOST_V6 else HOST_V4)


@njit(types.UniTuple(types.int64, 2)(BYTES, types.int64, types.int64), nogil=True, cache=True)
def _size_and_flaw(buffer: Bytes, start: int, size: int) -> tuple[int, int]:
    """The size that counts, and what is wrong with magic or size."""
    magic = _int32_at(buffer, start + MAGIC_AT) & 0xFFFFFFFF
    flaw = NONE if magic in (MAGIC_V1, MAGIC_V2) else MAGIC
    total = _int32_at(buffer, start)
    if MIN_SIZE <= total <= size:
        return total, flaw
    return size, flaw or SIZE


@njit(types.boolean(BYTES, types.int64, types.int64, types.int64, types.int64[::1]), nogil=True, cache=True)
def _spans(buffer: Bytes, start: int, size: int, hosts: int, spans: npt.NDArray[np.int64]) -> bool:
    """Fills start and size of body, topic and properties; whether they fill the record."""
    second = _int32_at(buffer, start + MAGIC_AT) & 0xFFFFFFFF == MAGIC_V2
    room = size - hosts - AROUND - second
    body = start + hosts + BODY_AT
    body_size = max(_int32_at(buffer, body - 4), 0) if room >= 0 else 0
    if body_size > room:
        return False
    room -= body_size
    topic = body + body_size + 1 + second
    topic_size = _int16_at(buffer, topic - 2) if second else np.int64(np.int8(buffer[topic - 1]))
    if topic_size < 0 or topic_size > room:
        return False
    properties = topic + topic_size + 2
    properties_size = max(_int16_at(buffer, properties - 2), 0)
    spans[0], spans[1], spans[2] = body, body_size, topic
    spans[3], spans[4], spans[5] = topic_size, properties, properties_size
    return bool(properties_size == room - topic_size)


@njit(
    types.int64(BYTES, POSITIONS, POSITIONS, OUT_BYTES, types.int64[:, ::1], types.boolean[::1]),
    nogil=True,
    cache=True,
)
def _place_parts(
    buffer: Bytes,
    starts: Positions,
    sizes: Positions,
    flaws: npt.NDArray[np.uint8],
    parts: npt.NDArray[np.int64],
    sixes: Mask,
) -> int:
    """Returns how many records have IPv6 hosts; -1 when one lies outside of the buffer."""
    seen = 0
    spans = np.zeros(6, np.int64)
    for row in range(len(starts)):
        parts[:, row] = 0
        start, size = starts[row], sizes[row]
        if size < MIN_SIZE:
            flaws[row] = TOO_SHORT
            continue
        if start < 0 or start + size > len(buffer):
            return -1
        size, flaws[row] = _size_and_flaw(buffer, start, size)
        hosts = _hosts_size(_int32_at(buffer, start + FLAGS_AT))
        if hosts > 2 * HOST_V4:
            seen += 1
            sixes[row] = flaws[row] == NONE and size >= hosts + AROUND
        if flaws[row] != NONE:
            continue
        if _spans(buffer, start, size, hosts, spans):
            parts[:, row] = spans
        else:
            flaws[row] = LENGTHS
    return seen
