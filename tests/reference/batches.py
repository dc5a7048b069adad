"""Compares messages, including those from inner batches, as a consumer's client shows them with the rows of mqstore."""

from __future__ import annotations

from typing import Any

from tests.reference import consumed

NOT_ITS_OWN = ("size", "sysFlag", "bodyCrc", "offsetMsgId")
"""For a message from a batch the client shows the flags of the batch, and 0 or nothing for the other fields."""


def shown_fields(row: dict[str, Any]) -> dict[str, Any]:
    """The fields of a row that the client also shows, by name."""
    return {name: value for name, value in consumed.shown_fields(row).items() if name not in NOT_ITS_OWN}


def got(message: dict[str, Any]) -> dict[str, Any]:
    """The same fields of a message that the client received."""
    return {name: value for name, value in consumed.got(message).items() if name not in NOT_ITS_OWN}
