"""How a queue releases memory: alphas become betas, pending acks drop their payloads, betas become delta.

`paging_queue` decides when to reduce. Source: rabbitmq.md 7.8.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from storage_core.rabbitmq.index.message_run import IN_RAM, IN_STORE, PERSISTENT, TO_INDEX, MessageRun, SequenceIds
from storage_core.rabbitmq.paging.message_deque import RunQueue
from storage_core.rabbitmq.paging.queue_state import QueueState

UNLIMITED = 1 << 62


def reduce_memory(state: QueueState) -> None:
    """Runs one round of reduction, or nothing while the target is infinite. Sets waiting_bump if more is needed."""
    target = state.target_ram_count
    if target is None:
        return
    if state.lazy:
        _reduce_lazy(state, target)
        return
    most = 2 * state.settings.msg_store_credit_disc_bound[0]
    more = False
    excess = state.ram_msg_count + len(state.pending.ram) - target
    if excess > 0:
        quota = min(excess, most)
        steps: list[Callable[[QueueState, int], int]] = [alphas_to_betas, pending_to_disk]
        if state.rates.acks_grow_faster():
            steps.reverse()
        for step in steps:
            quota = step(state, quota)
        more = quota == 0 and excess > most
    surplus = len(state.q2) + len(state.q3) - permitted_betas(state, target)
    # A surplus of 0 is also "at least a batch" if the batch size is 0, as in the conversion to lazy.
    if max(surplus, 0) >= state.io_batch_size:
        betas_to_delta(state, min(max(surplus, 0), most))
        more = more or surplus > most
    state.index.flush_if_dirty()
    if more and not state.credit.blocked:
        state.waiting_bump = True


def _reduce_lazy(state: QueueState, target: int) -> None:
    excess = state.ram_msg_count + len(state.pending.ram) - target
    if excess > 0:
        pending_to_disk(state, excess)
    surplus = len(state.q3) - permitted_betas(state, target)
    if surplus > 0:
        betas_to_delta(state, surplus)
    state.index.flush_if_dirty()


def permitted_betas(state: QueueState, target: int) -> int:
    """How many messages may keep only their position in memory."""
    if state.count == 0:
        return UNLIMITED
    if state.lazy:
        return target
    segment = state.index.boundary_after(0)
    if target == 0:
        return min(len(state.q3), segment)
    held = state.count - len(state.q1) - len(state.q4)
    return max(segment, held - held * held // (held + target))


def alphas_to_betas(state: QueueState, quota: int) -> int:
    """Drops payloads of q1 from its front, then of q4 from its back; returns the remaining quota."""
    next_queue = state.q3 if state.delta.count == 0 and state.delta.transient == 0 else state.q2
    while (run := _alphas(state, state.q1, quota, from_back=False)) is not None:
        quota -= len(run)
        next_queue.push_back(_as_betas(state, run))
    state.end_batch()
    while (run := _alphas(state, state.q4, quota, from_back=True)) is not None:
        quota -= len(run)
        state.q3.push_front(_as_betas(state, run)[::-1])
    state.end_batch()
    return quota


def _as_betas(state: QueueState, run: MessageRun) -> MessageRun:
    run = state.write_index(state.write_payloads(run, True), False, True)
    trimmed = run.trimmed()
    state.count_in_memory(run, -1)
    state.count_in_memory(trimmed, 1)
    return trimmed


def _alphas(state: QueueState, queue: RunQueue, quota: int, from_back: bool) -> MessageRun | None:
    """Takes the messages that may leave memory until quota, target or credit is reached, in leaving order."""
    target = state.target_ram_count
    if quota == 0 or target is None or not len(queue) or state.credit.blocked:
        return None
    spare = state.ram_msg_count - target
    if spare <= 0:
        return None
    count = min(quota, len(queue))
    run = queue.peek_back(count)[::-1] if from_back else queue.peek_front(count)
    leaving = run.where(IN_RAM | TO_INDEX, IN_RAM)
    count = min(count, _until(leaving, spare))
    written = leaving & run.where(IN_STORE, 0)
    for credit, flag in ((state.credit.persistent, PERSISTENT), (state.credit.transient, 0)):
        count = min(count, _until(written & run.where(PERSISTENT, flag), credit.limit()))
    return queue.pop_back(count)[::-1] if from_back else queue.pop_front(count)


def _until(marked: SequenceIds | np.ndarray[tuple[int], np.dtype[np.bool_]], limit: int) -> int:
    """Number of messages up to and including the `limit`-th marked one; all if fewer are marked."""
    marked_at = np.flatnonzero(marked)
    return int(marked_at[limit - 1]) + 1 if limit <= len(marked_at) else len(marked)


def pending_to_disk(state: QueueState, quota: int) -> int:
    """Drops payloads of pending acks meant for the store, highest sequence ids first; returns the remaining quota."""
    run = state.pending.ram.take_largest(quota)[::-1]
    if len(run):
        written = state.write_index(state.write_payloads(run, True), False, True)
        trimmed = written.trimmed()
        state.count_in_memory(written, -1, ready=False)
        state.count_in_memory(trimmed, 1, ready=False)
        state.pending.disk.add(trimmed[::-1])
    state.end_batch()
    return quota - len(run)


def betas_to_delta(state: QueueState, quota: int) -> None:
    """Moves positions out of memory: from the back of q3 (in default mode except its first segment), then from q2."""
    if len(state.q3):
        first = state.q3.first_sequence_id()
        limit = first if state.lazy else state.index.boundary_after(first)
        if state.q3.last_sequence_id() >= limit:
            run = state.q3.pop_back(min(quota, state.q3.count_from(limit)))
            _to_delta(state, run[::-1])
            quota -= len(run)
            state.end_batch()
    if len(state.q2):
        run = state.q2.pop_front(quota)
        _to_delta(state, run)
        state.end_batch()


def _to_delta(state: QueueState, run: MessageRun) -> None:
    if len(run):
        run = state.write_index(run, True, True)
        state.count_in_memory(run, -1)
        state.into_delta(run)
