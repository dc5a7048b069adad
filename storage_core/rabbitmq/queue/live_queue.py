"""One queue of a store that is open for writing: its paging queue, how it starts, and what it leaves at its stop.

Its public interface is in `queue`, the store around it in `live_vhost`. Source: rabbitmq.md 4.2, 4.3, 5.1, 7.9.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass

from storage_core.formats.layout import Mask
from storage_core.formats.rabbitmq import paths
from storage_core.formats.rabbitmq.paths import QueueName
from storage_core.rabbitmq.disk.recovery_terms import QueueTerms
from storage_core.rabbitmq.disk.settings import Settings
from storage_core.rabbitmq.index.index_recovery import recover_clean, recover_dirty
from storage_core.rabbitmq.index.message_run import MessageRun, Rows
from storage_core.rabbitmq.index.queue_index import QueueIndex
from storage_core.rabbitmq.message_store.message_store import MessageStore
from storage_core.rabbitmq.paging.paging_queue import PagingQueue
from storage_core.rabbitmq.paging.queue_state import QueueState
from storage_core.rabbitmq.queue.memory_monitor import REPORT_INTERVAL_S, MemoryMonitor

HIBERNATE_AFTER_S = 1.0


@dataclass(frozen=True)
class Surroundings:
    """What the queues of one vhost share. `clock` returns seconds that never go backwards."""

    root: str
    settings: Settings
    persistent: MessageStore
    transient: MessageStore
    monitor: MemoryMonitor
    clock: Callable[[], float]


class LiveQueue:
    """A running queue. Every call needs the vhost's mutex."""

    def __init__(self, shared: Surroundings, directory: str, name: QueueName | None, durable: bool = True) -> None:
        self.shared, self.directory, self.name, self.durable = shared, directory, name, durable
        self.client = secrets.token_bytes(16)
        self.index = open_index(shared.root, directory, name, shared.settings)
        state = QueueState(self.index, shared.persistent, shared.transient, shared.settings, durable, shared.clock)
        self.paging = PagingQueue(state)
        self._used = self._reported = shared.clock()

    def start(self, terms: QueueTerms | None, store_clean: bool) -> None:
        """Starts from what the last stop or crash left."""
        if terms is not None:
            self.client = terms.client or self.client
        if terms is not None and terms.segments is not None and store_clean:
            recover_clean(self.index, terms.segments)
            self.paging.start(terms, None)
        else:
            self.paging.start(terms, recover_dirty(self.index, self.durable, terms is not None, self._contained))
        self._begin()

    def create(self) -> None:
        """Starts a new queue."""
        self._begin()

    def _begin(self) -> None:
        if self.shared.settings.target_ram_count is not None:
            self.paging.set_target_ram_count(self.shared.settings.target_ram_count)
        self.shared.monitor.register(self.directory, self.paging.set_ram_duration_target)
        self.paging.settle()

    def _contained(self, run: MessageRun) -> Mask:
        return self.shared.persistent.contains(run.ids)

    def used(self) -> None:
        """Completes the pending work of an operation and notes that the queue is active."""
        self.paging.settle()
        self._used = self.shared.clock()

    def drop_expired(self, now_us: int) -> None:
        """Removes expired messages from the front, as a node does before it delivers."""

        def over(rows: Rows) -> Mask:
            found: Mask = (rows["expiry"] != 0) & (rows["expiry"] <= now_us)
            return found

        front = self.paging.state.front_row()
        if front is None or over(front):
            self.paging.drop_while(over)

    def sync(self) -> None:
        """Forces everything published and acknowledged so far to disk."""
        self.shared.persistent.sync()
        self.index.sync()

    def tick(self, now: float) -> None:
        """Does a node's periodic work: syncs, flushes when idle, reports to the memory monitor."""
        if self.index.journal.pending:
            self.sync()
        idle = now - self._used >= HIBERNATE_AFTER_S
        if idle and self.index.dirty_count:
            self.index.flush_if_dirty()
        if now - self._reported >= REPORT_INTERVAL_S and self.shared.settings.target_ram_count is None:
            self._reported = now
            self.paging.set_ram_duration_target(self.shared.monitor.report(self.directory, self.paging.ram_duration()))
            self.paging.settle()

    def stop(self) -> QueueTerms:
        """Stops cleanly; returns what to write to recovery.dets. Removes the files of a queue that is not durable."""
        self.shared.monitor.deregister(self.directory)
        if not self.durable:
            self.index.reset()
        return self.paging.stop(self.directory, self.client if self.durable else None)


def open_index(root: str, directory: str, name: QueueName | None, settings: Settings) -> QueueIndex:
    """The index of the queue directory called `directory`."""
    stub = paths.encode_stub(name) if name is not None else None
    return QueueIndex(
        f"{root}/{paths.QUEUES_FOLDER}/{directory}",
        stub,
        settings.queue_index_segment_entry_count,
        settings.queue_index_max_journal_entries,
    )
