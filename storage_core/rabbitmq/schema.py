"""The native columns of RabbitMQ messages: names and types, in their order.

Source: DESIGN 7.2, interface.md 28 to 34. Leaves to `rows` how they are filled.
"""

from __future__ import annotations

import pyarrow as pa

from storage_core.errors import OptionError, closest
from storage_core.formats.columns import TIMESTAMP
from storage_core.formats.rabbitmq.headers import MAP_TYPE
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
ACKED = pa.field("acked", pa.bool_())
CORRUPTION = pa.field("corruption", pa.string())

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

PLACE_COLUMNS = frozenset(
    {"vhost", "queue", "sequenceId", "redelivered", "location", "file", "position", "store", "acked"}
)
"""Columns that the index answers alone; a damaged message keeps them."""


def message_schema(request: ScanRequest) -> pa.Schema:
    """Schema of the rows of `request`, in its column order. Raises OptionError for a column that does not exist."""
    known = NATIVE.append(ACKED) if request.include_acked else NATIVE
    known = known.append(CORRUPTION) if request.mode is Mode.PERMISSIVE else known
    if request.columns is None:
        return known
    for name in request.columns:
        if known.get_field_index(name) < 0:
            near = closest(name, known.names)
            hint = f"did you mean {' or '.join(near)}? " if near else ""
            listed = ", ".join(known.names)
            raise OptionError("columns", name, f"there is no such column; {hint}The columns are {listed}")
    return pa.schema([known.field(name) for name in request.columns])
