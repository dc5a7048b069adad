"""The segment files of a version-1 queue: what they record for each relative sequence, and their damage.

Reading lists damage and continues (`read_segments`); opening the queue for writing refuses it (`index_segment`).
Source: rabbitmq.md 3. `queue_directory` combines journal and segments.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from storage_core.formats.layout import Mask, Positions, values_at
from storage_core.formats.rabbitmq import paths
from storage_core.formats.rabbitmq.classic import index_records
from storage_core.formats.rabbitmq.classic import segment as format_segment
from storage_core.formats.rabbitmq.classic.index_records import (
    ACKED,
    DELIVERED,
    PERSISTENT,
    PUBLISHED,
    Flags,
    PublishRows,
)
from storage_core.formats.rabbitmq.classic.journal import MAX_SEQUENCE_ID
from storage_core.formats.rabbitmq.classic.segment import SegmentRecords
from storage_core.rabbitmq.disk import effects
from storage_core.rabbitmq.disk.damage import Damage
from storage_core.rabbitmq.disk.span_reader import FileReader
from storage_core.rabbitmq.index import entries as entry_flags
from storage_core.rabbitmq.index.entries import SEGMENT, IndexFile, Publishes, joined, new_entries

Sequences = npt.NDArray[np.int64]
NOT_STARTED = "a node does not start a vhost with such a segment"


@dataclass(frozen=True)
class SegmentContent:
    """A segment file by relative sequence, shape (entry_count,) and at most (16384,): the records and the first publish
    of each entry.

    Positions are meaningless where `flags` have no publish. `torn_at` is where an unfinished last record starts.
    """

    flags: Flags
    positions: Positions
    damages: list[Damage]
    torn_at: int | None


def decode(data: bytes | memoryview, name: str, entry_count: int) -> SegmentContent:
    """Decodes the segment file `name` of `entry_count` entries. What a node cannot read (it would not start the vhost)
    is damage; the records before it count.
    """
    entry_count = min(entry_count, format_segment.RELATIVE_MASK + 1)
    in_order = format_segment.content(data, entry_count)
    if in_order is not None:
        return SegmentContent(*in_order, [], None)
    records = format_segment.walk(data)
    flags, positions = np.zeros(entry_count, np.uint8), np.zeros(entry_count, np.int64)
    if records.reason == "blank" or not len(data):
        return SegmentContent(flags, positions, [], None)
    buffer = np.frombuffer(data, np.uint8)
    heads = values_at(buffer, ">u2", records.publishes).astype(np.int64)
    relative_sequences = heads & format_segment.RELATIVE_MASK
    marks = values_at(buffer, ">u2", records.marks).astype(np.int64) & format_segment.RELATIVE_MASK
    # The first publish of a relative sequence counts: it is set last.
    inside = np.flatnonzero(relative_sequences < entry_count)[::-1]
    chosen = relative_sequences[inside]
    positions[chosen] = records.publishes[inside]
    flags[chosen] = PUBLISHED | np.where(heads[inside] & format_segment.PERSISTENT_BIT, PERSISTENT, 0).astype(np.uint8)
    counts = np.bincount(marks, minlength=entry_count)[:entry_count]
    flags[(flags != 0) & (counts >= 1)] |= DELIVERED
    flags[(flags != 0) & (counts >= 2)] |= ACKED
    damages = [
        *_end(name, records, len(data)),
        *_stray_marks(name, records, marks, relative_sequences),
        *_stray_publishes(name, records, relative_sequences, entry_count),
    ]
    return SegmentContent(flags, positions, damages, records.stop if records.reason == "torn" else None)


def read_segments(root: str, sizes: Mapping[str, int], entry_count: int, with_ids: bool) -> IndexFile:
    """Reads the segment files of one queue, of `entry_count` entries each. `sizes` are their lengths by path below the
    store `root`, in the order of their numbers in its list. Ids are those of stored messages, or of all `with_ids`.
    """
    most = min(entry_count, format_segment.RELATIVE_MASK + 1)
    expected = sum(min(most, size // format_segment.PUBLISH.size) for size in sizes.values())
    reader, segments = FileReader(), _Segments(entry_count, with_ids, expected)
    for file, name in enumerate(sizes):
        number = paths.number_of(name.rpartition("/")[2], paths.SEGMENT_SUFFIX) or 0
        segments.add(reader.read(f"{root}/{name}"), name, number, file)
    return segments.found()


class _Segments:
    """The segments of a queue, added one by one to memory allocated for the entries of all."""

    def __init__(self, entry_count: int, with_ids: bool, expected: int) -> None:
        """`expected`: approximate number of publishes. Memory for any that do not occur is never touched."""
        self._entry_count, self._with_ids = entry_count, with_ids
        self._count, self._held = 0, _publishes(expected)
        self._acked: list[Sequences] = []
        self._damages: list[Damage] = []

    def add(self, data: memoryview, name: str, number: int, file: int) -> None:
        """Adds segment `number` with the content `data`; its file has the path `name` below the store and the number
        `file` in its list. `data` is not retained.
        """
        first_sequence_id = number * self._entry_count
        if first_sequence_id + self._entry_count > MAX_SEQUENCE_ID:
            reason = f"sequence ids of a segment with number {number} have more than the 62 bits of a journal"
            self._damages.append(Damage(name, 0, len(data), "segment", reason))
            return
        content = decode(data, name, self._entry_count)
        self._damages += content.damages
        room = self._room(int(np.count_nonzero(content.flags & PUBLISHED)))
        entries = room.entries
        entries["file"], entries["kind"] = file, SEGMENT
        target = PublishRows(
            entries["sequence_id"], entries["position"], entries["expiry"], entries["length"], entries["size"],
            entries["flags"], room.ids, room.stored, entry_flags.PERSISTENT, self._with_ids,
        )  # fmt: skip
        acked = index_records.publishes_into(data, content.flags, content.positions, first_sequence_id, target)
        if len(acked):
            self._acked.append(acked)

    def _room(self, count: int) -> Publishes:
        """The next `count` publishes, all zero, for the caller to fill."""
        start, self._count = self._count, self._count + count
        held = self._held
        if self._count > len(held.stored):  # files have grown since they were listed
            more = _publishes(max(self._count, 2 * len(held.stored)) - len(held.stored))
            self._held = held = Publishes(
                joined([held.entries, more.entries]), joined([held.ids, more.ids]), joined([held.stored, more.stored])
            )
        return _between(held, start, self._count)

    def found(self) -> IndexFile:
        """Everything added."""
        acked = joined(self._acked or [np.empty(0, np.int64)])
        return IndexFile(_between(self._held, 0, self._count), acked, self._damages)


def _publishes(count: int) -> Publishes:
    return Publishes(new_entries(count), np.zeros(count, "V16"), np.zeros(count, bool))


def _between(publishes: Publishes, start: int, stop: int) -> Publishes:
    return Publishes(publishes.entries[start:stop], publishes.ids[start:stop], publishes.stored[start:stop])


def mark_counts(data: bytes) -> dict[int, int]:
    """How many marks a segment has for each of its publishes, by relative sequence."""
    records = format_segment.walk(data)
    buffer = np.frombuffer(data, np.uint8)
    published, marked = (
        values_at(buffer, ">u2", positions).astype(np.int64) & format_segment.RELATIVE_MASK
        for positions in (records.publishes, records.marks)
    )
    counts = np.bincount(marked, minlength=format_segment.RELATIVE_MASK + 1)
    return {relative: int(counts[relative]) for relative in published.tolist()}


def _end(name: str, records: SegmentRecords, size: int) -> list[Damage]:
    """Damage after the last whole record."""
    if records.reason == "end":
        return []
    reason = "an unfinished record" if records.reason == "torn" else "no record begins with these bytes"
    return [Damage(name, records.stop, size - records.stop, "segment", reason, note=NOT_STARTED)]


def _stray_marks(name: str, records: SegmentRecords, marks: Sequences, relative_sequences: Sequences) -> list[Damage]:
    """Marks before the publish of their relative sequence, or after its ack."""
    last = max(int(marks.max(initial=0)), int(relative_sequences.max(initial=0)))
    begins = np.full(1 + last, np.iinfo(np.int64).max)
    begins[relative_sequences[::-1]] = records.publishes[::-1]
    early = records.marks < begins[marks]
    if not early.any() and np.bincount(marks).max(initial=0) <= 2:
        return []
    damages = []
    for row in np.flatnonzero(early | (_repeats(marks) > 1)).tolist():
        what = "a mark before the publish" if early[row] else "a third mark"
        reason = f"{what} of relative sequence {marks[row]}"
        position, size = int(records.marks[row]), format_segment.MARK.size
        damages.append(Damage(name, position, size, "segment", reason, note=NOT_STARTED))
    return damages


def _stray_publishes(
    name: str, records: SegmentRecords, relative_sequences: Sequences, entry_count: int
) -> list[Damage]:
    """Second publishes of a relative sequence, and relative sequences outside the segment's range."""
    outside: Mask = relative_sequences >= entry_count
    if not outside.any() and np.bincount(relative_sequences).max(initial=0) <= 1:
        return []
    damages = []
    for row in np.flatnonzero(_repeats(relative_sequences) > 0).tolist():
        reason = f"a second publish of relative sequence {relative_sequences[row]}"
        position, note = int(records.publishes[row]), "a node's queue crashes on it"
        damages.append(Damage(name, position, 0, "segment", reason, effect=effects.SECOND_PUBLISH, note=note))
    for row in np.flatnonzero(outside).tolist():
        number = relative_sequences[row]
        reason = f"relative sequence {number} in a segment of {entry_count} entries; is .config the one of this store?"
        damages.append(Damage(name, int(records.publishes[row]), 0, "segment", reason))
    return damages


def _repeats(values: Sequences) -> Sequences:
    """How many equal values precede each value."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    fresh = np.ones(len(order), bool)
    fresh[1:] = ordered[1:] != ordered[:-1]
    index = np.arange(len(order))
    repeats = np.empty(len(order), np.int64)
    repeats[order] = index - np.maximum.accumulate(np.where(fresh, index, 0))
    return repeats
