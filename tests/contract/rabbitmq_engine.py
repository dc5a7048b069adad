"""RabbitMQ as the contract suite sees it: classic queues of one vhost."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa

from storage_core import open_store
from tests.contract.engine import TIME, Engine, Message, Seen, read

ACKED = 5


class RabbitEngine(Engine):
    """Bodies of 100 bytes and more are stored in the message store, smaller ones in the queue's index."""

    name = "rabbitmq"
    queue_column, offset_column = "queue", "sequenceId"
    text_column, time_column = "correlationId", "timestamp"
    views = ("queues", "segments", "damage")
    refuses = frozenset({"scan", "startingTimestamp", "endingTimestamp", "key", "msgId", "tag", "group"})
    acknowledges = True
    small_files: ClassVar[dict[str, Any]] = {
        "queue_index_segment_entry_count": 16, "queue_index_embed_msgs_below": 100, "msg_store_file_size_limit": 2500,
    }  # fmt: skip

    def table(self, messages: Sequence[Message]) -> pa.Table:
        """Queue, body, correlation id and time."""
        return pa.table({
            "queue": [message.queue for message in messages],
            "body": pa.array([message.body for message in messages], pa.binary()),
            "correlationId": pa.array([message.text for message in messages], pa.string()),
            "timestamp": pa.array([message.second * 1_000_000 for message in messages], TIME),
        })  # fmt: skip

    def damage(self, root: Path, message: Seen) -> None:
        """Overwrites a byte of the message's term."""
        with open_store(str(root)) as store:
            wanted = self.request(columns=("queue", "sequenceId", "body", "location", "file", "position"))
            rows = pa.Table.from_batches(read(store.snapshot().plan(wanted))).to_pylist()
        row = next(row for row in rows if (row["queue"], row["sequenceId"]) == message[:2])
        assert row["location"] == "store", "an embedded message damages its segment"
        path = root / row["file"]
        data = bytearray(path.read_bytes())
        data[row["position"] + 26] = 99
        path.write_bytes(bytes(data))

    def lose_first(self, root: Path, queue: str) -> int:
        """Fetches and acknowledges them."""
        with open_store(str(root), **self.small_files) as store, store.queue(queue) as opened:
            opened.ack(opened.fetch_many(ACKED).sequence_ids.tolist())
        return ACKED

    def message_files(self, root: Path) -> list[Path]:
        """Message files and segments."""
        return sorted([*root.rglob("*.rdq"), *root.rglob("*.idx")])
