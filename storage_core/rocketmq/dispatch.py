"""What a broker's dispatcher appends to its consume queues for records of the log: the rules, and nothing on disk.

Shared by the judge (how long is each queue after a start?) and by readers of queues that are not on disk.
Source of the rules: rocketmq.md 3.3, 5.6.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from storage_core.formats.layout import Positions
from storage_core.formats.rocketmq.message import COMMIT, TRANSACTION_MASK, Messages
from storage_core.formats.spans import FEW, text
from storage_core.rocketmq.commitlog import Stretch
from storage_core.store import QueueKey


@dataclass(frozen=True)
class QueueTail:
    """The end of one queue: the next ordinal, and the address behind the last record that it lists (-1: none).

    `has_files` is false for a queue that the dispatcher would have to create. `first` is the ordinal of the first
    real unit where it did create it, with filler units from `filler` on.
    """

    ordinal: int = 0
    reach: int = -1
    has_files: bool = False
    filler: int = 0
    first: int = 0


@dataclass(frozen=True)
class Appended:
    """Units that the dispatcher appends, in log order: which queue (an index into `keys`), ordinal, place, size.

    `rows` are the numbers of their records in the stretch.
    """

    keys: tuple[QueueKey, ...]
    queue: npt.NDArray[np.int32]
    ordinals: Positions
    places: Positions
    sizes: Positions
    rows: npt.NDArray[np.intp]


class Dispatcher:
    """Feeds records to queues; `tails` is always the state after the last record."""

    def __init__(self, tails: Mapping[QueueKey, QueueTail], units_per_file: int) -> None:
        self.tails = dict(tails)
        self._units_per_file = max(units_per_file, 1)

    def feed(self, stretch: Stretch) -> Appended:
        """Appends what the rules append for the records of `stretch`."""
        messages = stretch.messages
        # A broker dispatches the address that the record states, not the one where it lies.
        places = messages.column("physical_offset")
        keys, queue = queue_keys(messages)
        reach = np.array([self.tails.get(key, QueueTail()).reach for key in keys], np.int64)
        kind = messages.column("sys_flag") & TRANSACTION_MASK
        new = ((kind == 0) | (kind == COMMIT)) & (places + stretch.sizes > reach[queue])
        rows = np.flatnonzero(new)
        ordinals = np.full(len(messages), -1, np.int64)
        if len(rows):
            offsets = messages.column("queue_offset")
            order = rows[np.argsort(queue[rows], kind="stable")]
            bounds = np.flatnonzero(np.diff(queue[order])) + 1
            for group in np.split(order, bounds):
                key, sizes = keys[queue[group[0]]], stretch.sizes[group]
                ordinals[group] = self._append(key, offsets[group], places[group], sizes)
        rows = np.flatnonzero(ordinals >= 0)
        return Appended(keys, queue[rows], ordinals[rows], places[rows], stretch.sizes[rows], rows)

    def _append(self, key: QueueKey, offsets: Positions, places: Positions, sizes: Positions) -> Positions:
        """Ordinals that the records get in their queue, -1 for those that the rules ignore."""
        tail = self.tails.get(key, QueueTail())
        if not tail.has_files:
            first = int(offsets[0])
            base = first // self._units_per_file * self._units_per_file
            tail = replace(tail, ordinal=first, has_files=True, filler=base, first=first)
        straight = np.arange(tail.ordinal, tail.ordinal + len(offsets))
        ends = places + sizes
        if (offsets == straight).all() and (np.diff(ends) > 0).all() and ends[0] > tail.reach:
            self.tails[key] = replace(tail, ordinal=tail.ordinal + len(offsets), reach=int(ends[-1]))
            return straight
        ordinals = np.full(len(offsets), -1, np.int64)
        ordinal, reach = tail.ordinal, tail.reach
        for row, (offset, end) in enumerate(zip(offsets.tolist(), ends.tolist(), strict=True)):
            # An offset of 0 is never compared; a larger one than expected closes the gap up.
            if end > reach and (offset == 0 or offset >= ordinal):
                ordinals[row] = ordinal
                ordinal, reach = ordinal + 1, end
        self.tails[key] = replace(tail, ordinal=ordinal, reach=reach)
        return ordinals


def queue_keys(messages: Messages) -> tuple[tuple[QueueKey, ...], npt.NDArray[np.int32]]:
    """The distinct (topic, queue id) of records, and which of them each record has."""
    if len(messages) <= FEW:
        pairs_of_few = list(zip(text(messages.topics()).to_pylist(), messages.column("queue_id").tolist(), strict=True))
        numbers = {key: number for number, key in enumerate(dict.fromkeys(pairs_of_few))}
        return tuple(numbers), np.array([numbers[key] for key in pairs_of_few], np.int32)
    topics = text(messages.topics()).dictionary_encode()
    codes = topics.indices.to_numpy().astype(np.int64)
    pairs = pa.array((codes << 32) | messages.column("queue_id").view(np.uint32)).dictionary_encode()
    names = topics.dictionary.to_pylist()
    keys = tuple((names[pair >> 32], _signed(pair & 0xFFFFFFFF)) for pair in pairs.dictionary.to_pylist())
    return keys, pairs.indices.to_numpy()


def _signed(value: int) -> int:
    return value - (1 << 32) if value >> 31 else value
