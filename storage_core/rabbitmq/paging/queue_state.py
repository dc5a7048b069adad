"""The state of one paging queue and the steps that all its operations are made of: write, count, load, take.

The operations are in `paging_queue`, the moves out of memory in `memory_reduction`. Source: rabbitmq.md 7.1,
7.2, 7.6, 7.7.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from storage_core.errors import CorruptionError
from storage_core.formats.layout import Mask
from storage_core.formats.rabbitmq.paths import RECOVERY_FILE
from storage_core.rabbitmq.disk.settings import Settings
from storage_core.rabbitmq.index.message_run import (
    IN_RAM,
    IN_STORE,
    INDEX_ON_DISK,
    PERSISTENT,
    TO_INDEX,
    MessageRun,
    Rows,
    SequenceIds,
)
from storage_core.rabbitmq.index.queue_index import QueueIndex
from storage_core.rabbitmq.paging.credit import CreditFlow, StoreCredit
from storage_core.rabbitmq.paging.delta import Delta
from storage_core.rabbitmq.paging.message_deque import RunQueue
from storage_core.rabbitmq.paging.pending_acks import PendingAcks
from storage_core.rabbitmq.paging.rates import Rates

CHUNK = 2048
"""Most sequence ids that one load of delta covers, whatever the segment size."""


class PayloadStore(Protocol):
    """A message store as a queue sees it."""

    def write(self, ids: npt.NDArray[Any], terms: Sequence[bytes]) -> None:
        """Adds messages, or a reference to those already in the store."""

    def read(self, ids: npt.NDArray[Any]) -> list[bytes]:
        """The terms of messages in the store."""

    def remove(self, ids: npt.NDArray[Any]) -> None:
        """Removes one reference from each message."""

    def contains(self, ids: npt.NDArray[Any]) -> Mask:
        """Which messages are in the store."""

    def sync(self) -> None:
        """Forces written data to disk."""


class QueueState:
    """The state listed in rabbitmq.md 7.1. `clock` returns seconds that never go backwards."""

    def __init__(
        self,
        index: QueueIndex,
        persistent_store: PayloadStore,
        transient_store: PayloadStore,
        settings: Settings,
        durable: bool,
        clock: Callable[[], float],
    ) -> None:
        self.index, self.settings, self.durable = index, settings, durable
        self.persistent_store, self.transient_store = persistent_store, transient_store
        self.credit = CreditFlow(*settings.msg_store_credit_disc_bound)
        self.rates = Rates(clock)
        self.q1, self.q2, self.q3, self.q4 = RunQueue(), RunQueue(), RunQueue(), RunQueue()
        self.delta = Delta()
        self.pending = PendingAcks()
        self.lazy = False
        self.target_ram_count: int | None = None
        self.io_batch_size = settings.msg_store_io_batch_size
        self.waiting_bump = False
        self.next_sequence_id = self.next_deliver_sequence_id = self.transient_threshold = 0
        self.count = self.bytes = self.unacked_bytes = 0
        self.persistent_count = self.persistent_bytes = self.delta_transient_bytes = 0
        self.ram_msg_count = self.ram_bytes = 0
        self.disk_read_count = self.disk_write_count = 0
        self.memory_reduction_run_count = 0

    # counting

    def count_ready(self, run: MessageRun, sign: int) -> None:
        """Counts messages that become ready from outside the queue (1), or are ready and leave it for good (-1)."""
        size = run.body_bytes()
        self.count += sign * len(run)
        self.bytes += sign * size
        self.count_in_memory(run, sign)
        self.count_persistent(run, sign)

    def count_in_memory(self, run: MessageRun, sign: int, ready: bool = True) -> None:
        """Counts payloads that enter memory (1) or leave it (-1)."""
        held = run.has(IN_RAM)
        if ready:
            self.ram_msg_count += sign * int(np.count_nonzero(held))
        self.ram_bytes += sign * run.body_bytes(held)

    def count_persistent(self, run: MessageRun, sign: int) -> None:
        """Counts persistent messages that enter (1) or leave (-1) the queue, ready or pending."""
        persistent = run.has(PERSISTENT)
        self.persistent_count += sign * int(np.count_nonzero(persistent))
        self.persistent_bytes += sign * run.body_bytes(persistent)

    def count_pending(self, run: MessageRun, sign: int) -> None:
        """Counts ready messages that become pending (1) or the reverse (-1), with what they hold in memory."""
        size = run.body_bytes()
        self.count -= sign * len(run)
        self.bytes -= sign * size
        self.unacked_bytes += sign * size
        self.ram_msg_count -= sign * run.count(IN_RAM)

    # writing

    def write_payloads(self, run: MessageRun, force: bool) -> MessageRun:
        """Writes payloads destined for a store and not yet in one: the persistent ones, or all with `force`."""
        value = 0 if force else PERSISTENT
        wanted = run.where(IN_STORE | TO_INDEX | (0 if force else PERSISTENT), value)
        count = int(np.count_nonzero(wanted))
        if count == 0:
            return run
        for store, credit, chosen in self._by_store(run, wanted):
            store.write(run.ids[chosen], run.terms[chosen].tolist())
            credit.spend(int(np.count_nonzero(chosen)))
        self.disk_write_count += count
        rows = run.rows.copy()
        rows["flags"][wanted] |= np.uint8(IN_STORE)
        return MessageRun(rows, run.terms)

    def _by_store(self, run: MessageRun, chosen: Mask) -> list[tuple[PayloadStore, StoreCredit, Mask]]:
        persistent = run.has(PERSISTENT)
        parts = [
            (self.persistent_store, self.credit.persistent, chosen & persistent),
            (self.transient_store, self.credit.transient, chosen & ~persistent),
        ]
        return [part for part in parts if part[2].any()]

    def write_index(self, run: MessageRun, force: bool, batch: bool) -> MessageRun:
        """Writes index entries that are not on disk: those of the persistent messages, or all with `force`."""
        value = 0 if force else PERSISTENT
        wanted = run.where(INDEX_ON_DISK | (0 if force else PERSISTENT), value)
        if not wanted.any():
            return run
        chosen = run if wanted.all() else run[wanted]
        self.disk_write_count += chosen.count(TO_INDEX)
        if batch:
            self.index.publish_batch(chosen, self.target_ram_count)
        else:
            self.index.publish(chosen, self.target_ram_count)
        rows = run.rows.copy()
        rows["flags"][wanted] |= np.uint8(INDEX_ON_DISK)
        return MessageRun(rows, run.terms)

    def end_batch(self) -> None:
        """Writes out the index's batch."""
        self.index.end_batch(self.target_ram_count)

    def read_payloads(self, run: MessageRun) -> MessageRun:
        """Returns `run` with the payloads that are not in memory read from their stores."""
        missing = ~run.has(IN_RAM)
        if not missing.any():
            return run
        self.disk_read_count += int(np.count_nonzero(missing))
        for store, _, chosen in self._by_store(run, missing):
            run = run.with_payloads(chosen, store.read(run.ids[chosen]))
        return run

    def remove_payloads(self, run: MessageRun) -> None:
        """Drops the store references of removed messages."""
        stored = run.has(IN_STORE)
        if stored.any():
            for store, _, chosen in self._by_store(run, stored):
                store.remove(run.ids[chosen])

    # moving

    def into_delta(self, run: MessageRun, transient: Mask | None = None) -> None:
        """Adds messages whose index entries are on disk to delta, which keeps only their sequence ids."""
        if not len(run):
            return
        volatile = ~run.has(PERSISTENT)
        self.delta_transient_bytes += run.body_bytes(volatile)
        self.delta = self.delta.expanded(run.sequence_ids, volatile if transient is None else transient)

    def deliver(self, sequence_ids: SequenceIds) -> None:
        """Advances next_deliver_sequence_id past taken messages in order, stopping at the first gap."""
        at = self.next_deliver_sequence_id
        if len(sequence_ids) and sequence_ids[0] <= at <= sequence_ids[-1]:
            first = int(np.searchsorted(sequence_ids, at))
            follows = sequence_ids[first:] - at == np.arange(len(sequence_ids) - first)
            self.next_deliver_sequence_id += len(follows) if follows.all() else int(follows.argmin())

    def load_chunk(self, drop: bool = True) -> None:
        """Loads the next chunk of delta into q3; transient messages from before a restart are acked (if `drop`).

        Raises CorruptionError if the terms of the last stop count messages that the index does not have.
        """
        while not self.delta.blank and self.delta.start is not None and self.delta.stop is not None:
            start, stop = self.delta.start, self.delta.stop
            upper = min(self.index.boundary_after(start), start + CHUNK, stop)
            if upper <= start and self.delta.count:
                raise CorruptionError(
                    self.index.directory, 0, f"{RECOVERY_FILE} counts {self.delta.count} more messages than the index "
                    f"has up to sequence id {stop}; run `mqstore repair STORE --to DIR`",
                )  # fmt: skip
            kept = self._without_lost(self.index.read(start, upper), drop)
            if len(self.pending):
                kept = kept[~self.pending.find(kept.sequence_ids)]
            if not len(kept):
                self.delta = Delta(upper, self.delta.count, self.delta.transient, stop)
                continue
            self.disk_read_count += kept.count(IN_RAM)
            self.count_in_memory(kept, 1)
            self.q3.push_back(kept)
            if self.delta.count == len(kept):
                self.delta = Delta()
                self.delta_transient_bytes = 0
                self.q3.append_queue(self.q2)
            else:
                volatile = ~kept.has(PERSISTENT)
                self.delta_transient_bytes -= kept.body_bytes(volatile)
                left = self.delta.transient - int(np.count_nonzero(volatile))
                self.delta = Delta(upper, self.delta.count - len(kept), left, stop)
            return

    def _without_lost(self, run: MessageRun, drop: bool) -> MessageRun:
        lost = ~run.has(PERSISTENT) & (run.sequence_ids < self.transient_threshold)
        if not lost.any():
            return run
        sequence_ids = run.sequence_ids[lost]
        if (sequence_ids == self.next_deliver_sequence_id).any():
            self.next_deliver_sequence_id += 1
        if drop:
            self.index.ack(sequence_ids)
        return run[~lost]

    def take_front(self, count: int) -> MessageRun:
        """Takes consecutive messages from the front: at most `count`, none only if the queue is empty.

        The last message of q3 is taken alone, so that what follows is loaded after it, as when taking one by one.
        """
        if not self.lazy and len(self.q4):
            return self.q4.pop_front(min(count, len(self.q4)))
        if self.lazy and not len(self.q3) and self.delta.count:
            self.load_chunk()
        held = len(self.q3)
        taken = self.q3.pop_front(min(count, held - 1) if held > 1 else count)
        if not self.lazy and held and not len(self.q3):
            if self.delta.count:
                self.load_chunk()
            else:
                self.q1, self.q4 = RunQueue(), self.q1
        return taken

    def front_row(self) -> Rows | None:
        """The ROW of the message at the front; None if it is not in memory."""
        for queue in (self.q4, self.q3):
            if len(queue):
                return queue.first_row()
        return None

    def put_back(self, run: MessageRun) -> None:
        """Puts the message that was just taken back at the front."""
        if self.lazy and not len(self.q3):
            run = self.write_index(self.write_payloads(run, True), True, batch=False)
            self.count_in_memory(run, -1)
            self.into_delta(run)
        elif self.lazy or (not run.has(IN_RAM).all() and not len(self.q4)):
            self.q3.push_front(run)
        elif run.has(IN_RAM).all():
            self.q4.push_front(run)
        else:
            run = self.read_payloads(run)
            self.count_in_memory(run, 1)
            self.q4.push_front(run)
