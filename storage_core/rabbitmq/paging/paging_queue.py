"""One queue that keeps part of its messages in memory: publish, fetch, drop, ack, requeue, purge and the rest.

The steps are in `queue_state`, the moves out of memory in `memory_reduction`; the index and the stores handle bytes
and files. Source: rabbitmq.md 7.3 to 7.9.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from storage_core.formats.layout import Mask
from storage_core.rabbitmq.disk.recovery_terms import QueueTerms
from storage_core.rabbitmq.index.index_recovery import Recovered
from storage_core.rabbitmq.index.message_run import (
    INDEX_ON_DISK,
    MessageRun,
    Rows,
    SequenceIds,
    by_sequence,
    empty_run,
    joined,
)
from storage_core.rabbitmq.paging.delta import Delta
from storage_core.rabbitmq.paging.memory_reduction import reduce_memory
from storage_core.rabbitmq.paging.queue_state import QueueState

Predicate = Callable[[Rows], Mask]
"""Maps ROW arrays to masks of the messages that the walk removes."""


@dataclass(frozen=True)
class Taken:
    """Messages taken from the front; `redelivered` has shape (n,). `ended`: the queue had fewer than requested."""

    run: MessageRun
    redelivered: Mask
    ended: bool


class PagingQueue:
    """The operations on a QueueState. Publishing and requeueing may reduce memory; taking never does."""

    def __init__(self, state: QueueState) -> None:
        self.state = state

    def start(self, terms: QueueTerms | None, recovered: Recovered | None) -> None:
        """Starts from what the index recovered (None after a clean stop): all in delta, with one chunk loaded."""
        state = self.state
        low, high = state.index.bounds()
        if terms is not None:
            following, delivered = terms.next_sequence_id, terms.next_deliver_sequence_id
            state.next_sequence_id = high if following is None else following
            state.next_deliver_sequence_id = state.next_sequence_id if delivered is None else delivered
            count, size = terms.persistent_count, terms.persistent_bytes
        else:
            state.next_sequence_id = state.next_deliver_sequence_id = high
            count, size = (recovered.count, recovered.bytes) if recovered else (0, 0)
        state.transient_threshold = state.next_sequence_id
        if count or recovered is None:
            state.delta = Delta(low, count, 0, state.next_sequence_id)
        state.count = state.persistent_count = count
        state.bytes = state.persistent_bytes = size
        state.load_chunk()

    def stop(self, directory: str, client: bytes | None) -> QueueTerms:
        """Stops cleanly; returns the terms of the queue in `directory`, known to the message store as `client`."""
        state = self.state
        return QueueTerms(
            directory,
            1,
            state.index.close(),
            state.next_sequence_id,
            state.next_deliver_sequence_id,
            client,
            state.persistent_count,
            state.persistent_bytes,
        )

    # publish

    def publish(
        self, run: MessageRun, delivered: bool = False, own: Mask | None = None, batch: bool = True
    ) -> SequenceIds:
        """Adds messages with payloads in memory, sets the sequence ids of `run` and returns them.

        `delivered`: they were delivered before. `own`: each message's own persistence, where it differs from its flag
        (in a queue that is not durable). `batch`: one batch, else a single message.
        """
        state = self.state
        run.rows["sequence_id"] = np.arange(state.next_sequence_id, state.next_sequence_id + len(run))
        written = state.write_index(state.write_payloads(run, state.lazy), state.lazy, batch)
        if state.lazy:
            state.into_delta(written, None if own is None else ~own)
            state.count += len(written)
            state.bytes += written.body_bytes()
            state.count_persistent(written, 1)
        else:
            (state.q1 if len(state.q3) else state.q4).push_back(written)
            state.count_ready(written, 1)
        state.next_sequence_id += len(run)
        if delivered:
            state.deliver(written.sequence_ids)
        state.rates.count(entered=len(run))
        self._after_publish(batch)
        return written.sequence_ids

    def publish_delivered(self, run: MessageRun, batch: bool = True) -> SequenceIds:
        """Adds messages for an empty queue directly to the pending acks; returns their sequence ids."""
        state = self.state
        run.rows["sequence_id"] = np.arange(state.next_sequence_id, state.next_sequence_id + len(run))
        written = state.write_index(state.write_payloads(run, state.lazy), state.lazy, batch)
        state.pending.add(written)
        state.unacked_bytes += written.body_bytes()
        state.count_persistent(written, 1)
        state.count_in_memory(written, 1, ready=False)
        state.next_sequence_id += len(run)
        state.deliver(written.sequence_ids)
        state.rates.count(entered=len(run), left=len(run), delivered=len(run))
        self._after_publish(batch)
        return written.sequence_ids

    def _after_publish(self, batch: bool) -> None:
        if batch:
            self.state.end_batch()
        self.state.rates.maybe_update()
        self._maybe_reduce()

    def _maybe_reduce(self) -> None:
        state, settings = self.state, self.state.settings
        threshold = (
            settings.lazy_queue_explicit_gc_run_operation_threshold
            if state.lazy
            else settings.queue_explicit_gc_run_operation_threshold
        )
        if state.memory_reduction_run_count >= threshold:
            reduce_memory(state)
            state.memory_reduction_run_count = 0
        else:
            state.memory_reduction_run_count += 1

    # take

    def fetch(self, count: int, ack_required: bool) -> Taken:
        """Takes up to `count` messages one by one, with their payloads."""
        return self._take(count, ack_required, self.state.read_payloads)

    def drop(self, count: int, ack_required: bool) -> Taken:
        """Takes up to `count` messages one by one; payloads are not read."""
        return self._take(count, ack_required, lambda run: run)

    def _take(self, count: int, ack_required: bool, read: Callable[[MessageRun], MessageRun]) -> Taken:
        state = self.state
        taken: list[MessageRun] = []
        redelivered = []
        left = count
        while left > 0:
            run = state.take_front(left)
            if not len(run):
                break
            redelivered.append(run.sequence_ids < state.next_deliver_sequence_id)
            taken.append(read(run))
            self._remove(run, ack_required)
            left -= len(run)
        marks = np.concatenate(redelivered) if redelivered else np.zeros(0, np.bool_)
        return Taken(joined(taken) if taken else empty_run(), marks, left > 0)

    def _remove(self, run: MessageRun, ack_required: bool, one_by_one: bool = True) -> None:
        """Makes messages taken from the front pending, or removes them. `run` is what the queue held of them."""
        state = self.state
        state.deliver(run.sequence_ids)
        if ack_required:
            state.pending.add(run)
            state.count_pending(run, 1)
            state.rates.count(left=len(run), delivered=len(run))
        else:
            self._discard(run, one_by_one)
            state.count_ready(run, -1)
            state.rates.count(left=len(run))
        state.rates.maybe_update()

    def _discard(self, run: MessageRun, one_by_one: bool) -> None:
        state = self.state
        state.remove_payloads(run)
        indexed = run.has(INDEX_ON_DISK)
        if indexed.any():
            sequence_ids = run.sequence_ids[indexed]
            state.index.ack(sequence_ids if one_by_one else sequence_ids[::-1], one_by_one)

    # ack and requeue

    def ack(self, sequence_ids: SequenceIds) -> MessageRun:
        """Removes pending messages for good, in one step; returns those found, in the order of `sequence_ids`."""
        state = self.state
        run = state.pending.take(sequence_ids)
        self._discard(run, one_by_one=False)
        state.unacked_bytes -= run.body_bytes()
        state.count_in_memory(run, -1, ready=False)
        state.count_persistent(run, -1)
        state.rates.count(acked=len(sequence_ids))
        return run

    def requeue(self, sequence_ids: SequenceIds) -> MessageRun:
        """Puts pending messages back in sequence id order; returns those that were pending, highest first."""
        state = self.state
        run = by_sequence(state.pending.take(np.sort(sequence_ids)))
        alphas, betas = 0, len(run)
        if not state.lazy:
            alphas = int(np.searchsorted(run.sequence_ids, state.q3.first_sequence_id())) if len(state.q3) else len(run)
        if not state.delta.blank and state.delta.start is not None:
            betas = max(int(np.searchsorted(run.sequence_ids, state.delta.start)), alphas)
        self._return_to_memory(run[:alphas])
        middle = state.write_index(state.write_payloads(run[alphas:betas], True), False, True).trimmed()
        self._count_requeued(run[alphas:betas], middle)
        state.q3.merge(middle)
        rest = run[betas:]
        self._count_requeued(rest, rest)
        rest = state.write_index(state.write_payloads(rest, True), True, True)
        state.count_in_memory(rest, -1)
        state.into_delta(rest)
        state.rates.count(entered=len(run))
        self._after_publish(batch=True)
        return run[::-1]

    def _return_to_memory(self, run: MessageRun) -> None:
        if len(run):
            loaded = self.state.read_payloads(run)
            self._count_requeued(run, loaded)
            self.state.q4.merge(loaded)

    def _count_requeued(self, before: MessageRun, after: MessageRun) -> None:
        state = self.state
        state.count_in_memory(before, -1, ready=False)
        state.count_pending(after, -1)
        state.count_in_memory(after, 1, ready=False)

    # conditional removal

    def drop_while(self, predicate: Predicate) -> Rows | None:
        """Removes messages from the front while `predicate` holds; returns the ROW of the first that remains."""
        taken, stays = self._collect(predicate)
        self._remove(taken, ack_required=False, one_by_one=False)
        return stays

    def fetch_while(self, predicate: Predicate) -> tuple[MessageRun, Rows | None]:
        """Like `drop_while`, but the messages become pending and are returned with their payloads."""
        taken, stays = self._collect(predicate)
        loaded = self.state.read_payloads(taken)
        self._remove(taken, ack_required=True)
        return loaded, stays

    def _collect(self, predicate: Predicate) -> tuple[MessageRun, Rows | None]:
        taken: list[MessageRun] = []
        while True:
            run = self.state.take_front(1)
            if not len(run):
                return joined(taken), None
            if not predicate(run.rows).all():
                self.state.put_back(run)
                return joined(taken), run.rows[0]
            taken.append(run)

    def purge(self) -> int:
        """Removes every ready message; returns how many. Resets the index if there are no pending acks."""
        state = self.state
        count, reset = state.count, len(state.pending) == 0
        self._purge(state.q4.take_all(), reset)
        if state.lazy:
            state.load_chunk(drop=not reset)
        while len(state.q3):
            self._purge(state.q3.take_all(), reset)
            state.load_chunk(drop=not reset)
        self._purge(state.q1.take_all(), reset)
        if reset:
            state.index.reset()
        return count

    def _purge(self, run: MessageRun, reset: bool) -> None:
        if not len(run):
            return
        if not reset:
            self._remove(run, ack_required=False, one_by_one=False)
            return
        state = self.state
        state.deliver(run.sequence_ids)
        state.remove_payloads(run)
        state.count_ready(run, -1)
        state.rates.count(left=len(run))

    def purge_acks(self) -> None:
        """Removes every pending message; leaves persistent counts and unacked bytes unchanged, as 3.10.8 does."""
        run = joined([held.take_all() for held in self.state.pending.sets])
        self._discard(run, one_by_one=False)

    # memory

    def set_target_ram_count(self, target: int | None) -> None:
        """Sets the target; None is infinity. Reduces memory if the target drops."""
        state = self.state
        before, state.target_ram_count = state.target_ram_count, target
        if target is not None and (before is None or target < before):
            reduce_memory(state)

    def set_ram_duration_target(self, seconds: float) -> None:
        """Sets how many seconds of the current traffic may be in memory; infinity lifts the limit."""
        self.set_target_ram_count(None if seconds == float("inf") else int(seconds * self.state.rates.total))

    def ram_duration(self) -> float:
        """Seconds of the current traffic that are in memory: what a queue reports to the memory monitor."""
        state = self.state
        state.rates.update()
        return state.rates.duration_s(state.ram_msg_count + len(state.pending.ram) + len(state.pending.index))

    def set_lazy(self, lazy: bool) -> None:
        """Switches lazy mode. Turning it on first writes all but the next chunk to disk, waiting for blocked stores."""
        state = self.state
        if lazy == state.lazy:
            return
        if not lazy:
            state.lazy = False
            state.load_chunk()
            return
        target, batch_size = state.target_ram_count, state.io_batch_size
        self.set_target_ram_count(0)
        while state.delta.count + len(state.q3) != state.count:
            if state.credit.blocked:
                state.credit.collect()
                state.credit.take_grant()
            state.io_batch_size = 0
            reduce_memory(state)
            state.io_batch_size = batch_size
            self.set_target_ram_count(0)
        state.lazy, state.target_ram_count = True, target

    def resume(self) -> None:
        """Reduces memory after a grant of credit."""
        reduce_memory(self.state)

    def settle(self) -> None:
        """Handles pending work: "continue reducing", then grants, one by one, each followed by a reduction."""
        state = self.state
        while True:
            state.credit.collect()
            if state.waiting_bump:
                state.waiting_bump = False
            elif not state.credit.take_grant():
                return
            reduce_memory(state)

    def visit(self) -> tuple[MessageRun, Mask]:
        """Every message, ready and pending, by sequence id and with its payload, and a mask of the pending ones."""
        state = self.state
        in_delta = empty_run()
        if not state.delta.blank and state.delta.start is not None and state.delta.stop is not None:
            in_delta = state.index.read(state.delta.start, state.delta.stop)
            in_delta = in_delta[~state.pending.find(in_delta.sequence_ids)]
        pending = joined([run for held in state.pending.sets for run in held])
        ready = joined([run for queue in (state.q4, state.q3, state.q2, state.q1) for run in queue])
        whole = joined([ready, in_delta, pending])
        marks = np.zeros(len(whole), np.bool_)
        marks[len(whole) - len(pending) :] = True
        order = np.argsort(whole.sequence_ids, kind="stable")
        return state.read_payloads(whole[order]), marks[order]
