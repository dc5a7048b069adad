"""Whether entries of a queue are where a dispatcher put them: it appends in log order.

The queue offset that a record states need not be the number of its entry (rocketmq.md 3.3), so its neighbours in the
queue are used to distinguish an entry that a dispatcher wrote from a damaged one.
"""

from __future__ import annotations

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from storage_core.files.open_files import OpenFiles
from storage_core.formats.layout import Mask, Positions
from storage_core.formats.rocketmq.consumequeue import BLANK_SIZE, QUEUE_ENTRY
from storage_core.rocketmq.disk.consume_queue import ConsumeQueue

AROUND = 4
APART = 1 << 12
"""Two requested entries at most this far apart are read together with those between them, not separately."""


def stand_in_order(queue: ConsumeQueue, files: OpenFiles, queue_offsets: Positions, log_end: int) -> Mask:
    """Which entries point behind at least half of the four before them and ahead of at least half of the four after
    them, and to the record of none of these. Shape (n,).

    Neighbours that name no record below the end of the log are ignored.
    """
    order = np.argsort(queue_offsets)
    ascending = queue_offsets[order]
    out = np.zeros(len(order), bool)
    for rows in np.split(np.arange(len(order)), np.flatnonzero(np.diff(ascending) > APART) + 1):
        if len(rows):
            out[order[rows]] = _in_order(queue, files, ascending[rows], log_end)
    return out


def _in_order(queue: ConsumeQueue, files: OpenFiles, queue_offsets: Positions, log_end: int) -> Mask:
    """`stand_in_order` for ascending queue offsets that are close to each other."""
    first, stop = int(queue_offsets[0]) - AROUND, int(queue_offsets[-1]) + AROUND + 1
    around = np.full(stop - first, -1, np.int64)
    start = max(first, queue.start)
    entries = queue.entries(files, start, min(stop, queue.chain.stop // QUEUE_ENTRY.size))
    physical_offsets, sizes = entries["physical_offset"].astype(np.int64), entries["size"]
    named = (sizes > 0) & (sizes != BLANK_SIZE) & (physical_offsets < log_end)
    around[start - first :][: len(entries)] = np.where(named, physical_offsets, -1)
    windows = sliding_window_view(around, 2 * AROUND + 1)[queue_offsets - queue_offsets[0]]
    later = np.sign(windows - windows[:, [AROUND]]) * (windows >= 0)
    before, after = later[:, :AROUND], later[:, AROUND + 1 :]
    others = (windows >= 0).sum(axis=1) - 1
    right: Mask = np.count_nonzero(later, axis=1) == others
    right &= (before.sum(axis=1) <= 0) & (after.sum(axis=1) >= 0)
    return right
