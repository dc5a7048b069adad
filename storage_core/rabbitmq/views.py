"""Tables about a vhost's store: its queues, its files with live and garbage bytes, its damage.

Source: docs/rabbitmq.md "Views". `queue_directory` and `locations` read the files, `node` what the node declared.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from storage_core.finding import FINDINGS
from storage_core.formats.rabbitmq import paths
from storage_core.rabbitmq.disk import detect, node
from storage_core.rabbitmq.index.entries import ACKED, REDELIVERED, Entries, flagged, joined
from storage_core.rabbitmq.index.queue_directory import QueueFiles
from storage_core.rabbitmq.message_store.locations import file_sizes
from storage_core.rabbitmq.read import selection
from storage_core.rabbitmq.read.snapshot import NamedQueue, VhostSnapshot
from storage_core.rabbitmq.read.view_table import Row, ViewTable
from storage_core.rabbitmq.verify.verification import findings
from storage_core.store import ScanRequest

QUEUES = pa.schema(
    [
        ("vhost", pa.string()),
        ("queue", pa.string()),
        ("type", pa.string()),
        ("durable", pa.bool_()),
        ("arguments", pa.string()),
        ("version", pa.int32()),
        ("minOffset", pa.int64()),
        ("maxOffset", pa.int64()),
        ("messages", pa.int64()),
        ("ready", pa.int64()),
        ("unacknowledged", pa.int64()),
        ("bytes", pa.int64()),
        ("acked", pa.int64()),
        ("transient", pa.int64()),
        ("cleanStop", pa.bool_()),
        ("directories", pa.list_(pa.string())),
        ("store", pa.string()),
    ]
)
SEGMENTS = pa.schema(
    [
        ("vhost", pa.string()),
        ("queue", pa.string()),
        ("file", pa.string()),
        ("kind", pa.string()),
        ("bytes", pa.int64()),
        ("liveBytes", pa.int64()),
        ("garbageBytes", pa.int64()),
        ("messages", pa.int64()),
        ("minOffset", pa.int64()),
        ("maxOffset", pa.int64()),
        ("store", pa.string()),
    ]
)
DAMAGE = FINDINGS.append(pa.field("store", pa.string()))


def _chosen(snapshot: VhostSnapshot, request: ScanRequest) -> list[NamedQueue]:
    named = snapshot.named(request.topics or ())
    return [named[name] for name in selection.queues_of(request, named)]


def _queues(snapshot: VhostSnapshot, request: ScanRequest) -> Iterator[Row]:
    everywhere = node.declared_queues(snapshot.root)
    declared = {name: queue for (vhost, name), queue in everywhere.items() if vhost == snapshot.vhost}
    named = snapshot.named(request.topics or ())
    for name in selection.queues_of(request, {*named, *declared}):
        known = declared.get(name)
        if name in named:
            yield _queue_row(snapshot, named[name], known)
        elif known is not None and not detect.is_read_elsewhere(snapshot.root, known.kind):
            counts = {"messages": 0, "ready": 0, "bytes": 0} if known.kind == "classic" else {}
            yield {"vhost": snapshot.vhost, "queue": name, "directories": [], **known.columns(), **counts}


def _queue_row(snapshot: VhostSnapshot, queue: NamedQueue, known: node.DeclaredQueue | None) -> Row:
    parts = [snapshot.files(directory) for directory in queue.directories]
    info = snapshot.info(queue)
    served = joined([part.served for part in parts])
    clean = all(part.verdict.redelivered_below is not None for part in parts)
    # Delivered before the stop and not acknowledged; a node makes them ready again at startup.
    delivered = int(flagged(served, REDELIVERED).sum()) if clean else None
    return {
        "vhost": snapshot.vhost,
        "queue": queue.name,
        "version": max(directory.version for directory in queue.directories),
        "minOffset": info.start,
        "maxOffset": info.stop,
        "messages": len(served),
        "ready": len(served) - (delivered or 0),
        "unacknowledged": delivered,
        "bytes": int(served["size"].sum(dtype=np.int64)),
        "acked": sum(int(flagged(part.entries, ACKED).sum()) for part in parts),
        "transient": sum(part.transient_count for part in parts),
        "cleanStop": clean,
        "directories": [directory.directory for directory in queue.directories],
        **(known.columns() if known else {"type": "classic"}),
    }


def _segments(snapshot: VhostSnapshot, request: ScanRequest) -> Iterator[Row]:
    everything = request.topics is None and request.topic_pattern is None and request.assign is None
    live: list[tuple[QueueFiles, Entries]] = []
    for queue in _chosen(snapshot, request):
        for directory in queue.directories:
            files = snapshot.files(directory)
            live.append((files, files.served))
            yield from _index_rows(snapshot, queue.name, files)
    if everything:
        yield from _message_rows(snapshot, live)


def _index_rows(snapshot: VhostSnapshot, name: str, files: QueueFiles) -> Iterator[Row]:
    served = files.served
    own = {path: number for number, path in enumerate(files.files)}
    prefix = f"{paths.QUEUES_FOLDER}/{files.directory.directory}"
    for file, size in sorted(files.directory.sizes.items()):
        kind = _KINDS.get(file if file == paths.JOURNAL_FILE else "." + file.rsplit(".", 1)[-1])
        if kind is None:
            continue
        entries = served[served["file"] == own.get(f"{prefix}/{file}", -1)]
        known = kind != "index v2"
        bytes_live = int(entries["length"].sum())
        yield {
            "vhost": snapshot.vhost,
            "queue": name,
            "file": f"{prefix}/{file}",
            "kind": kind,
            "bytes": size,
            "liveBytes": bytes_live if known else None,
            "garbageBytes": size - bytes_live if known else None,
            "messages": len(entries),
            "minOffset": int(entries["sequence_id"][0]) if len(entries) else None,
            "maxOffset": int(entries["sequence_id"][-1]) + 1 if len(entries) else None,
        }


_KINDS = {
    paths.JOURNAL_FILE: "journal",
    paths.SEGMENT_SUFFIX: "index",
    paths.INDEX2_SUFFIX: "index v2",
    paths.STORE2_SUFFIX: "store v2",
}


def _message_rows(snapshot: VhostSnapshot, live: list[tuple[QueueFiles, Entries]]) -> Iterator[Row]:
    """Live bytes belong to records that at least one queue still points at; each record counts once."""
    live_lengths = _live_lengths(live)
    for folder, kind in ((paths.PERSISTENT_FOLDER, "message file"), (paths.TRANSIENT_FOLDER, "transient message file")):
        for file, size in file_sizes(snapshot.root, folder).items():
            lengths = live_lengths.get(file, np.empty(0, np.int64))
            bytes_live = int(lengths.sum())
            yield {
                "vhost": snapshot.vhost,
                "file": file,
                "kind": kind,
                "bytes": size,
                "liveBytes": bytes_live,
                "garbageBytes": size - bytes_live,
                "messages": len(lengths),
            }


def _live_lengths(live: list[tuple[QueueFiles, Entries]]) -> dict[str, npt.NDArray[np.int64]]:
    """Lengths of the records that queues point at, by path."""
    positions: dict[str, list[Entries]] = {}
    for files, entries in live:
        for number in np.unique(entries["file"]).tolist():
            positions.setdefault(files.files[number], []).append(entries[entries["file"] == number])
    found = {}
    for path, parts in positions.items():
        entries = joined(parts)
        found[path] = entries["length"][np.unique(entries["position"], return_index=True)[1]]
    return found


def _damages(snapshot: VhostSnapshot, request: ScanRequest) -> Iterator[Row]:
    every_queue = request.topics is None and request.topic_pattern is None and request.assign is None
    found = findings(snapshot, _chosen(snapshot, request), every_queue)
    yield from (vars(finding) for finding in found)


VIEWS = ViewTable(
    "a RabbitMQ store",
    {
        "queues": (QUEUES, _queues),
        "segments": (SEGMENTS, _segments),
        "damage": (DAMAGE, _damages),
    },
)
