"""Tables about a node's streams: the queues, their segments, what publishers and consumers stored, their damages.

Source: docs/rabbitmq.md "Streams". Reading indexes belongs to `stream_log`, reading tracking data to `stored_offsets`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from storage_core.finding import FINDINGS, Finding
from storage_core.formats.columns import TIMESTAMP, timestamps
from storage_core.formats.rabbitmq.stream_queues import log_files
from storage_core.rabbitmq.disk.damage import CUT, Damage
from storage_core.rabbitmq.read.view_table import Row, ViewTable
from storage_core.rabbitmq.stream_queues import selection, stored_offsets
from storage_core.rabbitmq.stream_queues.contents import damaged_chunks
from storage_core.rabbitmq.stream_queues.snapshot import StreamQueuesSnapshot
from storage_core.rabbitmq.stream_queues.stream_log import StreamLog, start_flaw
from storage_core.store import ScanRequest

QUEUES = pa.schema(
    [
        ("vhost", pa.string()), ("queue", pa.string()), ("type", pa.string()), ("durable", pa.bool_()),
        ("arguments", pa.string()), ("version", pa.int32()), ("minOffset", pa.int64()), ("maxOffset", pa.int64()),
        ("messages", pa.int64()), ("ready", pa.int64()), ("unacknowledged", pa.int64()), ("bytes", pa.int64()),
        ("acked", pa.int64()), ("transient", pa.int64()), ("cleanStop", pa.bool_()),
        ("directories", pa.list_(pa.string())), ("store", pa.string()), ("members", pa.int32()),
        ("segments", pa.int64()), ("chunks", pa.int64()), ("epoch", pa.int64()), ("firstTimestamp", TIMESTAMP),
        ("lastTimestamp", TIMESTAMP),
    ]
)  # fmt: skip
"""The columns of the classic engine's view, and those that a stream adds."""
SEGMENTS = pa.schema(
    [
        ("vhost", pa.string()), ("queue", pa.string()), ("file", pa.string()), ("kind", pa.string()),
        ("bytes", pa.int64()), ("liveBytes", pa.int64()), ("garbageBytes", pa.int64()), ("messages", pa.int64()),
        ("minOffset", pa.int64()), ("maxOffset", pa.int64()), ("chunks", pa.int64()), ("firstTimestamp", TIMESTAMP),
        ("lastTimestamp", TIMESTAMP), ("store", pa.string()),
    ]
)  # fmt: skip
OFFSETS = pa.schema(
    [
        ("vhost", pa.string()), ("queue", pa.string()), ("kind", pa.string()), ("reference", pa.string()),
        ("offset", pa.int64()), ("sequence", pa.int64()), ("maxOffset", pa.int64()), ("lag", pa.int64()),
        ("chunkId", pa.int64()), ("store", pa.string()),
    ]
)  # fmt: skip
DAMAGE = FINDINGS.append(pa.field("store", pa.string()))
SERVED = "fails a consumer that comes to it"
BROKEN = "serves the chunk; a consumer does not get beyond it"
IGNORED, PASSED = "serves all", "serves all, but not to a consumer that begins there"
HIDDEN = "silently serves none of its messages"
NOT_STARTED = "does not start the stream"
_EFFECTS = {"head": IGNORED, "index": PASSED, "chain": BROKEN, "type": HIDDEN}


def findings(snapshot: StreamQueuesSnapshot) -> Iterator[Finding]:
    """What is wrong in the logs of all streams; every chunk is read."""
    for stream in snapshot.streams:
        log = snapshot.log(stream)
        flaw = start_flaw(log)
        for damage in (*log.damages, *damaged_chunks(log, snapshot.of_3_13), *log.notes):
            effect = _EFFECTS.get(damage.kind, SERVED) if damage.served else CUT
            if flaw is not None and (damage.file, damage.position) == (flaw.file, flaw.position):
                effect, flaw = NOT_STARTED, None
            yield _finding(damage, effect)
        if flaw is not None:
            yield _finding(flaw, NOT_STARTED)


