"""What is known of the messages of streams without their bytes, and the columns that it answers.

Source: docs/rabbitmq.md "Streams". Leaves to `batch` how entries are found, to `columns` what the messages answer.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from storage_core.arrays import as_array, text_array
from storage_core.formats.columns import TIMESTAMP, timestamps
from storage_core.rabbitmq import schema
from storage_core.rabbitmq.index.entries import Entries
from storage_core.rabbitmq.read.columns import IndexColumns

OWN_COLUMNS = (schema.QUEUE_TYPE.name, *schema.STREAM.names)
OF_MESSAGES = frozenset({"rawSections"})

FIELDS = {
    "sequence_id": "i8", "position": "i8", "length": "i8", "chunk": "i8", "time": "i8", "epoch": "i8",
    "file": "i4", "queue": "i4", "kind": "u1", "flags": "u1",
}  # fmt: skip
"""A message: its offset is `sequence_id`; its entry at `position` of `file`; its chunk's id, time in ms, and epoch."""


class StreamColumns(IndexColumns):
    """The columns that chunks and entries answer. `vhosts` go with `queues`; None where no table names one."""

    queue_type = "stream"
    number_name = "streamOffset"
    names = (IndexColumns.names | {"guid", "expiresAt"}) - OF_MESSAGES

    def __init__(self, vhosts: Sequence[str | None], store: str, queues: Sequence[str], files: Sequence[str]) -> None:
        super().__init__("", store, queues, files)
        del self._constants["vhost"]
        self._constants["location"] = "log"
        self._vhosts = text_array(vhosts)

    def values(self, name: str, entries: Entries) -> pa.Array:
        """One of `names`."""
        if name == "vhost":
            return self._vhosts.take(as_array(entries["queue"]))
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
