"""The content of a store as tables: queues, topics, consumer groups. Rows come from indexes and config, not messages.

Source of the columns: docs/options.md "Views", interface.md 42.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from storage_core.errors import OptionError, closest
from storage_core.finding import FINDINGS
from storage_core.formats.columns import TIMESTAMP, YEAR_1_MS, YEAR_10000_MS
from storage_core.formats.java_numbers import fits
from storage_core.rocketmq.disk.config_files import committed_offsets, refuse_offsets_in_rocksdb, topic_table
from storage_core.rocketmq.read.selection import takes
from storage_core.rocketmq.read.snapshot import RocketSnapshot
from storage_core.rocketmq.views.file_views import INDEX, SEGMENTS, index_entries, segments
from storage_core.rocketmq.views.queue_totals import queue_totals
from storage_core.store import ScanRequest

QUEUES = pa.schema(
    [
        ("topic", pa.string()),
        ("queueId", pa.int32()),
        ("minOffset", pa.int64()),
        ("maxOffset", pa.int64()),
        ("messages", pa.int64()),
        ("bytes", pa.int64()),
        ("firstStoreTimestamp", TIMESTAMP),
        ("lastStoreTimestamp", TIMESTAMP),
    ]
)

TOPICS = pa.schema(
    [
        ("topic", pa.string()),
        ("kind", pa.string()),
        ("readQueues", pa.int32()),
        ("writeQueues", pa.int32()),
        ("perm", pa.int32()),
        ("queues", pa.int32()),
        ("messages", pa.int64()),
        ("bytes", pa.int64()),
        ("firstStoreTimestamp", TIMESTAMP),
        ("lastStoreTimestamp", TIMESTAMP),
    ]
)

OFFSETS = pa.schema(
    [
        ("group", pa.string()),
        ("topic", pa.string()),
        ("queueId", pa.int32()),
        ("committed", pa.int64()),
        ("maxOffset", pa.int64()),
        ("lag", pa.int64()),
    ]
)

DAMAGE_VIEW = "damage"
SYSTEM_TOPICS = frozenset(
    {
        "TBW102",
        "BenchmarkTest",
        "SELF_TEST_TOPIC",
        "OFFSET_MOVED_EVENT",
        "TRANS_CHECK_MAX_TIME_TOPIC",
        "RMQ_SYS_TRACE_TOPIC",
    }
)


def view_schema(name: str) -> pa.Schema:
    """The schema of a view. Raises OptionError with the names of all views if none is called `name`."""
    if name == DAMAGE_VIEW:
        return FINDINGS
    if name in _FILE_VIEWS:
        return _FILE_VIEWS[name][0]
    if name not in _VIEWS:
        names = [*_VIEWS, *_FILE_VIEWS, DAMAGE_VIEW]
        near = closest(name, names)
        hint = f"did you mean {near[0]}? " if near else ""
        raise OptionError("view", name, f"{hint}The views are messages, {', '.join(names)}")
    return _VIEWS[name][0]


def view_batches(snapshot: RocketSnapshot, name: str, request: ScanRequest) -> Iterator[pa.RecordBatch]:
    """The rows of a view: only those of the topics and queues of the request, except in `segments` and `index`.

    `damage` needs more than a snapshot and is made by `file_views.damage`.
    """
    if name in _FILE_VIEWS:
        yield from _FILE_VIEWS[name][1](snapshot)
        return
    schema, rows = view_schema(name), _VIEWS[name][1](snapshot, request)
    yield pa.RecordBatch.from_pylist(rows, schema)


def topic_kind(topic: str) -> str:
    """The kind of a topic: normal, retry, dead letter, half, delay or system (rocketmq.md 8)."""
    for prefix, kind in (("%RETRY%", "retry"), ("%DLQ%", "dead letter")):
        if topic.startswith(prefix):
            return kind
    if topic == "SCHEDULE_TOPIC_XXXX" or topic.lower() == "rmq_sys_wheel_timer":
        return "delay"
    if topic.upper() in ("RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC"):
        return "half"
    return "system" if topic in SYSTEM_TOPICS or topic.lower().startswith("rmq_sys_") else "normal"


def _queues(snapshot: RocketSnapshot, request: ScanRequest) -> list[dict[str, Any]]:
    totals = queue_totals(snapshot, request)
    rows = []
    for info in snapshot.queues():
        key = (info.topic, info.queue_id)
        if not takes(request, key):
            continue
        total = totals.get(key)
        rows.append(
            {
                "topic": info.topic,
                "queueId": info.queue_id,
                "minOffset": info.start,
                "maxOffset": info.stop,
                "messages": total.messages if total else 0,
                "bytes": total.size if total else 0,
                "firstStoreTimestamp": _micros(total.first_ms) if total else None,
                "lastStoreTimestamp": _micros(total.last_ms) if total else None,
            }
        )
    return rows


def _micros(ms: int | None) -> int | None:
    """Microseconds; None for a time outside the calendar, as in the rows of messages."""
    return ms * 1000 if ms is not None and YEAR_1_MS <= ms < YEAR_10000_MS else None


def _topics(snapshot: RocketSnapshot, request: ScanRequest) -> list[dict[str, Any]]:
    """topics.json joined with the queues on disk: either may have topics that the other lacks."""
    table = topic_table(snapshot.served.listing.root)
    on_disk: dict[str, list[dict[str, Any]]] = {}
    for row in _queues(snapshot, request):
        on_disk.setdefault(row["topic"], []).append(row)
    rows = []
    if request.assign is not None:
        request = replace(request, assign=None, topics=tuple({topic for topic, _ in request.assign}))
    for topic in sorted({*table, *on_disk}):
        if not takes(request, (topic, 0)):
            continue
        config, queues = table.get(topic, {}), on_disk.get(topic, [])
        rows.append(
            {
                "topic": topic,
                "kind": topic_kind(topic),
                "readQueues": _int32(config.get("readQueueNums")),
                "writeQueues": _int32(config.get("writeQueueNums")),
                "perm": _int32(config.get("perm")),
                "queues": len(queues),
                "messages": sum(row["messages"] for row in queues),
                "bytes": sum(row["bytes"] for row in queues),
                "firstStoreTimestamp": _edge(min, queues, "firstStoreTimestamp"),
                "lastStoreTimestamp": _edge(max, queues, "lastStoreTimestamp"),
            }
        )
    return rows


def _int32(value: Any) -> int | None:
    """A number of a config file; None for anything else."""
    return value if type(value) is int and fits(value, 32) else None


def _edge(pick: Callable[[Iterable[int]], int], rows: Sequence[dict[str, Any]], name: str) -> int | None:
    """The first or last time in a column of rows; None if there is none."""
    found = [row[name] for row in rows if row[name] is not None]
    return pick(found) if found else None


def _offsets(snapshot: RocketSnapshot, request: ScanRequest) -> list[dict[str, Any]]:
    """Committed offsets of consumer groups, and their lag: the end of the queue minus the committed offset."""
    root = snapshot.served.listing.root
    refuse_offsets_in_rocksdb(root, "does not read; mqadmin consumerProgress shows them on the running broker")
    stops = {(info.topic, info.queue_id): info.stop for info in snapshot.queues()}
    rows = []
    for group, offsets in sorted(committed_offsets(root).items()):
        for key, committed in sorted(offsets.items()):
            if takes(request, key):
                stop = stops.get(key, 0)
                rows.append(
                    {
                        "group": group,
                        "topic": key[0],
                        "queueId": key[1],
                        "committed": committed,
                        "maxOffset": stop,
                        "lag": stop - committed,
                    }
                )
    return rows


_VIEWS: dict[str, tuple[pa.Schema, Callable[[RocketSnapshot, ScanRequest], list[dict[str, Any]]]]] = {
    "queues": (QUEUES, _queues),
    "topics": (TOPICS, _topics),
    "offsets": (OFFSETS, _offsets),
}
_FILE_VIEWS: dict[str, tuple[pa.Schema, Callable[[RocketSnapshot], Iterator[pa.RecordBatch]]]] = {
    "segments": (SEGMENTS, segments),
    "index": (INDEX, index_entries),
}
