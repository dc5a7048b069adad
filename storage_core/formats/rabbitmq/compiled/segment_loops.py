"""Reads a segment file of a queue's index in one pass. `classic.segment` documents the rules."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit, types

from storage_core.compiled.calls import copy, int16_at, int32_at, int64_at
from storage_core.compiled.span_loops import BYTES, OUT_BYTES, OUT_POSITIONS, POSITIONS
from storage_core.formats.layout import Bytes, Mask, Positions
from storage_core.formats.rabbitmq.classic.index_records import (
    ACKED,
    DELIVERED,
    PERSISTENT,
    PUBLISHED,
    Flags,
    PublishRows,
)
from storage_core.formats.rabbitmq.classic.segment import MARK, PUBLISH, RELATIVE_MASK

PUBLISH_SIZE, MARK_SIZE = PUBLISH.size, MARK.size
ID_AT, EXPIRY_AT, SIZE_AT, EMBEDDED_AT = (
    PUBLISH.field(name).offset for name in ("id", "expiry", "size", "embedded_size")
)
ID_SIZE = PUBLISH.dtype["id"].itemsize
IS_PUBLISH, IS_PERSISTENT, IS_MARK = 0x80, 0x40, 0x40
"""Bits of a record's first byte."""


def content(buffer: Bytes, entry_count: int) -> tuple[Flags, Positions] | None:
    """Compiled form of `classic.segment.content`."""
    flags, positions = np.zeros(entry_count, np.uint8), np.zeros(entry_count, np.int64)
    return (flags, positions) if _fill(buffer, flags, positions) else None


def publishes_into(
    buffer: Bytes, flags: Flags, positions: Positions, first_sequence_id: int, target: PublishRows
) -> Positions:
    """Compiled form of `index_records.publishes_into`."""
    acked = np.empty(target.count, np.int64)
    count = _publishes_into(
        buffer, flags, positions, first_sequence_id, target.sequence_ids, target.positions,
        target.expiries.view(np.int64), target.lengths, target.sizes, target.flags, target.persistent,
        target.ids.view(np.uint8), target.with_ids, target.stored, acked,
    )  # fmt: skip
    if count < 0:
        raise ValueError("a publish lies outside of its segment, or there is not a row for each")
    return acked[:count]


@njit(types.int64(BYTES, BYTES, POSITIONS, types.int64, OUT_POSITIONS, OUT_POSITIONS, OUT_POSITIONS, OUT_POSITIONS,
                  types.uint32[::1], OUT_BYTES, types.int64, OUT_BYTES, types.boolean, types.boolean[::1],
                  OUT_POSITIONS), nogil=True, cache=True)  # fmt: skip
def _publishes_into(
    buffer: Bytes, known: Flags, places: Positions, first_sequence_id: int, sequence_ids: Positions,
    positions: Positions, expiries: Positions, lengths: Positions, sizes: npt.NDArray[np.uint32], flags: Flags,
    persistent: int, ids: Bytes, with_ids: bool, stored: Mask, acked: Positions,
) -> int:  # fmt: skip
    row = acked_count = 0
    for relative in range(len(known)):
        records = known[relative]
        if not records & PUBLISHED:
            continue
        start = places[relative]
        if not 0 <= start <= len(buffer) - PUBLISH_SIZE or row >= len(stored):
            return -1
        embedded_size = int32_at(buffer, start + EMBEDDED_AT) & 0xFFFFFFFF
        sequence_ids[row], positions[row] = first_sequence_id + relative, start
        expiries[row], lengths[row] = int64_at(buffer, start + EXPIRY_AT), PUBLISH_SIZE + embedded_size
        sizes[row] = int32_at(buffer, start + SIZE_AT)
        if records & PERSISTENT:
            flags[row] |= persistent
        stored[row] = embedded_size == 0
        if with_ids or embedded_size == 0:
            copy(ids, row * ID_SIZE, buffer, start + ID_AT, ID_SIZE)
        if records & ACKED:
            acked[acked_count] = first_sequence_id + relative
            acked_count += 1
        row += 1
    return acked_count if row == len(stored) else -1


@njit(types.boolean(BYTES, OUT_BYTES, OUT_POSITIONS), nogil=True, cache=True)
def _fill(buffer: Bytes, flags: Flags, positions: Positions) -> bool:
    """Fills `flags` and `positions`; returns whether all records are in order."""
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
