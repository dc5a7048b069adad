"""Cuts the entries of a plan into partitions of about equal bytes. Pure arithmetic.

`snapshot` selects the entries of a plan, `partition` reads them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from storage_core.rabbitmq.disk.damage import Damage
from storage_core.rabbitmq.index.entries import Entries, new_entries
from storage_core.rabbitmq.index.partition_entries import EntryParts
from storage_core.rabbitmq.read.batch_builder import RowContext
from storage_core.rabbitmq.read.partition import QueuePartition
from storage_core.store import ScanPartition, ScanRequest


@dataclass(frozen=True)
class _Stretch:
    """Entries of one directory, which must not be modified. `files` maps their file numbers to file numbers of the
    plan; `queue` is the number of their queue in the plan.
    """

    entries: Entries
    files: npt.NDArray[np.int32]
    queue: int


class PlannedEntries:
    """The entries of a plan in delivery order, with one list of paths for all of them."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._stretches: list[_Stretch] = []

    @property
    def files(self) -> tuple[str, ...]:
        """Paths below the store."""
        return tuple(self._numbers)

    def add(self, queue: int, files: Sequence[str], entries: Entries) -> None:
        """Adds `entries` of queue number `queue`; `files` are the files that their file numbers refer to."""
        numbers = [self._numbers.setdefault(path, len(self._numbers)) for path in files]
        self._stretches.append(_Stretch(entries, np.array(numbers, np.int32), queue))

    @property
    def count(self) -> int:
        """The number of entries."""
        return sum(len(stretch.entries) for stretch in self._stretches)

    def cuts(self, partition_count: Callable[[int], int]) -> list[int]:
        """The entry numbers at which partitions of about equal bytes begin, except the first: ascending, possibly with
        duplicates. `partition_count` returns the number of partitions for a number of bytes. A partition ends with the
        last entry that ends within its share.
        """
        sizes = [int(stretch.entries["length"].sum()) for stretch in self._stretches]
        total = sum(sizes)
        count = partition_count(total)
        shares = [total * number // count for number in range(1, count)]
        found: list[int] = []
        row = base = 0
        for stretch, size in zip(self._stretches, sizes, strict=True):
            here = [share - base for share in shares[len(found) :] if share < base + size]
            if here:
                ends = np.cumsum(stretch.entries["length"])
                found += (row + np.searchsorted(ends, here, side="right")).tolist()
            row, base = row + len(stretch.entries), base + size
        return found + [row] * (len(shares) - len(found))

    def between(self, start: int, stop: int) -> list[_Stretch]:
        """The stretches that hold the entries [start, stop), counted across all stretches."""
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
    """Cuts into equal bytes, then at the maximum number of records; `damages` are added to the last partition."""
    count = planned.count
    if not count and not damages:
        return []
    bounds = sorted({0, *planned.cuts(request.partition_count), count}) if count else [0, 0]
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
    """A partition that carries only the file and queue names that its own entries use."""
    used = np.zeros(len(context.files), bool)
    for stretch in stretches:
        file = stretch.entries["file"]
        used[stretch.files[file[:1]]] = True
        used[stretch.files[file[1:][file[1:] != file[:-1]]]] = True
    numbers = np.cumsum(used, dtype=np.int32) - 1
    queues = {number: place for place, number in enumerate(sorted({stretch.queue for stretch in stretches}))}
    parts = [
        each.entries.replaced(
            file=numbers[each.files].take(each.entries["file"]),
            queue=np.full(len(each.entries), queues[each.queue], np.int32),
        )
        for each in stretches
    ]
    files = tuple(path for path, is_used in zip(context.files, used.tolist(), strict=True) if is_used)
    names = tuple(context.queues[number] for number in queues)
    own = replace(context, files=files, queues=names)
    return QueuePartition(own, EntryParts(tuple(parts or [new_entries(0)])), damages, verify_crc)
