"""Converts a frame to write into an Arrow table, whatever its type. The engines decide which columns it may have."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from storage_core.errors import MqStoreError


def as_table(frame: Any) -> pa.Table:
    """Converts a frame to write into a table: a pyarrow Table or RecordBatch, a pandas DataFrame, a dict of columns.

    Raises MqStoreError for what cannot be converted.
    """
    try:
        table = frame if isinstance(frame, pa.Table) else pa.table(frame)
    except (TypeError, ValueError, OverflowError, pa.ArrowException) as error:
        reason = str(error).partition("\n")[0]
        raise MqStoreError(
            f"append takes a pyarrow Table or RecordBatch, a pandas DataFrame or a dict of columns, and this "
            f"{type(frame).__name__} cannot be made one: {reason}"
        ) from None
    # Columns that pandas adds for an index other than a plain range are not columns of messages.
    return table.select([name for name in table.column_names if not name.startswith("__index_level_")])
