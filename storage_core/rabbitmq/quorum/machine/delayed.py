"""Messages of a quorum queue that wait for their time before they are delivered again, by raft index.

Only machine version 8 has such. Source: docs/format/rabbitmq-quorum.md 10.4.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from heapq import heappop, heappush

Key = tuple[int, int]
"""When a message is due, in ms, and its raft index."""


@dataclass
class Delayed:
    """`due` says when, in ms; `deferred` has those that a consumer can ask for, by its token. `first` is the one that
    is due next: of several with the same time the one that came first.
    """

    due: dict[int, int] = field(default_factory=dict)
    deferred: dict[bytes, Key] = field(default_factory=dict)
    first: int | None = None
    _heap: list[Key] = field(default_factory=list)
    """The keys, and some of messages that wait no more."""

    def __len__(self) -> int:
        return len(self.due)

    def put(self, index: int, due: int, token: bytes | None = None) -> None:
        """One more message."""
        self.due[index] = due
        heappush(self._heap, (due, index))
        if self.first is None or due < self.due[self.first]:
            self.first = index
        if token is not None:
            self.deferred[token] = due, index

    def take_due(self, now: int) -> list[int]:
        """Takes the messages that are due."""
        taken: list[int] = []
        while self.first is not None and self.due[self.first] <= now:
            taken.append(self.first)
            self._remove([self.first])
        return taken

    def take_first(self, count: int) -> list[int]:
        """Takes the first messages, due or not."""
        taken: list[int] = []
        while len(taken) < count and (index := self._smallest()) is not None:
            taken.append(index)
            self._remove([index])
        return taken

    def clear(self) -> None:
        """No messages."""
        self.due.clear()
        self.deferred.clear()
        self._heap.clear()
        self.first = None

    def find(self, tokens: list[bytes]) -> list[int]:
        """The messages of these tokens, in their order; those that are not there are left out."""
        keys = [self.deferred[token] for token in dict.fromkeys(tokens) if token in self.deferred]
        return list(dict.fromkeys(index for due, index in keys if self.due.get(index) == due))

    def forget(self, tokens: list[bytes]) -> None:
        """Takes the messages of these tokens."""
        found = self.find(tokens)
        for token in tokens:
            self.deferred.pop(token, None)
        self._remove(found, False)

    def _remove(self, indexes: list[int], with_tokens: bool = True) -> None:
        """Takes messages. Their tokens mean nothing then, unless a node forgets only those that it was asked for."""
        gone = {(self.due.pop(index), index) for index in indexes}
        if self.deferred and with_tokens:
            self.deferred = {token: key for token, key in self.deferred.items() if key not in gone}
        if indexes:
            self.first = self._smallest()

    def _smallest(self) -> int | None:
        """The one with the smallest key; None where none waits."""
        heap = self._heap
        while heap and self.due.get(heap[0][1]) != heap[0][0]:
            heappop(heap)
        return heap[0][1] if heap else None
