"""Opens a vhost's directory for writing: the lock, the recovery that comes first, the message stores and queues.

A store has one writer: opening fails while another writer or a node has it open; users in this process share one.
Source: rabbitmq.md 1, 4.1, 6.7; commit-protocol.md 15.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from storage_core.errors import FormatError, OptionError
from storage_core.files import system
from storage_core.files.lock import FileLock
from storage_core.files.small_file import remove_file, write_synced
from storage_core.formats.rabbitmq import paths
from storage_core.formats.rabbitmq.erlang import dets
from storage_core.job import JobFolder, drop_orphans
from storage_core.rabbitmq.disk import recovery_terms
from storage_core.rabbitmq.disk.recovery_terms import QueueTerms
from storage_core.rabbitmq.disk.running_node import check_not_running
from storage_core.rabbitmq.disk.settings import Settings
from storage_core.rabbitmq.disk.span_reader import read_table
from storage_core.rabbitmq.disk.vhost_config import check_writable, entry_count
from storage_core.rabbitmq.disk.vhost_name import vhost_flaw, vhost_name
from storage_core.rabbitmq.index.index_recovery import references
from storage_core.rabbitmq.index.queue_directory import QueueDirectory, check_versions, list_directories
from storage_core.rabbitmq.message_store import startup
from storage_core.rabbitmq.message_store.locations import read_locations
from storage_core.rabbitmq.message_store.message_store import MessageStore
from storage_core.rabbitmq.queue.live_queue import Surroundings, open_index
from storage_core.rabbitmq.queue.live_vhost import LiveVhost
from storage_core.rabbitmq.queue.memory_monitor import MemoryMonitor
from storage_core.rabbitmq.read import declared
from storage_core.rabbitmq.read.snapshot import VhostSnapshot
from storage_core.rabbitmq.write.publish import finish_pending

LOCK_TIMEOUT_S = 60.0


def open_vhost(
    root: str,
    settings: Settings,
    vhost: bytes | None = None,
    lock_timeout_s: float = LOCK_TIMEOUT_S,
    clock: Callable[[], float] = time.monotonic,
    ticking: bool = True,
) -> LiveVhost:
    """Opens the vhost in the directory `root`, which is created if missing.

    After a crash every queue is started, after a clean stop only requested ones. Raises StoreLockedError,
    UnsupportedFormatError, CorruptionError, and OptionError for another vhost's name.
    """
    job_folder = JobFolder(root)
    system.make_folder(job_folder.folder)
    lock = FileLock(job_folder.lock, lock_timeout_s, "another writer of mqstore; try again when it is done")
    try:
        check_not_running(root)
        finish_pending(root)
        drop_orphans(job_folder, set())
        directories = list_directories(root)
        check_versions(root, directories)
        name = _vhost_name(root, vhost, directories)
        settings = replace(settings, queue_index_segment_entry_count=_entry_count(root, settings, directories))
        shared = Surroundings(root, settings, *_message_stores(root, settings), _monitor(settings), clock)
        terms = _read_terms(root)
        snapshot = VhostSnapshot(
            root, "", name.decode(errors="replace"), settings.queue_index_segment_entry_count, True
        )
        opened = LiveVhost(shared, name, declared.arguments_by_queue(snapshot), terms, lock)
    except BaseException:
        lock.close()
        raise
    try:
        if not _start_stores(shared, terms, directories):
            opened.recover(directories)
    except BaseException as error:
        opened.abandon(error)
        raise
    if ticking:
        opened.start_clock()
    return opened


def _vhost_name(root: str, wanted: bytes | None, directories: list[QueueDirectory]) -> bytes:
    """The name in `.vhost`, else in a queue's stub, else `wanted`; writes `.vhost` if it is missing or wrong."""
    known = vhost_name(root) if system.exists(f"{root}/{paths.VHOST_FILE}") else b""
    if known and vhost_flaw(root) is not None:
        write_synced(f"{root}/{paths.VHOST_FILE}", known)
    if not known:
        stubs = (directory.name.vhost for directory in directories if directory.name is not None)
        known = next(stubs, b"/" if wanted is None else wanted)
        write_synced(f"{root}/{paths.VHOST_FILE}", known)
    if wanted is not None and wanted != known:
        shown = known.decode(errors="replace")
        raise OptionError("vhost", wanted.decode(errors="replace"), f"{root} belongs to the vhost {shown!r}")
    return known


