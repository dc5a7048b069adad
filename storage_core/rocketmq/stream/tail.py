"""Follows a RocketMQ store: cheap if nothing changed, otherwise at a cost proportional to what was added.

For a store that mqstore wrote, `state.json` says where it ends; a store that a broker writes to is followed by
`growth`; any other change needs recovery. Nothing is written and no lock is taken. Source of the rules:
docs/streaming.md "While the store grows".
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence

from storage_core.errors import CorruptionError
from storage_core.files import system
from storage_core.files.open_files import OpenFiles
from storage_core.files.stamp import Stamp
from storage_core.formats.rocketmq import paths
from storage_core.formats.rocketmq.consumequeue import QUEUE_ENTRY
from storage_core.job import JobFolder
from storage_core.rocketmq.disk.directory import Listing, list_store, with_log, with_queues, without_deleted
from storage_core.rocketmq.read.snapshot import RocketSnapshot
from storage_core.rocketmq.recovery.queue_ranges import ServedQueues, served_after, served_queues
from storage_core.rocketmq.recovery.recovery import chosen_rules
from storage_core.rocketmq.recovery.unfinished import last_jobs
from storage_core.rocketmq.recovery.verdict import QueueVerdict, Rules, Verdict
from storage_core.rocketmq.stream.growth import Growth
from storage_core.rocketmq.stream.snapshot import RocketStreamSnapshot
from storage_core.rocketmq.write.store_end import Ends, trusted_ends
from storage_core.store import QueueKey
from storage_core.stream.tail import Tail

HOLD_S = 1.0
"""How long a record without a queue entry is taken for that of a broker about to list it."""
PAUSE_S = 0.02
END_SIZE = 8
LARGEST_RECORD = 8 << 20


class RocketTail(Tail):
    """The end of the store at `root`, whose log is in `folders`. `recovered` takes a new snapshot with recovery."""

    def __init__(
        self, root: str, folders: Sequence[str], rules: Rules | None, name: str,
        recovered: Callable[[], RocketSnapshot],
    ) -> None:  # fmt: skip
        self._root, self._folders, self._rules, self._name = root, folders, rules, name
        self._recovered = recovered
        self._stamps: list[tuple[str, Stamp]] = []
        self._topics: dict[str, Stamp] = {}
        self._next: tuple[int, int, bytes] | None = None
        self._watched = -1
        self._growth: Growth | None = None
        self._last: RocketStreamSnapshot | None = None

    def look(self) -> RocketStreamSnapshot:
        """What may be read now; the same object while a few stats and eight bytes of the log show no change."""
        if self._last is not None and self._is_unchanged():
            return self._last
        while True:
            stamps = self._take_stamps()
            jobs = last_jobs(self._root)
            if jobs.intent is not None and self._last is not None:
                return self._last
            if self._last is not None:
                self._watch(self._last.served)
            served = self._found(dict(stamps))
            if last_jobs(self._root) == jobs:
                break
        self._stamps = stamps
        if self._growth is None:
            self._watch(served)
        if self._last is None or self._last.served is not served:
            self._last = RocketStreamSnapshot(served, self._name)
        return self._last

    def settled(self) -> RocketStreamSnapshot:
        """The same, once a broker is known to be at work or not: it lists what waits, or for a second nobody does."""
        found = self.look()
        first = None
        while (growth := self._growth) is not None and growth.waiting:
            progress = growth.walked, growth.since
            if first is not None and progress != first:
                break  # a broker is at work
            first = progress
            time.sleep(PAUSE_S)
            found = self.look()
        return found

    def close(self) -> None:
        """Closes the one descriptor that is kept open, that of the last log file."""
        if self._next is not None:
            system.close(self._next[0])
            self._next = None

    # -- has anything changed?

    def _take_stamps(self) -> list[tuple[str, Stamp]]:
        job = JobFolder(self._root)
        watched = [job.state, job.draft, job.intent, os.path.join(self._root, paths.ABORT), *self._folders,
                   os.path.join(self._root, paths.CONSUME_QUEUE),
                   os.path.join(self._root, paths.CONFIG, "topics.json")]  # fmt: skip
        return [(path, system.stamp(path)) for path in watched]

    def _is_unchanged(self) -> bool:
        if self._growth is not None and (self._growth.waiting or self._growth.walked != self._watched):
            return False
        if self._last is not None and self._last.served.batched:
            return False  # their files change after the log has
        if not system.unchanged(self._stamps):
            return False
        if self._next is None:
            return True
        descriptor, position, known = self._next
        return system.pread(descriptor, len(known), position) == known

    def _watch(self, served: ServedQueues) -> None:
        """Remembers the bytes where the next record will begin; if part of it is there, all its bytes and those after.

        In a store that a broker writes to, they are read before the walk. If they were read after it, they might belong
        to a record that arrived in between, and would never change again. So if the walk moves the end, the store is
        looked at once more.
        """
        self.close()
        end = self._watched = self._growth.walked if self._growth is not None else served.verdict.log_end
        file = served.listing.log.file_at(end)
        if file is None:
            return
        try:
            descriptor = system.open_read(file.path)
        except FileNotFoundError:
            return
        position, size = end - file.base_offset, END_SIZE
        while True:
            found = system.pread(descriptor, size, position)
            stated = int.from_bytes(found[:4], "big")
            wanted = END_SIZE + (stated if stated <= LARGEST_RECORD else 0)
            if wanted == size:
                break
            size = wanted
        self._next = descriptor, position, found

    # -- what is there now?

    def _found(self, stamps: dict[str, Stamp]) -> ServedQueues:
        before = None if self._last is None else self._last.served
        if (ends := trusted_ends(self._root, self._folders)) is not None:
            self._growth = None
            return self._of_ends(ends, before, stamps)
        running = any(stamps[abort := os.path.join(self._root, paths.ABORT)])
        known = dict(self._stamps)
        if running and self._growth is not None and known.get(abort) == stamps[abort]:
            if self._growth.waits_since(HOLD_S):
                return self._accepted()
            try:
                listing = self._relisted(self._growth.served.listing, stamps)
                before_topics, self._topics = self._topics, self._topic_stamps(listing)
                if self._topics == before_topics or self._growth.lists_the_same(listing):
                    self._growth.grow(listing)
                    return self._growth.served
            except (CorruptionError, FileNotFoundError):
                return self._accepted()  # files were removed while they were read
        served = self._recovered().served
        self._growth = Growth.of(served, self._folders) if running else None
        return served if self._growth is None else self._growth.served

    def _accepted(self) -> ServedQueues:
        """Serves what a broker start would make of the records, because no broker lists them."""
        served = self._recovered().served
        self._growth = Growth(served, self._folders, served.verdict.log_end)
        return served

    def _of_ends(self, ends: Ends, before: ServedQueues | None, stamps: dict[str, Stamp]) -> ServedQueues:
        """What the last job recorded; files are listed again if the known ones do not reach that far."""
        if before is None:
            listing = list_store(self._root, self._folders)
            with OpenFiles() as files:
                rules = self._rules or chosen_rules(listing, files)
        else:
            listing, rules = self._relisted(before.listing, stamps), before.verdict.rules
        if ends.log_end > listing.log.stop:
            listing = with_log(listing, self._folders)
        old: dict[QueueKey, QueueVerdict] = {} if before is None else dict(before.verdict.queues)
        short = [key for key, stop in ends.queues.items() if _reach(listing, key) < stop]
        listing = with_queues(listing, short) if short else listing
        queues, changed = {}, set()
        for key, stop in ends.queues.items():
            known = old.get(key)
            if known is not None and known.disk_stop == known.stop == stop:
                queues[key] = known
            elif key in listing.queues:
                queues[key] = QueueVerdict(stop, stop, head=None if known is None else known.head)
                changed.add(key)
        verdict = Verdict(rules, listing.log.start, ends.log_end, queues, entries_per_file=ends.queue_entries)
        return served_queues(listing, verdict) if before is None else served_after(before, listing, verdict, changed)

    def _topic_stamps(self, listing: Listing) -> dict[str, Stamp]:
        """The stamps of the folders of topics, which change when a queue is deleted or made."""
        folder = os.path.join(self._root, paths.CONSUME_QUEUE)
        return {topic: system.stamp(f"{folder}/{topic}") for topic in {key[0] for key in listing.queues}}

    def _relisted(self, listing: Listing, stamps: dict[str, Stamp]) -> Listing:
        """The listing, with log files listed again if their folder changed, and without deleted topics."""
        known = dict(self._stamps)
        if any(known.get(folder) != stamps[folder] for folder in self._folders):
            listing = with_log(listing, self._folders)
        queues = os.path.join(self._root, paths.CONSUME_QUEUE)
        return without_deleted(listing) if known.get(queues) != stamps[queues] else listing


def _reach(listing: Listing, key: QueueKey) -> int:
    """The queue offset up to which the listed files of a queue have room."""
    queue = listing.queues.get(key)
    return 0 if queue is None else queue.chain.stop // QUEUE_ENTRY.size
