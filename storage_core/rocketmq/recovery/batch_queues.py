"""The queues whose entries state their queue offset: which there are, how far they go, and what a broker start adds.

Batch queues point into the commit log; those of compacted topics point into logs of their own in `compaction/`, from
which a broker serves them. Source of the rules: rocketmq.md 3.7, 3.9.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from storage_core.arrays import as_array, as_mask, as_numbers, text_array
from storage_core.files.file_chain import FileChain
from storage_core.files.open_files import OpenFiles
from storage_core.formats.layout import Positions
from storage_core.formats.rocketmq.consumequeue import BATCH_ENTRY
from storage_core.formats.rocketmq.message import Messages
from storage_core.formats.rocketmq.properties import INNER_BASE, INNER_NUM
from storage_core.rocketmq.disk.batch_queue import (
    NO_FILES,
    UNBOUNDED,
    UNSERVED,
    BatchQueue,
    batch_queue_files,
    compacted_queues,
    ends_of,
)
from storage_core.rocketmq.disk.commit_log import RecordRun
from storage_core.rocketmq.disk.directory import Listing
from storage_core.rocketmq.recovery.directory_cache import stated_topics
from storage_core.rocketmq.recovery.dispatch import has_entry, queue_keys
from storage_core.rocketmq.recovery.light_queues import QUEUE_OFFSET
from storage_core.rocketmq.recovery.queue_scan import QUEUE_FILES_SCANNED
from storage_core.rocketmq.recovery.verdict import BatchTail, QueueVerdict, Rules, Verdict
from storage_core.store import QueueInfo, QueueKey

NO_CHAIN = FileChain((), 0)


@dataclass(frozen=True)
class BatchEntries:
    """Entries that records of batch topics call for, in log order. Arrays have shape (n,); `queue` is an index into
    `keys`, `rows` are the numbers of the records. Entry i holds the queue offsets [queue_offsets[i], stops[i]).
    """

    keys: tuple[QueueKey, ...]
    queue: npt.NDArray[np.int32]
    queue_offsets: Positions
    stops: Positions
    physical_offsets: Positions
    sizes: Positions
    rows: npt.NDArray[np.intp]

    def of(self, number: int) -> tuple[npt.NDArray[np.intp], bool]:
        """The entries of queue `number` from the last one with queue offset 0 on, and whether there is such an entry:
        those before it belong to a deleted queue of the same name.
        """
        own = np.flatnonzero(self.queue == number)
        begins = np.flatnonzero(self.queue_offsets[own] == 0)
        return (own[begins[-1] :], True) if len(begins) else (own, False)


def batch_entries(run: RecordRun, topics: Collection[str]) -> BatchEntries | None:
    """What a dispatcher would put into batch queues for the records of `run`; None if no record has such a topic."""
    listed = as_mask(pc.is_in(run.messages.topics(), text_array(sorted(topics))))
    listed &= has_entry(run.messages.column("sys_flag"))
    rows = np.flatnonzero(listed)
    if not len(rows):
        return None
    messages = run.messages.take(rows)
    keys, queue = queue_keys(messages)
    starts, counts = dispatched_ranges(messages)
    right = (starts >= 0) & (counts >= 0)
    return BatchEntries(
        keys, queue[right], starts[right], (starts + counts)[right], messages.column("physical_offset")[right],
        run.sizes[rows][right], rows[right],
    )  # fmt: skip


def dispatched_ranges(messages: Messages) -> tuple[Positions, Positions]:
    """The first queue offset of each record's entry in a batch queue, and the number of its messages; -1 for unreadable
    ones. A record without INNER_NUM and INNER_BASE is one message at its own QUEUEOFFSET. Shapes (n,).
    """
    starts, counts = messages.column("queue_offset").copy(), np.ones(len(messages), np.int64)
    bases, numbers = (messages.property_column().values(name) for name in (INNER_BASE, INNER_NUM))
    given = as_mask(bases.is_valid()) & as_mask(numbers.is_valid())
    starts[given], counts[given] = (_numbers(texts.filter(as_array(given))) for texts in (bases, numbers))
    return starts, counts


def _numbers(texts: pa.StringArray) -> Positions:
    """The values of decimal texts, -1 for other texts. Shape (n,)."""
    right, found = as_mask(pc.match_substring_regex(texts, QUEUE_OFFSET)), np.full(len(texts), -1, np.int64)
    found[right] = as_numbers(texts.filter(as_array(right)).cast(pa.int64()))
    return found


class BatchDispatcher:
    """Feeds records to batch queues while a store is recovered; 4.9 does not support them.

    `listed`: the address of the last record that each queue's files list, -1 if there is none. `stated`: the batch
    topics of topics.json; None while they did not matter.
    """

    def __init__(self, listing: Listing, files: OpenFiles, rules: Rules) -> None:
        self.tails: dict[QueueKey, BatchTail] = {}
        self._root = listing.root
        self._rules = rules
        self.stated: frozenset[str] | None = None
        self.listed: dict[QueueKey, int] = {}
        if rules is not Rules.V4:
            for key, chain in listing.batch_queues.items():
                self.listed[key] = _last_physical_offset(_retained_files(listing.log, chain, UNBOUNDED, files), files)
        self._topics = {topic for topic, _ in self.listed}

    @property
    def topics(self) -> frozenset[str]:
        """The topics with batch queues, of those seen so far."""
        return frozenset(self._topics)

    @property
    def last_physical_offset(self) -> int:
        """The address of the last record that any batch queue lists; -1 if there is none."""
        return max(self.listed.values(), default=-1)

    def lacks_some_of(self, listed: Mapping[QueueKey, int]) -> bool:
        """Whether a queue lists less than it did according to `listed`."""
        return any(self.listed.get(key, -1) < address for key, address in listed.items())

    def takes(self, topic: str) -> bool:
        """Whether messages of a topic go to batch queues; called for a topic that has no consume queue yet."""
        if topic in self._topics:
            return True
        if self._rules is Rules.V4:
            return False
        if self.stated is None:
            self.stated = stated_topics(self._root).batched
        if topic in self.stated:
            self._topics.add(topic)
        return topic in self._topics

    def feed(self, run: RecordRun) -> None:
        """Notes in `tails` what a dispatcher appends for the records of `run`."""
        entries = batch_entries(run, self._topics) if self._topics else None
        if entries is None:
            return
        for number, key in enumerate(entries.keys):
            listed = self.listed.get(key, -1)
            own = np.flatnonzero((entries.queue == number) & (entries.physical_offsets > listed))
            if len(own):
                first, last = int(own[0]), int(own[-1])
                known = self.tails.get(key)
                self.tails[key] = BatchTail(
                    int(entries.physical_offsets[first]) if known is None else known.first_physical_offset,
                    int(entries.queue_offsets[first]) if known is None else known.start,
                    int(entries.stops[last]),
                )


def _retained_files(log: FileChain, chain: FileChain, log_end: int, files: OpenFiles) -> BatchQueue:
    """A batch queue with the files that a broker start keeps: of the last three, none behind one that is not full."""
    queue = BatchQueue(log, chain, is_compacted=False, log_end=log_end)
    count = len(chain.files)
    for index in range(max(0, count - QUEUE_FILES_SCANNED), count - 1):
        if len(queue.entries(files, index)) < chain.files[index].size // BATCH_ENTRY.size:
            return replace(queue, entry_files=replace(chain, files=chain.files[: index + 1]))
    return queue


def _last_physical_offset(queue: BatchQueue, files: OpenFiles) -> int:
    for index in range(len(queue.entry_files.files) - 1, -1, -1):
        entries = queue.entries(files, index)
        if len(entries):
            return int(entries["physical_offset"][-1])
    return -1


def served_compacted(listing: Listing, verdict: Verdict) -> frozenset[str]:
    """The topics that topics.json states to be compacted, if a broker would serve them from `compaction/`."""
    if verdict.rules is Rules.V4 or not listing.has_compaction:
        return frozenset()
    return stated_topics(listing.root).compacted


def served_batched(
    listing: Listing, verdict: Verdict, compacted: Collection[str], files: OpenFiles
) -> dict[QueueKey, BatchQueue]:
    """The batch queues, and those of compacted topics: NO_FILES for one without files in `compaction/`, of which a
    broker serves only what a start dispatches to it, UNSERVED for one of which a pull finds nothing: its first file of
    entries has none, or it lacks one of its two folders. Their files are listed by this call. `compacted` are the
    topics of `served_compacted`.

    4.9 supports neither, and without `compaction/` a compacted topic is read from its consume queues.
    """
    found: dict[QueueKey, BatchQueue] = {}
    if verdict.rules is Rules.V4:
        return found
    if listing.batch_queues or verdict.batches:
        chains = dict.fromkeys(verdict.batches, NO_CHAIN) | batch_queue_files(listing.root)
        found = {
            key: _retained_files(listing.log, chain, verdict.log_end, files) for key, chain in sorted(chains.items())
        }
    found |= {key: NO_FILES for key in verdict.queues if key[0] in compacted}
    for topic in compacted:
        for key, queue in compacted_queues(listing.root, topic).items():
            found[key] = UNSERVED if queue.is_half or queue.begins_empty(files) else queue
    return found


def batched_infos(
    listing: Listing, verdict: Verdict, batched: Mapping[QueueKey, BatchQueue], files: OpenFiles
) -> Iterator[QueueInfo]:
    """The readable ranges of these queues. In a compacted queue there is a next message for every queue offset below
    the end, however many messages were removed.
    """
    for key, queue in batched.items():
        stop, bounds, tail = queue.stop(files), verdict.queues.get(key), verdict.batches.get(key)
        if queue.is_compacted:
            dispatched = bounds is not None and (queue is NO_FILES or _is_dispatched_to(listing, bounds))
            if bounds is not None and dispatched and queue is not UNSERVED:
                stop = max(stop, bounds.stop)
            yield QueueInfo(*key, 0, stop)
        elif stop or tail is not None:
            start = _first_unexpired(queue, verdict.log_start, files)
            if tail is not None:
                start, stop = tail.start if start is None else start, max(stop, tail.stop)
            yield QueueInfo(*key, min(start or 0, stop), stop)


def _first_unexpired(queue: BatchQueue, log_start: int, files: OpenFiles) -> int | None:
    """The first queue offset of the first file whose record is not before the log; None if there is no entry."""
    for index in range(len(queue.entry_files.files)):
        entries = queue.entries(files, index)
        if len(entries):
            expired = entries["physical_offset"].astype(np.int64) < log_start
            leading = len(entries) if expired.all() else int(expired.argmin())
            return int(ends_of(entries)[leading - 1]) if leading else int(entries["queue_offset"][0])
    return None


def awaits_start(listing: Listing, verdict: Verdict) -> list[str]:
    """Topics with messages that a broker serves only after a start has put them in place, sorted."""
    with OpenFiles() as files:
        topics = {
            key[0]
            for key, queue in served_batched(listing, verdict, served_compacted(listing, verdict), files).items()
            if queue.is_compacted
            and queue is not UNSERVED
            and (bounds := verdict.queues.get(key)) is not None
            and _is_dispatched_to(listing, bounds)
            and queue.stop(files) < bounds.stop
        }
    return sorted(topics | {topic for topic, _ in verdict.batches})


def _is_dispatched_to(listing: Listing, bounds: QueueVerdict) -> bool:
    """Whether a broker start dispatches messages of a queue from the log, and thus to its compaction log too."""
    return listing.abort or bounds.stop > bounds.disk_stop
