"""Whether a node is using a store: its pid file names a live process, or a process has one of its files open."""

from __future__ import annotations

from storage_core.errors import StoreLockedError
from storage_core.files import system
from storage_core.job import FOLDER
from storage_core.rabbitmq.disk.detect import node_directory
from storage_core.rabbitmq.disk.span_reader import read_file


def is_running(root: str) -> bool:
    """Whether a node is using the store `root`, as far as this user can see."""
    try:
        check_not_running(root)
    except StoreLockedError:
        return True
    return False


def check_not_running(root: str) -> None:
    """Raises StoreLockedError if a node is using the store `root`, or another process has one of its files open; those
    of mqstore's own folder, as another writer has, do not count. Source: commit-protocol.md 15.

    Cannot detect this for a store that is not on a disk of this machine.
    """
    if not system.is_local(root):
        return
    real = system.real_path(root)
    noted = read_file(f"{node_directory(real)}.pid").strip()
    if noted.isdigit() and system.process_start(int(noted)) is not None:
        raise StoreLockedError(f"{root} is locked by a running node (pid {int(noted)}); stop it first")
    for pid in system.holders_below(real, FOLDER):
        raise StoreLockedError(f"{root} is locked by process {pid}, which has a file of it open")
