"""The rules by which a broker's dispatcher appends entries for records of the log to consume queues; touches no files.

Shared by recovery (how long is each queue after a broker start?), by readers of entries that are not on disk, and by
writers of records that keep their queue offsets. Source of the rules: rocketmq.md 3.3, 5.6.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from storage_core.arrays import as_array
from storage_core.formats.layout import Mask, Positions
from storage_core.formats.rocketmq.message import COMMIT, TRANSACTION_MASK, Messages
from storage_core.formats.spans import FEW
from storage_core.rocketmq.disk.commit_log import RecordRun
from storage_core.rocketmq.recovery.light_queues import queues_named_by
from storage_core.store import QueueKey


@dataclass(frozen=True)
class QueueTail:
    """The end of one queue: the next queue offset, and the address after the last record that it lists (-1: none).

    `has_files` is false for a queue that the dispatcher would have to create. `first` is the queue offset of the first
    real entry if the dispatcher created the queue, with filler entries from `filler` on.
    """

    queue_offset: int = 0
    reach: int = -1
    has_files: bool = False
    filler: int = 0
    first: int = 0


@dataclass(frozen=True)
class AppendedEntries:
    """Entries that the dispatcher appends, in log order. Arrays have shape (n,).

    `queue` is an index into `keys`, `rows` are the numbers of the records in the run.
    """

    keys: tuple[QueueKey, ...]
    queue: npt.NDArray[np.int32]
    queue_offsets: Positions
    physical_offsets: Positions
    sizes: Positions
    rows: npt.NDArray[np.intp]

    def take(self, rows: Mask) -> AppendedEntries:
        """The selected entries."""
        return AppendedEntries(
            self.keys, self.queue[rows], self.queue_offsets[rows], self.physical_offsets[rows], self.sizes[rows],
            self.rows[rows],
        )  # fmt: skip


@dataclass(frozen=True)
class DueEntries:
    """Entries that records call for, in log order: each in its own queue, and in those that it names besides.

    Arrays have shape (n,). `queue` is an index into `keys`, `rows` are the numbers of the records, `named` marks the
    entries of queues that records name besides their own.
    """

    keys: tuple[QueueKey, ...]
    queue: npt.NDArray[np.int32]
    queue_offsets: Positions
    rows: npt.NDArray[np.intp]
    named: Mask


def due_entries(
    messages: Messages, of_5x: bool, is_batched: Callable[[QueueKey], bool] = lambda _: False
) -> DueEntries:  # fmt: skip
    """The entries that records call for, by the rules of 5.x or of 4.9; a queue need not accept them.

    `is_batched`: whether a queue is a batch queue; its records are listed in no other queue.
    """
    keys, queue = queue_keys(messages)
    listed = has_entry(messages.column("sys_flag"))
    # No system has a folder with such a name, so a broker cannot make the queue.
    impossible = [number for number, (topic, _) in enumerate(keys) if "\0" in topic]
    if impossible:
        listed &= ~np.isin(queue, impossible)
    rows = np.flatnonzero(listed)
    own = DueEntries(keys, queue[rows], messages.column("queue_offset")[rows], rows, np.zeros(len(rows), bool))
    named = queues_named_by(messages, listed, of_5x)
    if named is not None and (alone := [number for number, key in enumerate(keys) if is_batched(key)]):
        named = queues_named_by(messages, listed & ~np.isin(queue, alone), of_5x)
    if named is None:
        return own
    numbers = {key: number for number, key in enumerate(keys)}
    others, codes = _distinct(named.topics, named.queue_ids)
    known = np.array([numbers.setdefault(key, len(numbers)) for key in others], np.int32)
    rows = np.concatenate((own.rows, named.rows))
    order = np.argsort(rows, kind="stable")
    return DueEntries(
        tuple(numbers), np.concatenate((own.queue, known[codes]))[order],
        np.concatenate((own.queue_offsets, named.queue_offsets))[order], rows[order], order >= len(own.rows),
    )  # fmt: skip


class Dispatcher:
    """Feeds records to queues; `tails` is always the state after the last record."""

    def __init__(
        self,
        tails: Mapping[QueueKey, QueueTail],
        entries_per_file: int,
        of_5x: bool,
        is_batch: Callable[[str], bool],
    ) -> None:
        """`is_batch`: whether a topic without queues yet has batch queues instead (rocketmq.md 3.7)."""
        self.tails = dict(tails)
        self._is_batch = is_batch
        self._of_5x = of_5x
        self._entries_per_file = max(entries_per_file, 1)

    def feed(self, run: RecordRun) -> AppendedEntries:
        """Appends the entries that the rules require for the records of `run`; returns them."""
        messages = run.messages
        # A broker dispatches the address that the record states, not the one at which it is stored.
        physical_offsets = messages.column("physical_offset")
        due = due_entries(messages, self._of_5x, self._goes_to_batches)
        rows, ends = due.rows, (physical_offsets + run.sizes)[due.rows]
        reach = np.array([self.tails.get(key, QueueTail()).reach for key in due.keys], np.int64)
        new = np.flatnonzero(ends > reach[due.queue])
        queue_offsets = np.full(len(rows), -1, np.int64)
        if len(new):
            order = new[np.argsort(due.queue[new], kind="stable")]
            bounds = np.flatnonzero(np.diff(due.queue[order])) + 1
            for group in np.split(order, bounds):
                key = due.keys[due.queue[group[0]]]
                queue_offsets[group] = self._append(key, due.queue_offsets[group], ends[group])
        appended = queue_offsets >= 0
        rows = rows[appended]
        return AppendedEntries(
            due.keys, due.queue[appended], queue_offsets[appended], physical_offsets[rows], run.sizes[rows], rows
        )

    def _goes_to_batches(self, key: QueueKey) -> bool:
        return not self.tails.get(key, QueueTail()).has_files and self._is_batch(key[0])

    def _append(self, key: QueueKey, offsets: Positions, ends: Positions) -> Positions:
        """Queue offsets that the records get in their queue, -1 for those that the rules ignore."""
        tail = self.tails.get(key, QueueTail())
        if not tail.has_files:
            if self._is_batch(key[0]):
                return np.full(len(offsets), -1, np.int64)
            first = int(offsets[0])
            base = first // self._entries_per_file * self._entries_per_file
            tail = replace(tail, queue_offset=first, has_files=True, filler=base, first=first)
        queue_offsets, following, reach = appended_offsets(offsets, ends, tail.queue_offset, tail.reach)
        self.tails[key] = replace(tail, queue_offset=following, reach=reach)
        return queue_offsets


def has_entry(sys_flags: npt.NDArray[np.int32]) -> Mask:
    """Which records get an entry in their consume queue: plain and committed ones."""
    kind = sys_flags & TRANSACTION_MASK
    listed: Mask = (kind == 0) | (kind == COMMIT)
    return listed


def appended_offsets(offsets: Positions, ends: Positions, following: int, reach: int) -> tuple[Positions, int, int]:
    """The queue offsets that records of one queue get when they are dispatched in order (rocketmq.md 3.3, 5.6).

    `offsets` are their QUEUEOFFSETs, `ends` the addresses after them, shape (n,). The queue's next offset is
    `following`, its last record ends at `reach`. A record that ends no later than the last one is ignored, as is one
    whose offset is too small, unless that is 0; one whose offset is too large gets the next offset. Returns the queue
    offsets, -1 for ignored records, and the new `following` and `reach`.
    """
    count = len(offsets)
    straight = np.arange(following, following + count)
    if (offsets == straight).all() and (np.diff(ends) > 0).all() and ends[0] > reach:
        return straight, following + count, int(ends[-1])
    queue_offsets = np.full(count, -1, np.int64)
    for row, (offset, end) in enumerate(zip(offsets.tolist(), ends.tolist(), strict=True)):
        if end > reach and (offset == 0 or offset >= following):
            queue_offsets[row] = following
            following, reach = following + 1, end
    return queue_offsets, following, reach


def queue_keys(messages: Messages) -> tuple[tuple[QueueKey, ...], npt.NDArray[np.int32]]:
    """The distinct (topic, queue id) pairs of records, and the number of each record's pair."""
    if len(messages) <= FEW:
        pairs_of_few = list(zip(messages.topics().to_pylist(), messages.column("queue_id").tolist(), strict=True))
        numbers = {key: number for number, key in enumerate(dict.fromkeys(pairs_of_few))}
        return tuple(numbers), np.array([numbers[key] for key in pairs_of_few], np.int32)
    return _distinct(messages.topics(), messages.column("queue_id"))


def _distinct(
    topics: pa.StringArray, queue_ids: npt.NDArray[np.int32]
) -> tuple[tuple[QueueKey, ...], npt.NDArray[np.int32]]:
    encoded = topics.dictionary_encode()
    codes = encoded.indices.to_numpy().astype(np.int64)
    pairs = as_array((codes << 32) | queue_ids.view(np.uint32)).dictionary_encode()
    names = encoded.dictionary.to_pylist()
    keys = tuple((names[pair >> 32], _signed(pair & 0xFFFFFFFF)) for pair in pairs.dictionary.to_pylist())
    return keys, pairs.indices.to_numpy()


def _signed(value: int) -> int:
    return value - (1 << 32) if value >> 31 else value
