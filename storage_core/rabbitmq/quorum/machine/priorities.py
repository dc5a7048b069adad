"""The ready messages of a quorum queue of machine version 8, by raft index: those of the highest priority first.

Source: docs/format/rabbitmq-quorum.md 10.4.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator

from storage_core.rabbitmq.quorum.machine.message_facts import NORMAL_PRIORITY

HIGHEST = 31
"""Priorities above it count as it."""


class Priorities:
    """A queue for each priority that has messages."""

    __slots__ = ("queues",)

    def __init__(self, queues: dict[int, Iterable[int]] | None = None) -> None:
        made = {priority: deque(indexes) for priority, indexes in (queues or {}).items()}
        self.queues = {priority: queue for priority, queue in made.items() if queue}

    def __len__(self) -> int:
        return sum(map(len, self.queues.values()))

    def __iter__(self) -> Iterator[int]:
        """All messages as they would leave, one after the other."""
        for priority in self._ordered():
            yield from self.queues[priority]

    def append(self, index: int, priority: int = NORMAL_PRIORITY) -> None:
        """One more message, the last of its priority."""
        self.queues.setdefault(max(0, min(priority, HIGHEST)), deque()).append(index)

    def extend(self, indexes: Iterable[int]) -> None:
        """More messages of the normal priority."""
        self.queues.setdefault(NORMAL_PRIORITY, deque()).extend(indexes)

    def clear(self) -> None:
        """No messages."""
        self.queues.clear()

    @property
    def head(self) -> int:
        """The next message. ValueError where there is none."""
        return self.queues[max(self.queues)][0]

    def popleft(self) -> int:
        """Takes the next message. ValueError where there is none."""
        return self._take(max(self.queues))

    def take_heads(self, meant: Callable[[int], bool]) -> list[int]:
        """Takes the first messages of each priority as long as they are meant."""
        taken = []
        for priority in self._ordered():
            while priority in self.queues and meant(self.queues[priority][0]):
                taken.append(self._take(priority))
        return taken

    def _ordered(self) -> list[int]:
        return sorted(self.queues, reverse=True)

    def _take(self, priority: int) -> int:
        queue = self.queues[priority]
        index = queue.popleft()
        if not queue:
            del self.queues[priority]
        return index
