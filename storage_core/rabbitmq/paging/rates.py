"""How fast a queue's messages come and go, and how many seconds of traffic its memory holds.

When rates are taken and what follows from them belongs to the queue and the memory monitor. Source: rabbitmq.md 7.9.
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

    `now` gives seconds on a clock that never steps back; `frozen` holds rates and counters still.
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
        """Takes the rates anew when more than 100 messages came in or went out."""
        if self.counters[0] + self.counters[1] > MESSAGES_PER_UPDATE:
            self.update()

    def update(self) -> None:
        """Takes the rates anew: old ones fade by half in five seconds."""
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
        """Whether messages waiting for acknowledgement pile up faster than those waiting for delivery."""
        entered, left, delivered, acked = self.values
        return delivered - acked > entered - left

    def duration_s(self, message_count: int) -> float:
        """Seconds of traffic that `message_count` messages in memory stand for; infinity when all is still."""
        if all(rate < IDLE_RATE for rate in self.values):
            return float("inf")
        return message_count / (4 * self.total)
