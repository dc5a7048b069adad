"""Cuts the entries of a plan into partitions of about equal bytes. Pure arithmetic.

Leaves to `snapshot` which entries a plan has, to `partition` reading them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from storage_core.rabbitmq.disk.damage import Damage
from storage_core.rabbitmq.index.entries import Entries, joined, new_entries
from storage_core.rabbitmq.index.packed_entries import EntryParts
from storage_core.rabbitmq.read.batch_builder import RowContext
from storage_core.rabbitmq.read.partition import QueuePartition
from storage_core.store import ScanPartition, ScanRequest


@dataclass(frozen=True)
class _Stretch:
    """Entries of one directory, not to be changed: `files` says which file of the plan each of their file numbers is,
    `queue` which queue of the plan they belong to.
    """

    entries: Entries
    files: npt.NDArray[np.int32]
    queue: int


class PlannedEntries:
    """The entries of a plan in delivery order, and one list of paths for all of them."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._stretches: list[_Stretch] = []

    @property
    def files(self) -> tuple[str, ...]:
        """Paths below the store."""
        return tuple(self._numbers)

    def add(self, queue: int, files: Sequence[str], entries: Entries) -> None:
        """Adds `entries` of queue number `queue`, whose file numbers mean `files`."""
        numbers = [self._numbers.setdefault(path, len(self._numbers)) for path in files]
        self._stretches.append(_Stretch(entries, np.array(numbers, np.int32), queue))

    def lengths(self) -> npt.NDArray[np.int64]:
        """Length of each entry's record."""
        return joined([stretch.entries["length"] for stretch in self._stretches] or [np.empty(0, np.int64)])

    def between(self, start: int, stop: int) -> list[_Stretch]:
        """The stretches of the entries [start, stop), counted through all of them."""
        pieces, base = [], 0
        for stretch in self._stretches:
            entries = stretch.entries[max(start - base, 0) : max(stop - base, 0)]
            if len(entries):
                pieces.append(replace(stretch, entries=entries))
            base += len(stretch.entries)
        return pieces


def partitions(
    context: RowContext, planned: PlannedEntries, damages: tuple[Damage, ...], request: ScanRequest
) -> list[ScanPartition]:
    """Cuts at equal bytes, then at the most records; damages go with the last partition."""
    ends = np.cumsum(planned.lengths())
    if not len(ends) and not damages:
        return []
    total = int(ends[-1]) if len(ends) else 0
    count = request.partition_count(total)
    cuts = np.searchsorted(ends, [total * share // count for share in range(1, count)], side="right").tolist()
    bounds = sorted({0, *cuts, len(ends)}) if len(ends) else [0, 0]
    most = request.max_records_per_partition
    if most is not None:
        bounds = sorted({*bounds, *(at for a, b in pairwise(bounds) for at in range(a, b, most))})
    return [
        _partition(context, planned.between(start, stop), damages if stop == bounds[-1] else (), request.verify_crc)
        for start, stop in pairwise(bounds)
    ]


def _partition(
    context: RowContext, stretches: list[_Stretch], damages: tuple[Damage, ...], verify_crc: bool
) -> QueuePartition:
    """A partition that carries only the names that its own entries use."""
    used = np.zeros(len(context.files), bool)
    for stretch in stretches:
        firsts = np.flatnonzero(np.diff(stretch.entries["file"], prepend=-1))
        used[stretch.files[stretch.entries["file"][firsts]]] = True
    numbers = np.cumsum(used, dtype=np.int32) - 1
    queues = sorted({stretch.queue for stretch in stretches})
    parts = [
        each.entries.replaced(
            file=numbers[each.files].take(each.entries["file"]),
            queue=np.full(len(each.entries), queues.index(each.queue), np.int32),
        )
        for each in stretches
    ]
    files = tuple(path for path, taken in zip(context.files, used.tolist(), strict=True) if taken)
    names = tuple(context.queues[number] for number in queues)
    own = replace(context, files=files, queues=names)
    return QueuePartition(own, EntryParts(tuple(parts or [new_entries(0)])), damages, verify_crc)
