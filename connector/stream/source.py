"""The store as one streaming query reads it: offsets from trigger to trigger, and the partitions between two of them.

The engine's `Tail` finds the end of the store, `storage_core.stream.offsets` encodes offsets,
`storage_core.stream.admission` limits a micro-batch, and `reader` receives Spark's calls. Does not use Spark itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from connector import kafka_layout
from connector.errors import warn
from connector.partition import KafkaPiece, MqStorePartition
from connector.planning import SMALLEST_PARTITION_BYTES, Load, driver_cores
from storage_core.closable import Closable
from storage_core.errors import UnsupportedFormatError, choices
from storage_core.options.read import ReadOptions, TriggerLimits
from storage_core.store import QueueKey, ScanPartition, Store
from storage_core.stream.admission import by_bytes, by_count
from storage_core.stream.offsets import StreamOffset, check_store, from_json, resumed
from storage_core.stream.selection import named_queues, selects
from storage_core.stream.tail import FollowedStore, StreamSnapshot

Json = dict[str, Any]


class StreamSource(Closable):
    """Follows the store of one query. `columns` are those of its rows.

    Raises OptionError for a path that holds several stores, and the errors of opening a store.
    """

    def __init__(self, paths: Sequence[str], options: ReadOptions, columns: tuple[str, ...]) -> None:
        self._options, self._columns = options, columns
        self._load = Load(paths, options)
        try:
            self._named = self._load.only_store("a stream reads one store")
            self._request = self._load.request_of(self._named)
            self._tail = followed(self._named.store).follow(named_queues(self._request))
        except BaseException:
            self._load.close()
            raise
        self._path, self._engine = self._named.store.path, self._named.store.engine
        self._takes = selects(self._request, by_name=self._engine == "rabbitmq")
        self._settled = self._has_begun = False
        self._initial: Json | None = None
        self._frozen: Mapping[QueueKey, int] | None = None
        self._last_snapshot: StreamSnapshot | None = None
        self._idle: tuple[Json, StreamSnapshot] | None = None
        self._reported: tuple[StreamSnapshot, Json] | None = None
        self._last_batch_s = time.monotonic()

    @property
    def limits(self) -> TriggerLimits:
        """The limits that the options set for the size of a micro-batch."""
        return self._options.limits

    def close(self) -> None:
        """Closes the store."""
        self._tail.close()
        self._load.close()

    # -- offsets

    def initial(self) -> Json:
        """Where the query starts without a checkpoint; the same on every call."""
        if self._initial is None:
            self._warn()
            snapshot = self._poll()
            starts = snapshot.starts(self._request)
            group = self._request.start.group is not None
            topics = tuple({topic for topic, _ in starts}) if group else None
            self._initial = StreamOffset(self._engine, {}, topics).moved(starts, snapshot).to_json()
        return self._initial

    def latest(self, start: Json, limited: bool = True) -> Json:
        """The end of the next micro-batch after `start`; `start` itself if there is nothing to read.

        Raises CheckpointError for the offset of another store, and DataLossError.
        """
        snapshot = self._poll()
        if self._idle is not None and self._idle[1] is snapshot and self._idle[0] == start:
            return start
        offset = from_json(start, self._engine, self._path)
        if not self._has_begun:
            self._has_begun = True
            self._warn_of_topics_outside(offset)
        starts, stops = self._waiting(offset, snapshot)
        count = sum(snapshot.count(key, starts[key], stop) for key, stop in stops.items())
        if limited and self._is_delayed(count):
            return start
        if limited:
            stops = self._admitted(snapshot, starts, stops)
        # A query that is started again with fewer topics keeps its place in the others.
        unselected = {key: position for key, position in offset.positions.items() if not self._takes(key)}
        found = offset.moved({**unselected, **stops}, snapshot, starts).to_json()
        if found == start:
            self._idle = start, snapshot
            return start
        self._last_batch_s = time.monotonic()
        return found

    def reported(self) -> Json | None:
        """The end of every queue when last seen, regardless of the limits: its distance to the offset is the lag."""
        if self._last_snapshot is None:
            return None
        if self._reported is not None and self._reported[0] is self._last_snapshot:
            return self._reported[1]
        ends = {key: stop for key, (_, stop) in self._last_snapshot.positions.items() if self._takes(key)}
        self._reported = self._last_snapshot, StreamOffset(self._engine, ends).to_json()
        return self._reported[1]

    def freeze(self) -> None:
        """Ignores everything that arrives from now on (`Trigger.AvailableNow`)."""
        self._frozen = {key: stop for key, (_, stop) in self._poll().positions.items()}

    def _poll(self) -> StreamSnapshot:
        self._last_snapshot = self._tail.look() if self._settled else self._tail.settled()
        self._settled = True
        return self._last_snapshot

    def _waiting(
        self, offset: StreamOffset, snapshot: StreamSnapshot
    ) -> tuple[dict[QueueKey, int], dict[QueueKey, int]]:
        """Starts and stops of what could be read now from each queue: those of the offset, and those added later."""
        check_store(offset, snapshot, self._path)
        starts = self._resumed(offset, snapshot, self._takes)
        stops = {}
        for key, (first, stop) in snapshot.positions.items():
            if not self._takes(key) or (offset.topics is not None and key[0] not in offset.topics):
                continue
            known = key in starts
            limit = stop if self._frozen is None else min(stop, self._frozen.get(key, 0))
            if known or limit > first:
                start = starts.setdefault(key, first)
                stops[key] = max(start, limit)
        return {key: starts[key] for key in stops}, stops

    def _resumed(
        self, offset: StreamOffset, snapshot: StreamSnapshot, takes: Callable[[QueueKey], bool]
    ) -> dict[QueueKey, int]:
        taken = {key: position for key, position in offset.positions.items() if takes(key)}
        return resumed(taken, snapshot, self._path, self._request.fail_on_data_loss, offset.seals)

    def _is_delayed(self, count: int) -> bool:
        limits = self._options.limits
        if limits.fewest_messages is None or self._frozen is not None or count >= limits.fewest_messages:
            return False
        return count > 0 and time.monotonic() - self._last_batch_s < limits.longest_delay_s

    def _admitted(
        self, snapshot: StreamSnapshot, starts: dict[QueueKey, int], stops: dict[QueueKey, int]
    ) -> dict[QueueKey, int]:
        limits = self._options.limits
        if limits.most_messages is not None:
            stops = by_count(snapshot, starts, stops, limits.most_messages)
        if limits.most_bytes is not None:
            stops = by_bytes(snapshot, starts, stops, limits.most_bytes)
        return stops

    # -- rows

    def partitions(self, start: Json, end: Json) -> list[MqStorePartition]:
        """The plan of one micro-batch: the same rows whenever it is made. Raises the errors of `latest`."""
        first, last = (from_json(noted, self._engine, self._path) for noted in (start, end))
        snapshot = self._poll()
        check_store(last, snapshot, self._path)

        def takes(key: QueueKey) -> bool:
            # A batch planned before a restart with fewer topics keeps their rows: its end is after them.
            return self._takes(key) or first.place(key) != last.place(key)

        stops = self._resumed(last, snapshot, takes)
        new = {key: last.first.get(key, 0) for key in last.positions if key not in first.positions}
        starts = self._resumed(replace(first, positions={**new, **first.positions}), snapshot, takes)
        ranges = {key: (starts[key], stop) for key, stop in stops.items()}
        return [
            MqStorePartition(
                self._path, KafkaPiece(piece, self._columns, self._engine) if self._options.kafka else piece
            )
            for piece in self._planned(snapshot, ranges)
        ]

    def _planned(self, snapshot: StreamSnapshot, ranges: Mapping[QueueKey, tuple[int, int]]) -> list[ScanPartition]:
        """One partition for a small batch; a large batch is divided among the cores."""
        wanted = self._options.min_partitions
        cores = driver_cores() if wanted is None else 1
        request = replace(self._request, columns=self._columns, min_partitions=wanted or 1, cores=cores)
        if self._options.kafka:
            request = kafka_layout.native_request(request, self._columns, self._engine)
        plan = snapshot.plan_ranges(request, ranges)
        enough = min(cores, sum(piece.estimated_bytes for piece in plan) // SMALLEST_PARTITION_BYTES)
        if wanted is None and enough > len(plan):
            return snapshot.plan_ranges(replace(request, min_partitions=enough), ranges)
        return plan

    def _warn(self) -> None:
        if self._options.ignored:
            warn(f"layout=kafka ignores these options of the Kafka source: {', '.join(self._options.ignored)}")
        queues = self._poll().positions
        topics = sorted({topic for topic, _ in queues})
        for name in self._topics_named:
            if name not in topics:
                warn(f"{self._path}: there is no topic {name} yet; {choices(name, topics, 'topics')}")
        for name, queue_id in self._request.assign or ():
            if name in topics and (name, queue_id) not in queues:
                there = ", ".join(str(each) for topic, each in sorted(queues) if topic == name)
                warn(f"{self._path}: there is no queue {name}/{queue_id} yet; the topic's queues are {there}")

    def _warn_of_topics_outside(self, offset: StreamOffset) -> None:
        """Of a query that began at a group's offsets and is started again with other topics."""
        for name in self._topics_named:
            if offset.topics is not None and name not in offset.topics:
                warn(
                    f"{self._path}: topic {name} is not read, because this query began at the offsets of a consumer "
                    f"group, which had none in it (it had some in {', '.join(sorted(offset.topics))}); read {name} by "
                    "a query with a checkpointLocation of its own"
                )

    @property
    def _topics_named(self) -> Sequence[str]:
        """The topics that the options name, in that order."""
        return self._request.topics or tuple(dict.fromkeys(topic for topic, _ in self._request.assign or ()))


def followed(store: Store) -> FollowedStore:
    """The store, if it can be read as a stream. Raises UnsupportedFormatError otherwise."""
    if not isinstance(store, FollowedStore) and "://" in store.path:
        raise UnsupportedFormatError(f"{store.path}: a stream needs a store on a local disk; read this one in batches")
    if store.queue_type == "quorum":
        raise UnsupportedFormatError(
            f"{store.path}: quorum queues are not read as a stream, because each message leaves its log as soon as it "
            "is acknowledged; read them in batches, and streams or classic queues as a stream"
        )
    if not isinstance(store, FollowedStore):
        raise UnsupportedFormatError(
            f"{store.path}: a {store.engine} store is not read as a stream in this version; read it in batches"
        )
    return store
