"""How a RocketMQ store was left: running, stopped or crashed, and what a broker start would cut.

Source of the rules: rocketmq.md 5.2, 5.4, interface.md 8.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

from storage_core.files.lock import is_locked
from storage_core.files.open_files import OpenFiles
from storage_core.formats.rocketmq import paths
from storage_core.rocketmq.disk.config_files import delay_offsets
from storage_core.rocketmq.disk.directory import Listing
from storage_core.rocketmq.disk.ledger import LedgerChain
from storage_core.rocketmq.read.snapshot import RocketSnapshot
from storage_core.rocketmq.recovery.verdict import Rules
from storage_core.rocketmq.verify.folders import wrong_files
from storage_core.rocketmq.verify.kinds import Subject
from storage_core.store import StoreState

LARGEST_HASH = (1 << 31) - 1
"""The hash of a tag is at most this large; a time in this century is larger."""
VERSIONS = {Rules.V4: "4.9", Rules.V5: "5.x", Rules.NONE: "none"}


def store_state(snapshot: RocketSnapshot, unfinished_write: bool) -> StoreState:
    """The state of a snapshot's store. Walks the log as recovery does."""
    listing, verdict = snapshot.served.listing, snapshot.served.verdict
    cut, delayed_to = snapshot.bytes_after_end(), delay_offsets(listing.root)
    replicated = isinstance(listing.log, LedgerChain)
    return StoreState(
        version=VERSIONS[verdict.rules],
        running=is_locked(os.path.join(listing.root, paths.LOCK)),
        clean=not listing.abort,
        cut_bytes=cut,
        cut_offset=verdict.log_end if cut else None,
        unfinished_write=unfinished_write,
        delay_offsets=delayed_to,
        due_ms=dict(_due_times(listing, snapshot, delayed_to)),
        repairable=(bool(cut) and not replicated)
        or any(finding.repairable for finding in wrong_files(Subject(listing, verdict))),
        replicated=replicated,
    )


def _due_times(
    listing: Listing, snapshot: RocketSnapshot, delayed_to: Mapping[int, int]
) -> Iterator[tuple[int, tuple[int, int]]]:
    """By delay level, the due times of the first and the last pending message.

    A broker noted them in the entries (rocketmq.md 3.2). A level where it noted something else is left out.
    """
    with OpenFiles() as files:
        for info in snapshot.queues():
            queue = listing.queues.get((info.topic, info.queue_id))
            if info.topic != paths.SCHEDULE_TOPIC or queue is None or not queue.chain.files:
                continue
            level = info.queue_id + 1
            start = max(info.start, delayed_to.get(level, 0))
            stop = min(info.stop, queue.valid_stop(files))
            if start < stop:
                ends = (queue.entries(files, at, at + 1)["tags_code"][0] for at in (start, stop - 1))
                first, last = (int(code) for code in ends)
                if min(first, last) > LARGEST_HASH:
                    yield level, (first, last)
