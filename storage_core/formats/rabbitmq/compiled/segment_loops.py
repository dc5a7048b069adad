"""A segment file of a queue's index read in one pass. The rules stand at `classic.segment`."""

from __future__ import annotations

import numpy as np
from numba import njit, types

from storage_core.compiled.calls import copy, int16_at, int32_at
from storage_core.compiled.span_loops import BYTES, OUT_BYTES, OUT_POSITIONS, POSITIONS
from storage_core.formats.layout import Bytes, Positions
from storage_core.formats.rabbitmq.classic.index_records import (
    ACKED,
    DELIVERED,
    PERSISTENT,
    PUBLISHED,
    Flags,
    SegmentPublishes,
)
from storage_core.formats.rabbitmq.classic.segment import MARK, PUBLISH, RELATIVE_MASK

PUBLISH_SIZE, MARK_SIZE = PUBLISH.size, MARK.size
EMBEDDED_AT = PUBLISH.field("embedded_size").offset
IS_PUBLISH, IS_PERSISTENT, IS_MARK = 0x80, 0x40, 0x40
"""Bits of a record's first byte."""


def content(buffer: Bytes, entry_count: int) -> tuple[Flags, Positions] | None:
    """`classic.segment.content`."""
    flags, positions = np.zeros(entry_count, np.uint8), np.zeros(entry_count, np.int64)
    return (flags, positions) if _fill(buffer, flags, positions) else None


def publishes(buffer: Bytes, flags: Flags, positions: Positions) -> SegmentPublishes:
    """`index_records.segment_publishes`."""
    count = int(np.count_nonzero(flags & PUBLISHED))
    relatives, starts, kept = np.empty(count, np.int64), np.empty(count, np.int64), np.empty(count, np.uint8)
    heads = np.empty(count, PUBLISH.dtype)
    if not _copy_publishes(buffer, flags, positions, relatives, starts, kept, heads.view(np.uint8)):
        raise ValueError("a publish lies outside of its segment")
    return SegmentPublishes(relatives, starts, kept, heads)


@njit(types.boolean(BYTES, BYTES, POSITIONS, OUT_POSITIONS, OUT_POSITIONS, OUT_BYTES, OUT_BYTES), nogil=True,
      cache=True)  # fmt: skip
def _copy_publishes(
    buffer: Bytes, flags: Flags, positions: Positions, relatives: Positions, starts: Positions, kept: Flags,
    heads: Bytes,
) -> bool:  # fmt: skip
    row = 0
    for relative in range(len(flags)):
        if flags[relative] & PUBLISHED:
            start = positions[relative]
            if not 0 <= start <= len(buffer) - PUBLISH_SIZE:
                return False
            relatives[row], starts[row], kept[row] = relative, start, flags[relative]
            copy(heads, row * PUBLISH_SIZE, buffer, start, PUBLISH_SIZE)
            row += 1
    return True


@njit(types.boolean(BYTES, OUT_BYTES, OUT_POSITIONS), nogil=True, cache=True)
def _fill(buffer: Bytes, flags: Flags, positions: Positions) -> bool:
    """Whether all records are in order."""
    at, stop = 0, len(buffer)
    while at < stop:
        first = buffer[at]
        size = PUBLISH_SIZE if first & IS_PUBLISH else MARK_SIZE
        if at + size > stop or not first & (IS_PUBLISH | IS_MARK):
            return False
        relative = int16_at(buffer, at) & RELATIVE_MASK
        if relative >= len(flags):
            return False
        known = flags[relative]
        if first & IS_PUBLISH:
            size += int32_at(buffer, at + EMBEDDED_AT) & 0xFFFFFFFF
            if known or at + size > stop:
                return False
            flags[relative] = PUBLISHED | PERSISTENT if first & IS_PERSISTENT else PUBLISHED
            positions[relative] = at
        else:
            if not known or known & ACKED:
                return False
            flags[relative] = known | (ACKED if known & DELIVERED else DELIVERED)
        at += size
    return True
