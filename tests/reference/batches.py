"""What a consumer's client shows of messages, also of those out of inner batches, beside the rows of mqstore."""

from __future__ import annotations

from typing import Any

from tests.reference import consumed

NOT_ITS_OWN = ("size", "sysFlag", "bodyCrc", "offsetMsgId")
"""Of a message out of a batch the client shows the batch's flags, and 0 or nothing for the others."""


def told(row: dict[str, Any]) -> dict[str, Any]:
    """What the client shows of a message too, by name."""
    return {name: value for name, value in consumed.told(row).items() if name not in NOT_ITS_OWN}


def got(message: dict[str, Any]) -> dict[str, Any]:
    """The same of a message that the client got."""
    return {name: value for name, value in consumed.got(message).items() if name not in NOT_ITS_OWN}
