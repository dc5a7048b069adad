"""A fake snapshot that answers the questions of a stream from fixed tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from storage_core.store import QueueInfo, QueueKey, ScanPartition, ScanRequest
from storage_core.stream.tail import StreamSnapshot


class FixedSnapshot(StreamSnapshot):
    """Queues with these positions, seals of the messages before some positions; each message has `size` bytes."""

    def __init__(
        self,
        positions: Mapping[QueueKey, tuple[int, int]],
        seals: Mapping[tuple[QueueKey, int], str] | None = None,
        size: int = 10,
    ) -> None:
        self._positions, self._seals, self._size = positions, seals or {}, size

    @property
    def positions(self) -> Mapping[QueueKey, tuple[int, int]]:
        return self._positions

    def queues(self) -> Sequence[QueueInfo]:
        return [QueueInfo(*key, *span) for key, span in self._positions.items()]

    def schema(self, request: ScanRequest) -> pa.Schema:
        raise NotImplementedError

    def plan(self, request: ScanRequest) -> list[ScanPartition]:
        raise NotImplementedError

    def starts(self, request: ScanRequest) -> dict[QueueKey, int]:
        return {key: start for key, (start, _) in self._positions.items()}

    def count(self, key: QueueKey, start: int, stop: int) -> int:
        return stop - start

    def after(self, key: QueueKey, start: int, count: int) -> int:
        return start + count

    def fitting(self, key: QueueKey, start: int, stop: int, size: int) -> tuple[int, int]:
        more = max(0, min(stop - start, size // self._size))
        return start + more, more * self._size

    def seals(self, positions: Mapping[QueueKey, int]) -> dict[QueueKey, str]:
        found = {key: self._seals.get((key, position)) for key, position in positions.items()}
        return {key: f"{positions[key] - 1}:{text}" for key, text in found.items() if text is not None}

    def holds(self, key: QueueKey, seal: str) -> bool | None:
        position = int(seal.partition(":")[0]) + 1
        found = self.seals({key: position}).get(key) if position <= self._positions[key][1] else None
        return None if found is None else found == seal

    def plan_ranges(self, request: ScanRequest, ranges: Mapping[QueueKey, tuple[int, int]]) -> list[ScanPartition]:
        raise NotImplementedError
