"""Messages of a quorum queue that wait for their time before they are delivered again, by raft index.

Only machine version 8 has such. Source: docs/format/rabbitmq-quorum.md 10.4.
"""

from __future__ import annotations

from dataclasses import dataclass, field

Key = tuple[int, int]
"""When a message is due, in ms, and its raft index."""


@dataclass
class Delayed:
    """`due` says when, in ms; `deferred` has those that a consumer can ask for, by its token. `first` is the one that
    is due next: of several with the same time the one that came first.
    """

    due: dict[int, int] = field(default_factory=dict)
    first: int | None = None
    deferred: dict[bytes, Key] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.due)

    def ordered(self) -> list[int]:
        """The messages in the order in which they are due."""
        return sorted(self.due, key=lambda index: (self.due[index], index))

    def put(self, index: int, due: int, token: bytes | None = None) -> None:
        """One more message."""
        self.due[index] = due
        if self.first is None or due < self.due[self.first]:
            self.first = index
        if token is not None:
            self.deferred[token] = due, index

    def take_due(self, now: int) -> list[int]:
        """Takes the messages that are due."""
        first = self.first
        if first is None or self.due[first] > now:
            return []
        return self._taken([first, *(each for each in self.ordered() if each != first and self.due[each] <= now)])

    def take_first(self, count: int) -> list[int]:
        """Takes the first messages, due or not."""
        return self._taken(self.ordered()[:count])

    def clear(self) -> None:
        """No messages."""
        self.due.clear()
        self.deferred.clear()
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
        self._remove(found)

    def _taken(self, indexes: list[int]) -> list[int]:
        gone = {(self.due[index], index) for index in indexes}
        self.deferred = {token: key for token, key in self.deferred.items() if key not in gone}
        self._remove(indexes)
        return indexes

    def _remove(self, indexes: list[int]) -> None:
        for index in indexes:
            del self.due[index]
        if indexes:
            self.first = next(iter(self.ordered()), None)
