"""The queues that a store serves, as a stream needs them: positions, counts, bytes, seals, plans of ranges.

`tail` decides how far the queues reach.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property

import numpy as np

from storage_core.errors import CorruptionError, UnsupportedFormatError
from storage_core.files.open_files import OpenFiles
from storage_core.formats.rocketmq.consumequeue import BLANK_SIZE
from storage_core.rocketmq.disk.batch_queue import ends_of
from storage_core.rocketmq.disk.record_reader import head_at
from storage_core.rocketmq.read.selection import selected_queues
from storage_core.rocketmq.read.snapshot import RocketSnapshot
from storage_core.rocketmq.read.time_search import TimeSearch
from storage_core.rocketmq.recovery.queue_ranges import ServedQueues
from storage_core.store import EARLIEST, LATEST, OffsetBound, QueueInfo, QueueKey, ScanPartition, ScanRequest
from storage_core.stream.offsets import sealed_end
from storage_core.stream.tail import StreamSnapshot

ENTRIES_AT_ONCE = 65_536
MOST_HELD = 20_000
"""How many seals are remembered as compared."""


class RocketStreamSnapshot(RocketSnapshot, StreamSnapshot):
    """The queues that a stream may read now."""

    def __init__(self, served: ServedQueues, store_name: str) -> None:
        if served.listing.rocksdb_queues:
            raise UnsupportedFormatError(
                f"{served.listing.root}/consumequeue: the queues are in RocksDB, which mqstore does not read; a batch "
                "read with option scan=log reads every message of the commit log without them"
            )
        super().__init__(served.listing, lambda: served, store_name)
        self._held: dict[tuple[QueueKey, str], bool | None] = {}

    @cached_property
    def positions(self) -> Mapping[QueueKey, tuple[int, int]]:
        """First readable queue offset and end of every queue."""
        return {(info.topic, info.queue_id): (info.start, info.stop) for info in self.served.infos}

    def starts(self, request: ScanRequest) -> dict[QueueKey, int]:
        """Where each selected queue starts; topics and queues that do not exist yet are left out."""
        topics = {topic for topic, _ in self.positions}
        request = replace(
            request,
            topics=None if request.topics is None else tuple(name for name in request.topics if name in topics),
            assign=None if request.assign is None else tuple(key for key in request.assign if key in self.positions),
        )
        with OpenFiles() as files:
            selection = selected_queues(request, self.served, files)
        return selection.starts

    def count(self, key: QueueKey, start: int, stop: int) -> int:
        """The number of queue offsets in the range; those of fillers count, too."""
        del key
        return max(0, stop - start)

    def after(self, key: QueueKey, start: int, count: int) -> int:
        """The position `count` queue offsets further."""
        del key
        return start + count

    def fitting(self, key: QueueKey, start: int, stop: int, size: int) -> tuple[int, int]:
        """Uses the sizes in queue entries; each message of a batch has its share. Entries that only the log has count
        as large as the last listed one before them in the range, else as the mean of the log.
        """
        if key in self.served.batched:
            return self._fitting_batches(key, start, stop, size)
        queue, bounds = self.served.files_of(key), self.served.verdict.queues.get(key)
        on_disk = 0 if bounds is None else bounds.disk_stop
        total, one = 0, 0
        with OpenFiles() as files:
            while start < min(stop, on_disk):
                last = min(stop, on_disk, start + ENTRIES_AT_ONCE)
                sizes = np.maximum(queue.entries(files, start, last)["size"].astype(np.int64), 0)
                one = int(sizes[-1])
                fit = int(np.searchsorted(np.cumsum(sizes), size - total, "right"))
                total += int(sizes[:fit].sum())
                start += fit
                if fit < len(sizes):
                    return start, total
        return self._fitting_unlisted(start, stop, size, total, one)

    def _fitting_batches(self, key: QueueKey, start: int, stop: int, size: int) -> tuple[int, int]:
        total, one = 0, 0
        with OpenFiles() as files:
            for entries in self.served.batched[key].every(files):
                first, last = np.maximum(entries["queue_offset"], start), np.minimum(ends_of(entries), stop)
                inside = first < last
                first, last = first[inside], last[inside]
                if not len(first):
                    continue
                each = entries["size"][inside].astype(np.int64) // np.maximum(entries["count"][inside], 1)
                each = np.maximum(each, 1)
                sums = np.cumsum((last - first) * each)
                fit = int(np.searchsorted(sums, size - total, "right"))
                before = total + (int(sums[fit - 1]) if fit else 0)
                if fit < len(first):
                    more = (size - before) // int(each[fit])
                    return int(first[fit]) + more if fit or more else start, before + more * int(each[fit])
                start, total, one = int(last[-1]), before, int(each[-1])
        return self._fitting_unlisted(start, stop, size, total, one)

    def _fitting_unlisted(self, start: int, stop: int, size: int, total: int, one: int) -> tuple[int, int]:
        one = one or self._mean_size
        more = max(0, min(stop - start, (size - total) // one))
        return start + more, total + more * one

    @cached_property
    def _mean_size(self) -> int:
        """Bytes of the log for each message of all queues, at least one."""
        log, count = self.served.listing.log, sum(info.stop - info.start for info in self.served.infos)
        return max(1, (self.served.verdict.log_end - log.start) // max(1, count))

    # -- seals and lost positions

    def seals(self, positions: Mapping[QueueKey, int]) -> dict[QueueKey, str]:
        """Offset, address, size and store time of the message before each position, if a queue file lists it."""
        with OpenFiles() as files:
            found = {key: self._sealed(key, position - 1, files) for key, position in positions.items()}
        seals = {key: text for key, text in found.items() if text is not None}
        if len(self._held) > MOST_HELD:
            self._held.clear()
        self._held.update(dict.fromkeys(seals.items(), True))
        return seals

    def _sealed(self, key: QueueKey, number: int, files: OpenFiles) -> str | None:
        bounds = self.served.verdict.queues.get(key)
        if bounds is None or not self.positions.get(key, (0, 0))[0] <= number < bounds.disk_stop:
            return None
        try:
            entry = self.served.files_of(key).entries(files, number, number + 1)[0]
            address, size = int(entry["physical_offset"]), int(entry["size"])
            head = None if size == BLANK_SIZE else head_at(self.served.listing.log, files, address)
        except (CorruptionError, FileNotFoundError):  # deleted a moment ago
            return None
        return None if head is None else f"{number}:{address}+{size}@{head.store_ms}"

    def holds(self, key: QueueKey, seal: str) -> bool | None:
        """Whether the message in a seal has its offset still; None if it expired, or the queue ends before it."""
        if (key, seal) not in self._held:
            with OpenFiles() as files:
                found = self._sealed(key, int(seal.partition(":")[0]), files)
            self._held[key, seal] = None if found is None else found == seal
        return self._held[key, seal]

    def lost(self, key: QueueKey, position: int, seal: str | None) -> tuple[int, str]:
        """Also detects a queue that was deleted, or cut by a broker's restart, and then written again: it continues
        with its first message that was stored later than the one in the seal.
        """
        start, reason = super().lost(key, position, seal)
        if reason or seal is None or self.holds(key, seal) is not False:
            return start, reason
        number, stored_ms = int(seal.partition(":")[0]), sealed_end(seal, "@", self.served.listing.root)
        first, stop = self.positions[key]
        with OpenFiles() as files:
            search = TimeSearch(self.served, files)
            (later,) = search.offsets_at([QueueInfo(*key, first, stop)], stored_ms + 1)
        return min(later, number), f"was cut or made again and has other messages now, the checkpoint is at {position}"

    def plan_ranges(self, request: ScanRequest, ranges: Mapping[QueueKey, tuple[int, int]]) -> list[ScanPartition]:
        """Searches the ranges themselves for keys and ids: an index covers a whole store, a batch a sliver of it.

        For tags, the tags codes of the queue entries are used, as in every read: `growth` waits for whole entries.
        """
        nonempty = {key: span for key, span in ranges.items() if span[1] > span[0]}
        if not nonempty:
            return []
        return self.plan(
            replace(
                request,
                topics=None, topic_pattern=None, assign=tuple(nonempty), start_ms=None, stop_ms=None, use_index=False,
                start=OffsetBound(EARLIEST, {key: start for key, (start, _) in nonempty.items()}),
                stop=OffsetBound(LATEST, {key: stop for key, (_, stop) in nonempty.items()}),
            )
        )  # fmt: skip