def _finding(damage: Damage, effect: str) -> Finding:
    return Finding(
        damage.file, damage.position, damage.length, damage.kind, damage.reason, effect, False, damage.queue
    )  # fmt: skip


def _logs(snapshot: StreamQueuesSnapshot, request: ScanRequest) -> Iterator[tuple[Row, StreamLog]]:
    for stream in snapshot.chosen(request):
        yield {"vhost": stream.vhost, "queue": stream.queue}, snapshot.log(stream)


def _queues(snapshot: StreamQueuesSnapshot, request: ScanRequest) -> Iterator[Row]:
    for names, log in _logs(snapshot, request):
        messages = sum(int(selection.messages_in(chunks).sum()) for chunks in log.chunks)
        whole = [chunks for chunks in log.chunks if len(chunks)]
        declared = log.stream.declared
        yield {
            **names, "type": "stream", "durable": True, "arguments": None if declared is None else declared.arguments,
            "minOffset": log.start, "maxOffset": log.stop, "messages": messages, "ready": messages,
            "unacknowledged": 0, "bytes": sum(_bytes(chunks) for chunks in whole), "members": log.stream.replicas,
            "directories": [log.stream.folder], "segments": len(log.segments),
            "chunks": sum(len(chunks) for chunks in whole), "epoch": int(whole[-1]["epoch"][-1]) if whole else None,
            "firstTimestamp": _moment(whole[0], 0) if whole else None,
            "lastTimestamp": _moment(whole[-1], -1) if whole else None,
        }  # fmt: skip


def _moment(chunks: Any, number: int) -> int | None:
    """The time of a chunk in microseconds; None if there is no chunk, or if its time is outside the calendar."""
    found = timestamps(chunks["time"][number : number + 1 or None]).cast(pa.int64()).to_pylist()
    return found[0] if found else None


def _bytes(chunks: Any) -> int:
    return int((chunks["stop"] - chunks["position"]).sum())


def _segments(snapshot: StreamQueuesSnapshot, request: ScanRequest) -> Iterator[Row]:
    for names, log in _logs(snapshot, request):
        for segment, chunks in zip(log.segments, log.chunks, strict=True):
            used = _bytes(chunks[chunks["type"] == log_files.USER])
            yield {
                **names, "file": segment.file, "kind": "segment", "bytes": segment.size, "liveBytes": used,
                "garbageBytes": segment.size - used, "messages": int(selection.messages_in(chunks).sum()),
                "minOffset": segment.first, "maxOffset": segment.next_id, "chunks": len(chunks),
                "firstTimestamp": _moment(chunks, 0), "lastTimestamp": _moment(chunks, -1),
            }  # fmt: skip


def _offsets(snapshot: StreamQueuesSnapshot, request: ScanRequest) -> Iterator[Row]:
    for names, log in _logs(snapshot, request):
        for stored in stored_offsets.read_stored(log):
            consumer = stored.kind == "consumer"
            value = stored.value if stored.value <= log_files.LARGEST_OFFSET else None
            yield {
                **names, "kind": stored.kind, "reference": stored.reference, "chunkId": stored.chunk,
                "offset": value if consumer else None, "sequence": None if consumer else value,
                "maxOffset": log.stop, "lag": max(0, log.stop - stored.value - 1) if consumer else None,
            }  # fmt: skip


def _damages(snapshot: StreamQueuesSnapshot, request: ScanRequest) -> Iterator[Row]:
    names = {stream.queue for stream in snapshot.chosen(request)}
    yield from (vars(finding) for finding in findings(snapshot) if finding.queue in names)


VIEWS = ViewTable(
    "streams",
    {
        "queues": (QUEUES, _queues),
        "segments": (SEGMENTS, _segments),
        "offsets": (OFFSETS, _offsets),
        "damage": (DAMAGE, _damages),
    },
)
