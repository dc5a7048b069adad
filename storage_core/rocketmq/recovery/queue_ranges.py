"""The queues of a store and their readable ranges: from the first entry that is neither filler nor expired, to the end.

The ends of the log and of each queue are decided by `recovery`. Source of the rules: rocketmq.md 3.5, 3.7, 3.9,
interface.md 42.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from storage_core.files.ahead import side_by_side
from storage_core.files.file_chain import FileChain
from storage_core.files.open_files import OpenFiles
from storage_core.formats.rocketmq.consumequeue import BLANK_SIZE
from storage_core.rocketmq.disk.batch_queue import BatchQueue
from storage_core.rocketmq.disk.consume_queue import ConsumeQueue
from storage_core.rocketmq.disk.directory import Listing
from storage_core.rocketmq.recovery.batch_queues import batched_infos, served_batched, served_compacted
from storage_core.rocketmq.recovery.verdict import QueueVerdict, Rules, Verdict
from storage_core.store import QueueInfo, QueueKey


@dataclass(frozen=True, eq=False)
class ServedQueues:
    """What a store serves: its files, the recovery verdict, the queues that have an entry, and all topics; sorted.

    `batched` are the queues whose entries a broker does not keep in a consume queue, `compacted` the topics that it
    serves from `compaction/`.
    """

    listing: Listing
    verdict: Verdict
    infos: tuple[QueueInfo, ...]
    topics: tuple[str, ...]
    batched: Mapping[QueueKey, BatchQueue]
    compacted: frozenset[str]

    def are_of(self, listing: Listing, verdict: Verdict) -> bool:
        """Whether these are the queues of the same listing and verdict objects, and of topics of the same types."""
        is_same = self.listing is listing and self.verdict is verdict
        return is_same and self.compacted == served_compacted(listing, verdict)

    def files_of(self, key: QueueKey) -> ConsumeQueue:
        """The files of a queue; no files if only the log has its entries."""
        queue = self.listing.queues.get(key)
        return queue if queue is not None else ConsumeQueue(*key, FileChain((), 0))


def served_queues(listing: Listing, verdict: Verdict) -> ServedQueues:
    """Finds the served queues and the first readable entry of each."""

    def info(found: tuple[QueueKey, QueueVerdict], files: OpenFiles) -> QueueInfo:
        key, bounds = found
        return QueueInfo(*key, _first_readable(listing, verdict, key, bounds, files), bounds.stop)

    compacted = served_compacted(listing, verdict)
    with OpenFiles() as files:
        batched = served_batched(listing, verdict, compacted, files)
        filled = [
            (key, bounds) for key, bounds in sorted(verdict.queues.items()) if bounds.stop > 0 and key not in batched
        ]
        infos = list(side_by_side(info, filled, files, listing.root))
        return _served(listing, verdict, infos, batched, compacted, files)


def served_after(
    before: ServedQueues, listing: Listing, verdict: Verdict, changed: Collection[QueueKey]
) -> ServedQueues:
    """`served_queues` of a store that grew: if the log still begins at the same address, a queue that had a message
    still begins where it did. `changed` are the queues whose end moved.
    """
    same_start = verdict.log_start == before.verdict.log_start
    known = {(info.topic, info.queue_id): info for info in before.infos}
    infos = []
    compacted = served_compacted(listing, verdict)
    with OpenFiles() as files:
        batched = served_batched(listing, verdict, compacted, files)
        for key, bounds in sorted(verdict.queues.items()):
            info = known.get(key)
            if key in batched:
                continue
            if info is not None and same_start and key not in changed:
                infos.append(info)
            elif info is not None and same_start and info.start < info.stop:
                infos.append(QueueInfo(*key, info.start, bounds.stop))
            elif bounds.stop > 0:
                infos.append(QueueInfo(*key, _first_readable(listing, verdict, key, bounds, files), bounds.stop))
        return _served(listing, verdict, infos, batched, compacted, files)


def _served(
    listing: Listing,
    verdict: Verdict,
    infos: list[QueueInfo],
    batched: Mapping[QueueKey, BatchQueue],
    compacted: frozenset[str],
    files: OpenFiles,
) -> ServedQueues:
    if batched:
        infos = [*infos, *batched_infos(listing, verdict, batched, files)]
        infos.sort(key=lambda info: (info.topic, info.queue_id))
    topics = sorted({topic for topic, _ in verdict.queues.keys() | batched.keys()})
    return ServedQueues(listing, verdict, tuple(infos), tuple(topics), batched, compacted)


def _first_readable(listing: Listing, verdict: Verdict, key: QueueKey, bounds: QueueVerdict, files: OpenFiles) -> int:
    queue = listing.queues.get(key)
    if queue is not None and queue.chain.files and _all_expired(queue, verdict, bounds, files):
        return bounds.stop
    if queue is None or not queue.chain.files or bounds.disk_stop <= bounds.first:
        return max(bounds.first, bounds.disk_stop)
    if bounds.head is not None and bounds.head[0] >= verdict.log_start and bounds.head[1] != BLANK_SIZE:
        return queue.start
    return queue.first_readable(files, bounds.disk_stop, verdict.log_start)


def _all_expired(queue: ConsumeQueue, verdict: Verdict, bounds: QueueVerdict, files: OpenFiles) -> bool:
    """Whether a queue has expired for 5.x, which looks at the last entry first: if that is expired, none counts
    (rocketmq.md 3.5).

    In a log that begins at 0, only an invalid entry counts as expired: the first one of a file (rocketmq.md 3.4).
    """
    last_in_files = bounds.stop == (bounds.disk_stop if bounds.stale is None else bounds.stale.stop)
    if verdict.rules is not Rules.V5 or not last_in_files or bounds.stop <= 0:
        return False
    if not verdict.log_start and (bounds.stop - 1) % queue.entries_per_file:
        return False
    return queue.physical_offset(files, bounds.stop - 1) < verdict.log_start
