"""Stores with a DLedger log made by a real broker, alone in its group, and what its consumer receives from them."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.real.broker import Broker
from tests.support.free_ports import free_port

VERSIONS = ("4.9.3", "5.3.3")
TOPICS = ("orders", "events")
PATIENCE_MS = 6_000
MOVED_MS = 60_000
"""A client whose first offset the broker does not have drops the queue, and resumes it half a minute later."""


@dataclass
class Story:
    """The history of one store: visits of a broker that stops cleanly or is killed, the first maybe without DLedger."""

    version: str
    store: Path
    r: random.Random

    def __post_init__(self) -> None:
        self.sizes = {
            "mappedFileSizeCommitLog": self.r.choice((16 << 10, 64 << 10, 1 << 20)), "mappedFileSizeConsumeQueue": 2000,
            "maxHashSlotNum": 101, "maxIndexNum": 400, "maxMessageSize": 8 << 10,
        }  # fmt: skip
        self.visits = 0

    def visit(self, with_ledger: bool, kill: bool, pause_s: float = 0) -> None:
        """Adds some messages; a node records every three seconds what is committed."""
        with self.broker(with_ledger) as broker:
            for topic in TOPICS if not self.visits else ():
                broker.ask(op="topic", topic=topic, queues=2, perm=6)
            broker.ask(op="produce", group="producers", messages=self._messages(), quiet=True)
            time.sleep(pause_s)
            if kill:
                broker.kill()
        self.visits += 1

    def broker(self, with_ledger: bool = True) -> Broker:
        """A broker on the store, the only node of its group."""
        ledger = {
            "enableDLegerCommitLog": "true", "dLegerGroup": "group", "dLegerSelfId": "n0",
            "dLegerPeers": f"n0-127.0.0.1:{free_port()}",
        }  # fmt: skip
        return Broker(self.version.replace(".", ""), self.store, self.sizes | (ledger if with_ledger else {}))

    def consumed(self, expected: int = 0) -> list[dict[str, Any]]:
        """What a new group receives after the next broker start; waits longer if that is less than expected."""
        with self.broker() as broker:
            messages = broker.consume(f"group{self.visits}", list(TOPICS), PATIENCE_MS)
            if len(messages) >= expected:
                return messages
            return broker.consume(f"moved{self.visits}", list(TOPICS), MOVED_MS)

    def _messages(self) -> list[dict[str, Any]]:
        r = self.r
        largest = r.choice((50, 500, 4000))  # a client compresses longer ones, but only one version shows it
        return [
            {
                "topic": r.choice(TOPICS), "queueId": r.randrange(2), "body": "x" * r.randrange(largest) + f" {number}",
                "keys": f"key-{r.randrange(12)}" + " other" * r.randrange(2), "tags": r.choice(("red", "green")),
            }
            for number in range(r.randrange(1, 400))
        ]  # fmt: skip
