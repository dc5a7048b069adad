"""What `verify` finds wrong in a store of either engine."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa


@dataclass(frozen=True)
class Finding:
    """One damaged part of a store, as `verify` reports it and the view `damage` lists it.

    It covers `length` bytes from `position` on in `file` (below the store; the whole file if both are 0). `effect`
    states what a broker or node does about it. `queue` is the queue concerned, None if there is none or several.
    """

    file: str
    position: int
    length: int
    kind: str
    reason: str
    effect: str
    repairable: bool
    queue: str | None = None


FINDINGS = pa.schema(
    [
        ("file", pa.string()),
        ("position", pa.int64()),
        ("length", pa.int64()),
        ("kind", pa.string()),
        ("reason", pa.string()),
        ("effect", pa.string()),
        ("repairable", pa.bool_()),
        ("queue", pa.string()),
    ]
)
"""The columns of findings in the view `damage`."""
