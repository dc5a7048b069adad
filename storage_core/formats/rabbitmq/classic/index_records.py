"""Decodes and encodes many queue index entries at once, for journal and segments: a publish has the same body in both.

`journal` and `segment` walk the files. Source: rabbitmq.md 2 and 3.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from storage_core.compiled.loading import CompiledLoops
from storage_core.formats.layout import Bytes, struct
from storage_core.formats.rabbitmq.classic import journal, segment
from storage_core.formats.rabbitmq.erlang.cursor import pieces
from storage_core.formats.spans import structs_at

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

_loops = CompiledLoops("storage_core.formats.rabbitmq.compiled.segment_loops")


@dataclass(frozen=True)
class PublishRows:
    """Output arrays for the n publishes of a segment, each of shape (n,).

    `positions` and `lengths` are those of the records; the bit `persistent` is set in `flags` of persistent publishes.
    `stored`: whether the message is in the shared store. `ids` are filled in for stored messages, or for all messages
    if `with_ids`; the others are left unchanged.
    """

    sequence_ids: Numbers
    positions: Numbers
    expiries: npt.NDArray[np.uint64]
    lengths: Numbers
    sizes: npt.NDArray[np.uint32]
    flags: Flags
    ids: npt.NDArray[np.void]
    stored: npt.NDArray[np.bool_]
    persistent: int
    with_ids: bool

    @property
    def count(self) -> int:
        """The number of rows. Raises ValueError if the arrays differ in length."""
        columns = self.sequence_ids, self.positions, self.expiries, self.lengths, self.sizes, self.flags, self.ids
        if any(len(column) != len(self.stored) for column in columns):
            raise ValueError("columns of different lengths")
        return len(self.stored)


def publishes_into(
    data: bytes | memoryview, flags: Flags, positions: Numbers, first_sequence_id: int, target: PublishRows
) -> Numbers:
    """Decodes the publishes of a segment file into `target`. Returns the sequence ids of the acknowledged ones.

    `flags` and `positions`, by relative sequence, are those found by `segment.content` or a walk. No reference to
    `data` is kept. Raises ValueError if `target` does not have one row for each publish.
    """
    count, buffer = target.count, np.frombuffer(data, np.uint8)
    if (loops := _loops.after()) is not None:
        found: Numbers = loops.publishes_into(buffer, flags, positions, first_sequence_id, target)
        return found
    relatives = np.flatnonzero(flags & PUBLISHED)
    starts, kept = positions[relatives], flags[relatives]
    if len(relatives) != count:
        raise ValueError("there is not a row for each publish")
    heads = structs_at(buffer, segment.PUBLISH.dtype, starts)
    embedded = heads["embedded_size"].astype(np.int64)
    target.sequence_ids[:], target.positions[:] = first_sequence_id + relatives, starts
    target.expiries[:], target.sizes[:] = heads["expiry"], heads["size"]
    target.lengths[:] = segment.PUBLISH.size + embedded
    target.flags[kept & PERSISTENT != 0] |= np.uint8(target.persistent)
    target.stored[:] = embedded == 0
    named = target.stored | target.with_ids
    target.ids[named] = heads["id"][named]
    acked: Numbers = first_sequence_id + relatives[kept & ACKED != 0]
    return acked


def publish_bodies(
    ids: npt.NDArray[Any], expiries: Numbers, sizes: Numbers, embedded: Sequence[bytes]
) -> npt.NDArray[np.void]:
    """The part between head and term of each publish record; `embedded` is empty for messages in the shared store."""
    fixed = np.empty(len(ids), BODY.dtype)
    fixed["id"], fixed["expiry"], fixed["size"] = ids, expiries, sizes
    fixed["embedded_size"] = np.fromiter(map(len, embedded), np.int64, len(embedded))
    return fixed


def bodies_at(buffer: Bytes, positions: Numbers) -> npt.NDArray[np.void]:
    """The bodies at `positions` of a file that was walked. Shape (n,), a copy.

    Uses numpy alone: a queue that reads its index all day would hold on to Arrow's allocations.
    """
    if not len(positions):
        return np.empty(0, BODY.dtype)
    view: npt.NDArray[Any] = np.ndarray((len(buffer) - BODY.size + 1,), BODY.dtype, buffer, strides=(1,))
    return view[positions]


def journal_publishes(
    sequence_ids: Numbers, persistent: npt.NDArray[np.bool_], bodies: npt.NDArray[np.void], embedded: Sequence[bytes]
) -> bytes:
    """The publish records, concatenated."""
    kinds = np.where(persistent, journal.PUBLISH_PERSISTENT, journal.PUBLISH_TRANSIENT).astype(np.uint64)
    parts: list[bytes] = [b""] * (2 * len(embedded))
    parts[::2] = _headed(">u8", sequence_ids.astype(np.uint64) | kinds << np.uint64(journal.KIND_SHIFT), bodies)
    parts[1::2] = embedded
    return b"".join(parts)


def _headed(disk: str, heads: npt.NDArray[Any], bodies: npt.NDArray[np.void]) -> list[bytes]:
    """Head and body of each record."""
    fixed = np.empty(len(heads), np.dtype([("head", disk), ("body", BODY.dtype)]))
    fixed["head"], fixed["body"] = heads, bodies
    return pieces(fixed.tobytes(), fixed.dtype.itemsize)


def segment_block(
    relatives: Numbers, flags: Flags, bodies: npt.NDArray[np.void], embedded: Sequence[bytes | None]
) -> bytes:
    """The bytes that a flush appends: the records in `flags` of each entry, by descending relative sequence.

    `relatives` are in descending order. Where `flags` hold no publish, `bodies` are ignored, and `embedded` must be
    None or empty.
    """
    persistent = (flags & PERSISTENT) != 0
    published = ((flags & PUBLISHED) != 0).tolist()
    heads = _headed(">u2", segment.PUBLISH_BIT | np.where(persistent, segment.PERSISTENT_BIT, 0) | relatives, bodies)
    marks = (segment.MARK_BITS | relatives).astype(">u2").tobytes()
    counts = (((flags & DELIVERED) != 0).astype(np.int64) + ((flags & ACKED) != 0)).tolist()
    parts: list[bytes] = [b""] * (3 * len(relatives))
    parts[::3] = heads if all(published) else [h if there else b"" for h, there in zip(heads, published, strict=True)]
    parts[1::3] = [term or b"" for term in embedded]
    listed = pieces(marks, segment.MARK.size)
    all_once = counts.count(1) == len(counts)
    parts[2::3] = listed if all_once else [mark * count for mark, count in zip(listed, counts, strict=True)]
    return b"".join(parts)
