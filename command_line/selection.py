"""Which messages a command was asked for: its options as the request that a snapshot plans.

Source: DESIGN 7.7; what each narrowing means is the engines' affair.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import pyarrow as pa

from storage_core.errors import OptionError
from storage_core.store import EARLIEST, LATEST, Mode, OffsetBound, QueueKey, ScanRequest, Snapshot, Store


@dataclass(frozen=True)
class Wanted:
    """The options that choose messages, as they were typed; None for what was not."""

    topics: tuple[str, ...] = ()
    queue: str | None = None
    start: int | None = None
    stop: int | None = None
    start_time: str | None = None
    stop_time: str | None = None
    key: str | None = None
    tag: str | None = None
    columns: str | None = None
    mode: str = Mode.FAILFAST.value

    def request(self, store: Store, snapshot: Snapshot) -> ScanRequest:
        """What to plan. OptionError for options that do not go together."""
        topics, assign = self._chosen(store)
        return ScanRequest(
            columns=tuple(name.strip() for name in self.columns.split(",")) if self.columns else None,
            topics=topics or None,
            assign=assign,
            start=self._bound(self.start, EARLIEST, snapshot, topics, assign),
            stop=self._bound(self.stop, LATEST, snapshot, topics, assign),
            start_ms=_milliseconds("--from", self.start_time),
            stop_ms=_milliseconds("--to", self.stop_time),
            keys=None if self.key is None else (self.key,),
            tags=None if self.tag is None else tuple(part.strip() for part in self.tag.split("||")),
            mode=Mode(self.mode),
        )

    def _chosen(self, store: Store) -> tuple[tuple[str, ...], tuple[QueueKey, ...] | None]:
        """Topics, and the one queue where there is one. A RabbitMQ queue is a topic with the one queue 0."""
        if self.queue is None:
            return self.topics, None
        if store.engine == "rabbitmq":
            return (*self.topics, self.queue), None
        if len(self.topics) != 1 or not self.queue.isdigit():
            raise OptionError("--queue", self.queue, "a queue's number beside one --topic is wanted")
        return (), ((self.topics[0], int(self.queue)),)

    def _bound(
        self,
        offset: int | None,
        default: int,
        snapshot: Snapshot,
        topics: tuple[str, ...],
        assign: tuple[QueueKey, ...] | None,
    ) -> OffsetBound:
        if offset is None:
            return OffsetBound(default)
        if assign is None:
            assign = tuple((q.topic, q.queue_id) for q in snapshot.queues() if not topics or q.topic in topics)
        return OffsetBound(default, dict.fromkeys(assign, offset))


def batches(store: Store, wanted: Wanted) -> Iterator[pa.RecordBatch]:
    """The messages of one store, in the order of its plan."""
    snapshot = store.snapshot()
    for partition in snapshot.plan(wanted.request(store, snapshot)):
        yield from partition.read()


def found(store: Store, text: str) -> Iterator[pa.RecordBatch]:
    """The messages whose key or id is `text`; a RabbitMQ store has no index of them, so all of it is read."""
    if store.engine == "rabbitmq":
        for batch in batches(store, Wanted()):
            yield batch.filter(_is_one_of(batch, ("messageId", "correlationId", "guid"), text))
        return
    by_key = [batch for batch in store.find(key=text) if batch.num_rows]
    yield from by_key or store.find(msg_id=text)


def _is_one_of(batch: pa.RecordBatch, names: Sequence[str], text: str) -> pa.Array:
    rows = zip(*(batch.column(name).to_pylist() for name in names), strict=True)
    return pa.array([text in row for row in rows], pa.bool_())


def _milliseconds(option: str, text: str | None) -> int | None:
    """Milliseconds since 1970 of a number of them, or of an ISO 8601 time (UTC where it names no zone)."""
    if text is None:
        return None
    if text.lstrip("-").isdigit():
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise OptionError(option, text, "epoch milliseconds or an ISO 8601 time is wanted") from None
    moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return int(moment.timestamp() * 1000)
