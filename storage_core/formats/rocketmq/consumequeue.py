"""A consume queue's entries: which record each message of a queue is.

How entries are kept in files and which of them count belongs to the engine. Source of the rules: rocketmq.md 3.
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
"""Address and number of an entry, in one integer that is not negative, have fewer bits."""

_entry_loops = CompiledLoops("storage_core.formats.rocketmq.compiled.entry_loops")
_write_loops = CompiledLoops("storage_core.formats.rocketmq.compiled.write_loops")


def decode_entries(data: Bytes | bytes) -> npt.NDArray[Any]:
    """The whole entries of a buffer, in disk byte order, without a copy. Shape (len // 20,)."""
    return np.frombuffer(data, QUEUE_ENTRY.dtype, len(data) // QUEUE_ENTRY.size)


def leading_valid(entries: npt.NDArray[Any]) -> int:
    """How many entries, from the first on, have offset >= 0 and size > 0 (rocketmq.md 3.4)."""
    invalid = (entries["physical_offset"].astype(np.int64) < 0) | (entries["size"].astype(np.int32) <= 0)
    return int(invalid.argmax()) if invalid.any() else len(entries)


def leading_batches(entries: npt.NDArray[Any], log_end: int) -> int:
    """How many entries of a batch queue, from the first on, name a record that begins before `log_end` (rocketmq.md
    3.7).
    """
    physical_offsets = entries["physical_offset"].astype(np.int64)
    invalid = (physical_offsets < 0) | (physical_offsets >= log_end) | (entries["queue_offset"].astype(np.int64) < 0)
    invalid |= (entries["size"].astype(np.int32) <= 0) | (entries["count"].astype(np.int16) <= 0)
    return int(invalid.argmax()) if invalid.any() else len(entries)


def encode_entries(
    physical_offsets: Positions, sizes: Positions, tags_codes: Positions, order: Positions | None = None
) -> npt.NDArray[Any]:
    """Units in disk byte order, of the records `order` where not all are wanted as they come. Shape (n,)."""
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
    """Where records may lie: in [start, stop), each inside of one file [bases[i], ends[i]) of the log."""

    start: int
    stop: int
    bases: Positions
    ends: Positions


@dataclass(frozen=True)
class EntryRanges:
    """Ranges of entries read one after another. Shape (m,) each but `bounds`, which has one element more.

    Range i is [bounds[i], bounds[i + 1]) of what was read. Its first backs[i] entries are looked at only; the next one
    has queue offset starts[i], in the queue that queues[i] is the number of.
    """

    bounds: Positions
    backs: Positions
    queues: npt.NDArray[np.int32]
    starts: Positions


def in_log_order(
    entries: npt.NDArray[Any], ranges: EntryRanges, log: LogBounds
) -> tuple[npt.NDArray[np.int32], Positions, Positions, Positions] | None:
    """Queue, queue offset, physical offset and size of the ranges' entries in the order of the log. Shape (n,) each.

    None where a record of one, of those looked at too, does not lie in the log, or an entry is a filler. Equal
    addresses stay in their order.
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
    # Sizes are taken from the ends: the largest addresses and their sizes add up to a negative number.
    plain &= physical_offsets <= log.stop - sizes
    if not len(log.bases) or not (plain & (physical_offsets <= log.ends[file] - sizes)).all():
        return None
    counts = np.diff(ranges.bounds)
    behind = np.arange(len(entries)) - np.repeat(ranges.bounds[:-1] + ranges.backs, counts)
    own = np.flatnonzero(behind >= 0)
    order = own[log_order(physical_offsets[own])]
    queue, starts = np.repeat(ranges.queues, counts), np.repeat(ranges.starts, counts)
    return queue[order], (starts + behind)[order], physical_offsets[order], sizes[order]


def log_order(physical_offsets: Positions) -> npt.NDArray[np.int64]:
    """The order of addresses in the log; the order of equal ones stays.

    Where address and number fit into one integer these are sorted, which is faster than an argsort. A stable sort
    merges what is in order already, as each queue is: ten times as fast as one that looks for pivots.
    """
    count = len(physical_offsets)
    bits = count.bit_length()
    low, high = (int(physical_offsets.min()), int(physical_offsets.max())) if count else (0, 0)
    if (high - low).bit_length() + bits < KEY_BITS:
        packed = np.sort((physical_offsets - low) << bits | np.arange(count), kind="stable")
        return packed & ((1 << bits) - 1)
    return np.argsort(physical_offsets, kind="stable")


class Difference(IntFlag):
    """In what a record differs from the entry that leads to it."""

    NONE = 0
    PHYSICAL_OFFSET = 1
    QUEUE = 2
    QUEUE_OFFSET = 4
    SIZE = 8


class RecordColumns(Protocol):
    """What is compared of records: fields of their headers, and where their topics lie in a buffer."""

    buffer: Bytes
    topic_start: Positions
    topic_size: Positions

    def column(self, name: str) -> npt.NDArray[Any]:
        """A field of the header. Shape (n,)."""


@dataclass(frozen=True)
class Expected:
    """What entries of several queues say of their records. The first three have shape (n,).

    `queue` is an index into `queue_ids` and `topics`.
    """

    physical_offsets: Positions
    queue_offsets: Positions
    queue: npt.NDArray[np.int32]
    queue_ids: npt.NDArray[np.int32]
    topics: KnownTexts

    def differences(self, records: RecordColumns, sizes: Positions) -> npt.NDArray[np.uint8]:
        """In what each record differs from its entry, as bits of `Difference`. `sizes`: those of the entries."""
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
