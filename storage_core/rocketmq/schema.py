"""The native columns of RocketMQ messages: names, types, and what must be read to produce each.

Source of the rules: interface.md 1-7.
"""

from __future__ import annotations

import pyarrow as pa

from storage_core.errors import OptionError, choices
from storage_core.formats.columns import TIMESTAMP
from storage_core.store import Mode, ScanRequest

NATIVE = pa.schema(
    [
        ("topic", pa.string()),
        ("queueId", pa.int32()),
        ("queueOffset", pa.int64()),
        ("key", pa.string()),
        ("keys", pa.list_(pa.string())),
        ("tags", pa.string()),
        ("body", pa.binary()),
        ("properties", pa.map_(pa.string(), pa.string())),
        ("bornTimestamp", TIMESTAMP),
        ("storeTimestamp", TIMESTAMP),
        ("msgId", pa.string()),
        ("offsetMsgId", pa.string()),
        ("bornHost", pa.string()),
        ("storeHost", pa.string()),
        ("sysFlag", pa.int32()),
        ("flag", pa.int32()),
        ("reconsumeTimes", pa.int32()),
        ("preparedTransactionOffset", pa.int64()),
        ("bodyCrc", pa.int32()),
        ("physicalOffset", pa.int64()),
        ("size", pa.int32()),
        ("rawProperties", pa.binary()),
        ("store", pa.string()),
    ]
)

CORRUPTION = pa.field("corruption", pa.string())

ENTRY_COLUMNS = frozenset({"topic", "queueId", "queueOffset", "physicalOffset", "size", "store"})
"""Columns that can be read from the consume queue alone."""

PROPERTY_COLUMNS = frozenset({"key", "keys", "tags", "properties", "msgId"})


def message_schema(request: ScanRequest) -> pa.Schema:
    """Schema of the rows of `request`, in its column order. Raises OptionError for a column that does not exist."""
    known = NATIVE.append(CORRUPTION) if request.mode is Mode.PERMISSIVE else NATIVE
    if request.columns is None:
        return known
    if not request.columns:
        raise OptionError("columns", "()", "names no column; None reads all")
    for name in request.columns:
        if known.get_field_index(name) < 0:
            raise OptionError("columns", name, f"there is no such column; {choices(name, known.names, 'columns', 30)}")
    return pa.schema([known.field(name) for name in request.columns])
