"""A vhost directory open for writing: its lock, its two message stores, its running queues, its clock.

What a caller sees is `queue`'s. One writer a store: a second one, or a node, is refused; two users in this process
share one. Source: rabbitmq.md 1, 4.1, 6.7; DESIGN 6.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import numpy as np

from storage_core.errors import FormatError, OptionError, StoreClosedError, UnsupportedFormatError
from storage_core.files import system
from storage_core.files.lock import FileLock
from storage_core.formats.rabbitmq import paths
from storage_core.formats.rabbitmq.paths import QueueName
from storage_core.rabbitmq import declared, definitions, recovery_terms
from storage_core.rabbitmq import message_store_recovery as store_recovery
from storage_core.rabbitmq.bulk_writer import check_not_running, finish_pending
from storage_core.rabbitmq.index_recovery import references
from storage_core.rabbitmq.index_segment import remove
from storage_core.rabbitmq.live_queue import LiveQueue, Surroundings, open_index
from storage_core.rabbitmq.memory_monitor import UPDATE_INTERVAL_S, MemoryMonitor
from storage_core.rabbitmq.message_store import read_places
from storage_core.rabbitmq.message_store_writer import MessageStore
from storage_core.rabbitmq.queue_files import QueueDirectory, list_directories
from storage_core.rabbitmq.recovery_terms import QueueTerms
from storage_core.rabbitmq.settings import Settings
from storage_core.rabbitmq.snapshot import VhostSnapshot
from storage_core.rabbitmq.span_reader import read_file

LOCK_TIMEOUT_S = 60.0
TICK_INTERVAL_S = 0.2
OWN_FOLDER = ".mqstore"


class LiveVhost:
    """Opening brings every queue up after a crash, and only those that are asked for after a clean stop."""

    def __init__(
        self,
        root: str,
        settings: Settings,
        vhost: bytes | None = None,
        lock_timeout_s: float = LOCK_TIMEOUT_S,
        clock: Callable[[], float] = time.monotonic,
        ticking: bool = True,
    ) -> None:
        """Raises StoreLockedError, UnsupportedFormatError, CorruptionError; OptionError for another vhost's name."""
        self.root, self.clock = root, clock
        self.mutex = threading.RLock()
        self.queues: dict[str, LiveQueue] = {}
        self.failure: BaseException | None = None
        self.closed = False
        self._stopped = threading.Event()
        limit = settings.msg_store_file_size_limit
        self.persistent = MessageStore(f"{root}/{paths.PERSISTENT_FOLDER}", limit, durable=True)
        self.transient = MessageStore(f"{root}/{paths.TRANSIENT_FOLDER}", limit, durable=False)
        system.make_folder(f"{root}/{OWN_FOLDER}")
        self._lock = FileLock(f"{root}/{OWN_FOLDER}/lock", lock_timeout_s, "another mqstore writer")
        try:
            check_not_running(system.real_path(root))
            finish_pending(root)
            directories = list_directories(root)
            self.name = self._vhost_name(vhost, directories)
            self.settings = replace(settings, queue_index_segment_entry_count=self._entry_count(settings, directories))
            self.monitor = self._monitor()
            self._shared = Surroundings(root, self.settings, self.persistent, self.transient, self.monitor, clock)
            self._terms: dict[str, QueueTerms] = {}
            self._arguments = self._declared()
            self._open(directories)
        except BaseException as error:
            self.abandon(error)
            raise
        self._updated = clock()
        self._ticker = threading.Thread(target=self._tick_on, name="mqstore-rabbitmq", daemon=True)
        if ticking:
            self._ticker.start()

    # opening

    def _vhost_name(self, wanted: bytes | None, directories: list[QueueDirectory]) -> bytes:
        known = read_file(f"{self.root}/{paths.VHOST_FILE}")
        if not known:
            stubs = (found.name.vhost for found in directories if found.name is not None)
            known = next(stubs, b"/" if wanted is None else wanted)
            store_recovery.write_whole(f"{self.root}/{paths.VHOST_FILE}", known)
        if wanted is not None and wanted != known:
            shown = known.decode(errors="replace")
            raise OptionError("vhost", wanted.decode(errors="replace"), f"{self.root} belongs to the vhost {shown!r}")
        return known

    def _entry_count(self, settings: Settings, directories: list[QueueDirectory]) -> int:
        path = f"{self.root}/{paths.CONFIG_FILE}"
        if system.exists(path):
            return paths.parse_config(read_file(path))
        count = paths.LEGACY_SEGMENT_ENTRY_COUNT if directories else settings.queue_index_segment_entry_count
        store_recovery.write_whole(path, paths.encode_config(count))
        return count

    def _declared(self) -> dict[str, dict[str, Any]]:
        """Arguments by queue name, as long as the notes of the last stop are there."""
        count = self.settings.queue_index_segment_entry_count
        return declared.arguments_by_queue(
            VhostSnapshot(self.root, "", self.name.decode(errors="replace"), count, True)
        )

    def _monitor(self) -> MemoryMonitor:
        share = self.settings.vm_memory_high_watermark
        limit = int(share * system.memory_total()) if share <= 1 else int(share)
        return MemoryMonitor(limit, self.settings.vm_memory_high_watermark_paging_ratio)

    def _open(self, directories: list[QueueDirectory]) -> None:
        for found in directories:
            if found.version == 2:
                place = f"{self.root}/{paths.QUEUES_FOLDER}/{found.directory}"
                raise UnsupportedFormatError(
                    f"UnsupportedFormatError: {place}: a queue of version 2 can be read, a store that has one is not "
                    "written; make the queue version 1 on its node"
                )
        persistent = self.persistent.directory
        terms = self._read_terms()
        clients = [found.client for found in terms.values() if found.client is not None]
        store_recovery.finish_compactions(persistent)
        places = read_places(self.root, clients)
        ids = np.empty(0, "V16") if places.clean else self._references(directories)
        self._empty(self.transient.directory)
        self.transient.start({}, {})
        if places.clean:
            store_recovery.start_clean(self.persistent, places)
        else:
            store_recovery.start_dirty(self.persistent, places, ids)
        # From here on the notes of the last stop are wrong as soon as something changes.
        remove(f"{self.root}/{paths.RECOVERY_FILE}")
        store_recovery.forget_clean_stop(persistent)
        self._terms = terms
        if not places.clean:
            for found in directories:
                self._start(found.directory, found.name, store_clean=False)

    def _read_terms(self) -> dict[str, QueueTerms]:
        """Terms by directory; none when there are none to be trusted."""
        try:
            return recovery_terms.decode(read_file(f"{self.root}/{paths.RECOVERY_FILE}"))
        except FormatError:
            return {}

    def _references(self, directories: list[QueueDirectory]) -> np.ndarray[tuple[int], np.dtype[np.void]]:
        found = [np.empty(0, "V16")]
        for directory in directories:
            index = open_index(self.root, directory.directory, directory.name, self.settings)
            found.append(references(index))
            index.abandon()
        return np.concatenate(found)

    def _empty(self, folder: str) -> None:
        if system.exists(folder):
            for name in system.names(folder):
                remove(f"{folder}/{name}")

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

    # use

    def max_priority(self, name: str, wanted: int | None) -> int | None:
        """The `x-max-priority` of a queue, that of a new one is `wanted`; None for one without priorities.

        OptionError when the queue is another one than is wanted.
        """
        if wanted is not None and not 0 <= wanted <= paths.MAX_PRIORITY:
            raise OptionError("max_priority", str(wanted), f"it is a number from 0 to {paths.MAX_PRIORITY}")
        known = self._arguments.get(name, {}).get(declared.MAX_PRIORITY)
        found = known if isinstance(known, int) else None
        if wanted is None or wanted == found:
            return found
        if self._has(name.encode()):
            fact = "is no priority queue" if found is None else f"has {found}"
            raise OptionError("max_priority", str(wanted), f"the queue {name} is there already and {fact}")
        return wanted

    def _has(self, name: bytes) -> bool:
        """Whether the queue has files, terms of the last stop, or runs; definitions may be those of another store."""
        known = {*self.queues, *self._terms, *(found.directory for found in list_directories(self.root))}
        possible = (None, *range(paths.MAX_PRIORITY + 1))
        return any(paths.queue_directory(self.name, name, priority) in known for priority in possible)

    def declare(self, name: str, max_priority: int | None) -> None:
        """Notes a durable queue for the definitions beside the store."""
        given = self._arguments.setdefault(name, {})
        if max_priority is not None:
            given[declared.MAX_PRIORITY] = max_priority

    def queue(self, name: bytes, priority: int | None, durable: bool) -> LiveQueue:
        """The queue called `name`, started or made when it does not run yet."""
        directory = paths.queue_directory(self.name, name, priority)
        found = self.queues.get(directory)
        if found is not None:
            return found
        known = QueueName(self.name, name, priority, 1)
        if directory in self._terms or system.exists(f"{self.root}/{paths.QUEUES_FOLDER}/{directory}"):
            return self._start(directory, known, store_clean=True)
        found = self.queues[directory] = LiveQueue(self._shared, directory, known, durable)
        found.create()
        return found

    @contextmanager
    def working(self) -> Iterator[None]:
        """Holds the mutex around an operation. One that fails half-way leaves the store to the next opening."""
        with self.mutex:
            if self.failure is not None:
                raise StoreClosedError(
                    f"StoreClosedError: {self.root}: an earlier operation failed ({self.failure}); open the store anew"
                )
            if self.closed:
                raise StoreClosedError(f"StoreClosedError: {self.root} was closed; open the store anew")
            try:
                yield
            except OSError as error:
                self.abandon(error)
                raise

    def _tick_on(self) -> None:
        while not self._stopped.wait(TICK_INTERVAL_S):
            with self.mutex:
                if self.closed:
                    return
                try:
                    self.tick(self.clock())
                except OSError as error:
                    self.abandon(error)
                    return

    def tick(self, now: float) -> None:
        """What happens by the clock."""
        if now - self._updated >= UPDATE_INTERVAL_S:
            self._updated = now
            self.monitor.update()
        for queue in self.queues.values():
            queue.tick(now)
        self.persistent.sync()

    # stopping

    def close(self) -> None:
        """A clean stop: the next start, a node's too, knows what was delivered."""
        with self.mutex:
            if self.closed:
                return
            terms = {**self._terms, **{directory: queue.stop() for directory, queue in self.queues.items()}}
            self.persistent.close()
            self.transient.close()
            clients = [found.client for found in terms.values() if found.client is not None]
            store_recovery.write_clean_stop(self.persistent, clients)
            path = f"{self.root}/{paths.RECOVERY_FILE}"
            store_recovery.write_whole(f"{path}.new", recovery_terms.encode(terms.values()))
            system.rename(f"{path}.new", path)
            system.sync_folder(self.root)
            self._end()
            # The store is stopped; where its folder may not be written, `mqstore definitions` says the same.
            with suppress(PermissionError):
                definitions.write(self.root, self.name.decode(errors="replace"), self._arguments)

    def abandon(self, error: BaseException) -> None:
        """Lets go as a killed process does."""
        with self.mutex:
            self.failure = error
            for queue in self.queues.values():
                queue.index.abandon()
            self.persistent.abandon()
            self.transient.abandon()
            self._end()

    def _end(self) -> None:
        self.closed = True
        self._stopped.set()
        self._lock.close()


_RUNNING: dict[str, LiveVhost] = {}
_USERS: dict[str, int] = {}
_REGISTRY = threading.Lock()


def acquire(root: str, settings: Settings, vhost: bytes | None, lock_timeout_s: float) -> LiveVhost:
    """The running vhost of a directory, opened by its first user in this process."""
    key = system.real_path(root)
    with _REGISTRY:
        found = _RUNNING.get(key)
        if found is None or found.closed:
            found = _RUNNING[key] = LiveVhost(root, settings, vhost, lock_timeout_s)
            _USERS[key] = 0
        _USERS[key] += 1
        return found


def release(vhost: LiveVhost) -> None:
    """A user is done; the last one stops the vhost cleanly."""
    key = system.real_path(vhost.root)
    with _REGISTRY:
        if _RUNNING.get(key) is not vhost:
            return
        _USERS[key] -= 1
        if _USERS[key] == 0:
            del _RUNNING[key], _USERS[key]
            vhost.close()
