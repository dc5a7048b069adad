"""Tables about a node's quorum queues: the queues, their files, their raft log, their damages.

Source: docs/rabbitmq.md "Views". Reading the logs belongs to `snapshot`.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

import numpy as np
import pyarrow as pa

from storage_core.errors import FormatError
from storage_core.finding import FINDINGS, Finding
from storage_core.formats.columns import TIMESTAMP
from storage_core.formats.rabbitmq.quorum import log_entry
from storage_core.rabbitmq.disk.damage import CUT, Damage
from storage_core.rabbitmq.disk.raft_log import LogEntries, LogPiece
from storage_core.rabbitmq.disk.span_reader import SpanReader
from storage_core.rabbitmq.index.entries import MISSING, flagged
from storage_core.rabbitmq.quorum.directory import QueueDirectory
from storage_core.rabbitmq.quorum.machine.state import STRICT
from storage_core.rabbitmq.quorum.replay import KEPT
from storage_core.rabbitmq.quorum.snapshot import QueueState, QuorumSnapshot
from storage_core.rabbitmq.read import selection
from storage_core.rabbitmq.read.view_table import Row, ViewTable
from storage_core.store import ScanRequest

QUEUES = pa.schema(
    [
        ("vhost", pa.string()), ("queue", pa.string()), ("type", pa.string()), ("durable", pa.bool_()),
        ("arguments", pa.string()), ("version", pa.int32()), ("minOffset", pa.int64()), ("maxOffset", pa.int64()),
        ("messages", pa.int64()), ("ready", pa.int64()), ("unacknowledged", pa.int64()), ("bytes", pa.int64()),
        ("acked", pa.int64()), ("transient", pa.int64()), ("cleanStop", pa.bool_()),
        ("directories", pa.list_(pa.string())), ("store", pa.string()), ("members", pa.int32()),
        ("returned", pa.int64()), ("delayed", pa.int64()), ("deadLettering", pa.int64()), ("lastIndex", pa.int64()),
        ("snapshotIndex", pa.int64()), ("applied", pa.int64()), ("inDoubt", pa.int64()),
    ]
)  # fmt: skip
"""The columns of the classic engine's view, and those that a quorum queue adds."""
SEGMENTS = pa.schema(
    [
        ("vhost", pa.string()), ("queue", pa.string()), ("file", pa.string()), ("kind", pa.string()),
        ("bytes", pa.int64()), ("liveBytes", pa.int64()), ("garbageBytes", pa.int64()), ("messages", pa.int64()),
        ("minOffset", pa.int64()), ("maxOffset", pa.int64()), ("store", pa.string()),
    ]
)  # fmt: skip
RAFT = pa.schema(
    [
        ("vhost", pa.string()), ("queue", pa.string()), ("raftIndex", pa.int64()), ("raftTerm", pa.int64()),
        ("time", TIMESTAMP), ("command", pa.string()), ("file", pa.string()), ("position", pa.int64()),
        ("size", pa.int64()), ("store", pa.string()),
    ]
)  # fmt: skip
DAMAGE = FINDINGS.append(pa.field("store", pa.string()))
RAFT_ROWS = 8192
DELIVERED = "delivers the message as it is"
EFFECT = "does not start, or does not serve this queue or its virtual host"


def findings(snapshot: QuorumSnapshot) -> Iterator[Finding]:
    """The findings about the logs of all queues, each damage once."""
    return _findings(snapshot, snapshot.directories)


def _findings(snapshot: QuorumSnapshot, queues: list[QueueDirectory]) -> Iterator[Finding]:
    reported: set[tuple[str, int]] = set()
    for damage in snapshot.lost:
        yield _finding(damage, EFFECT)
    for damage in snapshot.wals.torn:
        yield _finding(damage, CUT)
    for queue in queues:
        state = snapshot.state(queue)
        for damage in state.damages:
            if (damage.file, damage.position) not in reported:
                reported.add((damage.file, damage.position))
                yield _finding(damage, DELIVERED if damage.kind == KEPT else EFFECT, queue.name[1])
        lost = state.rows.entries["sequence_id"][flagged(state.rows.entries, MISSING)]
        kept = lost[lost <= state.log.snapshot_index]
        if len(kept) and not any(damage.kind == KEPT for damage in state.damages):
            reason = f"{len(kept)} of the entries {kept.min()} to {kept.max()} that the snapshot needs are missing"
            yield Finding(queue.folder, 0, 0, "gap", reason, EFFECT, False, queue.name[1])
        for note in state.log.notes:
            path, _, reason = note.partition(": ")
            file = path.removeprefix(f"{snapshot.root}/")
            yield Finding(file, 0, 0, "snapshot", reason, "takes an older one, or none", False, queue.name[1])


def _finding(damage: Damage, effect: str, queue: str | None = None) -> Finding:
    return Finding(damage.file, damage.position, damage.length, damage.kind, damage.reason, effect, False, queue)


