"""How fast messages enter and leave a queue, and how many seconds of traffic its memory holds.

The queue and the memory monitor decide when to update the rates and how to use them. Source: rabbitmq.md 7.9.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

MESSAGES_PER_UPDATE = 100
HALF_LIFE_S = 5.0
IDLE_RATE = 0.01


@dataclass
class Rates:
    """Counters since the last update and the smoothed rates, per second, of messages in, out, delivered, acked.

    `now` returns seconds of a clock that never goes backwards; `frozen` stops all updates of rates and counters.
    """

    now: Callable[[], float]
    values: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 0.0)
    frozen: bool = False
    counters: list[int] = field(default_factory=lambda: [0, 0, 0, 0])
    updated: float = -1.0

    def __post_init__(self) -> None:
        self.updated = self.now()

    def count(self, entered: int = 0, left: int = 0, delivered: int = 0, acked: int = 0) -> None:
        """Counts messages."""
        if not self.frozen:
            self.counters = [
                old + new for old, new in zip(self.counters, (entered, left, delivered, acked), strict=True)
            ]

    def maybe_update(self) -> None:
        """Updates the rates once more than 100 messages have entered or left."""
        if self.counters[0] + self.counters[1] > MESSAGES_PER_UPDATE:
            self.update()

    def update(self) -> None:
        """Updates the rates; old ones decay by half in five seconds."""
        if self.frozen:
            return
        now = self.now()
        elapsed = now - self.updated
        if elapsed > 0:
            weight = 0.5 ** (elapsed / HALF_LIFE_S)
            entered, left, delivered, acked = (
                count / elapsed * (1 - weight) + old * weight
                for count, old in zip(self.counters, self.values, strict=True)
            )
            self.values = (entered, left, delivered, acked)
        self.counters = [0, 0, 0, 0]
        self.updated = now

    @property
    def total(self) -> float:
        """Sum of the four rates."""
        return sum(self.values)

    def acks_grow_faster(self) -> bool:
        """Whether messages awaiting acknowledgement accumulate faster than those awaiting delivery."""
        entered, left, delivered, acked = self.values
        return delivered - acked > entered - left

    def duration_s(self, message_count: int) -> float:
        """Seconds of traffic that `message_count` messages in memory represent; infinity if the queue is idle."""
        if all(rate < IDLE_RATE for rate in self.values):
            return float("inf")
        return message_count / (4 * self.total)
