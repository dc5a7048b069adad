"""The content of a report on one store: sums, distributions and tables, from its views and one pass over its messages.

Its appearance belongs to `page` and `charts`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from command_line.messages import Limit, batches
from command_line.output.progress import ProgressLine
from command_line.output.rows import json_rows
from command_line.selection import Chosen
from command_line.views import Row, group_rows, store_rows
from storage_core.options.option import RABBITMQ
from storage_core.store import Mode, ScanRequest

Counts = npt.NDArray[np.int64]
BINS = 60
STEPS = 4
"""Sizes are counted in steps, this many per doubling: step s holds sizes up to 2^(s / STEPS) bytes."""
LARGEST_STEP = 40 * STEPS
SHOWN_TOPICS = 4
"""How many topics have a colour of their own in the chart over time."""
DEAD_LETTERS = 200
DELAY_TOPIC = "SCHEDULE_TOPIC_XXXX"
OTHERS = "others"


@dataclass(frozen=True)
class OverTime:
    """Messages by time: `counts` has a row for each of `names` and a column for each bin from `start_ms` on."""

    start_ms: int
    bin_ms: float
    names: tuple[str, ...]
    counts: Counts


@dataclass(frozen=True)
class StoreFacts:
    """The whole content of a report on one store. Rows have the column names of the views, and times as ISO 8601."""

    name: str
    info: Row
    topics: Sequence[Row]
    queues: Sequence[Row]
    groups: Sequence[Row] = ()
    delayed: Sequence[Row] = ()
    dead_letters: Sequence[Row] = ()
    files: Sequence[Row] = ()
    damage: Sequence[Row] = ()
    over_time: OverTime | None = None
    sizes: Mapping[int, int] = field(default_factory=dict)


def gathered(chosen: Chosen, info: Row, line: ProgressLine) -> StoreFacts:
    """The facts of one store. Reads its views, and the times and sizes of all its messages."""
    named = chosen.named
    queues = store_rows(named, "queues")
    topics = [] if named.holds_queues_only else store_rows(named, "topics")
    over_time, sizes = _distributions(chosen, info, queues, line)
    return StoreFacts(
        name=named.name,
        info=info,
        topics=topics,
        queues=queues,
        groups=_groups(group_rows(named) or []),
        delayed=_delayed(chosen, queues),
        dead_letters=_dead_letters(chosen, topics, line),
        files=store_rows(named, "segments"),
        damage=store_rows(named, "damage"),
        over_time=over_time,
        sizes=sizes,
    )


def _groups(rows: Sequence[Row]) -> list[Row]:
    """The lag of each group in each topic."""
    found: dict[tuple[str, str], Row] = {}
    for row in rows:
        key = (row["group"], row["topic"])
        total = found.setdefault(key, {"group": key[0], "topic": key[1], "committed": 0, "maxOffset": 0, "lag": 0})
        for name in ("committed", "maxOffset", "lag"):
            total[name] += row[name]
    return sorted(found.values(), key=lambda row: -row["lag"])


# -- one pass over all messages


def largest_size(step: int) -> int:
    """The largest size that is counted in a step; 0 below the first."""
    return int(2 ** (step / STEPS)) if step >= 0 else 0


class _Tally:
    """Counts messages by size, and by topic and time."""

    def __init__(self, first_ms: int, last_ms: int) -> None:
        self.first_ms, self.bin_ms = first_ms, max(1.0, (last_ms - first_ms + 1) / BINS)
        self.sizes: Counts = np.zeros(LARGEST_STEP + 1, np.int64)
        self.topics: dict[str, Counts] = {}

    def add(self, topics: pa.Array, times: pa.Array, sizes: pa.Array) -> None:
        """Adds the columns of one batch; a null time is not counted by time."""
        steps = np.ceil(np.log2(np.maximum(sizes.to_numpy(zero_copy_only=False), 1)) * STEPS).astype(np.int64)
        self.sizes += np.bincount(np.minimum(steps, LARGEST_STEP), minlength=LARGEST_STEP + 1)
        timed = times.is_valid().to_numpy(zero_copy_only=False)
        moments = times.cast(pa.timestamp("ms"), safe=False).cast(pa.int64()).fill_null(0).to_numpy()[timed]
        bins = np.clip(((moments - self.first_ms) / self.bin_ms).astype(np.int64), 0, BINS - 1)
        encoded = topics if isinstance(topics, pa.DictionaryArray) else topics.dictionary_encode()
        codes = encoded.indices.to_numpy(zero_copy_only=False)[timed]
        counted = np.bincount(codes * BINS + bins, minlength=len(encoded.dictionary) * BINS).reshape(-1, BINS)
        for topic, counts in zip(encoded.dictionary.to_pylist(), counted, strict=True):
            self.topics[topic] = self.topics.get(topic, np.zeros(BINS, np.int64)) + counts

    def over_time(self) -> OverTime | None:
        """The counts of the topics with the most messages, and of the others together."""
        ranked = sorted(self.topics, key=lambda topic: -int(self.topics[topic].sum()))
        if not ranked or not sum(int(counts.sum()) for counts in self.topics.values()):
            return None
        names, rows = ranked[:SHOWN_TOPICS], [self.topics[topic] for topic in ranked[:SHOWN_TOPICS]]
        if len(ranked) > SHOWN_TOPICS:
            names.append(OTHERS)
            rows.append(np.sum([self.topics[topic] for topic in ranked[SHOWN_TOPICS:]], axis=0))
        return OverTime(self.first_ms, self.bin_ms, tuple(names), np.array(rows))


def _distributions(
    chosen: Chosen, info: Row, queues: Sequence[Row], line: ProgressLine
) -> tuple[OverTime | None, Mapping[int, int]]:
    if chosen.named.store.engine == RABBITMQ:
        names, span = ("queue", "timestamp", "size"), _property_span(chosen, line)
    else:
        names = ("topic", "storeTimestamp", "size")
        span = _span(info.get("firstStoreTimestamp"), info.get("lastStoreTimestamp"))
    tally = _Tally(*(span or (0, 0)))
    for batch in batches([_asking(chosen, names)], Limit(), line):
        tally.add(batch.column(0), batch.column(1), batch.column(2))
    sizes = {step: int(count) for step, count in enumerate(tally.sizes) if count}
    return (tally.over_time() if span and queues else None), sizes


def _asking(chosen: Chosen, columns: tuple[str, ...], **fields: Any) -> Chosen:
    request = ScanRequest(columns=columns, mode=Mode.DROPMALFORMED, **fields)
    return Chosen(chosen.named, chosen.snapshot, request)


def _span(first: str | None, last: str | None) -> tuple[int, int] | None:
    if first is None or last is None:
        return None
    first_ms, last_ms = (int(np.datetime64(text.rstrip("Z"), "ms").astype(np.int64)) for text in (first, last))
    return first_ms, last_ms


def _property_span(chosen: Chosen, line: ProgressLine) -> tuple[int, int] | None:
    """The first and last time in the properties: RabbitMQ records none, but producers may have set one there."""
    spans = []
    for batch in batches([_asking(chosen, ("timestamp",))], Limit(), line):
        times = batch.column(0).cast(pa.timestamp("ms"), safe=False).cast(pa.int64()).drop_null().to_numpy()
        if len(times):
            spans.append((int(times.min()), int(times.max())))
    return (min(first for first, _ in spans), max(last for _, last in spans)) if spans else None


# -- delays and dead letters


def _delayed(chosen: Chosen, queues: Sequence[Row]) -> list[Row]:
    """The messages that the broker has yet to deliver, by delay level."""
    state = chosen.named.store.state()
    rows = []
    for queue in queues:
        if queue.get("topic") != DELAY_TOPIC:
            continue
        level = queue["queueId"] + 1
        start = max(queue["minOffset"], state.delay_offsets.get(level, 0))
        waiting = max(0, queue["maxOffset"] - start)
        first = _first_of(chosen, queue["queueId"], start) if waiting else {}
        due = [f"{np.datetime64(due_ms, 'ms')}Z" for due_ms in state.due_ms.get(level, ())]
        rows.append({"level": level, "messages": queue["messages"], "waiting": waiting,
                     "since": first.get("storeTimestamp"), "last": queue["lastStoreTimestamp"],
                     **dict(zip(("due", "lastDue"), due, strict=False))})  # fmt: skip
    return rows


def _first_of(chosen: Chosen, queue_id: int, offset: int) -> Row:
    found = chosen.named.store.read(DELAY_TOPIC, queue_id, offset, offset + 1, columns=("storeTimestamp",))
    return next((row for batch in found for row in json_rows(batch)), {})


def _dead_letters(chosen: Chosen, topics: Sequence[Row], line: ProgressLine) -> list[Row]:
    """The newest dead letters, without their bodies."""
    names = tuple(row["topic"] for row in topics if row["kind"] == "dead letter" and row["messages"])
    if not names:
        return []
    columns = ("topic", "queueId", "queueOffset", "storeTimestamp", "key", "reconsumeTimes", "msgId", "properties")
    question = _asking(chosen, columns, topics=names)
    found = batches([question], Limit(DEAD_LETTERS, newest=True, newest_first=True), line)
    return [{**row, "origin": row["properties"].get("RETRY_TOPIC")} for batch in found for row in json_rows(batch)]
