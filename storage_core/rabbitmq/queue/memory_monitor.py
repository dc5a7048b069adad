"""Tells the queues of a store how many seconds of traffic they may keep in memory, so that all of it fits.

A queue converts the seconds to messages by its own rates (`paging.rates`). Source: rabbitmq.md 7.9.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from storage_core.files import system

UPDATE_INTERVAL_S = 2.5
REPORT_INTERVAL_S = 5.0
SUM_INCREMENT_S = 1.0
SUM_INCREMENT_BELOW = 0.95
INFINITY = float("inf")

Push = Callable[[float], None]


@dataclass
class _Member:
    """A queue: what it last reported and was last sent, in seconds, and how to send it a new target."""

    push: Push
    reported: float = INFINITY
    sent: float = INFINITY


class MemoryMonitor:
    """`used` returns the bytes in use, `limit` is the bytes allowed; paging starts at `paging_ratio` of the limit."""

    def __init__(
        self, limit: int, paging_ratio: float, used: Callable[[], int] = system.memory_used, disk_alarm: bool = False
    ) -> None:
        self.limit, self.paging_ratio, self._used, self.disk_alarm = limit, paging_ratio, used, disk_alarm
        self.desired = INFINITY
        self.sum, self.count = 0.0, 0
        self._members: dict[str, _Member] = {}

    def register(self, name: str, push: Push) -> None:
        """Adds a queue; `update` calls `push` with a lower target, or with a higher one during a disk alarm."""
        self._members[name] = _Member(push)

    def deregister(self, name: str) -> None:
        """Removes a queue and its report."""
        self.report(name, INFINITY)
        del self._members[name]

    def report(self, name: str, duration: float) -> float:
        """Records how many seconds of traffic a queue holds; returns the seconds it should hold."""
        member = self._members[name]
        if member.reported < INFINITY:
            self.sum, self.count = self.sum - member.reported, self.count - 1
        if duration < INFINITY:
            self.sum, self.count = self.sum + duration, self.count + 1
        self.sum = max(self.sum, 0.0)
        member.reported, member.sent = duration, self.desired
        return self.desired

    def ratio(self) -> float | None:
        """Memory in use divided by the limit; None if there is no limit."""
        return self._used() / self.limit if self.limit > 0 else None

    def update(self) -> None:
        """Recomputes the desired duration and sends it to every queue that both holds more and was last sent more.

        During a disk alarm, sends it only to those that were last sent less: paging writes to the disk that is full.
        """
        before, self.desired = self.desired, self.desired_duration(self.ratio())
        if not self._urgent(before):
            return
        for member in list(self._members.values()):
            if self._urgent(member.sent) and self._urgent(member.reported):
                member.sent = self.desired
                member.push(self.desired)

    def _urgent(self, before: float) -> bool:
        return before < self.desired if self.disk_alarm else before > self.desired

    def desired_duration(self, ratio: float | None) -> float:
        """Seconds per queue that fit, from what the queues reported; infinity while memory is plentiful."""
        if self.disk_alarm:
            return INFINITY
        if ratio is None:
            return 0.0
        if ratio < self.paging_ratio or self.count == 0:
            return INFINITY
        spare = SUM_INCREMENT_S if ratio < SUM_INCREMENT_BELOW else 0.0
        return (self.sum + spare) / self.count / ratio
