"""The index entries of one queue directory as columns: which message, where it lies, and what is known about it.

Leaves to `journal_reader`, `segment_reader` and `segment_v2_reader` how they are found, to `queue_directory` which of
them are served.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from storage_core.rabbitmq.disk.damage import Damage

PERSISTENT, ACKED, REDELIVERED, MISSING, DIRTY = 1, 2, 4, 8, 16
"""Flags. MISSING: the message store does not have it. DIRTY: a node's recovery drops it when it is not persistent
or fails its checksum, without calling that damage."""

SEGMENT, JOURNAL, SHARED, OWN, NOWHERE = 0, 1, 2, 3, 4
"""Kinds of records that hold a message: in a segment, in the journal, in the message store, in a `.qs`; or none."""

ENTRY = np.dtype(
    [
        ("sequence_id", "i8"),
        ("position", "i8"),
        ("expiry", "u8"),
        ("length", "i8"),
        ("size", "u4"),
        ("file", "i4"),
        ("queue", "i4"),
        ("kind", "u1"),
        ("flags", "u1"),
    ]
)
"""Where a message is: the record at `position` of `file`, `length` bytes long; `size` of its body; µs of `expiry`."""

Entries = npt.NDArray[np.void]


@dataclass
class Publishes:
    """Publish records of one index file, still by message id. Arrays of shape (n,).

    Where `stored` the message is in the shared store under `ids`, else in the record itself, or, for version 2, where
    `entries` says.
    """

    entries: Entries
    ids: npt.NDArray[np.void]
    stored: npt.NDArray[np.bool_]


@dataclass
class IndexFile:
    """A journal, the segments of a queue, or one: publishes, entries that are acknowledged, what is damaged."""

    publishes: Publishes
    acked: npt.NDArray[np.int64]
    damages: list[Damage] = field(default_factory=list)


@dataclass(frozen=True)
class NumberedEntries:
    """Entries, not to be changed, among others: `files` says which number each of their file numbers is there, `queue`
    which one their queue is; None where they are numbered so already.
    """

    entries: Entries
    files: npt.NDArray[np.int64] | None = None
    queue: int | None = None

    def column(self, name: str, start: int, stop: int) -> npt.NDArray[Any]:
        """One field of the entries [start, stop), numbered as the others are. Shape (stop - start,)."""
        if name == "queue" and self.queue is not None:
            return np.full(stop - start, self.queue, ENTRY["queue"])
        values = self.entries[name][start:stop]
        return values if name != "file" or self.files is None else self.files[values]


def as_one(parts: Sequence[NumberedEntries]) -> Entries:
    """The entries of all parts, at least one, one after another."""
    if len(parts) == 1 and parts[0].files is None and parts[0].queue is None:
        return parts[0].entries
    entries = copied([part.entries for part in parts])
    base = 0
    for part in parts:
        target = entries[base : base + len(part.entries)]
        for name in ("file", "queue"):
            target[name] = part.column(name, 0, len(target))
        base += len(target)
    return entries


def new_entries(count: int) -> Entries:
    """`count` entries, all zero."""
    return np.zeros(count, ENTRY)


def nothing() -> Publishes:
    """No publishes."""
    return Publishes(new_entries(0), np.empty(0, "V16"), np.empty(0, bool))


def filtered(array: npt.NDArray[Any], mask: npt.NDArray[np.bool_]) -> npt.NDArray[Any]:
    """`array[mask]`, without a copy when all are kept: most stores hold millions of entries that are all alike."""
    if mask.all():
        return array
    # numpy copies a struct field by field, eight times as slowly as its bytes.
    return array.view(f"V{array.itemsize}")[mask].view(array.dtype) if array.dtype.names else array[mask]


def joined(parts: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """The parts, at least one, as one array, without a copy when there is one."""
    return parts[0] if len(parts) == 1 else copied(parts)


def copied(parts: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """The parts, at least one and all of one type, as one new array."""
    dtype = parts[0].dtype
    if dtype.names is None:
        return np.concatenate(parts)
    return np.concatenate([np.ascontiguousarray(part).view(np.uint8) for part in parts]).view(dtype)


def flagged(entries: Entries, flag: int) -> npt.NDArray[np.bool_]:
    """Which entries have `flag`."""
    found: npt.NDArray[np.bool_] = entries["flags"] & flag != 0
    return found
