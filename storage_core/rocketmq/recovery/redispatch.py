"""Queue entries that a dispatcher has yet to write: those of the parts of the log that a broker start dispatches again.

The rules are `dispatch`'s, the parts come from `recovery`. Readers, time search and writers all walk the parts here.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from storage_core.files.file_chain import FileChain
from storage_core.files.open_files import OpenFiles
from storage_core.rocketmq.disk.commit_log import RecordRun
from storage_core.rocketmq.recovery.batch_queues import BatchEntries, batch_entries
from storage_core.rocketmq.recovery.dispatch import AppendedEntries, Dispatcher
from storage_core.rocketmq.recovery.recovery import dispatched_records
from storage_core.rocketmq.recovery.verdict import Rules, Verdict


def redispatched(log: FileChain, verdict: Verdict, files: OpenFiles) -> Iterator[tuple[RecordRun, AppendedEntries]]:
    """Records of the verdict's replays in log order, and the entries that a broker start appends for them and keeps.

    `rows` of the entries are record numbers in the run. Both are valid until the next step.
    """
    for replay in verdict.replays:
        is_batch = verdict.batch_topics.__contains__
        dispatcher = Dispatcher(replay.tails, verdict.entries_per_file, verdict.rules is Rules.V5, is_batch)
        for run in dispatched_records(log, files, replay.start, replay.stop, verdict.rules):
            entries = dispatcher.feed(run)
            if replay.void:
                stays = np.array([key not in replay.void for key in entries.keys], bool)
                entries = entries.take(stays[entries.queue])
            yield run, entries


def redispatched_batches(
    log: FileChain, verdict: Verdict, files: OpenFiles
) -> Iterator[tuple[RecordRun, BatchEntries]]:
    """`redispatched` for batch queues: the entries that a broker start appends to those in the verdict's `batches`, and
    those that their files list for the same part of the log.
    """
    if not verdict.batches:
        return
    start = min(tail.first_physical_offset for tail in verdict.batches.values())
    topics = {topic for topic, _ in verdict.batches}
    for run in dispatched_records(log, files, start, verdict.log_end, verdict.rules):
        entries = batch_entries(run, topics)
        if entries is not None:
            yield run, entries
