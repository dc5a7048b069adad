"""A record that fills the space of lost bytes in a commit log: brokers skip it, and no queue or index lists it.

It is a rolled-back transaction message (rocketmq.md 5.6). Where such records are put is up to the engine.
"""

from __future__ import annotations

import numpy as np
from isal.isal_zlib import crc32

from storage_core.formats.checksum import MASK
from storage_core.formats.rocketmq.message import HEADER_V4, MAGIC_V1, MIN_SIZE, ROLLBACK

TOPIC = b"F"
SMALLEST = MIN_SIZE + len(TOPIC)
LARGEST = 1 << 20
_LOCALHOST = 0x7F000001


def fillers(physical_offset: int, size: int, store_ms: int) -> bytes:
    """Records that fill `size` bytes from `physical_offset` on, none longer than 1 MiB.

    Raises ValueError if `size` is too small for a record, which takes at least 92 bytes.
    """
    if size < SMALLEST:
        raise ValueError(f"{size} bytes are too few for a record")
    parts, left = [], size
    while left:
        take = left if left <= LARGEST else min(LARGEST, left - SMALLEST)
        parts.append(_filler(physical_offset + size - left, take, store_ms))
        left -= take
    return b"".join(parts)


def _filler(physical_offset: int, size: int, store_ms: int) -> bytes:
    body = bytes(size - SMALLEST)
    head = np.zeros(1, HEADER_V4.dtype)
    head["total_size"], head["magic"], head["sys_flag"] = size, MAGIC_V1, ROLLBACK
    head["body_crc"] = crc32(body) & MASK if body else 0
    head["physical_offset"], head["body_length"] = physical_offset, len(body)
    head["born_ms"] = head["store_ms"] = store_ms
    head["born_address"] = head["store_address"] = _LOCALHOST
    return head.tobytes() + body + bytes((len(TOPIC),)) + TOPIC + bytes(2)
