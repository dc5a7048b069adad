"""How 4.9's dispatcher counts a record whose lengths do not add up to its TOTALSIZE. Source: rocketmq.md 5.5."""

from __future__ import annotations

from collections.abc import Callable

from storage_core.formats.rocketmq.message import (
    BORN_HOST_V6,
    HEADER,
    HEADER_V4,
    HOST_V4,
    HOST_V6,
    MAGIC_V1,
    STORE_HOST_V6,
)
from storage_core.formats.rocketmq.paths import SCHEDULE_TOPIC
from storage_core.formats.rocketmq.properties import delay_ms, property_of

Read = Callable[[int, int], bytes]
"""(position from the record's first byte, size) → bytes, fewer where the file ends."""


def misread_sizes(read: Read) -> tuple[int, int] | None:
    """TOTALSIZE, by which the dispatcher counts on, and the length of the fields, behind which it reads on.

    None where it finds nothing to read on from: no record, fields that do not fit into the file, or a right record.
    """
    head = read(0, HEADER.size)
    if len(head) < HEADER.size:
        return None
    size, flags = (_number(head, HEADER.field(name).offset, 4) for name in ("total_size", "sys_flag"))
    if _number(head, HEADER.field("magic").offset, 4) & 0xFFFFFFFF != MAGIC_V1 or size <= 0:
        return None
    born, stored = (HOST_V6 if flags & bit else HOST_V4 for bit in (BORN_HOST_V6, STORE_HOST_V6))
    at = HEADER_V4.size - 2 * HOST_V4 + born + stored
    body = _length(read, at - 4, 4)
    if body is None or max(born, stored) > size:
        return None
    at += max(body, 0)
    topic_size = _length(read, at, 1)
    if topic_size is None or not 0 <= topic_size <= size:
        return None
    topic = read(at + 1, topic_size)
    at += 1 + topic_size
    properties_size = _length(read, at, 2)
    if properties_size is None or len(topic) < topic_size:
        return None
    properties_size = max(properties_size, 0)
    properties = read(at + 2, properties_size)
    at += 2 + properties_size
    if len(properties) < properties_size or properties_size > size or at == size:
        return None
    if topic == SCHEDULE_TOPIC.encode() and delay_ms(property_of(properties, "DELAY")) is None:
        return None
    return size, at


def _length(read: Read, position: int, width: int) -> int | None:
    data = read(position, width)
    return _number(data, 0, width) if len(data) == width else None


def _number(data: bytes, position: int, width: int) -> int:
    return int.from_bytes(data[position : position + width], "big", signed=True)
