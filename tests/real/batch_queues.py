"""Stores with batch queues made by a real broker of 5.3.3, and what its consumer receives from them."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.real.broker import Broker

VERSION = "5.3.3"
TOPICS = ("bulk", "orders", "plain")
BATCHED, QUEUES = TOPICS[:2], 2
ENTRY_SIZE = 46
SMALL = {
    "mappedFileSizeCommitLog": 1 << 16, "mappedFileSizeConsumeQueue": 2000, "maxHashSlotNum": 101, "maxIndexNum": 400,
}  # fmt: skip
PATIENCE_MS = 12_000
"""On a busy machine a client has been seen idle for four seconds with messages still to come."""


@dataclass
class Story:
    """The history of one store: visits of a broker that stops cleanly or is killed."""

    store: Path
    r: random.Random

    def __post_init__(self) -> None:
        self.sizes = SMALL | {"mapperFileSizeBatchConsumeQueue": ENTRY_SIZE * self.r.randrange(3, 40)}
        self.visits = 0

    def visit(self, kill: bool) -> None:
        """Adds some messages, one by one and in batches."""
        with self.broker() as broker:
            for topic in TOPICS if not self.visits else ():
                attributes = {"+queue.type": "BatchCQ"} if topic in BATCHED else {}
                broker.ask(op="topic", topic=topic, queues=QUEUES, perm=6, attributes=attributes)
            for _ in range(self.r.randrange(1, 4)):
                broker.ask(op="produce", group="producers", messages=self.some_messages(), quiet=True)
            if kill:
                broker.kill()
        self.visits += 1

    def broker(self) -> Broker:
        """A broker on the store."""
        return Broker(VERSION.replace(".", ""), self.store, self.sizes)

    def consumed(self) -> list[dict[str, Any]]:
        """What a new group receives from a broker."""
        with self.broker() as broker:
            return broker.consume(f"group{self.visits}", list(TOPICS), PATIENCE_MS)

    def some_messages(self) -> list[dict[str, Any]]:
        """Messages of every topic, singly and in batches of one topic and queue."""
        r, messages = self.r, []
        for number in range(r.randrange(5, 40)):
            place = {"topic": r.choice(TOPICS), "queueId": r.randrange(QUEUES)}
            size = r.choice((1, 1, r.randrange(2, 9), r.randrange(2, 60)))
            kind = {"kind": "batch"} if size > 1 or r.random() < 0.2 else {}
            for each in range(size):
                own = {
                    "body": "x" * r.randrange(60) + f" {number} {each}", "keys": f"key-{r.randrange(12)}",
                    "flag": r.randrange(3),
                } | ({"tags": r.choice(("red", "green"))} if r.random() < 0.7 else {})  # fmt: skip
                messages.append(place | kind | own)
        return messages
