"""Messages delivered and not yet acknowledged, by sequence id, in sorted runs of columns.

The flags of a message determine which of the three sets (payload in memory for the store, not in memory, in memory
for the index) it belongs to. Source: rabbitmq.md 7.1 and 7.5.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator

import numpy as np

from storage_core.formats.layout import Mask
from storage_core.rabbitmq.index.message_run import (
    IN_RAM,
    TO_INDEX,
    MessageRun,
    SequenceIds,
    by_sequence,
    empty_run,
    joined,
)

RUN_LIMIT = 4096
"""Adding to a run never makes it longer than this."""


class SequenceSet:
    """Messages by ascending sequence id, in runs that do not overlap."""

    def __init__(self) -> None:
        self._runs: list[MessageRun] = []
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[MessageRun]:
        return iter(list(self._runs))

    def _firsts(self) -> list[int]:
        return [int(run.rows["sequence_id"][0]) for run in self._runs]

    def add(self, run: MessageRun) -> None:
        """Adds messages whose sequence ids are not in the set."""
        if not len(run):
            return
        run = by_sequence(run)
        self._size += len(run)
        if not self._runs or self._runs[-1].rows["sequence_id"][-1] < run.rows["sequence_id"][0]:
            if self._runs and len(self._runs[-1]) + len(run) <= RUN_LIMIT:
                self._runs[-1] = joined([self._runs[-1], run])
            else:
                self._runs.append(run)
            return
        low, high = int(run.rows["sequence_id"][0]), int(run.rows["sequence_id"][-1])
        firsts = self._firsts()
        start = max(bisect_right(firsts, low) - 1, 0)
        stop = bisect_right(firsts, high)
        merged = by_sequence(joined([*self._runs[start:stop], run]))
        self._runs[start:stop] = [merged[at : at + RUN_LIMIT] for at in range(0, len(merged), RUN_LIMIT)]

    def find(self, sequence_ids: SequenceIds) -> Mask:
        """Which of `sequence_ids` are in the set."""
        found = np.zeros(len(sequence_ids), np.bool_)
        for chosen, run in self._chosen_runs(sequence_ids):
            held = run.sequence_ids
            at = np.searchsorted(held, sequence_ids[chosen]).clip(max=len(held) - 1)
            found[chosen] = held[at] == sequence_ids[chosen]
        return found

    def _chosen_runs(self, sequence_ids: SequenceIds) -> list[tuple[SequenceIds, MessageRun]]:
        """For each run that may hold some of `sequence_ids`: their indices in `sequence_ids`, and the run."""
        if not self._runs or not len(sequence_ids):
            return []
        if len(self._runs) == 1:
            return [(np.arange(len(sequence_ids)), self._runs[0])]
        chosen = np.searchsorted(np.array(self._firsts()), sequence_ids, side="right") - 1
        return [(np.flatnonzero(chosen == at), self._runs[at]) for at in np.unique(chosen) if at >= 0]

    def take(self, sequence_ids: SequenceIds) -> MessageRun:
        """Removes and returns the messages of `sequence_ids` that are in the set, by ascending sequence id."""
        if self._runs and 0 < len(sequence_ids) < len(self._runs[0]):
            front = self._runs[0]
            if np.array_equal(
                front.sequence_ids[: len(sequence_ids)], sequence_ids
            ):  # the oldest messages, which most consumers acknowledge first
                self._runs[0] = front[len(sequence_ids) :]
                self._size -= len(sequence_ids)
                return front[: len(sequence_ids)]
        taken = []
        for chosen, run in self._chosen_runs(sequence_ids):
            gone = np.isin(run.sequence_ids, sequence_ids[chosen])
            count = int(np.count_nonzero(gone))
            if count == 0:
                continue
            at = next(index for index, held in enumerate(self._runs) if held is run)
            taken.append(run if count == len(run) else run[gone])
            if count == len(run):
                del self._runs[at]
            else:
                self._runs[at] = run[count:] if gone[:count].all() else run[~gone]
        self._size -= sum(map(len, taken))
        return joined(taken)

    def take_largest(self, count: int) -> MessageRun:
        """Removes and returns the `count` highest messages, or all if there are fewer, by ascending sequence id."""
        taken = []
        while count > 0 and self._runs:
            run = self._runs.pop()
            if len(run) > count:
                self._runs.append(run[: len(run) - count])
                run = run[len(run) - count :]
            taken.append(run)
            count -= len(run)
        self._size -= sum(map(len, taken))
        return joined(taken[::-1])

    def take_all(self) -> MessageRun:
        """Removes and returns every message."""
        return self.take_largest(self._size)


class PendingAcks:
    """The three sets: `ram` (payload in memory, meant for the store), `disk` (payload not in memory), `index`
    (payload in memory, meant for the queue index: it can never be paged out).
    """

    def __init__(self) -> None:
        self.ram, self.disk, self.index = SequenceSet(), SequenceSet(), SequenceSet()

    def __len__(self) -> int:
        return len(self.ram) + len(self.disk) + len(self.index)

    @property
    def sets(self) -> tuple[SequenceSet, SequenceSet, SequenceSet]:
        """The sets in the order in which an acknowledgement searches them."""
        return self.ram, self.disk, self.index

    def add(self, run: MessageRun) -> None:
        """Adds each message to the set that its flags select."""
        first = run.rows["flags"][0] & (IN_RAM | TO_INDEX) if len(run) else 0
        kinds = run.rows["flags"] & (IN_RAM | TO_INDEX)
        if (kinds == first).all():
            self._set_of(int(first)).add(run)
            return
        self.ram.add(run[kinds == IN_RAM])
        self.index.add(run[kinds == IN_RAM | TO_INDEX])
        self.disk.add(run[(kinds & IN_RAM) == 0])

    def _set_of(self, kind: int) -> SequenceSet:
        if not kind & IN_RAM:
            return self.disk
        return self.index if kind & TO_INDEX else self.ram

    def find(self, sequence_ids: SequenceIds) -> Mask:
        """Which of `sequence_ids` are pending."""
        found = np.zeros(len(sequence_ids), np.bool_)
        for held in self.sets:
            if len(held):
                found |= held.find(sequence_ids)
        return found

    def take(self, sequence_ids: SequenceIds) -> MessageRun:
        """Removes and returns the pending messages of `sequence_ids` (without duplicates), in the order given."""
        run = by_sequence(joined([held.take(sequence_ids) for held in self.sets if len(held)] or [empty_run()]))
        if len(sequence_ids) < 2 or not len(run) or (sequence_ids[1:] > sequence_ids[:-1]).all():
            return run
        order = np.argsort(sequence_ids, kind="stable")
        at = order[np.searchsorted(sequence_ids[order], run.sequence_ids)]
        return run[np.argsort(at, kind="stable")]

    def sequence_ids(self) -> SequenceIds:
        """All pending sequence ids, ascending."""
        return np.sort(
            np.concatenate([np.empty(0, np.int64), *(run.sequence_ids for held in self.sets for run in held)])
        )
