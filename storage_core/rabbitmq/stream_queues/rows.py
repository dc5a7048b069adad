"""What is known about the messages of streams without reading them, and the columns that come from it.

Source: docs/rabbitmq.md "Streams". Finding entries belongs to `batch`, the columns from messages to `columns`.
"""

from __future__ import annotations

import pyarrow as pa

from storage_core.arrays import as_array
from storage_core.formats.columns import TIMESTAMP, timestamps
from storage_core.rabbitmq import schema
from storage_core.rabbitmq.index.entries import Entries
from storage_core.rabbitmq.read.columns import LogColumns

OWN_COLUMNS = (schema.QUEUE_TYPE.name, *schema.STREAM.names)
OF_MESSAGES = frozenset({"rawSections"})

FIELDS = {
    "sequence_id": "i8", "position": "i8", "length": "i8", "chunk": "i8", "time": "i8", "epoch": "i8",
    "file": "i4", "queue": "i4", "kind": "u1", "flags": "u1",
}  # fmt: skip
"""A message: `sequence_id` is its offset, `position` that of its entry in `file`; `chunk`, `time` and `epoch` are its
chunk's id, time in ms, and epoch.
"""


class StreamColumns(LogColumns):
    """The columns that come from chunks and entries."""

    queue_type = "stream"
    number_name = "streamOffset"
    names = (LogColumns.names | {"guid", "expiresAt"}) - OF_MESSAGES

    def values(self, name: str, entries: Entries) -> pa.Array:
        """The column `name`, one of `names`."""
        if name == "streamOffset":
            return as_array(entries["sequence_id"])
        if name == "chunkId":
            return as_array(entries["chunk"])
        if name == "chunkTimestamp":
            return timestamps(entries["time"])
        if name == "epoch":
            return as_array(entries["epoch"])
        if name == "expiresAt":
            return pa.nulls(len(entries), TIMESTAMP)
        if name == "guid":
            return pa.nulls(len(entries), pa.string())
        return super().values(name, entries)
