"""One segment file of a version-1 queue, read: its publishes, which of them are acknowledged, what is damaged.

Source: rabbitmq.md 3. Leaves to `queue_files` what journal and segments mean together.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from storage_core.formats.layout import Bytes, Positions
from storage_core.formats.rabbitmq import segment as format_segment
from storage_core.formats.rabbitmq.cursor import values_at
from storage_core.formats.spans import records_at
from storage_core.rabbitmq.damage import Damage
from storage_core.rabbitmq.entries import PERSISTENT, SEGMENT, IndexFile, Publishes, kept, new_entries, nothing


def read_segment(data: memoryview, name: str, number: int, entry_count: int, file: int) -> IndexFile:
    """Segment `number` of `entry_count` ordinals, whose file holds `data`.

    The file is called `name` below the store and has the number `file` in its list; nothing found keeps `data`.
    What a node cannot read (it would not start the vhost) is a damage; the records before it count.
    """
    records = format_segment.walk(data)
    if records.reason == "blank" or not len(data):
        return IndexFile(nothing(), np.empty(0, np.int64))
    buffer = np.frombuffer(data, np.uint8)
    damages = _ends(name, records, len(data))
    heads = values_at(buffer, ">u2", records.publishes).astype(np.int64)
    relatives = heads & format_segment.RELATIVE_MASK
    acked, marked = _acked(buffer, name, records, relatives, damages)
    chosen = _chosen(name, records.publishes, relatives, entry_count, damages)
    base = number * entry_count
    entries = new_entries(len(chosen))
    positions, heads = records.publishes[chosen], heads[chosen]
    fixed = records_at(buffer, format_segment.PUBLISH.dtype, positions)
    embedded = fixed["embedded_size"].astype(np.int64)
    entries["sequence_id"], entries["position"] = base + relatives[chosen], positions
    entries["expiry"], entries["size"] = fixed["expiry"], fixed["size"]
    entries["length"] = format_segment.PUBLISH.size + embedded
    entries["file"], entries["kind"] = file, SEGMENT
    entries["flags"] = np.where(heads & format_segment.PERSISTENT_BIT != 0, PERSISTENT, 0)
    ids = np.ascontiguousarray(fixed["id"])
    return IndexFile(Publishes(entries, ids, embedded == 0), base + acked[marked[acked]], damages)


def _chosen(
    name: str, positions: Positions, relatives: npt.NDArray[np.int64], entry_count: int, damages: list[Damage]
) -> npt.NDArray[np.int64]:
    """The publishes that count, by ordinal; a second one of an ordinal, or one beyond the segment, is damage."""
    order = np.argsort(relatives, kind="stable")
    ordered = relatives[order]
    first = np.ones(len(order), bool)
    first[1:] = ordered[1:] != ordered[:-1]
    inside = ordered < entry_count
    damages += [_twice(name, positions[row], relatives[row]) for row in np.sort(order[~first]).tolist()]
    damages += [_beyond(name, positions[row], relatives[row], entry_count) for row in np.sort(order[~inside]).tolist()]
    return kept(order, first & inside)


def _ends(name: str, records: format_segment.SegmentRecords, size: int) -> list[Damage]:
    if records.reason == "end":
        return []
    what = "an unfinished record" if records.reason == "torn" else "no record begins with these bytes"
    reason = f"{what}; a node does not start a vhost with such a segment"
    return [Damage(name, records.stop, size - records.stop, "segment", reason)]


def _acked(
    buffer: Bytes,
    name: str,
    records: format_segment.SegmentRecords,
    relatives: npt.NDArray[np.int64],
    damages: list[Damage],
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Ordinals with two marks, and which ordinals are published. A third mark, or one before its publish, is damage."""
    marks = values_at(buffer, ">u2", records.marks).astype(np.int64) & format_segment.RELATIVE_MASK
    ordinal_count = 1 + max(int(marks.max(initial=0)), int(relatives.max(initial=0)))
    counts = np.bincount(marks, minlength=ordinal_count)
    published = np.zeros(ordinal_count, bool)
    published[relatives] = True
    begins = np.full(ordinal_count, np.iinfo(np.int64).max)
    begins[relatives[::-1]] = records.publishes[::-1]
    early = records.marks < begins[marks]
    if early.any() or (counts > 2).any():
        wrong = early | (_ordinal(marks) > 1)
        rows = np.flatnonzero(wrong).tolist()
        damages += [_stray(name, records.marks[row], marks[row], bool(early[row])) for row in rows]
    return np.flatnonzero(counts >= 2), published


def _ordinal(values: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """How many equal values stand before each."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    fresh = np.ones(len(order), bool)
    fresh[1:] = ordered[1:] != ordered[:-1]
    index = np.arange(len(order))
    found = np.empty(len(order), np.int64)
    found[order] = index - np.maximum.accumulate(np.where(fresh, index, 0))
    return found


def _twice(name: str, position: int, relative: int) -> Damage:
    reason = f"a second publish of ordinal {relative}; a node's queue crashes on it"
    return Damage(name, int(position), 0, "segment", reason)


def _beyond(name: str, position: int, relative: int, entry_count: int) -> Damage:
    reason = f"ordinal {relative} in a segment of {entry_count} entries; is .config the one of this store?"
    return Damage(name, int(position), 0, "segment", reason)


def _stray(name: str, position: int, relative: int, early: bool) -> Damage:
    what = "a mark before the publish" if early else "a third mark"
    reason = f"{what} of ordinal {relative}; a node does not start a vhost with such a segment"
    return Damage(name, int(position), 2, "segment", reason)
