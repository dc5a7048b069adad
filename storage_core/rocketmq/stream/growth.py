"""Follows a store that a broker appends to, from what it served a moment ago to what it serves now.

A broker writes a record before its queue entry, so a message counts once both exist: the log is walked by record sizes
from where the last walk ended, and the queues of the records found are read from their last entry on. A record that no
queue lists yet waits; `recovery` decides what becomes of it if no broker lists it. Source: docs/streaming.md "While a
broker writes".
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

import numpy as np

from storage_core.errors import CorruptionError
from storage_core.files import system
from storage_core.files.file_chain import ChainFile
from storage_core.files.open_files import OpenFiles
from storage_core.formats.layout import Positions
from storage_core.formats.rocketmq.consumequeue import BLANK_SIZE, QUEUE_ENTRY
from storage_core.formats.rocketmq.message import decode
from storage_core.formats.rocketmq.paths import LIGHT_QUEUE_PREFIX
from storage_core.formats.rocketmq.record_walk import Stop
from storage_core.rocketmq.disk.commit_log import Checks, FileWalk, RecordRun
from storage_core.rocketmq.disk.directory import Listing, with_log, with_queues
from storage_core.rocketmq.disk.tags_code import tags_codes
from storage_core.rocketmq.read.row_filter import LAST_EXT_CODE
from storage_core.rocketmq.recovery.dispatch import has_entry, queue_keys
from storage_core.rocketmq.recovery.light_queues import queues_named_by
from storage_core.rocketmq.recovery.queue_ranges import ServedQueues, served_after
from storage_core.rocketmq.recovery.queue_scan import NOTHING_SCANNED
from storage_core.rocketmq.recovery.recovery import known_magics
from storage_core.rocketmq.recovery.verdict import QueueVerdict, Rules
from storage_core.store import QueueKey

WINDOW_SIZE = 1 << 20
ENTRIES_AT_ONCE = 8192
NO_QUEUE: QueueKey = ("", -1)


def as_listed(served: ServedQueues) -> ServedQueues:
    """The queues of a store with only what their files list."""
    queues = {
        key: replace(bounds, stop=bounds.disk_stop, filler=0, first=min(bounds.first, bounds.disk_stop), stale=None)
        for key, bounds in served.verdict.queues.items()
    }
    verdict = replace(served.verdict, queues=queues, replays=(), batches={}, seen=NOTHING_SCANNED)
    return served_after(served, served.listing, verdict, set(queues))


@dataclass(frozen=True)
class _Record:
    """A record at [start, end) of the log, and the queue that must list it (NO_QUEUE: none)."""

    key: QueueKey
    start: int
    end: int

    @property
    def is_plausible(self) -> bool:
        """Whether its queue can have a folder of that name: in a half-written record any byte may be zero."""
        return self.key != NO_QUEUE and "\0" not in self.key[0] and "/" not in self.key[0]


@dataclass
class Growth:
    """A store that grows; `served` is what it served at the last look.

    `folders` are those of the log. The log was read up to `reach` and will not be read again up to `walked`: between
    them is the last record, `unsure`, which may be partly unwritten unless a queue lists it or another record follows.
    `waiting`: queues that lack entries, with the address after the last record that each must list; `since`: when one
    of them last got entries (seconds of a monotonic clock). `named`: queues that records name besides their own, and
    that may or may not list them.
    """

    served: ServedQueues
    folders: Sequence[str]
    walked: int
    waiting: dict[QueueKey, int] = field(default_factory=dict)
    since: float = field(default_factory=time.monotonic)
    reach: int = -1
    unsure: _Record | None = None
    named: set[QueueKey] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.reach = max(self.reach, self.walked)

    @classmethod
    def of(cls, served: ServedQueues, folders: Sequence[str]) -> Growth:
        """Starts with what the queues of a recovered store list; the rest waits."""
        queues = served.verdict.queues
        end = served.verdict.log_end
        waiting = {key: end for key, bounds in queues.items() if bounds.stop > bounds.disk_stop}
        return cls(as_listed(served), folders, end, waiting)

    def waits_since(self, seconds: float) -> bool:
        """Whether queues lack entries and have got none for `seconds`."""
        return bool(self.waiting) and time.monotonic() - self.since >= seconds

    def lists_the_same(self, listing: Listing) -> bool:
        """Whether the last known entry of each queue is still there: a topic may have been deleted and made again."""
        with OpenFiles() as files, suppress(CorruptionError, FileNotFoundError):
            return all(
                bounds.last_physical_offset in (-1, listing.queues[key].last_physical_offset(files, bounds.disk_stop))
                for key, bounds in self.served.verdict.queues.items()
                if key in listing.queues
            )
        return False

    def grow(self, listing: Listing) -> None:
        """Reads what was added. `listing` may lack the newest files: they are looked up when needed."""
        with OpenFiles() as files:
            listing, found = self._walked(listing, files)
            for key, end in found.items():
                self.waiting[key] = end
            changed: dict[QueueKey, QueueVerdict] = {}
            light = (key for key in listing.queues if key[0].startswith(LIGHT_QUEUE_PREFIX))
            keys = {*self.waiting, *self.named, *light}
            for key in keys if found or self.waiting else ():
                listing = self._read_on(listing, key, changed, files)
        if changed:
            self.since = time.monotonic()
        log_end = self.reach
        before = self.served
        is_same = before.are_of(listing, before.verdict) and log_end == before.verdict.log_end
        if changed or before.batched or not is_same:
            gone = before.listing.queues.keys() - listing.queues.keys()
            queues = {key: each for key, each in {**before.verdict.queues, **changed}.items() if key not in gone}
            unlisted = any(bounds.stop > bounds.disk_stop for bounds in queues.values())
            verdict = replace(
                before.verdict, log_start=listing.log.start, log_end=log_end, queues=queues,
                replays=before.verdict.replays if unlisted else (),
            )  # fmt: skip
            self.served = served_after(before, listing, verdict, set(changed))
        if self.unsure is not None and self._lists(self.unsure):
            self.walked, self.unsure = self.reach, None

    # -- the log

    def _walked(self, listing: Listing, files: OpenFiles) -> tuple[Listing, dict[QueueKey, int]]:
        """Walks over new records. Returns the listing, and for each queue the end of the last record it must list."""
        found: dict[QueueKey, int] = {}
        last: _Record | None = None
        position = self.walked
        while True:
            listing, file = self._file_at(listing, position)
            if file is None:
                break
            checks = Checks(known_magics(self.served.verdict.rules), crc=False)
            walk = FileWalk(listing.log, files, file, position, checks, WINDOW_SIZE)
            for run in walk:
                self.named |= _named_by(run, self.served.verdict.rules)
                for each in (*([last] if last else []), *_last_of_queues(run)):
                    found[each.key] = max(found.get(each.key, 0), each.end)
                last = _last_of(run)
            position = walk.end_offset
            if walk.reason in (Stop.END, Stop.CORRUPT) and position < file.end:
                break
            if last is not None:
                found[last.key] = last.end
            last, position = None, file.end
        self.walked = self.reach = position
        self.unsure = last
        if last is not None:
            self.walked = last.start
            if last.is_plausible and not self._lists(last):
                found[last.key] = last.end
        batch_topics = self.served.verdict.batch_topics  # batch queues are read from scratch
        return listing, {key: end for key, end in found.items() if key != NO_QUEUE and key[0] not in batch_topics}

    def _lists(self, record: _Record) -> bool:
        bounds = self.served.verdict.queues.get(record.key)
        return bounds is not None and bounds.last_physical_offset >= record.start

    def _file_at(self, listing: Listing, position: int) -> tuple[Listing, ChainFile | None]:
        file = listing.log.file_at(position)
        if file is None:
            listing = with_log(listing, self.folders)
            file = listing.log.file_at(position)
        return listing, file

    # -- queues

    def _read_on(
        self, listing: Listing, key: QueueKey, changed: dict[QueueKey, QueueVerdict], files: OpenFiles
    ) -> Listing:
        """Reads a queue from its last entry on; notes its new end in `changed`."""
        bounds = self.served.verdict.queues.get(key, QueueVerdict(0, 0))
        queue = listing.queues.get(key)
        if queue is None or bounds.disk_stop * QUEUE_ENTRY.size >= queue.chain.stop:
            listing = with_queues(listing, [key])
            queue = listing.queues.get(key)
        if queue is None:
            return listing
        stop, head = max(bounds.disk_stop, queue.start), bounds.head
        last, reach, before = -1, 0, bounds.last_physical_offset
        while True:
            room = min(stop + ENTRIES_AT_ONCE, queue.chain.stop // QUEUE_ENTRY.size)
            entries = queue.entries(files, stop, room)
            addresses, sizes = entries["physical_offset"].astype(np.int64), entries["size"].astype(np.int64)
            right = self._written(addresses, sizes)
            if right and not _is_whole(listing, files, before, entries[right - 1]):
                right -= 1
            if not right:
                break
            before = int(addresses[right - 1])
            if head is None and stop == queue.start:
                head = int(addresses[0]), int(sizes[0])
            last, reach, stop = int(addresses[right - 1]), int(addresses[right - 1] + sizes[right - 1]), stop + right
            if right < len(entries):
                break
            if stop * QUEUE_ENTRY.size >= queue.chain.stop:
                listing = with_queues(listing, [key])
                queue = listing.queues[key]
        if last >= 0:
            changed[key] = replace(
                bounds, disk_stop=stop, stop=max(stop, bounds.stop), head=head, last_physical_offset=last
            )
            if reach >= self.waiting.get(key, reach + 1):
                del self.waiting[key]
        return listing

    def _written(self, addresses: Positions, sizes: Positions) -> int:
        """The number of leading entries that are fillers or list a record that was walked over."""
        right = (sizes == BLANK_SIZE) | ((sizes > 0) & (addresses >= 0) & (addresses + sizes <= self.reach))
        return int(right.argmin()) if not right.all() else len(right)


def _is_whole(listing: Listing, files: OpenFiles, before: int, entry: np.void) -> bool:
    """Whether the last entry of a queue is completely written: its address is above `before`, that of the entry before
    it, the record states its size, and its tags code is the record's if the last byte may still be missing.
    """
    address, size, code = (int(entry[name]) for name in ("physical_offset", "size", "tags_code"))
    file = listing.log.file_at(address)
    if size == BLANK_SIZE or file is None:
        return size == BLANK_SIZE
    position = address - file.base_offset
    stated = system.pread(files.descriptor(file.path), 4, position)
    if address <= before or int.from_bytes(stated, "big") != size:
        return False
    if code & 0xFF or code <= LAST_EXT_CODE:
        return True
    record = np.frombuffer(system.pread(files.descriptor(file.path), size, position), np.uint8)
    messages = decode(record, np.zeros(1, np.int64), np.array([len(record)]))
    return bool(messages.flaws[0]) or int(tags_codes(messages)[0]) == code


def _last_of_queues(run: RecordRun) -> Iterator[_Record]:
    """The last record in a run that each queue must list, not counting the run's last record."""
    run = run.part(0, len(run.sizes) - 1)
    if not len(run.sizes):
        return
    keys, queue = queue_keys(run.messages)
    listed = has_entry(run.messages.column("sys_flag"))
    starts = np.full(len(keys), -1, np.int64)
    ends = np.zeros(len(keys), np.int64)
    addresses = run.messages.column("physical_offset")[listed]
    np.maximum.at(starts, queue[listed], addresses)
    np.maximum.at(ends, queue[listed], addresses + run.sizes[listed])
    for key, start, end in zip(keys, starts.tolist(), ends.tolist(), strict=True):
        if end:
            yield _Record(key, start, end)


def _named_by(run: RecordRun, rules: Rules) -> set[QueueKey]:
    listed = has_entry(run.messages.column("sys_flag"))
    named = queues_named_by(run.messages, listed, rules is Rules.V5)
    return set() if named is None else set(zip(named.topics.to_pylist(), named.queue_ids.tolist(), strict=True))


def _last_of(run: RecordRun) -> _Record:
    """A run's last record."""
    one = run.part(len(run.sizes) - 1, len(run.sizes))
    key = queue_keys(one.messages)[0][0] if has_entry(one.messages.column("sys_flag"))[0] else NO_QUEUE
    start = int(one.physical_offsets[0])
    return _Record(key, start, start + int(one.sizes[0]))
