"""What a store offers to streams: a tail that follows it, and snapshots that determine what a micro-batch is.

Each engine has its own way to find the end of a growing store.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence

from storage_core.closable import Closable
from storage_core.store import QueueKey, ScanPartition, ScanRequest, Snapshot, Store


class StreamSnapshot(Snapshot):
    """A snapshot with the operations that a stream needs. Only what is already safely written counts.

    A position is the queue offset of the next message to read. `positions` has the first readable position and the end
    of every queue; each queue behind a priority queue is listed as one of its own, (name, priority).
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
        """The position up to which the messages from `start` on have at most `size` bytes, and the bytes they have."""

    @abstractmethod
    def seals(self, positions: Mapping[QueueKey, int]) -> dict[QueueKey, str]:
        """What distinguishes the last message before each position from those of other stores: its number, a colon, a
        text. Queues are left out whose message is missing.
        """

    def holds(self, key: QueueKey, seal: str) -> bool | None:
        """Whether the message in `seal`, one of `seals`, has its number still; None if no message has that number."""
        del key, seal
        return None

    def lost(self, key: QueueKey, position: int, seal: str | None) -> tuple[int, str]:
        """Where a stream continues from a position of a queue, and what was lost before; "" for nothing."""
        del seal
        start, stop = self.positions[key]
        if position < start:
            return start, f"begins at {start} now, the checkpoint is at {position}"
        if position > stop:
            return stop, f"ends at {stop} now, the checkpoint is at {position}"
        return position, ""

    @abstractmethod
    def plan_ranges(self, request: ScanRequest, ranges: Mapping[QueueKey, tuple[int, int]]) -> list[ScanPartition]:
        """Partitions that together hold, once each, the messages of the ranges that pass the request's filters."""


class Tail(Closable):
    """Follows a store while others write to it: read-only, without a lock. Caches what it learned. Not thread-safe."""

    @abstractmethod
    def look(self) -> StreamSnapshot:
        """What can be read now; the very same object as the last time if nothing changed.

        Raises StoreNotFoundError, UnsupportedFormatError.
        """

    @abstractmethod
    def settled(self) -> StreamSnapshot:
        """The same, after waiting a moment for half-written data: a writer completes it, or there is no writer."""


class FollowedStore(Store):
    """A store that can be read as a stream."""

    @abstractmethod
    def follow(self, names: Sequence[str] = ()) -> Tail:
        """The store as a stream sees it; `names` help if it has only hashes of some topics. Raises OptionError if the
        store's options leave its end undetermined.
        """
