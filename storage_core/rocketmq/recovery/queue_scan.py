"""The queues as a broker start finds them in their files, before it looks at the log.

What is cut from them at the log's end, and what the start appends, is decided by `recovery`. Source of the rules:
rocketmq.md 3.4.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from storage_core.files import system
from storage_core.files.ahead import side_by_side
from storage_core.files.open_files import OpenFiles
from storage_core.formats.layout import Positions
from storage_core.formats.rocketmq.consumequeue import QUEUE_ENTRY
from storage_core.rocketmq.disk.consume_queue import NO_ENTRIES, ConsumeQueue, ValidEntries
from storage_core.rocketmq.disk.queue_starts import MOST, valid_starts
from storage_core.rocketmq.recovery.dispatch import QueueTail
from storage_core.store import QueueKey

QUEUE_FILES_SCANNED = 3


@dataclass(frozen=True)
class StaleEntries:
    """Entries [start, stop) in a queue's last file behind those that a broker start appends, which it serves as well
    (rocketmq.md 3.4). The last record that it appends before them ends at `reach`.
    """

    start: int
    stop: int
    reach: int


@dataclass
class QueueState:
    """A queue during recovery: its first `file_count` files are kept.

    `peak` is the largest physical offset in the last of these; `head` and `last_physical_offset` are what the scan saw
    of its first and last entry.
    """

    queue: ConsumeQueue
    tail: QueueTail
    file_count: int = 0
    peak: int = -1
    head: tuple[int, int] | None = None
    last_physical_offset: int = -1
    stale: StaleEntries | None = None

    @property
    def last_file_end(self) -> int:
        """The position after the last byte of the last file that is kept; there must be one."""
        return self.queue.chain.files[self.file_count - 1].end


@dataclass(eq=False)
class ScannedEntries:
    """Addresses of the first entries of many local queue files, as read in one pass: those of neighbouring files in
    each of `parts`. `whole` has the queues of which every entry was read, and their ranges in the concatenated parts.
    """

    parts: list[Positions] = field(default_factory=list)
    count: int = 0
    whole: dict[QueueKey, tuple[int, int]] = field(default_factory=dict)

    def add(self, queue: ConsumeQueue, start: ValidEntries | None) -> None:
        """Notes what was seen of the next queue; without `start`, not all of its file was seen."""
        before = self.count
        self.count += MOST if start is None else start.count
        if start is not None and len(queue.chain.files) == 1:
            self.whole[queue.topic, queue.queue_id] = before, self.count

    @cached_property
    def addresses(self) -> Positions:
        """The addresses of all parts, once all have been seen."""
        return np.concatenate(self.parts) if self.parts else np.empty(0, np.int64)

    def sorted_from(self, start: int) -> Positions | None:
        """The addresses from `start` on, ascending and each once; None if no entries were seen."""
        if not self.parts:
            return None
        every = np.sort(self.addresses[self.addresses >= start])
        # A record may be in several queues.
        listed: Positions = every[np.append(True, every[1:] != every[:-1])[: len(every)]]
        return listed

    def between(self, queue: ConsumeQueue, start: int, stop: int) -> Positions | None:
        """The addresses of the entries [start, stop) of a queue; None where not all of them were seen."""
        first, end = self.whole.get((queue.topic, queue.queue_id), (0, 0))
        begin = first + start - queue.start
        return self.addresses[begin : begin + stop - start] if first <= begin <= begin + stop - start <= end else None


NOTHING_SCANNED = ScannedEntries()
"""Must not be modified."""


def scanned_queues(
    queues: Sequence[ConsumeQueue], files: OpenFiles, root: str, seen: ScannedEntries
) -> Iterator[QueueState]:
    """Scans the last three files of each queue: the first invalid entry ends it (rocketmq.md 3.4).

    What is seen of local queues on the way is added to `seen`.
    """
    if not system.is_local(root):
        yield from side_by_side(_scanned, queues, files, root)
        return
    with_files = [queue for queue in queues if queue.chain.files]
    numbers = [_first_scanned(queue) for queue in with_files]
    begins = [
        (queue.chain.files[index].path, queue.room(index)) for queue, index in zip(with_files, numbers, strict=True)
    ]
    starts = valid_starts(begins, seen.parts)
    for queue in queues:
        start = None
        if queue.chain.files:
            start = next(starts)
            seen.add(queue, start)
        yield _scanned(queue, files, start)


def _first_scanned(queue: ConsumeQueue) -> int:
    return max(0, len(queue.chain.files) - QUEUE_FILES_SCANNED)


def _scanned(queue: ConsumeQueue, files: OpenFiles, start: ValidEntries | None = None) -> QueueState:
    """`start`: the valid entries of the first file that is scanned, if known."""
    chain = queue.chain
    if not chain.files:
        return QueueState(queue, QueueTail())
    index = first = _first_scanned(queue)
    head = None
    last = NO_ENTRIES
    while True:
        valid = start if index == first and start is not None else queue.valid_entries(files, index)
        if index == first == 0 and valid.count:
            head = (valid.first_physical_offset, valid.first_size)
        last = valid if valid.count else last
        if valid.count < queue.entries_per_file or index + 1 == len(chain.files):
            break
        index += 1
    queue_offset = chain.files[index].base_offset // QUEUE_ENTRY.size + valid.count
    tail = QueueTail(queue_offset, last.reach, True)
    return QueueState(queue, tail, index + 1, valid.peak, head, last.last_physical_offset)
