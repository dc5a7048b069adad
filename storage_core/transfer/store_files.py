"""Which files a copy of a store includes, for any engine, and how brokers are kept away from them meanwhile."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass

from storage_core.errors import DiskError, MqStoreError, StoreLockedError
from storage_core.files import system
from storage_core.files.lock import FileLock, is_locked
from storage_core.files.small_file import names_in
from storage_core.job import JobFolder
from storage_core.options.option import ROCKETMQ
from storage_core.rabbitmq.disk.running_node import check_not_running
from storage_core.rabbitmq.repair import copying as rabbitmq
from storage_core.repair.copying import check_copyable
from storage_core.rocketmq.repair import copying as rocketmq

BROKER = "a running broker; stop it, or copy a snapshot of its disk"
WRITER = "another writer of mqstore; wait for it"


@dataclass(frozen=True)
class StoreFile:
    """A file of a store: its path or URI, its name in a copy, whether it holds messages, its length and time."""

    path: str
    name: str
    is_log: bool
    size: int
    modified_ns: int


def files_of(root: str, engine: str, log_paths: Sequence[str]) -> tuple[list[StoreFile], list[str]]:
    """The files of a store, messages first, and the names of its empty folders."""
    of_rocketmq = engine == ROCKETMQ
    messages = rocketmq.MESSAGES if of_rocketmq else rabbitmq.MESSAGES
    files: list[StoreFile] = []
    folders: list[str] = []
    for path, name in rocketmq.parts_of(root, log_paths) if of_rocketmq else rabbitmq.parts_of(root):
        _add(path, name, name.startswith(messages), files, folders)
    return files, folders


def _add(path: str, name: str, is_log: bool, files: list[StoreFile], folders: list[str]) -> None:
    if not system.is_folder(path):
        if system.exists(path):
            found = system.stat(path)
            files.append(StoreFile(path, name, is_log, found.size, found.stamp.mtime_ns))
        return
    inside = names_in(path)
    for each in inside:
        if each in ("", ".", ".."):
            raise MqStoreError(
                f"{path}: an object's name has a part '{each}', which is not a valid file name; rename it"
            )
        check_copyable(os.path.join(path, each))
        _add(os.path.join(path, each), os.path.join(name, each), is_log, files, folders)
    if not inside:
        folders.append(name)


@contextmanager
def stopped(root: str, engine: str) -> Iterator[None]:
    """Keeps brokers and writers out of a local store while the block runs. Raises StoreLockedError if one is active."""
    with ExitStack() as held:
        if engine == ROCKETMQ:
            held.enter_context(_locked(os.path.join(root, rocketmq.LOCK), BROKER))
        else:
            check_not_running(root)
        held.enter_context(_locked(JobFolder(root).lock, WRITER))
        yield


def _locked(path: str, who: str) -> AbstractContextManager[object]:
    """Locks a file if it exists; if it is read-only, only checks that nobody else holds its lock."""
    if not system.exists(path):
        return nullcontext()
    try:
        return FileLock(path, 0, who)
    except (DiskError, PermissionError):
        if is_locked(path):
            raise StoreLockedError(f"{path} is locked by {who}") from None
        return nullcontext()
