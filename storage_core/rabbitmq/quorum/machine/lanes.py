"""The ready messages of a quorum queue up to machine version 7, by raft index, in delivery order.

From version 4 on there is a lane for messages of high priority; before that, all are in the normal lane.
Source: docs/format/rabbitmq-quorum.md 10.2.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

from storage_core.rabbitmq.quorum.machine.message_facts import NORMAL_PRIORITY

TURNS = 3
"""Once in this many messages the older of the two heads is next; otherwise the head of the high lane."""


class Lanes:
    """Two lanes of messages. `turn` counts the messages that left them, modulo TURNS."""

    __slots__ = ("high", "normal", "turn")

    def __init__(self, normal: Iterable[int] = (), high: Iterable[int] = (), turn: int = 0) -> None:
        self.normal, self.high, self.turn = deque(normal), deque(high), turn

    def __len__(self) -> int:
        return len(self.normal) + len(self.high)

    def __iter__(self) -> Iterator[int]:
        """All messages in the order in which they would leave."""
        if not self.high:
            return iter(self.normal)
        rest = Lanes(self.normal, self.high, self.turn)
        return iter([rest.popleft() for _ in range(len(rest))])

    def append(self, index: int, priority: int = NORMAL_PRIORITY) -> None:
        """Appends a message to its lane."""
        (self.high if priority > NORMAL_PRIORITY else self.normal).append(index)

    def extend(self, indexes: Iterable[int]) -> None:
        """Appends messages to the normal lane."""
        self.normal.extend(indexes)

    def clear(self) -> None:
        """Removes all messages and resets the turn."""
        self.normal.clear()
        self.high.clear()
        self.turn = 0

    @property
    def head(self) -> int:
        """The next message. Raises IndexError if there is none."""
        return self._next()[0]

    def popleft(self) -> int:
        """Removes and returns the next message. Raises IndexError if there is none."""
        index = self._next().popleft()
        self.turn = (self.turn + 1) % TURNS
        return index

    def _next(self) -> deque[int]:
        """The lane whose head is next."""
        if not self.high:
            return self.normal
        older = self.turn == TURNS - 1 and self.normal and self.normal[0] < self.high[0]
        return self.normal if older else self.high
