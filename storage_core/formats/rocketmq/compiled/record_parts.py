"""Finds the records of a log, and checks the parts of a record. The rules are documented at `message.decode`."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, types

from storage_core.compiled.calls import int16_at, int32_at
from storage_core.compiled.span_loops import BYTES, OUT_POSITIONS
from storage_core.formats.layout import Bytes, Positions
from storage_core.formats.rocketmq.ledger import LEDGER_HEADER
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
HOSTS_AT = HEADER.size
BODY_AT = HEADER_V4.size - 2 * HOST_V4
AROUND = MIN_SIZE - 2 * HOST_V4
BLANK_SIZE = BLANK.size
NONE, TOO_SHORT, MAGIC, SIZE, LENGTHS = (
    FLAWS.index(flaw) for flaw in (Flaw.NONE, Flaw.TOO_SHORT, Flaw.MAGIC, Flaw.SIZE, Flaw.LENGTHS)
)


def walk(buffer: Bytes, start: int) -> tuple[Positions, Positions, int]:
    """`record_walk.walk`: starts and sizes of the records, and the position of the first byte after them."""
    return _walked(buffer, start, 0)


def walk_ledger(buffer: Bytes, start: int) -> tuple[Positions, Positions, int]:
    """`ledger.walk_ledger`: starts and sizes of the records, and where the next header would be."""
    return _walked(buffer, start, LEDGER_HEADER.size)


def _walked(buffer: Bytes, start: int, header_size: int) -> tuple[Positions, Positions, int]:
    found = np.empty((2, max(len(buffer) - start, 0) // MIN_SIZE + 1), np.int64)
    count, stop = _walk(buffer, start, header_size, *found)
    return found[0, :count], found[1, :count], stop


@njit(
    types.UniTuple(types.int64, 2)(BYTES, types.int64, types.int64, OUT_POSITIONS, OUT_POSITIONS),
    nogil=True, cache=True, _nrt=False,
)  # fmt: skip
def _walk(buffer: Bytes, position: int, header_size: int, starts: Positions, sizes: Positions) -> tuple[int, int]:
    count, last = 0, len(buffer) - BLANK_SIZE
    while position <= last and count < len(starts):
        at, magic = position, int32_at(buffer, position + MAGIC_AT) & 0xFFFFFFFF
        if magic not in (MAGIC_V1, MAGIC_V2):
            at += header_size
            if not header_size or at > last:
                break
            magic = int32_at(buffer, at + MAGIC_AT) & 0xFFFFFFFF
        size = int32_at(buffer, at)
        if magic not in (MAGIC_V1, MAGIC_V2) or size < MIN_SIZE or size > len(buffer) - at:
            break
        starts[count], sizes[count] = at, size
        count += 1
        position = at + size
    return count, position


@njit(inline="always")
def hosts_size(flags: int) -> int:
    """Bytes of born and store host together."""
    born = HOST_V6 if flags & BORN_HOST_V6 else HOST_V4
    return born + (HOST_V6 if flags & STORE_HOST_V6 else HOST_V4)


@njit(inline="always")
def port_bits(buffer: Bytes, start: int, flags: int, hosts: int) -> int:
    """The bits of both ports, combined by OR."""
    born = start + HOSTS_AT + (HOST_V6 if flags & BORN_HOST_V6 else HOST_V4) - 4
    store = start + HOSTS_AT + hosts + 4
    bits: int = (int32_at(buffer, born) | int32_at(buffer, store)) & 0xFFFFFFFF
    return bits


@njit(inline="always")
def size_and_flaw(buffer: Bytes, start: int, size: int) -> tuple[int, int]:
    """The size that counts, and the flaw of magic or size."""
    magic = int32_at(buffer, start + MAGIC_AT) & 0xFFFFFFFF
    flaw = NONE if magic in (MAGIC_V1, MAGIC_V2) else MAGIC
    total = int32_at(buffer, start)
    if MIN_SIZE <= total <= size:
        return total, flaw
    return size, flaw or SIZE


@njit(inline="always")
def part_spans(buffer: Bytes, start: int, size: int, hosts: int) -> Any:
    """Start and size of body, topic and properties, and 1 if they fill the record; zeros if they do not."""
    second = int32_at(buffer, start + MAGIC_AT) & 0xFFFFFFFF == MAGIC_V2
    room = size - hosts - AROUND - second
    body = start + hosts + BODY_AT
    body_size = max(int32_at(buffer, body - 4), 0) if room >= 0 else 0
    if body_size > room:
        return 0, 0, 0, 0, 0, 0, 0
    room -= body_size
    topic = body + body_size + 1 + second
    topic_size = int16_at(buffer, topic - 2) if second else np.int64(np.int8(buffer[topic - 1]))
    if topic_size < 0 or topic_size > room:
        return 0, 0, 0, 0, 0, 0, 0
    properties = topic + topic_size + 2
    properties_size = max(int16_at(buffer, properties - 2), 0)
    if properties_size != room - topic_size:
        return 0, 0, 0, 0, 0, 0, 0
    return body, body_size, topic, topic_size, properties, properties_size, 1
