"""Names inside a RocketMQ store directory (rocketmq.md 1.1, 1.2)."""

from __future__ import annotations

from storage_core.formats.java_numbers import natural_of

COMMIT_LOG = "commitlog"
CONSUME_QUEUE = "consumequeue"
BATCH_CONSUME_QUEUE = "batchconsumequeue"
INDEX = "index"
CHECKPOINT = "checkpoint"
ABORT = "abort"
ABORT_BACKUP = "abort.bak"
COMPACTION = "compaction"
COMPACTION_LOG, COMPACTION_QUEUE = "compaction/compactionLog", "compaction/compactionCq"
LOCK = "lock"
CONFIG = "config"
GROUP_OFFSETS, LIGHT_GROUP_OFFSETS = "consumerOffset.json", "lmqConsumerOffset.json"
MQSTORE = ".mqstore"

DLEDGER_PREFIX = "dledger-"
DLEDGER_DATA, DLEDGER_INDEX, DLEDGER_CHECKPOINT = "data", "index", "checkpoint"
ROCKSDB_MARK = "CURRENT"

LIGHT_QUEUE_PREFIX = "%LMQ%"
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"

LONGEST_FOLDER = 255
"""The limit of file systems for a name, in bytes."""


def chain_name(base_offset: int) -> str:
    """The name of the file that begins at `base_offset`: 20 digits."""
    return f"{base_offset:020d}"


def has_folder(topic: str, queue_id: int) -> bool:
    """Whether a queue can have a folder that a start finds again; a damaged record may name any topic and queue."""
    is_name = topic not in ("", ".", "..") and "/" not in topic and "\0" not in topic
    return is_name and len(topic.encode()) <= LONGEST_FOLDER and queue_id >= 0


def queue_id_of(name: str) -> int | None:
    """The queue whose folder has a name; None if it is the folder of no queue. A queue id is an int of Java."""
    queue_id = natural_of(name, 32)
    return queue_id if str(queue_id) == name else None
