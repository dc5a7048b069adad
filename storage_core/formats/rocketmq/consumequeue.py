"""The entries of a consume queue, which locate the record of each message.

How entries are kept in files, and which of them count, is up to the engine. Source of the rules: rocketmq.md 3.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntFlag
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from storage_core.compiled.loading import CompiledLoops
from storage_core.formats.layout import Bytes, Positions, struct
from storage_core.formats.span_equals import KnownTexts

QUEUE_ENTRY = struct(
    "consume queue entry",
    ("physical_offset", ">i8", "address of the record in the commit log"),
    ("size", ">i4", "TOTALSIZE of the record; 0x7FFFFFFF in a filler entry before a queue's first message"),
    ("tags_code", ">i8", "Java hash of TAGS, the delivery time in SCHEDULE_TOPIC_XXXX, or an ext address"),
    size=20,
)

BATCH_ENTRY = struct(
    "batch queue entry",
    ("physical_offset", ">i8", "address of the record; -1 in an entry that ends a file of a compacted queue"),
    ("size", ">i4", "TOTALSIZE of the record"),
    ("tags_code", ">i8", "Java hash of TAGS"),
    ("store_ms", ">i8", "STORETIMESTAMP of the record"),
    ("queue_offset", ">i8", "queue offset of the record's first message"),
    ("count", ">i2", "messages in the record"),
    ("compacted_offset", ">i4", "-1"),
    ("reserved", ">i4", "0"),
    size=46,
)

BLANK_SIZE = 0x7FFFFFFF
KEY_BITS = 63
"""An entry's address and number fit into one non-negative integer if together they have fewer bits than this."""

_entry_loops = CompiledLoops("storage_core.formats.rocketmq.compiled.entry_loops")
_write_loops = CompiledLoops("storage_core.formats.rocketmq.compiled.write_loops")


