"""Checks batch queues and the files of compacted topics: which exist, and whether each entry has its record.

A broker loads the files of compacted topics by folder, whatever topics.json states. Source of the rules: rocketmq.md
3.7, 3.9.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator

import numpy as np
import pyarrow.compute as pc

from storage_core.arrays import as_mask
from storage_core.files.file_chain import FileChain
from storage_core.files.open_files import OpenFiles
from storage_core.files.small_file import names_in
from storage_core.finding import Finding
from storage_core.formats.rocketmq import paths
from storage_core.formats.rocketmq.consumequeue import BATCH_ENTRY
from storage_core.formats.rocketmq.message import FLAWS, Flaw
from storage_core.rocketmq.disk.batch_queue import BatchQueue, addresses, compacted_queues
from storage_core.rocketmq.disk.config_files import batch_topics, compacted_topics
from storage_core.rocketmq.disk.record_reader import RecordReader
from storage_core.rocketmq.recovery.batch_queues import batch_entries, dispatched_ranges, served_batched
from storage_core.rocketmq.recovery.recovery import dispatched_records
from storage_core.rocketmq.verify.folders import strays_in
from storage_core.rocketmq.verify.kinds import Kind, Subject, counted
from storage_core.store import QueueKey

NO_ADDRESSES = np.empty(0, np.int64)


def wrong_batched(subject: Subject) -> Iterator[Finding]:
    """Findings about batch queues, and the logs and entries of compacted topics; none for 4.9, which ignores both."""
    if subject.is_4_9:
        return
    yield from _wrong_types(subject)
    for key, chain in subject.listing.batch_queues.items():
        queue = BatchQueue(subject.listing.log, chain, is_compacted=False, log_end=subject.verdict.log_end)
        with OpenFiles() as files:
            for index in range(len(chain.files)):
                yield from _wrong_entries(subject, key, queue, index, files)
    yield from _unlisted(subject)
    if subject.listing.has_compaction:
        yield from _wrong_compacted(subject)


def _wrong_types(subject: Subject) -> Iterator[Finding]:
    """Queues in the folder of another type than topics.json states."""
    root, listing = subject.listing.root, subject.listing
    stated = batch_topics(root)
    others = [(paths.BATCH_CONSUME_QUEUE, key) for key in listing.batch_queues if key[0] not in stated]
    others += [(paths.CONSUME_QUEUE, key) for key in listing.queues if key[0] in stated]
    for folder, key in others:
        reason = "topics.json says that its topic has " + ("batch queues" if key[0] in stated else "no batch queues")
        path = os.path.join(root, folder, key[0], str(key[1]))
        yield subject.finding(Kind.QUEUE_TYPE, path, 0, 0, reason, queue=key, repairable=False)


def _unlisted(subject: Subject) -> Iterator[Finding]:
    """Messages of batch topics that are in no entry and that no start will list, except those of deleted queues."""
    log, verdict, root = subject.listing.log, subject.verdict, subject.listing.root
    if not (topics := batch_topics(root)):
        return
    found: dict[QueueKey, list[tuple[int, int]]] = {}
    with OpenFiles() as files:
        queues = served_batched(subject.listing, verdict, (), files)
        listed = {key: addresses(queue, files) for key, queue in queues.items()}
        for run in dispatched_records(log, files, log.start, verdict.log_end, verdict.rules):
            if (entries := batch_entries(run, topics)) is None:
                continue
            for number, key in enumerate(entries.keys):
                rows, begins = entries.of(number)
                if begins:
                    found.pop(key, None)
                tail = verdict.batches.get(key)
                if tail is not None:
                    rows = rows[entries.physical_offsets[rows] < tail.first_physical_offset]
                lost = rows[~np.isin(entries.physical_offsets[rows], listed.get(key, NO_ADDRESSES))]
                if len(lost):
                    spans = zip(entries.queue_offsets[lost].tolist(), entries.stops[lost].tolist(), strict=True)
                    found.setdefault(key, []).extend(spans)
    for key, gone in sorted(found.items()):
        count, first, last = sum(stop - start for start, stop in gone), gone[0][0], gone[-1][1] - 1
        reason = f"queue offsets {first} to {last}: {counted(count, 'message is', 'messages are')} in no queue file"
        path = os.path.join(root, paths.BATCH_CONSUME_QUEUE, key[0], str(key[1]))
        yield subject.finding(Kind.UNLISTED_BATCH, path, 0, 0, reason, queue=key, repairable=paths.has_folder(*key))


def _wrong_compacted(subject: Subject) -> Iterator[Finding]:
    root = subject.listing.root
    stated = compacted_topics(root)
    folders = [os.path.join(root, folder) for folder in (paths.COMPACTION_LOG, paths.COMPACTION_QUEUE)]
    for topic in sorted({name for folder in folders for name in names_in(folder)}):
        for key, queue in compacted_queues(root, topic).items():
            if queue.is_half:
                yield from _half(subject, key, queue) if topic in stated else ()
                continue
            yield from _wrong_files(subject, key, queue)
            for folder in folders:
                yield from strays_in(subject, os.path.join(folder, key[0], str(key[1])), key)
            with OpenFiles() as files:
                if queue.begins_empty(files):
                    path, reason = queue.entry_files.files[0].path, "the first file of entries has none"
                    yield subject.finding(Kind.UNSERVED, path, 0, 0, reason, queue=key, repairable=False)
                for index, file in enumerate(queue.entry_files.files):
                    if file.base_offset in queue.log.bases:
                        yield from _wrong_entries(subject, key, queue, index, files)


def _half(subject: Subject, key: QueueKey, queue: BatchQueue) -> Iterator[Finding]:
    """A finding about the folder that a compacted queue lacks: a broker opens neither, also to dispatch a message."""
    has, lacks = paths.COMPACTION_LOG, paths.COMPACTION_QUEUE
    if queue.entry_files.files:
        has, lacks = lacks, has
    path = os.path.join(subject.listing.root, lacks, key[0], str(key[1]))
    reason = f"the folder is missing, and that in {has} has files"
    yield subject.finding(Kind.UNSERVED, path, 0, 0, reason, queue=key, repairable=False)


def _wrong_files(subject: Subject, key: QueueKey, queue: BatchQueue) -> Iterator[Finding]:
    for chain, other, missing in (
        (queue.log, queue.entry_files, "no file of entries has its name"),
        (queue.entry_files, queue.log, "no file of the log has its name"),
    ):
        common = _common_size(chain)
        for file in chain.files:
            if file.base_offset not in other.bases:
                yield _of_file(subject, key, file.path, missing)
            elif file.size != common:
                yield _of_file(subject, key, file.path, f"it has {file.size:,} bytes, the others {common:,}")


def _common_size(chain: FileChain) -> int:
    return Counter(file.size for file in chain.files).most_common(1)[0][0] if chain.files else 0


def _of_file(subject: Subject, key: QueueKey, path: str, reason: str) -> Finding:
    return subject.finding(Kind.COMPACTION_FILE, path, 0, 0, reason, queue=key, repairable=False)


def _wrong_entries(
    subject: Subject, key: QueueKey, queue: BatchQueue, index: int, files: OpenFiles
) -> Iterator[Finding]:
    entries = queue.entries(files, index)
    addresses = entries["physical_offset"].astype(np.int64)
    kind = Kind.COMPACTED_ENTRY if queue.is_compacted else Kind.BATCH_ENTRY
    reader = RecordReader(queue.log, files, min(queue.log.stop, queue.log_end))
    for first, messages in reader.records(addresses):
        part = entries[first : first + len(messages)]
        if queue.is_compacted:  # bodies in the commit log are checked with the log
            messages.mark(messages.wrong_bodies(), Flaw.CRC)
        listed = part["queue_offset"].astype(np.int64)
        own = (messages.column("queue_id") == key[1]) & as_mask(pc.equal(messages.topics(), key[0]))
        # A dispatcher would list it again: only the QUEUEOFFSET of an inner batch is wrong, not its INNER_BASE.
        again = own & (messages.flaws == 0) & (dispatched_ranges(messages)[0] == listed)
        messages.mark(~own | (messages.column("queue_offset") != listed), Flaw.QUEUE)
        for row in np.flatnonzero(messages.flaws).tolist():
            reason = f"it points to {addresses[first + row]}: {FLAWS[messages.flaws[row]].value}"
            path, position = queue.entry_files.files[index].path, (first + row) * BATCH_ENTRY.size
            mends = not queue.is_compacted and not again[row]
            yield subject.finding(kind, path, position, BATCH_ENTRY.size, reason, queue=key, repairable=mends)
