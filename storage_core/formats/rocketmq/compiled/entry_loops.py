"""Puts entries of several queues into the order of the log. The rules are documented at `consumequeue.in_log_order`."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit, types

from storage_core.compiled.calls import int32_at, int64_at
from storage_core.compiled.span_loops import BYTES, NUMBERS, OUT_NUMBERS, OUT_POSITIONS, POSITIONS, Numbers
from storage_core.formats.layout import Bytes, Positions
from storage_core.formats.rocketmq.consumequeue import BLANK_SIZE, QUEUE_ENTRY, EntryRanges, LogBounds

WIDTH = QUEUE_ENTRY.size
SIZE_AT = QUEUE_ENTRY.field("size").offset
NOT_PLAIN, IN_ORDER, MIXED = -1, 0, 1


def in_log_order(
    entries: npt.NDArray[Any], ranges: EntryRanges, log: LogBounds, bits: int
) -> tuple[Numbers, Positions, Positions, Positions] | None:
    """`consumequeue.in_log_order`. The number of an entry fits into `bits` bits, the log's length into the others."""
    count = int(ranges.bounds[-1] - ranges.backs.sum())
    keys, of_range = np.empty(count, np.int64), np.empty(len(entries), np.int32)
    raw = entries.view(np.uint8)
    state = _take(raw, ranges.bounds, ranges.backs, log.start, log.stop, log.bases, log.ends, bits, keys, of_range)
    if state == NOT_PLAIN:
        return None
    if state == MIXED:
        keys.sort(kind="stable")
    queue, out = np.empty(count, np.int32), np.empty((3, count), np.int64)
    shifts = ranges.starts - ranges.bounds[:-1] - ranges.backs
    _give(keys, (1 << bits) - 1, raw, of_range, shifts, ranges.queues, queue, *out)
    return queue, out[0], out[1], out[2]


@njit(types.int64(BYTES, POSITIONS, POSITIONS, types.int64, types.int64, POSITIONS, POSITIONS, types.int64,
                  OUT_POSITIONS, OUT_NUMBERS), nogil=True, cache=True)  # fmt: skip
def _take(
    raw: Bytes,
    bounds: Positions,
    backs: Positions,
    start: int,
    stop: int,
    bases: Positions,
    ends: Positions,
    bits: int,
    keys: Positions,
    of_range: Numbers,
) -> int:
    """Fills `keys`, which sort the entries into log order: address from `start` on, and number."""
    filled, file, before, state = 0, 0, -1, IN_ORDER
    if not len(bases):
        return NOT_PLAIN
    for number in range(len(bounds) - 1):
        own = bounds[number] + backs[number]
        for at in range(bounds[number], bounds[number + 1]):
            address, size = int64_at(raw, at * WIDTH), int32_at(raw, at * WIDTH + SIZE_AT)
            if size <= 0 or size == BLANK_SIZE or address < start or address > stop - size:
                return NOT_PLAIN
            if not bases[file] <= address < ends[file]:
                file = np.searchsorted(bases, address, "right") - 1
            if file < 0 or address < bases[file] or address > ends[file] - size:
                return NOT_PLAIN
            of_range[at] = number
            if at >= own:
                keys[filled] = (address - start) << bits | at
                if address < before:
                    state = MIXED
                before = address
                filled += 1
    return state


@njit(types.void(POSITIONS, types.int64, BYTES, NUMBERS, POSITIONS, NUMBERS, OUT_NUMBERS,
                 OUT_POSITIONS, OUT_POSITIONS, OUT_POSITIONS), nogil=True, cache=True)  # fmt: skip
def _give(
    keys: Positions,
    mask: int,
    raw: Bytes,
    of_range: Numbers,
    shifts: Positions,
    queues: Numbers,
    out_queues: Numbers,
    out_queue_offsets: Positions,
    out_addresses: Positions,
    out_sizes: Positions,
) -> None:
    for row in range(len(keys)):
        at = keys[row] & mask
        number = of_range[at]
        out_queues[row], out_queue_offsets[row] = queues[number], shifts[number] + at
        out_addresses[row], out_sizes[row] = int64_at(raw, at * WIDTH), int32_at(raw, at * WIDTH + SIZE_AT)
