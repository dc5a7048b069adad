"""The ready messages of a quorum queue of machine version 8, by raft index, highest priority first.

Source: docs/format/rabbitmq-quorum.md 10.4.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator

from storage_core.rabbitmq.quorum.machine.message_facts import NORMAL_PRIORITY

HIGHEST = 31
"""Priorities above this one count as this one."""


class Priorities:
    """A queue for each priority that has messages."""

    __slots__ = ("queues",)

    def __init__(self, queues: dict[int, Iterable[int]] | None = None) -> None:
        made = {priority: deque(indexes) for priority, indexes in (queues or {}).items()}
        self.queues = {priority: queue for priority, queue in made.items() if queue}

    def __len__(self) -> int:
        return sum(map(len, self.queues.values()))

    def __iter__(self) -> Iterator[int]:
        """All messages in the order in which they would leave."""
        for priority in self._ordered():
            yield from self.queues[priority]

    def append(self, index: int, priority: int = NORMAL_PRIORITY) -> None:
        """Appends a message to the queue of its priority."""
        self.queues.setdefault(max(0, min(priority, HIGHEST)), deque()).append(index)

    def extend(self, indexes: Iterable[int]) -> None:
        """Appends messages of the normal priority."""
        self.queues.setdefault(NORMAL_PRIORITY, deque()).extend(indexes)

    def clear(self) -> None:
        """Removes all messages."""
        self.queues.clear()

    @property
    def head(self) -> int:
        """The next message. Raises ValueError if there is none."""
        return self.queues[max(self.queues)][0]

    def popleft(self) -> int:
        """Removes and returns the next message. Raises ValueError if there is none."""
        return self._take(max(self.queues))

    def take_heads(self, meant: Callable[[int], bool]) -> list[int]:
        """Removes and returns the first messages of each priority, as long as `meant` accepts them."""
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