def _entry_count(root: str, settings: Settings, directories: list[QueueDirectory]) -> int:
    """The segment entry count in `.config`; writes the file if it is missing."""
    path = f"{root}/{paths.CONFIG_FILE}"
    if system.exists(path):
        count = entry_count(root)
        check_writable(root, count)
        return count
    count = paths.LEGACY_SEGMENT_ENTRY_COUNT if directories else settings.queue_index_segment_entry_count
    write_synced(path, paths.encode_config(count))
    return count


def _message_stores(root: str, settings: Settings) -> tuple[MessageStore, MessageStore]:
    limit = settings.msg_store_file_size_limit
    persistent = MessageStore(f"{root}/{paths.PERSISTENT_FOLDER}", limit, durable=True)
    return persistent, MessageStore(f"{root}/{paths.TRANSIENT_FOLDER}", limit, durable=False)


def _monitor(settings: Settings) -> MemoryMonitor:
    share = settings.vm_memory_high_watermark
    limit = int(share * system.memory_total()) if share <= 1 else int(share)
    return MemoryMonitor(limit, settings.vm_memory_high_watermark_paging_ratio)


def _read_terms(root: str) -> dict[str, QueueTerms]:
    """Terms by directory; empty if there are none that can be trusted."""
    try:
        return recovery_terms.decode(read_table(f"{root}/{paths.RECOVERY_FILE}", *dets.HEAD))
    except FormatError:
        return {}


def _start_stores(shared: Surroundings, terms: dict[str, QueueTerms], directories: list[QueueDirectory]) -> bool:
    """Starts both message stores and removes the notes of the last stop; returns whether that stop was clean."""
    persistent, transient = shared.persistent, shared.transient
    clients = [queue.client for queue in terms.values() if queue.client is not None]
    startup.finish_compactions(persistent.directory)
    locations = read_locations(shared.root, clients)
    ids = np.empty(0, "V16") if locations.clean else _references(shared, directories)
    if system.exists(transient.directory):
        for name in system.names(transient.directory):
            remove_file(f"{transient.directory}/{name}")
    transient.start({}, {})
    if locations.clean:
        startup.start_clean(persistent, locations)
    else:
        startup.start_dirty(persistent, locations, ids)
    # From here on the notes of the last stop are wrong as soon as something changes.
    remove_file(f"{shared.root}/{paths.RECOVERY_FILE}")
    startup.forget_clean_stop(persistent.directory)
    for folder in (persistent.directory, shared.root):
        system.sync_folder(folder)
    return locations.clean


def _references(shared: Surroundings, directories: list[QueueDirectory]) -> npt.NDArray[np.void]:
    """One id for each reference from a queue's index to the persistent store."""
    parts = [np.empty(0, "V16")]
    for directory in directories:
        index = open_index(shared.root, directory.directory, directory.name, shared.settings)
        parts.append(references(index))
        index.abandon()
    return np.concatenate(parts)


_RUNNING: dict[str, LiveVhost] = {}
_USERS: dict[str, int] = {}
_REGISTRY = threading.Lock()


def acquire(root: str, settings: Settings, vhost: bytes | None, lock_timeout_s: float) -> LiveVhost:
    """The running vhost of a directory, opened by its first user in this process."""
    key = system.real_path(root)
    with _REGISTRY:
        running = _RUNNING.get(key)
        if running is None or running.closed:
            running = _RUNNING[key] = open_vhost(root, settings, vhost, lock_timeout_s)
            _USERS[key] = 0
        _USERS[key] += 1
        return running


def release(vhost: LiveVhost) -> None:
    """Ends one user's use of the vhost; the last one stops it cleanly."""
    key = system.real_path(vhost.root)
    with _REGISTRY:
        if _RUNNING.get(key) is not vhost:
            return
        _USERS[key] -= 1
        if _USERS[key] == 0:
            del _RUNNING[key], _USERS[key]
            vhost.close()
