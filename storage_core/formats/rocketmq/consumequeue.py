"""A consume queue's entries: which record each message of a queue is.

How entries are kept in files and which of them count belongs to the engine. Source of the rules: rocketmq.md 3.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from storage_core.compiled.loading import CompiledLoops
from storage_core.formats.layout import Bytes, Positions, struct

QUEUE_ENTRY = struct(
    "consume queue entry",
    ("physical_offset", ">i8", "address of the record in the commit log"),
    ("size", ">i4", "TOTALSIZE of the record; 0x7FFFFFFF in a filler entry before a queue's first message"),
    ("tags_code", ">i8", "Java hash of TAGS, the delivery time in SCHEDULE_TOPIC_XXXX, or an ext address"),
    size=20,
)

BLANK_SIZE = 0x7FFFFFFF

_loops = CompiledLoops("storage_core.formats.rocketmq.compiled.write_loops")


def decode_entries(data: Bytes | bytes) -> npt.NDArray[Any]:
    """The whole entries of a buffer, in disk byte order, without a copy. Shape (len // 20,)."""
    return np.frombuffer(data, QUEUE_ENTRY.dtype, len(data) // QUEUE_ENTRY.size)


def leading_valid(entries: npt.NDArray[Any]) -> int:
    """How many entries, from the first on, have offset >= 0 and size > 0 (rocketmq.md 3.4)."""
    invalid = (entries["physical_offset"].astype(np.int64) < 0) | (entries["size"].astype(np.int32) <= 0)
    return int(invalid.argmax()) if invalid.any() else len(entries)


def encode_entries(
    physical_offsets: Positions, sizes: Positions, tags_codes: Positions, order: Positions | None = None
) -> npt.NDArray[Any]:
    """Units in disk byte order, of the records `order` where not all are wanted as they come. Shape (n,)."""
    if order is not None:
        if (loops := _loops.after(len(order) * QUEUE_ENTRY.size)) is not None:
            found: npt.NDArray[Any] = loops.queue_entries(physical_offsets, sizes, tags_codes, order)
            return found
        physical_offsets, sizes, tags_codes = physical_offsets[order], sizes[order], tags_codes[order]
    entries = np.empty(len(physical_offsets), QUEUE_ENTRY.dtype)
    entries["physical_offset"], entries["size"], entries["tags_code"] = physical_offsets, sizes, tags_codes
    return entries


def filler_entries(count: int) -> npt.NDArray[Any]:
    """The entries that a broker puts before a queue's first message (rocketmq.md 3.3). Shape (count,)."""
    blank = np.zeros(count, np.int64)
    return encode_entries(blank, np.full(count, BLANK_SIZE), blank)
