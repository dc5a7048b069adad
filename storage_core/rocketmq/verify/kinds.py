"""The kinds of damage, and what a broker does with each. Source: docs/recovery.md "Damage"."""

from __future__ import annotations

import os
from dataclasses import dataclass
from enum import Enum

from storage_core.finding import Finding
from storage_core.rocketmq.disk.directory import Listing
from storage_core.rocketmq.disk.ledger import LedgerChain
from storage_core.rocketmq.recovery.verdict import Rules, Verdict
from storage_core.store import QueueKey


class Kind(Enum):
    """What is wrong, as `view=damage` and `mqstore verify` report it."""

    UNFINISHED = "unfinished write"
    FILE_LOST = "missing log file"
    LENGTH = "wrong file length"
    EMPTY = "empty file"
    ODD = "unexpected file"
    BYTES = "damaged bytes"
    CHECKSUM = "wrong checksum"
    DELAY = "unreadable DELAY"
    PORT = "impossible port"
    TORN = "torn record"
    AFTER_END = "records after the end"
    QUEUE_FILE_LOST = "missing queue file"
    QUEUE_FILE_BLANK = "queue file without entries"
    ENTRY = "wrong queue entry"
    PAST_END = "queue entries past the end"
    UNLISTED = "unlisted messages"
    QUEUE_TYPE = "queue of another type"
    BATCH_ENTRY = "wrong batch entry"
    UNLISTED_BATCH = "unlisted batches"
    COMPACTION_FILE = "wrong compaction file"
    COMPACTED_ENTRY = "wrong compacted entry"
    UNSERVED = "unserved compacted queue"
    INDEX_LOST = "missing index"
    INDEX_FILE = "unusable index file"
    INDEX_ENTRY = "wrong index entry"
    INDEX_PAST_END = "index entries past the end"
    UNINDEXED = "unindexed messages"
    CHECKPOINT = "wrong checkpoint"
    CONFIG = "unreadable config file"


REFUSES = "does not load the store"
IGNORES = "ignores it"
REMOVES = "removes the file"

EFFECTS: dict[Kind, tuple[str, str]] = {
    Kind.UNFINISHED: (REFUSES, REFUSES),
    Kind.FILE_LOST: ("loads the store and skips what was there", "loads the store and skips what was there"),
    Kind.LENGTH: (REFUSES, REFUSES),
    Kind.EMPTY: (REFUSES, REMOVES),
    Kind.ODD: (REFUSES, REFUSES),
    Kind.BYTES: ("serves the bytes as they are", "serves the bytes as they are"),
    Kind.CHECKSUM: ("serves the message as it is", "serves the message as it is"),
    Kind.DELAY: ("ends the log here when it scans this file", "ends the log here when it scans this file"),
    Kind.PORT: ("serves the message, which no client decodes",) * 2,
    Kind.TORN: ("cuts it", "cuts it"),
    Kind.AFTER_END: ("cuts them: they are never served again", "cuts them: they are never served again"),
    Kind.QUEUE_FILE_LOST: ("skips the messages that it listed", "skips the messages that it listed"),
    Kind.QUEUE_FILE_BLANK: ("counts one message too many", REFUSES),
    Kind.ENTRY: ("skips the message, or serves other bytes", "skips the message, or serves other bytes"),
    Kind.PAST_END: ("drops them", "drops them"),
    Kind.UNLISTED: ("never delivers them", "never delivers them"),
    Kind.QUEUE_TYPE: (IGNORES, REFUSES),
    Kind.BATCH_ENTRY: (IGNORES, "serves the bytes as they are"),
    Kind.UNLISTED_BATCH: (IGNORES, "never delivers them"),
    Kind.COMPACTION_FILE: (IGNORES, REFUSES),
    Kind.COMPACTED_ENTRY: (IGNORES, "serves the bytes as they are"),
    Kind.UNSERVED: (IGNORES, "serves none of its messages"),
    Kind.INDEX_LOST: ("finds no message by key", "finds no message by key"),
    Kind.INDEX_FILE: ("silently misses messages by key", "silently misses messages by key"),
    Kind.INDEX_ENTRY: ("misses messages by key, or finds others", "misses messages by key, or finds others"),
    Kind.INDEX_PAST_END: (IGNORES, IGNORES),
    Kind.UNINDEXED: ("does not find them by key", "does not find them by key"),
    Kind.CHECKPOINT: ("rebuilds it, and scans the whole log after a crash",) * 2,
    Kind.CONFIG: ("uses the .bak file, else starts with an empty table",) * 2,
}
"""What brokers of 4.9.3 and of 5.3.3 do, unless that depends on the place of the damage."""

ENDS_HERE = "ends the log here and cuts all that follows"
LISTS_AGAIN = "lists them again at its start"


def counted(count: int, one: str, many: str | None = None) -> str:
    """`1 message`, `2 messages`."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


@dataclass(frozen=True)
class Subject:
    """The store that is verified: its files, and what a broker would serve of them."""

    listing: Listing
    verdict: Verdict

    @property
    def is_4_9(self) -> bool:
        """Whether the rules of 4.9.3 determine what a broker does; otherwise those of 5.3.3 do."""
        return self.verdict.rules is not Rules.V5

    def name(self, path: str) -> str:
        """The path relative to the store, or the full path if the log is elsewhere."""
        inside = os.path.relpath(path, self.listing.root)
        return path if inside.startswith("..") else inside

    def finding(
        self, kind: Kind, path: str, position: int, length: int, reason: str,
        effect: str | None = None, queue: QueueKey | None = None, repairable: bool = True,
    ) -> Finding:  # fmt: skip
        """A finding; `effect` is given if it depends on the place. A finding in a ledger is not repairable."""
        stated_effect = EFFECTS[kind][0 if self.is_4_9 else 1] if effect is None else effect
        name = None if queue is None else f"{queue[0]}/{queue[1]}"
        mends = repairable and not isinstance(self.listing.log, LedgerChain)
        return Finding(self.name(path), position, length, kind.value, reason, stated_effect, mends, name)

    def log_finding(self, kind: Kind, start: int, stop: int, reason: str, effect: str | None = None) -> Finding:
        """A finding at the addresses [start, stop) of the log."""
        file = self.listing.log.file_at(start)
        path, base = (file.path, file.base_offset) if file is not None else (self.listing.log.name_of(start), start)
        return self.finding(kind, path, start - base, stop - start, reason, effect)
