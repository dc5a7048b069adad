"""The index entries of one queue directory as columns: which message, where it is stored, and what is known about it.

`journal_reader`, `segment_reader` and `segment_v2_reader` find them, `queue_directory` decides which are served.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar, overload

import numpy as np
import numpy.typing as npt

from storage_core.rabbitmq.disk.damage import Damage

PERSISTENT, ACKED, REDELIVERED, MISSING, DIRTY = 1, 2, 4, 8, 16
"""Flags. MISSING: the message store does not have the message. DIRTY: a node's recovery drops it if it is not
persistent or fails its checksum, without reporting damage."""

SEGMENT, JOURNAL, SHARED, OWN, NOWHERE = 0, 1, 2, 3, 4
"""Kinds of records that hold a message: in a segment, in the journal, in the message store, in a `.qs`; or none."""

FIELDS = {
    "sequence_id": "i8",
    "position": "i8",
    "expiry": "u8",
    "length": "i8",
    "size": "u4",
    "file": "i4",
    "queue": "i4",
    "id_end": "u4",
    "kind": "u1",
    "flags": "u1",
}
"""Where a message is: the record at `position` of `file`, `length` bytes long; the `size` of its body; its `expiry` in
µs; the `id_end` that its record in the message store must have."""


class Entries:
    """n entries as columns, arrays of shape (n,). Indexing by a field's name returns its column, which is writable; by
    a slice, mask or row numbers it returns these entries, for a slice without a copy.
    """

    def __init__(self, columns: Mapping[str, npt.NDArray[Any]]) -> None:
        self._columns = columns

    @property
    def fields(self) -> dict[str, str]:
        """Names and types."""
        return {name: column.dtype.str for name, column in self._columns.items()}

    def __len__(self) -> int:
        return len(next(iter(self._columns.values())))

    @overload
    def __getitem__(self, which: str) -> npt.NDArray[Any]: ...
    @overload
    def __getitem__(self, which: slice | npt.NDArray[Any]) -> Entries: ...
    def __getitem__(self, which: str | slice | npt.NDArray[Any]) -> npt.NDArray[Any] | Entries:
        if isinstance(which, str):
            return self._columns[which]
        return Entries({name: column[which] for name, column in self._columns.items()})

    def __setitem__(self, name: str, values: npt.ArrayLike) -> None:
        self._columns[name][:] = values

    def replaced(self, **columns: npt.NDArray[Any]) -> Entries:
        """The same entries with the named columns replaced."""
        return Entries({**self._columns, **columns})

    def row(self, number: int) -> dict[str, int]:
        """One entry."""
        return {name: int(column[number]) for name, column in self._columns.items()}


def id_ends(ids: npt.NDArray[np.void]) -> npt.NDArray[np.uint32]:
    """The last four bytes of each id, dtype V16: enough to detect that a position holds a different message."""
    found: npt.NDArray[np.uint32] = np.ascontiguousarray(ids).view("u4").reshape(-1, 4)[:, -1]
    return found


@dataclass
class Publishes:
    """Publish records of one index file, still by message id. Arrays of shape (n,).

    Where `stored` is set, the message is in the shared store under `ids`; else in the record itself or, for version 2,
    where `entries` states.
    """

    entries: Entries
    ids: npt.NDArray[np.void]
    stored: npt.NDArray[np.bool_]


@dataclass
class IndexFile:
    """A journal, one segment or all segments of a queue: publishes, acknowledged entries, damage.

    `entry_count` is the number of entries of a version 2 segment by its header; None if that cannot be read.
    """

    publishes: Publishes
    acked: npt.NDArray[np.int64]
    damages: list[Damage] = field(default_factory=list)
    entry_count: int | None = None


def new_entries(count: int, fields: Mapping[str, str] = FIELDS) -> Entries:
    """`count` entries, all zero."""
    return Entries({name: np.zeros(count, kind) for name, kind in fields.items()})


def nothing() -> Publishes:
    """No publishes."""
    return Publishes(new_entries(0), np.empty(0, "V16"), np.empty(0, bool))


_Rows = TypeVar("_Rows", Entries, npt.NDArray[Any])


def filtered(rows: _Rows, mask: npt.NDArray[np.bool_]) -> _Rows:
    """`rows[mask]`, without a copy if all are kept: most stores hold millions of entries that are all alike."""
    return rows if mask.all() else rows[mask]


def joined(parts: Sequence[_Rows]) -> _Rows:
    """Concatenates the parts, at least one and all with the same fields; a single part is not copied."""
    first = parts[0]
    if len(parts) == 1:
        return first
    if isinstance(first, Entries):
        return Entries({name: np.concatenate([part[name] for part in parts]) for name in first.fields})
    return np.concatenate(parts)


def flagged(entries: Entries, flag: int) -> npt.NDArray[np.bool_]:
    """Which entries have `flag`."""
    found: npt.NDArray[np.bool_] = entries["flags"] & flag != 0
    return found
