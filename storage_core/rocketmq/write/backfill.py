"""The entries and keys that a broker's dispatcher would add to queues and index at its next start.

A writer adds them instead: they are only found here, and `publish` writes them after the commit point. `recovery`
decides which parts of the log are dispatched again. Source of the rules: interface.md 21, rocketmq.md 5.6.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from storage_core.files.open_files import OpenFiles
from storage_core.formats.layout import Positions
from storage_core.formats.rocketmq import paths
from storage_core.formats.rocketmq.consumequeue import QUEUE_ENTRY
from storage_core.formats.rocketmq.message import ROLLBACK, TRANSACTION_MASK
from storage_core.rocketmq.disk.tags_code import tags_codes
from storage_core.rocketmq.index.index_files import hashes_of
from storage_core.rocketmq.index.index_writer import Keys
from storage_core.rocketmq.recovery.recovery import dispatched_records
from storage_core.rocketmq.recovery.redispatch import redispatched
from storage_core.rocketmq.recovery.unfinished import StoreState
from storage_core.store import QueueKey


@dataclass(frozen=True)
class MissingEntries:
    """Consecutive entries of one queue, from queue offset `first` on, that only the log has. Arrays have shape (n,).

    `store_ms` is the store time of the last record.
    """

    key: QueueKey
    first: int
    physical_offsets: Positions
    sizes: Positions
    tags_codes: npt.NDArray[np.int64]
    store_ms: int


def missing_entries(store: StoreState) -> Iterator[MissingEntries]:
    """The entries that a broker's dispatcher would append to the queues, in log order, but none of a queue that cannot
    have a folder.
    """
    with OpenFiles() as files:
        for run, entries in redispatched(store.listing.log, store.verdict, files):
            codes = tags_codes(run.messages)[entries.rows]
            times = run.messages.column("store_ms")[entries.rows]
            for number in np.unique(entries.queue).tolist():
                if not paths.has_folder(*entries.keys[number]):
                    continue
                rows = np.flatnonzero(entries.queue == number)
                yield MissingEntries(
                    entries.keys[number], int(entries.queue_offsets[rows[0]]), entries.physical_offsets[rows],
                    entries.sizes[rows], codes[rows], int(times[rows[-1]]),
                )  # fmt: skip


def unindexed(store: StoreState, after: int) -> Iterator[Keys]:
    """Keys of the records after the one at address `after`, which is the last one in the index."""
    verdict = store.verdict
    with OpenFiles() as files:
        for run in dispatched_records(store.listing.log, files, after, verdict.log_end, verdict.rules):
            messages = run.messages
            later = messages.column("physical_offset") > after
            wanted = later & (messages.column("sys_flag") & TRANSACTION_MASK != ROLLBACK)
            if not wanted.any():
                continue
            hashes, rows = hashes_of(messages)
            counts = np.where(wanted, np.bincount(rows, minlength=len(messages)), 0)[later]
            # In record order; within a record the hashes keep their order, UNIQ_KEY first.
            order = np.argsort(rows, kind="stable")
            hashes = hashes[order][wanted[rows[order]]]
            yield Keys(hashes, counts, messages.column("physical_offset")[later], messages.column("store_ms")[later])


def last_store_ms(store: StoreState) -> int:
    """The store time of the last record of the log; 0 if the log is empty."""
    listing, verdict = store.listing, store.verdict
    with OpenFiles() as files:
        start = max((file.base_offset for file in listing.log.files if file.base_offset < verdict.log_end), default=0)
        for key, queue in listing.queues.items():
            stop = verdict.queues[key].disk_stop
            if stop * QUEUE_ENTRY.size > queue.chain.start:
                start = max(start, int(queue.offsets(files, stop - 1, stop)[0]))
        last = 0
        for run in dispatched_records(listing.log, files, start, verdict.log_end, verdict.rules):
            last = int(run.messages.column("store_ms")[-1])
    return last
