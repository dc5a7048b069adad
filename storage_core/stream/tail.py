"""What a store offers to streams: a tail that follows it, and snapshots that answer what a micro-batch is.

How an engine finds the end of a store that grows belongs to the engine.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence

from storage_core.closable import Closable
from storage_core.store import QueueKey, ScanPartition, ScanRequest, Snapshot, Store


class StreamSnapshot(Snapshot):
    """A snapshot with what a stream asks of it. Nothing that is not yet safely written counts.

    A position is the queue offset of the next message to read. `positions` has the first readable one and the end of
    every queue; each queue behind a priority queue is one of its own, (name, priority).
    """

    @property
    @abstractmethod
    def positions(self) -> Mapping[QueueKey, tuple[int, int]]:
        """The half-open range that each queue holds."""

    @abstractmethod
    def starts(self, request: ScanRequest) -> dict[QueueKey, int]:
        """Where a stream of `request` starts in each queue that it selects. Raises as `plan` does."""

    @abstractmethod
    def count(self, key: QueueKey, start: int, stop: int) -> int:
        """How many messages [start, stop) of a queue holds."""

    @abstractmethod
    def after(self, key: QueueKey, start: int, count: int) -> int:
        """The position after the next `count` messages."""

    @abstractmethod
    def fitting(self, key: QueueKey, start: int, stop: int, size: int) -> tuple[int, int]:
        """The position up to which the messages from `start` on have at most `size` bytes, and how many they have."""

    @abstractmethod
    def seal(self, key: QueueKey, position: int) -> str | None:
        """What tells the last message before a position from those of other stores; None where it is not there."""

    def seals(self, positions: Mapping[QueueKey, int]) -> dict[QueueKey, str]:
        """A seal of each queue, where messages go one by one and no single one is sure to stay; else nothing."""
        del positions
        return {}

    def is_other(self, key: QueueKey, seal: str) -> bool:
        """Whether another message is there than the one that one of `seals` names."""
        del key, seal
        return False

    def lost(self, key: QueueKey, position: int, seal: str | None) -> tuple[int, str]:
        """Where a stream goes on that stands at a position of a queue, and what was lost before; "" for nothing."""
        del seal
        start, stop = self.positions[key]
        if position < start:
            return start, f"begins at {start} now, the checkpoint is at {position}"
        if position > stop:
            return stop, f"ends at {stop} now, the checkpoint is at {position}"
        return position, ""

    @abstractmethod
    def plan_ranges(self, request: ScanRequest, ranges: Mapping[QueueKey, tuple[int, int]]) -> list[ScanPartition]:
        """Partitions that together hold each message of the ranges once that the request's filters leave."""


class Tail(Closable):
    """Follows a store while others write to it: read-only, without a lock. Keeps what it learned. Not thread-safe."""

    @abstractmethod
    def look(self) -> StreamSnapshot:
        """What may be read now; the very same object as the last time when nothing changed.

        Raises StoreNotFoundError, UnsupportedFormatError.
        """

    @abstractmethod
    def settled(self) -> StreamSnapshot:
        """The same, after waiting a moment for what is half-written: a writer finishes it, or there is none."""


class FollowedStore(Store):
    """A store that can be read as a stream."""

    @abstractmethod
    def follow(self, names: Sequence[str] = ()) -> Tail:
        """The store as a stream sees it; `names` help where it has only hashes of some topics. Raises OptionError where
        the store's options leave its end open.
        """
