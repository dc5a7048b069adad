"""Many entries of a queue index at once, for its journal and its segments: what both hold of a publish is the same.

Walking the files belongs to `journal` and `segment`. Source: rabbitmq.md 2 and 3.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from storage_core.formats.layout import struct
from storage_core.formats.rabbitmq import journal, segment

BODY = struct(
    "index publish body",
    ("id", "V16", "message id"),
    ("expiry", ">u8", "expiry: µs since 1970, 0 = none"),
    ("size", ">u4", "size: length of the body"),
    ("embedded_size", ">u4", "length of the embedded message term, 0 = message is in the shared store"),
    size=32,
)
PUBLISHED, PERSISTENT, DELIVERED, ACKED = 1, 2, 4, 8
"""Flags of an entry: which records it has, and whether its publish is persistent."""

Numbers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.uint8]


def publish_bodies(ids: npt.NDArray[Any], expiries: Numbers, sizes: Numbers, embedded: Sequence[bytes]) -> list[bytes]:
    """What follows the head of each publish record; `embedded` is empty for messages in the shared store."""
    fixed = np.empty(len(ids), BODY.dtype)
    fixed["id"], fixed["expiry"], fixed["size"] = ids, expiries, sizes
    fixed["embedded_size"] = [len(term) for term in embedded]
    raw = fixed.tobytes()
    return [raw[at : at + 32] + term for at, term in zip(range(0, len(raw), 32), embedded, strict=True)]


def journal_publishes(sequence_ids: Numbers, persistent: npt.NDArray[np.bool_], bodies: Sequence[bytes]) -> bytes:
    """The publish records, one behind the other."""
    kinds = np.where(persistent, journal.PUBLISH_PERSISTENT, journal.PUBLISH_TRANSIENT).astype(np.uint64)
    raw = (sequence_ids.astype(np.uint64) | kinds << np.uint64(journal.KIND_SHIFT)).astype(">u8").tobytes()
    parts: list[bytes] = [b""] * (2 * len(bodies))
    parts[::2] = [raw[at : at + 8] for at in range(0, len(raw), 8)]
    parts[1::2] = bodies
    return b"".join(parts)


def segment_block(relatives: Numbers, flags: Flags, bodies: Sequence[bytes | None]) -> bytes:
    """What a flush appends: by descending relative sequence, of each entry its publish, its deliver, its ack.

    `relatives` ascend; `bodies` are None where `flags` hold no publish.
    """
    persistent = (flags & PERSISTENT) != 0
    publish = segment.PUBLISH_BIT | np.where(persistent, segment.PERSISTENT_BIT, 0) | relatives
    heads = publish.astype(">u2").tobytes()
    marks = (segment.MARK_BITS | relatives).astype(">u2").tobytes()
    mark_counts = ((flags & DELIVERED) != 0).astype(int) + ((flags & ACKED) != 0)
    parts: list[bytes] = []
    at = 2 * len(relatives)
    for body, count in zip(reversed(bodies), mark_counts[::-1].tolist(), strict=True):
        at -= 2
        if body is not None:
            parts += (heads[at : at + 2], body)
        parts.append(marks[at : at + 2] * count)
    return b"".join(parts)


def split_bodies(bodies: Sequence[bytes]) -> tuple[npt.NDArray[Any], list[bytes]]:
    """The fixed parts (dtype of BODY) and the embedded terms of what `publish_bodies` made."""
    fixed = np.frombuffer(b"".join([body[:32] for body in bodies]), BODY.dtype)
    return fixed, [body[32:] for body in bodies]
