"""How many payloads a queue may still send to a message store before it has to wait.

The queue does the sending, the store the storing. Source: rabbitmq.md 7.8.4.
"""

from __future__ import annotations

from collections import deque


class StoreCredit:
    """The credit of one queue at one store: `left` starts at `initial`; the store grants `step` per `step` payloads."""

    def __init__(self, initial: int, step: int) -> None:
        self.initial, self.step = initial, step
        self.left: int | None = None
        self.blocked = False
        self._unseen = 0
        self._until_grant = step

    def limit(self) -> int:
        """Number of writes until this store blocks the queue; a credit that is already used up does not block again."""
        left = self.initial if self.left is None else self.left
        return left if left >= 1 else 1 << 62

    def spend(self, count: int) -> None:
        """Counts payloads sent to the store. Forced writes can take the credit below 0."""
        if count == 0:
            return
        before = self.initial if self.left is None else self.left
        self.left = before - count
        self.blocked = self.blocked or before >= 1 > self.left
        self._unseen += count

    def processed(self) -> list[int]:
        """Marks everything sent to the store as processed; returns the resulting grants."""
        grants = []
        while self._unseen >= self._until_grant:
            self._unseen -= self._until_grant
            self._until_grant = self.step
            grants.append(self.step)
        self._until_grant -= self._unseen
        self._unseen = 0
        return grants

    def grant(self, count: int) -> None:
        """Adds a grant; unblocks the queue when the credit rises above 0."""
        before = self.left or 0
        self.left = before + count
        if before <= 0 < self.left:
            self.blocked = False


class CreditFlow:
    """A queue's credit at its two stores, persistent first, and the grants not yet handled."""

    def __init__(self, initial: int, step: int) -> None:
        self.persistent, self.transient = StoreCredit(initial, step), StoreCredit(initial, step)
        self._grants: deque[tuple[StoreCredit, int]] = deque()

    @property
    def blocked(self) -> bool:
        """Whether one of the stores has blocked the queue."""
        return self.persistent.blocked or self.transient.blocked

    def collect(self) -> None:
        """Lets both stores process what they were sent, and queues their grants."""
        for credit in (self.persistent, self.transient):
            self._grants.extend((credit, count) for count in credit.processed())

    def take_grant(self) -> bool:
        """Handles the oldest queued grant; returns False if there is none."""
        if not self._grants:
            return False
        credit, count = self._grants.popleft()
        credit.grant(count)
        return True
