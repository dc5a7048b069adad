"""A double-ended queue of messages kept as runs of columns: what q1, q2, q3 and q4 are made of.

`paging_queue` and `memory_reduction` decide which message belongs in which queue.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import numpy as np

from storage_core.rabbitmq.index.message_run import ROW, MessageRun, Rows, by_sequence, empty_run, joined

TAIL_CAPACITY = 1024
"""Small pushes are collected in tail runs of this many rows."""


class RunQueue:
    """Messages by ascending position; the front is consumed first."""

    def __init__(self) -> None:
        self._runs: deque[MessageRun] = deque()
        self._size = 0
        self._tail = empty_run()
        self._filled = 0  # rows of `_tail` in use
        self._open = False  # whether the last run ends at row `_filled` of `_tail`

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[MessageRun]:
        return iter(list(self._runs))

    def first_row(self) -> Rows:
        """ROW at the front. Raises IndexError if the queue is empty."""
        row: Rows = self._runs[0].rows[0]
        return row

    def first_sequence_id(self) -> int:
        """Sequence id at the front. Raises IndexError if the queue is empty."""
        return int(self._runs[0].rows["sequence_id"][0])

    def last_sequence_id(self) -> int:
        """Sequence id at the back. Raises IndexError if the queue is empty."""
        return int(self._runs[-1].rows["sequence_id"][-1])

    def push_back(self, run: MessageRun) -> None:
        """Appends `run`, keeping its order."""
        count = len(run)
        self._size += count
        if count >= TAIL_CAPACITY // 4:
            self._runs.append(run)
            self._open = False
        elif count:
            self._push_into_tail(run, count)

    def _push_into_tail(self, run: MessageRun, count: int) -> None:
        start, stop = self._filled, self._filled + count
        if stop > len(self._tail):
            self._tail = MessageRun(np.zeros(TAIL_CAPACITY, ROW), np.empty(TAIL_CAPACITY, np.object_))
            self._open, start, stop = False, 0, count
        self._tail.rows[start:stop], self._tail.terms[start:stop] = run.rows, run.terms
        if self._open and self._runs:
            start -= len(self._runs.pop())
        self._runs.append(self._tail[start:stop])
        self._open, self._filled = True, stop

    def push_front(self, run: MessageRun) -> None:
        """Prepends `run`, keeping its order."""
        if len(run):
            self._open = self._open and bool(self._runs)
            self._runs.appendleft(run)
            self._size += len(run)

    def pop_front(self, count: int) -> MessageRun:
        """Removes and returns the first `count` messages, or all if there are fewer."""
        taken = []
        while count > 0 and self._runs:
            run = self._runs[0]
            if len(run) <= count:
                taken.append(self._runs.popleft())
            else:
                taken.append(run[:count])
                self._runs[0] = run[count:]
            count -= len(taken[-1])
        self._size -= sum(map(len, taken))
        return joined(taken)

    def pop_back(self, count: int) -> MessageRun:
        """Removes and returns the last `count` messages in queue order, or all if there are fewer."""
        taken = []
        while count > 0 and self._runs:
            run = self._runs[-1]
            if len(run) <= count:
                taken.append(self._runs.pop())
            else:
                taken.append(run[len(run) - count :])
                self._runs[-1] = run[: len(run) - count]
            count -= len(taken[-1])
        self._size -= sum(map(len, taken))
        self._open = False
        return joined(taken[::-1])

    def peek_front(self, count: int) -> MessageRun:
        """The first `count` messages, without removing them."""
        taken = self.pop_front(count)
        self.push_front(taken)
        return taken

    def peek_back(self, count: int) -> MessageRun:
        """The last `count` messages, without removing them."""
        taken = self.pop_back(count)
        if len(taken):
            self._runs.append(taken)
            self._size += len(taken)
        return taken

    def take_all(self) -> MessageRun:
        """Removes and returns every message."""
        return self.pop_front(self._size)

    def append_queue(self, other: RunQueue) -> None:
        """Moves every message of `other` to the back."""
        while len(other):
            self.push_back(other.pop_front(len(other._runs[0])))

    def merge(self, run: MessageRun) -> None:
        """Inserts each message of `run` by sequence id; both the queue and `run` are sorted by it."""
        if not len(run):
            return
        highest = int(run.rows["sequence_id"][-1])
        before = []
        while self._runs and self.first_sequence_id() < highest:
            before.append(self.pop_front(len(self._runs[0])))
        self.push_front(by_sequence(joined([*before, run])))

    def count_from(self, sequence_id: int) -> int:
        """Number of messages at the back whose sequence ids are `sequence_id` or above."""
        count = 0
        for run in reversed(self._runs):
            low = int(run.rows["sequence_id"][0])
            if low < sequence_id:
                return count + int(np.count_nonzero(run.rows["sequence_id"] >= sequence_id))
            count += len(run)
        return count
