"""The effect of putting keys into index files: entries, slots and headers of many puts at once.

Bytes only: which file is continued, and what is written when, is up to the engine. Source of the rules: rocketmq.md
4.3, 4.4, and the reference model there, which was compared with both real stores.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from storage_core.compiled.loading import CompiledLoops
from storage_core.formats.layout import Positions
from storage_core.formats.radix_sort import stable_order
from storage_core.formats.rocketmq.indexfile import ENTRY, HEADER, Geometry, IndexHeader

EMPTY = IndexHeader(0, 0, 0, 0, 0, 0)
_MOST = 0x7FFFFFFF

_loops = CompiledLoops("storage_core.formats.rocketmq.compiled.write_loops")


@dataclass(frozen=True)
class Puts:
    """Keys in the order in which they are put: their hashes, and the addresses and store times of their records.

    Arrays have shape (n,).
    """

    hashes: npt.NDArray[np.int32]
    physical_offsets: Positions
    store_ms: Positions

    def __len__(self) -> int:
        return len(self.hashes)

    def part(self, start: int, stop: int) -> Puts:
        """Puts [start, stop)."""
        return Puts(self.hashes[start:stop], self.physical_offsets[start:stop], self.store_ms[start:stop])


@dataclass(frozen=True)
class FilePuts:
    """What puts change in one file: entries from number `first` on, the header after them, slots and their new values.

    `slots` are slot numbers, ascending and distinct.
    """

    first: int
    entries: npt.NDArray[Any]
    header: IndexHeader
    slots: npt.NDArray[np.int64]
    values: npt.NDArray[np.int32]


def encode_header(header: IndexHeader) -> bytes:
    """The 40 header bytes."""
    fields = (header.begin_ms, header.end_ms, header.begin_offset, header.end_offset)
    return np.array([(*fields, header.slot_count, header.entry_count)], HEADER.dtype).tobytes()


def room(header: IndexHeader, geometry: Geometry) -> int:
    """The number of entries that still fit into a file."""
    return max(geometry.entries - max(header.entry_count, 1), 0)


def rolled(before: IndexHeader) -> IndexHeader:
    """The header of the new file that follows the full file with header `before`."""
    end_offset, end_ms = max(before.end_offset, 0), max(before.end_ms, 0)
    return IndexHeader(end_ms, end_ms, end_offset, end_offset, 0, 0)


def distinct(values: npt.NDArray[np.int64], limit: int) -> npt.NDArray[np.int64]:
    """The distinct values of numbers in [0, limit), ascending; for many, a table of flags is faster than sorting."""
    if len(values) * 64 < limit:
        ordered = np.sort(values)
        return ordered[np.flatnonzero(np.diff(ordered, prepend=-1))]
    seen = np.zeros(limit, bool)
    seen[values] = True
    return np.flatnonzero(seen)


def put(
    header: IndexHeader,
    puts: Puts,
    values_of: Callable[[npt.NDArray[np.int64]], npt.NDArray[np.int32]],
    geometry: Geometry,
) -> FilePuts:
    """Puts keys, at least one, into a file that has room for all of them.

    `values_of` returns the current values of slots (ascending, distinct). One above the file's count reads as empty.
    """
    first = max(header.entry_count, 1)
    count = len(puts)
    slot = puts.hashes.astype(np.int64) % geometry.slots
    order = stable_order(slot)
    ordered = slot[order]
    heads = np.flatnonzero(np.diff(ordered, prepend=-1))
    numbers = (first + order).astype(np.int32)
    slots = ordered[heads]
    old = values_of(slots)
    before = np.empty(count, np.int32)
    before[1:] = numbers[:-1]
    before[heads] = np.where((old <= 0) | (old > first), np.int32(0), old)
    previous = np.empty(count, np.int32)
    previous[order] = before
    entries = np.empty(count, ENTRY.dtype)
    entries["key_hash"], entries["physical_offset"] = puts.hashes, puts.physical_offsets
    entries["seconds"], entries["previous"] = _seconds(header, puts), previous
    ends = np.append(heads[1:], count) - 1
    after = _after(header, puts, int((previous == 0).sum()))
    return FilePuts(first, entries, after, slots, numbers[ends])


def put_into(
    slots: npt.NDArray[np.int32], header: IndexHeader, puts: Puts, geometry: Geometry
) -> tuple[npt.NDArray[Any], IndexHeader]:
    """`put` for known values of all slots, none above the file's count; they are updated in place.

    Returns the entries and the header.
    """
    if (loops := _loops.after(len(puts) * ENTRY.size)) is not None:
        first = max(header.entry_count, 1)
        later_ms = int(puts.store_ms[0]) if header.entry_count <= 1 else header.begin_ms
        columns = puts.hashes, puts.physical_offsets, puts.store_ms
        entries, empty = loops.put(*columns, first, (header.begin_ms, later_ms), slots)
        return entries, _after(header, puts, empty)
    change = put(header, puts, slots.__getitem__, geometry)
    slots[change.slots] = change.values
    return change.entries, change.header


def _after(header: IndexHeader, puts: Puts, empty: int) -> IndexHeader:
    """The header after puts, `empty` of which found their slot empty."""
    first = max(header.entry_count, 1)
    return IndexHeader(
        begin_ms=int(puts.store_ms[0]) if first == 1 else header.begin_ms,
        end_ms=int(puts.store_ms[-1]),
        begin_offset=int(puts.physical_offsets[0]) if first == 1 else header.begin_offset,
        end_offset=int(puts.physical_offsets[-1]),
        slot_count=header.slot_count + empty,
        entry_count=first + len(puts),
    )


def _seconds(header: IndexHeader, puts: Puts) -> npt.NDArray[np.int64]:
    """Seconds since the file's begin time; for its first entry, since the begin time that its header had before."""
    begin = np.full(len(puts), header.begin_ms)
    if header.entry_count <= 1:
        begin[1:] = puts.store_ms[0]
    seconds = np.clip((puts.store_ms - begin) // 1000, 0, _MOST)
    return np.where((begin <= 0) | (puts.store_ms < begin), 0, seconds)
