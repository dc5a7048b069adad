"""What a commit does to each record, entry and key, in one pass each. The rules are documented at the numpy twins.

No loop reads or writes outside the arrays that it is given.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit, types

from storage_core.compiled.calls import store_int32, store_int64
from storage_core.compiled.span_loops import MASKS, NUMBERS, OUT_BYTES, OUT_NUMBERS, POSITIONS, Numbers, positions
from storage_core.formats.layout import Bytes, Mask, Positions
from storage_core.formats.rocketmq.consumequeue import QUEUE_ENTRY
from storage_core.formats.rocketmq.indexfile import ENTRY
from storage_core.formats.rocketmq.message import (
    HEAD_SIZE,
    PHYSICAL_OFFSET_AT,
    QUEUE_OFFSET_AT,
    STORE_MS_AT,
    STORE_MS_AT_V6,
)

QUEUE_SIZE_AT, TAGS_CODE_AT = QUEUE_ENTRY.field("size").offset, QUEUE_ENTRY.field("tags_code").offset
OFFSET_AT, SECONDS_AT, PREVIOUS_AT = (ENTRY.field(name).offset for name in ("physical_offset", "seconds", "previous"))
QUEUE_ENTRY_SIZE, INDEX_ENTRY_SIZE = QUEUE_ENTRY.size, ENTRY.size
MOST = 0x7FFFFFFF


def patch(
    data: Bytes, starts: Positions, offsets: Positions, physical_offsets: Positions, store_ms: int, v6: Mask
) -> None:
    """`encode.patch`. Raises ValueError if a record lies outside its buffer."""
    wide = np.ascontiguousarray(v6, bool)
    if not _patch(data, positions(starts), positions(offsets), positions(physical_offsets), store_ms, wide):
        raise ValueError("a record lies outside of its buffer")


def queue_entries(
    physical_offsets: Positions, sizes: Positions, tags_codes: Positions, order: Positions
) -> npt.NDArray[Any]:
    """`consumequeue.encode_entries` of the records `order`."""
    entries = np.empty(len(order) * QUEUE_ENTRY.size, np.uint8)
    columns = positions(physical_offsets), positions(sizes), positions(tags_codes)
    if not _queue_entries(*columns, positions(order), entries):
        raise ValueError("there is no such record")
    return entries.view(QUEUE_ENTRY.dtype)


def put(
    hashes: Numbers, physical_offsets: Positions, store_ms: Positions, first: int, begins_ms: tuple[int, int],
    slots: Numbers,
) -> tuple[npt.NDArray[Any], int]:  # fmt: skip
    """The entries that `index_insert.put_into` appends from number `first` on, and how many found their slot empty.

    `begins_ms`: the file's begin time for the first entry, and for those after it.
    """
    entries = np.empty(len(hashes) * ENTRY.size, np.uint8)
    columns = np.ascontiguousarray(hashes, np.int32), positions(physical_offsets), positions(store_ms)
    empty = _put(*columns, first, *begins_ms, slots, entries)
    return entries.view(ENTRY.dtype), empty


@njit(types.boolean(OUT_BYTES, POSITIONS, POSITIONS, POSITIONS, types.int64, MASKS), nogil=True, cache=True)
def _patch(
    data: Bytes, starts: Positions, offsets: Positions, physical_offsets: Positions, store_ms: int, v6: Mask
) -> bool:
    for row in range(len(starts)):
        at = starts[row]
        if not 0 <= at <= len(data) - HEAD_SIZE:
            return False
        store_int64(data, at + QUEUE_OFFSET_AT, offsets[row])
        store_int64(data, at + PHYSICAL_OFFSET_AT, physical_offsets[row])
        store_int64(data, at + (STORE_MS_AT_V6 if v6[row] else STORE_MS_AT), store_ms)
    return True


@njit(types.boolean(POSITIONS, POSITIONS, POSITIONS, POSITIONS, OUT_BYTES), nogil=True, cache=True)
def _queue_entries(
    physical_offsets: Positions, sizes: Positions, tags_codes: Positions, order: Positions, entries: Bytes
) -> bool:
    for place in range(len(order)):
        row, at = order[place], place * QUEUE_ENTRY_SIZE
        if not 0 <= row < len(physical_offsets):
            return False
        store_int64(entries, at, physical_offsets[row])
        store_int32(entries, at + QUEUE_SIZE_AT, np.int32(sizes[row]))
        store_int64(entries, at + TAGS_CODE_AT, tags_codes[row])
    return True


@njit(
    types.int64(NUMBERS, POSITIONS, POSITIONS, types.int64, types.int64, types.int64, OUT_NUMBERS, OUT_BYTES),
    nogil=True,
    cache=True,
)
def _put(
    hashes: Numbers, physical_offsets: Positions, store_ms: Positions, first: int, first_begin_ms: int, begin_ms: int,
    slots: Numbers, entries: Bytes,
) -> int:  # fmt: skip
    empty = 0
    for row in range(len(hashes)):
        slot, at = np.int64(hashes[row]) % len(slots), row * INDEX_ENTRY_SIZE
        previous = max(slots[slot], np.int32(0))
        slots[slot] = np.int32(first + row)
        begin = begin_ms if row else first_begin_ms
        seconds = (store_ms[row] - begin) // 1000 if 0 < begin <= store_ms[row] else 0
        store_int32(entries, at, hashes[row])
        store_int64(entries, at + OFFSET_AT, physical_offsets[row])
        store_int32(entries, at + SECONDS_AT, np.int32(min(seconds, MOST)))
        store_int32(entries, at + PREVIOUS_AT, previous)
        empty += previous == 0
    return empty
