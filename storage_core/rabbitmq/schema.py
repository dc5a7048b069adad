"""The native columns of RabbitMQ messages: names and types, in order.

`columns` fills them, `rows` those that quorum queues and streams add. Source: docs/rabbitmq.md "Columns", interface.md
28 to 34.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from storage_core.conditions import columns_of, condition
from storage_core.errors import OptionError, choices
from storage_core.formats.columns import TIMESTAMP
from storage_core.formats.rabbitmq.amqp.headers import MAP_TYPE
from storage_core.store import Mode, ScanRequest

NATIVE = pa.schema(
    [
        ("vhost", pa.string()),
        ("queue", pa.string()),
        ("sequenceId", pa.int64()),
        ("body", pa.binary()),
        ("exchange", pa.string()),
        ("routingKeys", pa.list_(pa.string())),
        ("headers", MAP_TYPE),
        ("contentType", pa.string()),
        ("contentEncoding", pa.string()),
        ("correlationId", pa.string()),
        ("replyTo", pa.string()),
        ("messageId", pa.string()),
        ("type", pa.string()),
        ("userId", pa.string()),
        ("appId", pa.string()),
        ("deliveryMode", pa.int32()),
        ("priority", pa.int32()),
        ("expiration", pa.string()),
        ("timestamp", TIMESTAMP),
        ("expiresAt", TIMESTAMP),
        ("persistent", pa.bool_()),
        ("redelivered", pa.bool_()),
        ("guid", pa.string()),
        ("rawProperties", pa.binary()),
        ("location", pa.string()),
        ("file", pa.string()),
        ("position", pa.int64()),
        ("size", pa.int64()),
        ("store", pa.string()),
    ]
)
QUEUE_TYPE = pa.field("queueType", pa.string())
QUORUM = pa.schema(
    [
        ("raftIndex", pa.int64()),
        ("raftTerm", pa.int64()),
        ("enqueuedAt", TIMESTAMP),
        ("deliveryCount", pa.int64()),
        ("acquiredCount", pa.int64()),
        ("status", pa.string()),
        ("committed", pa.bool_()),
    ]
)
"""Additional columns of messages in quorum queues."""
STREAM = pa.schema(
    [
        ("streamOffset", pa.int64()),
        ("chunkId", pa.int64()),
        ("chunkTimestamp", TIMESTAMP),
        ("epoch", pa.int64()),
        ("rawSections", pa.binary()),
    ]
)
"""Additional columns of messages in streams."""
ADDITIONAL = pa.schema([QUEUE_TYPE, *QUORUM, *STREAM])
ACKED = pa.field("acked", pa.bool_())
CORRUPTION = pa.field("corruption", pa.string())
READABLE = pa.schema([*NATIVE, *ADDITIONAL, ACKED, CORRUPTION])
"""Every column that a read can select or filter by."""

TEXT_PROPERTIES = {
    "contentType": "content_type",
    "contentEncoding": "content_encoding",
    "correlationId": "correlation_id",
    "replyTo": "reply_to",
    "messageId": "message_id",
    "type": "type",
    "userId": "user_id",
    "appId": "app_id",
    "expiration": "expiration",
}
"""Columns that hold the text of one short string of the property list."""

INDEX_COLUMNS = frozenset(
    {"vhost", "queue", "sequenceId", "redelivered", "location", "file", "position", "store", "acked", *ADDITIONAL.names}
)
"""Columns that need only the index; they are filled for damaged messages too."""


def message_schema(request: ScanRequest, own: Sequence[str] = ()) -> pa.Schema:
    """Schema of the rows of `request`, in its column order. Raises OptionError for a column that does not exist, even
    if only a predicate uses it.

    `own` are the additional columns of the queue's type; those of other types may be requested and are null.
    """
    names = [*NATIVE.names, *own]
    names += [ACKED.name] if request.include_acked else []
    names += [CORRUPTION.name] if request.mode is Mode.PERMISSIVE else []
    if request.columns == ():
        raise OptionError("columns", "()", "names no column; None reads all")
    filtered = sorted(columns_of(map(condition, request.predicates)))
    for option, wanted in (("columns", request.columns or ()), ("filters", filtered)):
        for name in wanted:
            if name not in names and name not in ADDITIONAL.names:
                raise OptionError(option, name, f"there is no such column; {choices(name, names, 'columns', 40)}")
    return pa.schema([READABLE.field(name) for name in (names if request.columns is None else request.columns)])
