"""The queues of a store and their readable ranges: from the first unit that is no filler and not expired, to the end.

Where the log and each queue end is told by a verdict. Source of the rules: rocketmq.md 3.5, interface.md 42.
"""

from __future__ import annotations

from dataclasses import dataclass

from storage_core.files.window import OpenFiles
from storage_core.formats.rocketmq.consumequeue import BLANK_SIZE, UNIT
from storage_core.rocketmq.consumequeue import ConsumeQueue
from storage_core.rocketmq.listing import Listing
from storage_core.rocketmq.recovery import QueueVerdict, Rules, Verdict
from storage_core.store import QueueInfo, QueueKey


@dataclass(frozen=True)
class ReadableQueues:
    """The queues that hold a unit, sorted, and all topics that are known; of this very listing and verdict."""

    listing: Listing
    verdict: Verdict
    infos: tuple[QueueInfo, ...]
    topics: tuple[str, ...]

    def are_of(self, listing: Listing, verdict: Verdict) -> bool:
        """Whether these are the queues of a listing and the verdict on it."""
        return self.listing is listing and self.verdict is verdict


def readable_queues(listing: Listing, verdict: Verdict) -> ReadableQueues:
    """Looks where the first readable unit of each queue is."""
    infos = []
    with OpenFiles() as files:
        for key, bounds in sorted(verdict.queues.items()):
            if bounds.stop > 0:
                infos.append(QueueInfo(*key, _first_readable(listing, verdict, key, bounds, files), bounds.stop))
    topics = sorted({topic for topic, _ in verdict.queues})
    return ReadableQueues(listing, verdict, tuple(infos), tuple(topics))


def _first_readable(listing: Listing, verdict: Verdict, key: QueueKey, bounds: QueueVerdict, files: OpenFiles) -> int:
    queue = listing.queues.get(key)
    if queue is None or not queue.chain.files or bounds.disk_stop <= bounds.first:
        return max(bounds.first, bounds.disk_stop)
    if _all_expired(queue, verdict, bounds, files):
        return bounds.stop
    if bounds.head is not None and bounds.head[0] >= verdict.log_start and bounds.head[1] != BLANK_SIZE:
        return queue.chain.start // UNIT.size
    return queue.first_readable(files, bounds.disk_stop, verdict.log_start)


def _all_expired(queue: ConsumeQueue, verdict: Verdict, bounds: QueueVerdict, files: OpenFiles) -> bool:
    """5.x looks at the last unit first: when that is expired, none counts (rocketmq.md 3.5)."""
    if verdict.rules is not Rules.V5 or not verdict.log_start or bounds.stop != bounds.disk_stop:
        return False
    return int(queue.offsets(files, bounds.stop - 1, bounds.stop)[0]) < verdict.log_start
