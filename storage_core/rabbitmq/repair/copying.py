"""Which files of a vhost's store are copied for a repair."""

from __future__ import annotations

from storage_core.files import system
from storage_core.job import FOLDER
from storage_core.rabbitmq.disk.running_node import check_not_running
from storage_core.repair.copying import Copies, copy_files, files_below, own_files


def copy_store(root: str, target: str) -> None:
    """Copies the store at `root` to `target`, which must be new, empty, or such a copy of the same store.

    Raises MqStoreError for another directory, StoreLockedError while a node runs on the store.
    """
    check_not_running(root)
    copy_files(root, target, lambda: _files(root, target))


def _files(root: str, target: str) -> Copies:
    for entry in system.entries(root):
        if entry.name != FOLDER:
            yield from files_below(f"{root}/{entry.name}", f"{target}/{entry.name}")
    yield from own_files(root, target)
