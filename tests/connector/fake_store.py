"""An in-memory store behind the public interface of the storage core; it replaces an engine in planning tests."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from storage_core.errors import OptionError
from storage_core.store import QueueInfo, ScanPartition, ScanRequest, Snapshot, Store, StoreState

TIME = pa.timestamp("us", tz="UTC")
SCHEMA = pa.schema(
    [
        pa.field("topic", pa.string()),
        pa.field("queueId", pa.int32()),
        pa.field("queueOffset", pa.int64()),
        pa.field("key", pa.string()),
        pa.field("body", pa.binary()),
        pa.field("properties", pa.map_(pa.string(), pa.string())),
        pa.field("storeTimestamp", TIME),
        pa.field("store", pa.string()),
    ]
)
QUEUES_VIEW = pa.schema(
    [pa.field("topic", pa.string()), pa.field("queueId", pa.int32()), pa.field("maxOffset", pa.int64())]
)
BYTES_PER_MESSAGE = 1 << 20


@dataclass(frozen=True)
class FakePiece(ScanPartition):
    request: ScanRequest
    queue: QueueInfo
    start: int
    stop: int

    def read(self) -> Iterator[pa.RecordBatch]:
        count = self.stop - self.start
        offsets = range(self.start, self.stop)
        columns = {
            "topic": pa.array([self.queue.topic] * count, pa.string()),
            "queueId": pa.array([self.queue.queue_id] * count, pa.int32()),
            "queueOffset": pa.array(offsets, pa.int64()),
            "key": pa.array([f"k{offset}" if offset % 2 else None for offset in offsets], pa.string()),
            "body": pa.array([b"body%d" % offset for offset in offsets], pa.binary()),
            "properties": pa.array(
                [
                    [
                        pair
                        for pair in (("KEYS", f"k{offset}"), ("a", "ä"))[: offset % 3]
                        if pair[0] != self.request.hidden_property
                    ]
                    for offset in offsets
                ],
                SCHEMA.field(5).type,
            ),
            "storeTimestamp": pa.array([offset * 1000 for offset in offsets], TIME),
            "store": pa.array([self.request.store_name] * count, pa.string()),
        }
        names = self.request.columns or tuple(SCHEMA.names)
        yield pa.RecordBatch.from_arrays(
            [columns[name] for name in names], schema=pa.schema([SCHEMA.field(name) for name in names])
        )

    @property
    def estimated_bytes(self) -> int:
        return (self.stop - self.start) * BYTES_PER_MESSAGE


@dataclass
class FakeStore(Store):
    """Queues with the given message counts, one MiB per message. A plan has at least `min_partitions` pieces."""

    path: str
    counts: dict[tuple[str, int], int]
    engine: str = "rocketmq"
    opened_with: dict[str, Any] = field(default_factory=dict)
    requests: list[ScanRequest] = field(default_factory=list)
    notes: tuple[str, ...] = ()
    repeated: frozenset[str] = frozenset()
    closed: bool = False

    def snapshot(self) -> FakeSnapshot:
        return FakeSnapshot(self)

    def state(self) -> StoreState:
        return StoreState("fake", running=False, clean=True)

    def view_schema(self, name: str) -> pa.Schema:
        if name != "queues":
            raise OptionError("view", name, "this store has the views queues")
        return QUEUES_VIEW

    def view(self, name: str, request: ScanRequest | None = None) -> Iterator[pa.RecordBatch]:
        self.view_schema(name)
        rows = [
            {"topic": topic, "queueId": queue_id, "maxOffset": count}
            for (topic, queue_id), count in self.counts.items()
        ]
        yield pa.RecordBatch.from_pylist(rows, schema=QUEUES_VIEW)

    def close(self) -> None:
        self.closed = True


@dataclass(frozen=True)
class FakeSnapshot(Snapshot):
    store: FakeStore

    @property
    def repeated_topics(self) -> frozenset[str]:
        return self.store.repeated

    def queues(self) -> Sequence[QueueInfo]:
        return [QueueInfo(topic, queue_id, 0, count) for (topic, queue_id), count in sorted(self.store.counts.items())]

    def schema(self, request: ScanRequest) -> pa.Schema:
        return SCHEMA if request.columns is None else pa.schema([SCHEMA.field(name) for name in request.columns])

    def plan(self, request: ScanRequest) -> list[ScanPartition]:
        self.store.requests.append(request)
        chosen = [queue for queue in self.queues() if self._selected(queue, request)]
        total = sum(queue.stop for queue in chosen)
        step = max(1, total // request.min_partitions)
        return [
            FakePiece(request, queue, start, min(start + step, queue.stop))
            for queue in chosen
            for start in range(0, queue.stop, step)
        ]

    def warnings(self) -> Sequence[str]:
        return self.store.notes

    def _selected(self, queue: QueueInfo, request: ScanRequest) -> bool:
        if request.topics is not None:
            missing = [topic for topic in request.topics if topic not in {each.topic for each in self.queues()}]
            if missing:
                raise OptionError("topic", missing[0], "is not in this store")
            return queue.topic in request.topics
        if request.topic_pattern is not None:
            return re.fullmatch(request.topic_pattern, queue.topic) is not None
        return request.assign is None or (queue.topic, queue.queue_id) in request.assign


def door(stores: Sequence[FakeStore]):
    """`find_stores` and `open_store` for `stores`: a path finds the stores at it and below it."""
    by_path = {store.path: store for store in stores}

    def find_stores(path: str, engine: str | None = None, **options: Any) -> list[str]:
        return [found for found in by_path if found == path or found.startswith(path.rstrip(os.sep) + os.sep)]

    def open_store(path: str, engine: str | None = None, **options: Any) -> FakeStore:
        by_path[path].opened_with = options
        return by_path[path]

    return find_stores, open_store
