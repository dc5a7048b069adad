"""A vhost that is open for writing: its two message stores, its running queues, its clock.

`opening` opens it; its public interface is in `queue`. Source: rabbitmq.md 4.3, 6.7; commit-protocol.md 15.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from storage_core.errors import OptionError, StoreClosedError
from storage_core.files import system
from storage_core.files.lock import FileLock
from storage_core.files.small_file import write_synced
from storage_core.formats.rabbitmq import paths
from storage_core.formats.rabbitmq.paths import QueueName
from storage_core.rabbitmq.disk import definitions, recovery_terms
from storage_core.rabbitmq.disk.recovery_terms import QueueTerms
from storage_core.rabbitmq.index.queue_directory import QueueDirectory, list_directories
from storage_core.rabbitmq.message_store.startup import write_clean_stop
from storage_core.rabbitmq.queue.live_queue import LiveQueue, Surroundings
from storage_core.rabbitmq.queue.memory_monitor import UPDATE_INTERVAL_S
from storage_core.rabbitmq.read.declared import MAX_PRIORITY

TICK_INTERVAL_S = 0.2


class LiveVhost:
    """`name` is the vhost's name, `arguments` are those its queues were declared with, `terms` are the terms of the
    last stop for the queues that are not running yet. All work on its queues is done inside `working`.
    """

    def __init__(
        self,
        shared: Surroundings,
        name: bytes,
        arguments: dict[str, dict[str, Any]],
        terms: Mapping[str, QueueTerms],
        lock: FileLock,
    ) -> None:
        self.root, self.settings, self.name = shared.root, shared.settings, name
        self.mutex = threading.RLock()
        self.queues: dict[str, LiveQueue] = {}
        self.failure: BaseException | None = None
        self.closed = False
        self.monitor = shared.monitor
        self._shared, self._arguments, self._terms, self._lock = shared, arguments, dict(terms), lock
        self._updated = shared.clock()
        self._stopped = threading.Event()

    # queues

    def recover(self, directories: list[QueueDirectory]) -> None:
        """Starts every queue after a crash."""
        for directory in directories:
            self._start(directory.directory, directory.name, store_clean=False)

    def _start(self, directory: str, name: QueueName | None, store_clean: bool) -> LiveQueue:
        queue = LiveQueue(self._shared, directory, name)
        try:
            queue.start(self._terms.get(directory), store_clean)
        except BaseException:
            queue.index.abandon()
            raise
        self._terms.pop(directory, None)
        self.queues[directory] = queue
        return queue

    def queue(self, name: bytes, priority: int | None, durable: bool) -> LiveQueue:
        """The queue called `name`, started or created if it is not running yet."""
        directory = paths.queue_directory(self.name, name, priority)
        running = self.queues.get(directory)
        if running is not None:
            return running
        known = QueueName(self.name, name, priority, 1)
        if directory in self._terms or system.exists(f"{self.root}/{paths.QUEUES_FOLDER}/{directory}"):
            return self._start(directory, known, store_clean=True)
        queue = self.queues[directory] = LiveQueue(self._shared, directory, known, durable)
        queue.create()
        return queue

    def max_priority(self, name: str, wanted: int | None) -> int | None:
        """The `x-max-priority` of a queue, `wanted` for a new one; None for a queue without priorities.

        Raises OptionError if `wanted` is out of range, or if the existing queue does not match it.
        """
        if wanted is not None and not 0 <= wanted <= paths.MAX_PRIORITY:
            raise OptionError("max_priority", str(wanted), f"it is a number from 0 to {paths.MAX_PRIORITY}")
        known = self._arguments.get(name, {}).get(MAX_PRIORITY)
        own = known if isinstance(known, int) else None
        if wanted is None or wanted == own:
            return own
        if self._has(name.encode()):
            fact = "is not a priority queue" if own is None else f"has {own}"
            raise OptionError("max_priority", str(wanted), f"the queue {name} already exists and {fact}")
        return wanted

    def _has(self, name: bytes) -> bool:
        """Whether the queue has files or terms, or is running. Definitions do not count: another store may own them."""
        on_disk = (listed.directory for listed in list_directories(self.root))
        known = {*self.queues, *self._terms, *on_disk}
        possible = (None, *range(paths.MAX_PRIORITY + 1))
        return any(paths.queue_directory(self.name, name, priority) in known for priority in possible)

    def declare(self, name: str, max_priority: int | None) -> None:
        """Records a durable queue for the definitions beside the store."""
        arguments = self._arguments.setdefault(name, {})
        if max_priority is not None:
            arguments[MAX_PRIORITY] = max_priority

    # use

    @contextmanager
    def working(self) -> Iterator[None]:
        """Holds the mutex around an operation. One that fails half-way abandons the vhost until it is reopened."""
        with self.mutex:
            if self.failure is not None:
                raise StoreClosedError(f"{self.root}: an earlier operation failed ({self.failure}); open it again")
            if self.closed:
                raise StoreClosedError(f"{self.root}: the store was closed; open it again")
            try:
                yield
            except OSError as error:
                self.abandon(error)
                raise

    def start_clock(self) -> None:
        """Does a node's periodic work, in a separate thread, until the vhost is closed."""
        threading.Thread(target=self._tick_on, name="mqstore-rabbitmq", daemon=True).start()

    def _tick_on(self) -> None:
        while not self._stopped.wait(TICK_INTERVAL_S):
            with self.mutex:
                if self.closed:
                    return
                try:
                    self.tick(self._shared.clock())
                except OSError as error:
                    self.abandon(error)
                    return

    def tick(self, now: float) -> None:
        """Does the periodic work."""
        if now - self._updated >= UPDATE_INTERVAL_S:
            self._updated = now
            self.monitor.update()
        for queue in self.queues.values():
            queue.tick(now)
        self._shared.persistent.sync()

    # stopping

    def close(self) -> None:
        """Stops cleanly: the next startup, also a node's, knows what was delivered.

        If that fails, abandons the vhost.
        """
        with self.mutex:
            if self.closed:
                return
            try:
                self._stop()
            except BaseException as error:
                self.abandon(error)
                raise
            self._end()
            # The store is already stopped; if its folder is not writable, `mqstore definitions` outputs the same.
            with suppress(PermissionError):
                definitions.write(self.root, self.name.decode(errors="replace"), self._arguments)

    def _stop(self) -> None:
        terms = {**self._terms, **{directory: queue.stop() for directory, queue in self.queues.items()}}
        self._shared.persistent.close()
        self._shared.transient.close()
        clients = [queue.client for queue in terms.values() if queue.client is not None]
        write_clean_stop(self._shared.persistent, clients)
        path = f"{self.root}/{paths.RECOVERY_FILE}"
        write_synced(f"{path}.new", recovery_terms.encode(terms.values()))
        system.rename(f"{path}.new", path)
        system.sync_folder(self.root)

    def abandon(self, error: BaseException) -> None:
        """Releases everything as a killed process would."""
        with self.mutex:
            self.failure = error
            for queue in self.queues.values():
                queue.index.abandon()
            self._shared.persistent.abandon()
            self._shared.transient.abandon()
            self._end()

    def _end(self) -> None:
        self.closed = True
        self._stopped.set()
        self._lock.close()
