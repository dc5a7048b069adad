"""Which files of a vhost's store are copied for a repair."""

from __future__ import annotations

from collections.abc import Iterator

from storage_core.files import system
from storage_core.job import FOLDER
from storage_core.rabbitmq.disk.running_node import check_not_running
from storage_core.repair.copying import Copies, copy_files, files_below, own_parts

MESSAGES = "msg_store_"


def copy_store(root: str, target: str) -> None:
    """Copies the store at `root` to `target`, which must be new, empty, or an earlier copy of the same store.

    Raises MqStoreError for any other directory, StoreLockedError while a node is running on the store.
    """
    check_not_running(root)
    copy_files(root, target, lambda: _files(root, target))


def _files(root: str, target: str) -> Copies:
    for path, name in parts_of(root):
        yield from files_below(path, f"{target}/{name}")


def parts_of(root: str) -> Iterator[tuple[str, str]]:
    """The files and folders of a store, and the name of each in a copy, messages first."""
    for name in sorted(system.names(root), key=lambda name: (not name.startswith(MESSAGES), name)):
        if name != FOLDER:
            yield f"{root}/{name}", name
    yield from own_parts(root)
