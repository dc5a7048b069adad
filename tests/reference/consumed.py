"""Compares a message as a consumer's client shows it with the row that mqstore reads for it."""

from __future__ import annotations

import base64
from typing import Any

SAME = (
    "topic", "queueId", "queueOffset", "physicalOffset", "size", "storeTimestamp", "bornTimestamp", "flag", "sysFlag",
    "reconsumeTimes", "bodyCrc", "msgId", "offsetMsgId", "tags",
)  # fmt: skip


def shown_fields(row: dict[str, Any]) -> dict[str, Any]:
    """The fields of a row that the client also shows, by name; the row's times are milliseconds."""
    return {name: row[name] for name in SAME} | {"body": row["body"], "keys": row["key"]}


def got(message: dict[str, Any]) -> dict[str, Any]:
    """The same fields of a message that the client received."""
    body = base64.b64decode(message["body64"])
    return {name: message[name] for name in SAME} | {"body": body, "keys": message["keys"]}
