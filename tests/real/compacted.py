"""Stores with compacted topics made by a real broker of 5.3.3, and what its consumer receives from them."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.real.broker import Broker

VERSION = "5.3.3"
TOPICS = ("latest", "settings", "plain")
SMALL = {
    "mappedFileSizeCommitLog": 1 << 20, "mappedFileSizeConsumeQueue": 2000, "maxHashSlotNum": 101, "maxIndexNum": 400,
    "compactionThreadNum": 2,
}  # fmt: skip
ENTRY_SIZE = 46
FILES_OF_ENTRIES = 5
"""The minimum ratio of the size of a compaction log file to that of an entry file."""
OFTEN_MS, NEVER_MS = 2_000, 3_600_000
PATIENCE_MS = 12_000
"""On a busy machine a client has been seen idle for four seconds with messages still to come."""


@dataclass
class Story:
    """The history of one store: visits of a broker that compacts or not, and stops cleanly or is killed."""

    store: Path
    r: random.Random

    def __post_init__(self) -> None:
        entries = self.r.randrange(5, 40)
        self.sizes = SMALL | {
            "compactionCqMappedFileSize": ENTRY_SIZE * entries,
            "compactionMappedFileSize": ENTRY_SIZE * entries * FILES_OF_ENTRIES,
        }
        self.visits = 0

    def visit(self, interval_ms: int, kill: bool) -> None:
        """Adds some messages, with time to compact them if the broker does."""
        with self.broker(interval_ms) as broker:
            for topic in TOPICS if not self.visits else ():
                attributes = {} if topic == "plain" else {"+cleanup.policy": "COMPACTION"}
                broker.ask(op="topic", topic=topic, queues=2, perm=6, attributes=attributes)
            for _ in range(self.r.randrange(1, 4)):
                broker.ask(op="produce", group="producers", messages=self._messages(), quiet=True)
                if interval_ms != NEVER_MS:
                    time.sleep(self.r.uniform(0, 3 * interval_ms / 1000))
            if kill:
                broker.kill()
        self.visits += 1

    def broker(self, interval_ms: int) -> Broker:
        """A broker on the store that compacts at this interval."""
        return Broker(VERSION.replace(".", ""), self.store, self.sizes | {"compactionScheduleInternal": interval_ms})

    def consumed(self) -> list[dict[str, Any]]:
        """What a new group gets of a broker that compacts nothing. On a busy machine a client may get nothing of some
        topics in its first half minute: then another group is asked.
        """
        with self.broker(NEVER_MS) as broker:
            messages = broker.consume(f"group{self.visits}", list(TOPICS), PATIENCE_MS)
            if {message["topic"] for message in messages} < set(TOPICS):
                messages = broker.consume(f"again{self.visits}", list(TOPICS), 3 * PATIENCE_MS)
            return messages

    def _messages(self) -> list[dict[str, Any]]:
        r = self.r
        return [
            {
                "topic": r.choice(TOPICS), "queueId": r.randrange(2), "body": "x" * r.randrange(60) + f" {number}",
                "keys": f"key-{r.randrange(12)}" + " other" * r.randrange(2), "tags": r.choice(("red", "green")),
            }
            for number in range(r.randrange(20, 120))
        ]  # fmt: skip
