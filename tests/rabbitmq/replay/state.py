"""The queue state that a replay prints after each step. Source: tests/rabbitmq/replay/README.md "Output"."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from storage_core.files import system
from storage_core.rabbitmq.index import message_run as status
from storage_core.rabbitmq.index.message_run import MessageRun, joined
from storage_core.rabbitmq.index.queue_index import QueueIndex
from storage_core.rabbitmq.paging.queue_state import QueueState

_FLAG_LETTERS = (
    (status.IN_RAM, "R", "-"),
    (status.PERSISTENT, "P", "T"),
    (status.IN_STORE, "s", "m"),
    (status.INDEX_ON_DISK, "I", "-"),
    (status.TO_INDEX, "q", "s"),
)


def state_of(state: QueueState) -> dict[str, Any]:
    """The members of one line, except number, operation and result."""
    delta, credit, pending = state.delta, state.credit, state.pending
    return {
        "q1": runs(state.q1),
        "q2": runs(state.q2),
        "q3": runs(state.q3),
        "q4": runs(state.q4),
        "ram_pending_ack": runs(pending.ram),
        "disk_pending_ack": runs(pending.disk),
        "qi_pending_ack": runs(pending.index),
        "delta": [delta.start, delta.count, delta.transient, delta.stop],
        "mode": "lazy" if state.lazy else "default",
        "target_ram_count": "infinity" if state.target_ram_count is None else state.target_ram_count,
        "waiting_bump": state.waiting_bump,
        "blocked": credit.blocked,
        "credit": [credit.persistent.left, credit.transient.left],
        "memory_reduction_run_count": state.memory_reduction_run_count,
        "next_seq_id": state.next_sequence_id,
        "next_deliver_seq_id": state.next_deliver_sequence_id,
        "transient_threshold": state.transient_threshold,
        "len": state.count,
        "bytes": state.bytes,
        "unacked_bytes": state.unacked_bytes,
        "persistent_count": state.persistent_count,
        "persistent_bytes": state.persistent_bytes,
        "delta_transient_bytes": state.delta_transient_bytes,
        "ram_msg_count": state.ram_msg_count,
        "ram_bytes": state.ram_bytes,
        "disk_read_count": state.disk_read_count,
        "disk_write_count": state.disk_write_count,
        "index": index_of(state.index),
        "files": files_of(state.index.directory),
    }


def runs(held: Iterable[MessageRun]) -> list[list[int | str]]:
    """Runs of consecutive sequence ids with equal flags: [first, last, five letters]."""
    run = joined(list(held))
    if not len(run):
        return []
    sequence_ids, flags = run.sequence_ids, run.rows["flags"]
    breaks = np.flatnonzero((np.diff(sequence_ids) != 1) | (flags[1:] != flags[:-1])) + 1
    starts, stops = [0, *breaks.tolist()], [*breaks.tolist(), len(run)]
    return [
        [int(sequence_ids[start]), int(sequence_ids[stop - 1]), _letters(int(flags[start]))]
        for start, stop in zip(starts, stops, strict=True)
    ]


def _letters(flags: int) -> str:
    return "".join(there if flags & flag else missing for flag, there, missing in _FLAG_LETTERS)


def index_of(index: QueueIndex) -> dict[str, Any]:
    """The dirty count, and number, unacked count and highest journal entry of each segment in memory."""
    segments = [[number, found.unacked, found.highest()] for number, found in sorted(index.segments.items())]
    return {"dirty_count": index.dirty_count, "segments": segments}


def files_of(directory: str) -> dict[str, int]:
    """Names and sizes of the queue's files, except those that begin with a dot."""
    try:
        return {entry.name: entry.size for entry in system.entries(directory) if not entry.name.startswith(".")}
    except FileNotFoundError:
        return {}