def decode_entries(data: Bytes | bytes) -> npt.NDArray[Any]:
    """The whole entries of a buffer, in disk byte order, without a copy. Shape (len // 20,)."""
    return np.frombuffer(data, QUEUE_ENTRY.dtype, len(data) // QUEUE_ENTRY.size)


def leading_valid(entries: npt.NDArray[Any]) -> int:
    """The number of leading entries with offset >= 0 and size > 0 (rocketmq.md 3.4)."""
    invalid = (entries["physical_offset"].astype(np.int64) < 0) | (entries["size"].astype(np.int32) <= 0)
    return int(invalid.argmax()) if invalid.any() else len(entries)


def leading_batches(entries: npt.NDArray[Any], log_end: int) -> int:
    """The number of leading batch queue entries that name a record beginning before `log_end` (rocketmq.md 3.7)."""
    physical_offsets = entries["physical_offset"].astype(np.int64)
    invalid = (physical_offsets < 0) | (physical_offsets >= log_end) | (entries["queue_offset"].astype(np.int64) < 0)
    invalid |= (entries["size"].astype(np.int32) <= 0) | (entries["count"].astype(np.int16) <= 0)
    return int(invalid.argmax()) if invalid.any() else len(entries)


def encode_entries(
    physical_offsets: Positions, sizes: Positions, tags_codes: Positions, order: Positions | None = None
) -> npt.NDArray[Any]:
    """Entries in disk byte order, of all records, or of the records `order` in that order. Shape (n,)."""
    if order is not None:
        if (loops := _write_loops.after(len(order) * QUEUE_ENTRY.size)) is not None:
            found: npt.NDArray[Any] = loops.queue_entries(physical_offsets, sizes, tags_codes, order)
            return found
        physical_offsets, sizes, tags_codes = physical_offsets[order], sizes[order], tags_codes[order]
    entries = np.empty(len(physical_offsets), QUEUE_ENTRY.dtype)
    entries["physical_offset"], entries["size"], entries["tags_code"] = physical_offsets, sizes, tags_codes
    return entries


def encode_batch_entries(
    physical_offsets: Positions,
    sizes: Positions,
    tags_codes: Positions,
    store_ms: Positions,
    queue_offsets: Positions,
    counts: Positions,
) -> npt.NDArray[Any]:
    """Entries of a batch queue in disk byte order. Shape (n,)."""
    entries = np.zeros(len(physical_offsets), BATCH_ENTRY.dtype)
    entries["physical_offset"], entries["size"], entries["tags_code"] = physical_offsets, sizes, tags_codes
    entries["store_ms"], entries["queue_offset"], entries["count"] = store_ms, queue_offsets, counts
    entries["compacted_offset"] = -1
    return entries


def filler_entries(count: int) -> npt.NDArray[Any]:
    """The entries that a broker puts before a queue's first message (rocketmq.md 3.3). Shape (count,)."""
    blank = np.zeros(count, np.int64)
    return encode_entries(blank, np.full(count, BLANK_SIZE), blank)


@dataclass(frozen=True)
class LogBounds:
    """Where records may be: in [start, stop), each inside one file [bases[i], ends[i]) of the log."""

    start: int
    stop: int
    bases: Positions
    ends: Positions


@dataclass(frozen=True)
class EntryRanges:
    """Ranges of entries, read one after another. Shape (m,) each, except `bounds`, which has one more element.

    Range i is [bounds[i], bounds[i + 1]) of the entries read. Its first backs[i] entries are only checked; the next one
    has queue offset starts[i] in queue number queues[i].
    """

    bounds: Positions
    backs: Positions
    queues: npt.NDArray[np.int32]
    starts: Positions


def in_log_order(
    entries: npt.NDArray[Any], ranges: EntryRanges, log: LogBounds
) -> tuple[npt.NDArray[np.int32], Positions, Positions, Positions] | None:
    """Queue, queue offset, physical offset and size of the ranges' entries in the order of the log. Shape (n,) each.

    None if any entry, including those that are only checked, is a filler or names a record outside the log. Entries
    with equal addresses keep their order.
    """
    bits = len(entries).bit_length()
    fits = (log.stop - log.start).bit_length() + bits < KEY_BITS
    if fits and (loops := _entry_loops.after(entries.nbytes)) is not None:
        found: tuple[npt.NDArray[np.int32], Positions, Positions, Positions] | None
        found = loops.in_log_order(entries, ranges, log, bits)
        return found
    physical_offsets, sizes = entries["physical_offset"].astype(np.int64), entries["size"].astype(np.int64)
    file = np.searchsorted(log.bases, physical_offsets, "right") - 1
    plain = (sizes > 0) & (sizes != BLANK_SIZE) & (physical_offsets >= log.start) & (file >= 0)
    # Sizes are subtracted from the ends: added to the largest addresses they would overflow to a negative number.
    plain &= physical_offsets <= log.stop - sizes
    if not len(log.bases) or not (plain & (physical_offsets <= log.ends[file] - sizes)).all():
        return None
    counts = np.diff(ranges.bounds)
    from_start = np.arange(len(entries)) - np.repeat(ranges.bounds[:-1] + ranges.backs, counts)
    own = np.flatnonzero(from_start >= 0)
    order = own[log_order(physical_offsets[own])]
    queue, starts = np.repeat(ranges.queues, counts), np.repeat(ranges.starts, counts)
    return queue[order], (starts + from_start)[order], physical_offsets[order], sizes[order]


def log_order(physical_offsets: Positions) -> npt.NDArray[np.int64]:
    """The indices that sort addresses in log order; equal ones keep their order.

    If address and number fit into one integer, these integers are sorted, which is faster than an argsort. A stable
    sort merges runs that are already in order, as each queue is: ten times as fast as a sort by pivots.
    """
    count = len(physical_offsets)
    bits = count.bit_length()
    low, high = (int(physical_offsets.min()), int(physical_offsets.max())) if count else (0, 0)
    if (high - low).bit_length() + bits < KEY_BITS:
        packed = np.sort((physical_offsets - low) << bits | np.arange(count), kind="stable")
        return packed & ((1 << bits) - 1)
    return np.argsort(physical_offsets, kind="stable")


class Difference(IntFlag):
    """How a record differs from the entry that names it."""

    NONE = 0
    PHYSICAL_OFFSET = 1
    QUEUE = 2
    QUEUE_OFFSET = 4
    SIZE = 8


class RecordColumns(Protocol):
    """The parts of records that are compared: header fields, and the positions of topics in a buffer."""

    buffer: Bytes
    topic_start: Positions
    topic_size: Positions

    def column(self, name: str) -> npt.NDArray[Any]:
        """A field of the header. Shape (n,)."""


@dataclass(frozen=True)
class Expected:
    """What the entries of several queues state about their records. The first three have shape (n,).

    `queue` is an index into `queue_ids` and `topics`.
    """

    physical_offsets: Positions
    queue_offsets: Positions
    queue: npt.NDArray[np.int32]
    queue_ids: npt.NDArray[np.int32]
    topics: KnownTexts

    def differences(self, records: RecordColumns, sizes: Positions) -> npt.NDArray[np.uint8]:
        """How each record differs from its entry, as bits of `Difference`. `sizes`: those stated by the entries."""
        wrong_queue = records.column("queue_id") != self.queue_ids[self.queue]
        wrong_queue |= ~self.topics.equal(records.buffer, records.topic_start, records.topic_size, self.queue)
        out = np.zeros(len(sizes), np.uint8)
        for difference, rows in (
            (Difference.PHYSICAL_OFFSET, records.column("physical_offset") != self.physical_offsets),
            (Difference.QUEUE, wrong_queue),
            (Difference.QUEUE_OFFSET, records.column("queue_offset") != self.queue_offsets),
            (Difference.SIZE, records.column("total_size") != sizes),
        ):
            out[rows] |= np.uint8(difference)
        return out