def _chosen(snapshot: QuorumSnapshot, request: ScanRequest) -> list[QueueDirectory]:
    names = set(selection.queues_of(request, snapshot.topics()))
    hosts = [one.value for one in request.predicates if (one.column, one.op) == ("vhost", "in")]
    return [
        queue for queue in snapshot.directories
        if queue.name[1] in names and all(queue.name[0] in wanted for wanted in hosts)
    ]  # fmt: skip


def _queues(snapshot: QuorumSnapshot, request: ScanRequest) -> Iterator[Row]:
    for queue in _chosen(snapshot, request):
        state, info = snapshot.state(queue), snapshot.info(queue)
        counts = state.rows.counts
        yield {
            "vhost": queue.name[0], "queue": queue.name[1], "type": "quorum", "durable": True,
            "version": state.machine_version,
            "minOffset": info.start, "maxOffset": info.stop, "messages": len(state.rows.entries),
            "ready": counts["ready"] + counts["returned"], "unacknowledged": counts["unacknowledged"],
            "returned": counts["returned"], "delayed": counts["delayed"], "deadLettering": counts["dead-lettering"],
            "bytes": int(state.rows.entries["size"].sum(dtype=np.int64)), "directories": [queue.folder],
            "members": state.members, "lastIndex": state.log.last_index,
            "snapshotIndex": state.log.snapshot_index if state.log.snapshot else None,
            "applied": snapshot.applied(queue), "inDoubt": state.in_doubt,
        }  # fmt: skip


def _number(piece: LogPiece) -> int:
    return piece.number


def _segments(snapshot: QuorumSnapshot, request: ScanRequest) -> Iterator[Row]:
    for queue in _chosen(snapshot, request):
        state = snapshot.state(queue)
        rows = state.rows.entries
        for number, inside in _inside(state):
            live = rows[rows["file"] == number]
            file = state.log.files[number]
            size, used = int(inside["size"].sum()), int(live["length"].sum())
            yield {
                "vhost": queue.name[0], "queue": queue.name[1], "file": file,
                "kind": "segment" if "/" in file else "write-ahead log", "bytes": size, "liveBytes": used,
                "garbageBytes": size - used, "messages": len(live), "minOffset": int(inside["index"][0]),
                "maxOffset": int(inside["index"][-1]) + 1,
            }  # fmt: skip


def _inside(state: QueueState) -> Iterator[tuple[int, LogEntries]]:
    """The valid entries of each log file: those after the snapshot, or all of them if snapshots keep entries."""
    log = state.log
    if state.machine_version >= STRICT:
        for piece in sorted({piece.number: piece for piece in (*log.older, *log.pieces)}.values(), key=_number):
            yield piece.number, piece.all_of_file()
        return
    for number, pieces in groupby(sorted(log.pieces, key=_number), _number):
        yield number, np.concatenate([piece.entries() for piece in pieces])


def _raft(snapshot: QuorumSnapshot, request: ScanRequest) -> Iterator[Row]:
    """Every log entry after the snapshots."""
    for queue in _chosen(snapshot, request):
        log = snapshot.state(queue).log
        reader = SpanReader(snapshot.root, list(log.files))
        try:
            for part in (
                chunk[at : at + RAFT_ROWS] for chunk in log.chunks() for at in range(0, len(chunk), RAFT_ROWS)
            ):
                stops = part["position"] + part["size"]
                buffer, starts = reader.load(part["file"].astype(np.int64), part["position"], stops)
                for entry, at in zip(part, starts.tolist(), strict=True):
                    time, command = _command(buffer[at : at + int(entry["size"])].tobytes())
                    yield {
                        "vhost": queue.name[0], "queue": queue.name[1], "raftIndex": int(entry["index"]),
                        "raftTerm": int(entry["term"]), "time": None if time is None else time * 1000,
                        "command": command, "file": log.files[int(entry["file"])],
                        "position": int(entry["position"]), "size": int(entry["size"]),
                    }  # fmt: skip
        finally:
            reader.close()


def _command(data: bytes) -> tuple[int | None, str | None]:
    """The leader's clock and the name of an entry's command; both None if the entry cannot be decoded."""
    try:
        term = log_entry.decode(data)
    except FormatError:
        return None, None
    if not isinstance(term, tuple) or len(term) < 2:
        return None, str(term)
    time = term[1].get("ts") if isinstance(term[1], dict) else None
    command = term[2] if term[0] == "$usr" else term
    name = command[0] if isinstance(command, tuple) and command else command
    return time if isinstance(time, int) else None, str(name)


def _damages(snapshot: QuorumSnapshot, request: ScanRequest) -> Iterator[Row]:
    yield from (vars(finding) for finding in _findings(snapshot, _chosen(snapshot, request)))


VIEWS = ViewTable(
    "quorum queues",
    {
        "queues": (QUEUES, _queues),
        "segments": (SEGMENTS, _segments),
        "raft": (RAFT, _raft),
        "damage": (DAMAGE, _damages),
    },
)
