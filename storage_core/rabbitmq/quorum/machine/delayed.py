"""Delayed messages of a quorum queue, by raft index: each waits until it is due before it is delivered again.

Only machine version 8 has them. Source: docs/format/rabbitmq-quorum.md 10.4.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from heapq import heappop, heappush

Key = tuple[int, int]
"""When a message is due, in ms, and its raft index."""


@dataclass
class Delayed:
    """`due` has the due times in ms; `deferred` has the messages that a consumer can request, by token. `first` is the
    message due next: of several with the same time, the one that was added first.
    """

    due: dict[int, int] = field(default_factory=dict)
    deferred: dict[bytes, Key] = field(default_factory=dict)
    first: int | None = None
    _heap: list[Key] = field(default_factory=list)
    """The keys, including some of messages that no longer wait."""

    def __len__(self) -> int:
        return len(self.due)

    def put(self, index: int, due: int, token: bytes | None = None) -> None:
        """Adds a message."""
        self.due[index] = due
        heappush(self._heap, (due, index))
        if self.first is None or due < self.due[self.first]:
            self.first = index
        if token is not None:
            self.deferred[token] = due, index

    def take_due(self, now: int) -> list[int]:
        """Removes and returns the messages that are due."""
        taken: list[int] = []
        while self.first is not None and self.due[self.first] <= now:
            taken.append(self.first)
            self._remove([self.first])
        return taken

    def take_first(self, count: int) -> list[int]:
        """Removes and returns the first messages, due or not."""
        taken: list[int] = []
        while len(taken) < count and (index := self._smallest()) is not None:
            taken.append(index)
            self._remove([index])
        return taken

    def clear(self) -> None:
        """Removes all messages."""
        self.due.clear()
        self.deferred.clear()
        self._heap.clear()
        self.first = None

    def find(self, tokens: list[bytes]) -> list[int]:
        """The messages with these tokens, in the order of the tokens; missing ones are left out."""
        keys = [self.deferred[token] for token in dict.fromkeys(tokens) if token in self.deferred]
        return list(dict.fromkeys(index for due, index in keys if self.due.get(index) == due))

    def forget(self, tokens: list[bytes]) -> None:
        """Removes the messages with these tokens."""
        found = self.find(tokens)
        for token in tokens:
            self.deferred.pop(token, None)
        self._remove(found, False)

    def _remove(self, indexes: list[int], with_tokens: bool = True) -> None:
        """Removes messages, by default with all their tokens; a node may forget only those that were requested."""
        gone = {(self.due.pop(index), index) for index in indexes}
        if self.deferred and with_tokens:
            self.deferred = {token: key for token, key in self.deferred.items() if key not in gone}
        if indexes:
            self.first = self._smallest()

    def _smallest(self) -> int | None:
        """The message with the smallest key; None if none waits."""
        heap = self._heap
        while heap and self.due.get(heap[0][1]) != heap[0][0]:
            heappop(heap)
        return heap[0][1] if heap else None
