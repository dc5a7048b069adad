"""What can be wrong in a vhost's store. What a node does about each, as tested on real nodes: docs/recovery.md."""

from __future__ import annotations

from enum import StrEnum


class Kind(StrEnum):
    """The kinds of findings, as `verify` prints them."""

    UNFINISHED = "unfinished write"
    JOURNAL = "journal"
    TORN_JOURNAL = "torn journal"
    SEGMENT = "segment"
    MESSAGE = "message"
    TORN = "torn tail"
    BLANK = "blank tail"
    UNREADABLE = "unreadable message"
    ID = "wrong message id"
    DISAGREEING = "index against message store"
    DANGLING = "dangling index entry"
    TABLES = "unusable tables"
    COUNT = "wrong reference count"
    ODD = "unexpected file"
