"""The recovery verdict: what a broker would serve of a store that it opened, as the end of the log and the bounds of
each queue, never as entries.

It is made by `recovery`. Source of the rules: interface.md 8.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from storage_core.formats.rocketmq.record_walk import Stop
from storage_core.rocketmq.recovery.dispatch import QueueTail
from storage_core.rocketmq.recovery.queue_scan import NOTHING_SCANNED, ScannedEntries, StaleEntries
from storage_core.store import QueueKey

DEFAULT_ENTRIES_PER_FILE = 300_000


class Rules(Enum):
    """The broker version whose rules determine what a store serves."""

    V4 = "4.9"
    V5 = "5.x"
    NONE = "none"


@dataclass(frozen=True)
class QueueVerdict:
    """One queue after a broker start: entries [.., disk_stop) are in its files, [disk_stop, stop) only in the log,
    except the `stale` ones among these, which are in its last file.

    `first` is the first queue offset that is not a filler; from `filler` on, the start itself would write fillers.
    `head` (physical offset and size of the first entry) and `last_physical_offset` (of the last entry before
    `disk_stop`) are set if recovery saw them, so that they need not be read again.
    """

    disk_stop: int
    stop: int
    filler: int = 0
    first: int = 0
    head: tuple[int, int] | None = None
    last_physical_offset: int = -1
    stale: StaleEntries | None = None


@dataclass(frozen=True)
class Replay:
    """A part of the log [start, stop) that is dispatched again, and the queues' tails when the dispatcher enters it.

    The entries that it appends to the queues in `void` are cut again before the broker start is over.
    """

    start: int
    stop: int
    tails: Mapping[QueueKey, QueueTail]
    void: frozenset[QueueKey] = frozenset()


@dataclass(frozen=True)
class BatchTail:
    """What a broker start appends to one batch queue: queue offsets [start, stop), for records from an address on."""

    first_physical_offset: int
    start: int
    stop: int


@dataclass(frozen=True)
class Verdict:
    """The result of recovery. The log is [log_start, log_end).

    `replays` are the parts of the log that are dispatched again, in dispatch order. `reason` states why the log ends at
    `log_end`. Messages of the log between the addresses `unlisted` are no longer in any queue, because a broker start
    removes them (rocketmq.md 2.11). `batches` are the parts of batch queues that only the log has, `listed_batches` the
    address of the last record that each batch queue lists; their topics are `batch_topics`. `stated_batch_topics` are
    those of topics.json if recovery depended on them, else None. `seen` are the addresses of
    entries that recovery has read, so that a plan need not read them again.
    """

    rules: Rules
    log_start: int
    log_end: int
    queues: Mapping[QueueKey, QueueVerdict]
    replays: tuple[Replay, ...] = ()
    reason: Stop = Stop.END
    entries_per_file: int = DEFAULT_ENTRIES_PER_FILE
    unlisted: tuple[int, int] = (0, 0)
    batches: Mapping[QueueKey, BatchTail] = field(default_factory=dict)
    batch_topics: frozenset[str] = frozenset()
    listed_batches: Mapping[QueueKey, int] = field(default_factory=dict)
    stated_batch_topics: frozenset[str] | None = None
    seen: ScannedEntries = field(default=NOTHING_SCANNED, compare=False, repr=False)

    def is_batched(self, key: QueueKey) -> bool:
        """Whether a queue is a batch queue."""
        return key[0] in self.batch_topics

    @property
    def jumps_over_new_fillers(self) -> bool:
        """Whether fillers that this start wrote make a pull jump: 4.9 with a log that begins at 0 (rocketmq.md 3.3)."""
        return self.rules is Rules.V4 and self.log_start == 0
