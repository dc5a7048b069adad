"""The messages left in a quorum queue as rows: where each is stored, and its data from the log and the machine.

Source: docs/format/rabbitmq-quorum.md 11, docs/rabbitmq.md "Quorum queues". Finding them belongs to `replay`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from storage_core.arrays import as_array, text_array
from storage_core.formats.columns import TIMESTAMP
from storage_core.formats.rabbitmq.erlang import external_term as et
from storage_core.rabbitmq.index.entries import FIELDS as CLASSIC_FIELDS
from storage_core.rabbitmq.index.entries import MISSING, REDELIVERED, SHARED, Entries, flagged, new_entries
from storage_core.rabbitmq.quorum.machine.consumers import restart
from storage_core.rabbitmq.quorum.machine.state import STRICT
from storage_core.rabbitmq.quorum.replay import Replay
from storage_core.rabbitmq.read.columns import LogColumns

STATUSES = ("ready", "returned", "unacknowledged", "delayed", "dead-lettering")
READY, RETURNED, UNACKNOWLEDGED, DELAYED, DEAD_LETTERING = range(len(STATUSES))
UNKNOWN = 2
"""The value of `committed` if one disk cannot tell whether an entry is committed; else 0 (no) or 1 (yes)."""

FIELDS = CLASSIC_FIELDS | {
    "term": "i8",
    "enqueued_ms": "i8",
    "delivery_count": "i4",
    "acquired_count": "i4",
    "status": "u1",
    "committed": "u1",
}
"""The fields of a classic queue's entry, and those that a quorum queue adds. `sequence_id` is the raft index."""
NOT_REPORTED = -1
"""The `acquired_count` in a queue from before 4.3, which reports only one count to its consumers."""


@dataclass(frozen=True)
class QueueRows:
    """The messages of one queue in delivery order, with FIELDS, and the number of messages in each of STATUSES.

    `annotations` are those that consumers put on returned messages: the external term of a map, by raft index.
    """

    entries: Entries
    counts: dict[str, int]
    annotations: dict[int, bytes]


def rows_of(replay: Replay, certain: int, as_of_ms: int | None, with_held: bool) -> QueueRows:
    """The messages that the restarted node would deliver. Entries up to the index `certain` are known to be committed.

    Delayed messages follow the others. With `as_of_ms`, messages that had expired by then are left out, and those due
    by then are no longer delayed. With `with_held`, dead letters that are only held for their worker come last.
    """
    machine = replay.machine
    state = machine.state
    held = {index for consumer in state.consumers.values() for index in consumer.checked_out.values()}
    held |= {index for _, consumer in state.waiting for index in consumer.checked_out.values()}
    due = [] if as_of_ms is None else state.delayed.take_due(as_of_ms)
    returned, waited, first = {*state.returns, *due}, set(state.delayed.due), state.delayed.first
    restart(machine, 0, replay.watched)
    state.returns.extend(due)
    wait = state.delayed.due
    for index in wait.keys() - waited:
        # The restart follows the last command, at an unknown time.
        wait[index] += state.clock
    delayed = sorted(wait, key=lambda index: (wait[index], index != first, index))
    order = np.array([*state.returns, *state.messages, *delayed], np.int64)
    dead = [*(state.worker.checked_out.values() if state.worker else ()), *state.discards]
    if replay.deleted:
        order, delayed, dead = order[:0], [], []
    count = len(order)
    if with_held:
        order = np.concatenate([order, np.array(dead, np.int64)])
    entries = new_entries(len(order), FIELDS)
    _locate(replay, entries, order)
    status = entries["status"]
    if held:
        status[np.isin(order, np.array(sorted(held), np.int64))] = UNACKNOWLEDGED
    if returned:
        status[np.isin(order, np.array(sorted(returned), np.int64))] = RETURNED
    status[count:] = DEAD_LETTERING
    status[count - len(delayed) : count] = DELAYED
    _fill_sparse(entries["delivery_count"], order, state.deliveries)
    _fill_sparse(entries["expiry"], order, {index: ms * 1000 for index, ms in state.expiries.items()})
    _fill_sparse(entries["acquired_count"], order, state.acquired)
    entries["flags"] |= np.where(entries["acquired_count"] > 0, REDELIVERED, 0).astype(np.uint8)
    if state.version < STRICT:
        entries["acquired_count"] = NOT_REPORTED
    entries["committed"] = np.where(order <= certain, 1, UNKNOWN)
    counts = np.bincount(status[:count], minlength=len(STATUSES))
    if as_of_ms is not None:
        moment = np.uint64(min(max(as_of_ms, 0) * 1000, np.iinfo(np.uint64).max))
        entries = entries[(entries["expiry"] == 0) | (entries["expiry"] > moment)]
    counts[DEAD_LETTERING] = len(dead)
    left = set(order.tolist()) if state.annotations else set()
    noted = {index: et.encode(value) for index, value in state.annotations.items() if index in left}
    return QueueRows(entries, dict(zip(STATUSES, counts.tolist(), strict=True)), noted)


def _fill_sparse(column: npt.NDArray[np.generic], order: npt.NDArray[np.int64], values: dict[int, int]) -> None:
    """Writes `values`, which are keyed by raft index, into the rows that have one."""
    if not values or not len(order):
        return
    keys = np.array(sorted(values), np.int64)
    found = np.array([values[key] for key in keys.tolist()], np.int64)
    at = np.minimum(np.searchsorted(keys, order), len(keys) - 1)
    hit = keys[at] == order
    column[hit] = found[at[hit]]


def _locate(replay: Replay, entries: Entries, order: npt.NDArray[np.int64]) -> None:
    """Fills in the locations. A message is missing if no intact entry of it is left, or its entry has no message."""
    entries["sequence_id"], entries["kind"] = order, SHARED
    found, known = replay.messages.find(order)
    entries["flags"] |= np.where(known, 0, MISSING).astype(np.uint8)
    for name in ("position", "length", "size", "file", "term", "enqueued_ms"):
        entries[name] = np.where(known, found[name], 0)


class QuorumColumns(LogColumns):
    """The columns that come from the log and the machine, without reading the messages."""

    queue_type = "quorum"
    names = LogColumns.names | {"guid"}

    def values(self, name: str, entries: Entries) -> pa.Array:
        """The column `name`, one of `names`."""
        if name == "raftIndex":
            return as_array(entries["sequence_id"])
        if name == "raftTerm":
            return as_array(entries["term"], mask=flagged(entries, MISSING))
        if name == "deliveryCount":
            return as_array(entries["delivery_count"].astype(np.int64))
        if name == "acquiredCount":
            counts = entries["acquired_count"].astype(np.int64)
            return as_array(counts, mask=counts == NOT_REPORTED)
        if name == "enqueuedAt":
            times = entries["enqueued_ms"]
            return as_array(times * 1000, mask=times == 0).view(TIMESTAMP)
        if name == "status":
            return text_array(STATUSES).take(as_array(entries["status"]))
        if name == "committed":
            return as_array(entries["committed"] == 1, mask=entries["committed"] == UNKNOWN)
        return super().values(name, entries)
