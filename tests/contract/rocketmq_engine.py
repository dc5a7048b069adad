"""RocketMQ as the contract suite sees it: one queue per topic."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa

from tests.contract.engine import TIME, Engine, Message, Seen


class RocketEngine(Engine):
    """Topics whose only queue is 0."""

    name = "rocketmq"
    queue_column, offset_column = "topic", "queueOffset"
    text_column, time_column = "tags", "bornTimestamp"
    views = ("queues", "topics", "offsets", "segments", "index", "damage")
    refuses = frozenset({"includeAcked"})
    acknowledges = False
    small_files: ClassVar[dict[str, Any]] = {
        "commitLogFileSize": 4096, "consumeQueueFileEntries": 10, "indexSlots": 11, "indexEntries": 40,
    }  # fmt: skip

    def table(self, messages: Sequence[Message]) -> pa.Table:
        """Each message can also be found by the key `k` and the first word of its body."""
        return pa.table({
            "topic": [message.queue for message in messages],
            "queueId": pa.array([0] * len(messages), pa.int32()),
            "body": pa.array([message.body for message in messages], pa.binary()),
            "tags": pa.array([message.text for message in messages], pa.string()),
            "key": [f"{message.queue} {message.body.split()[0].decode()}" for message in messages],
            "bornTimestamp": pa.array([message.second * 1_000_000 for message in messages], TIME),
        })  # fmt: skip

    def damage(self, root: Path, message: Seen) -> None:
        """Flips one bit of its body; the message must be stored before the files that recovery reads."""
        for path in self.message_files(root)[:-3]:
            data = bytearray(path.read_bytes())
            if (position := data.find(message[2])) >= 0:
                data[position] ^= 1
                path.write_bytes(bytes(data))
                return
        raise AssertionError(f"{message} is in no log file that recovery trusts")

    def lose_first(self, root: Path, queue: str) -> int:
        """Lets the oldest log file expire."""
        before = {row[:2] for row in self.rows(root)}
        self.message_files(root)[0].unlink()
        gone = before - {row[:2] for row in self.rows(root)}
        return max(offset for name, offset in gone if name == queue) + 1

    def message_files(self, root: Path) -> list[Path]:
        """The commit log."""
        return sorted((root / "commitlog").iterdir())

    def commit_group(self, root: Path, group: str, offsets: dict[str, int]) -> None:
        """Writes the offsets as a broker does."""
        table = {f"{topic}@{group}": {"0": offset} for topic, offset in offsets.items()}
        (root / "config").mkdir(exist_ok=True)
        (root / "config" / "consumerOffset.json").write_text(json.dumps({"offsetTable": table}))
