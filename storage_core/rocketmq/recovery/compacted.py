"""Which queues a broker serves from their own logs in `compaction/`, how far, and what only its next start puts there.

Source of the rules: rocketmq.md 3.9.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from storage_core.files.open_files import OpenFiles
from storage_core.rocketmq.disk.compacted_queue import NO_FILES, CompactedQueue, compacted_queues
from storage_core.rocketmq.disk.config_files import compacted_topics
from storage_core.rocketmq.disk.directory import Listing
from storage_core.rocketmq.recovery.verdict import QueueVerdict, Rules, Verdict
from storage_core.store import QueueInfo, QueueKey


def served_compacted(listing: Listing, verdict: Verdict) -> dict[QueueKey, CompactedQueue]:
    """The queues of compacted topics, NO_FILES for one that was never compacted: a broker serves nothing of it.

    4.9 knows no such topics, and a store without `compaction/` is read from its consume queues.
    """
    if not listing.has_compaction or verdict.rules is Rules.V4:
        return {}
    topics = compacted_topics(listing.root)
    found = {key: NO_FILES for key in verdict.queues if key[0] in topics}
    for topic in topics:
        found.update(compacted_queues(listing.root, topic))
    return found


def compacted_infos(
    listing: Listing, verdict: Verdict, compacted: Mapping[QueueKey, CompactedQueue], files: OpenFiles
) -> Iterator[QueueInfo]:
    """Their readable ranges: for every queue offset below the end there is a next message, however many are gone."""
    for key, queue in compacted.items():
        stop, bounds = queue.stop(files), verdict.queues.get(key)
        if bounds is not None and (queue is NO_FILES or _is_dispatched_to(listing, bounds)):
            stop = max(stop, bounds.stop)
        yield QueueInfo(*key, 0, stop)


def awaits_start(listing: Listing, verdict: Verdict) -> list[str]:
    """Topics with messages that only a broker's start puts where it serves them from, sorted."""
    with OpenFiles() as files:
        topics = {
            key[0]
            for key, queue in served_compacted(listing, verdict).items()
            if (bounds := verdict.queues.get(key)) is not None
            and _is_dispatched_to(listing, bounds)
            and queue.stop(files) < bounds.stop
        }
    return sorted(topics)


def _is_dispatched_to(listing: Listing, bounds: QueueVerdict) -> bool:
    """Whether a start dispatches messages of a queue from the log, and so to its compaction log too."""
    return listing.abort or bounds.stop > bounds.disk_stop
