"""Which files of a RocketMQ store are copied for a repair, into a directory that no broker loads meanwhile."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import nullcontext

from storage_core.files import system
from storage_core.files.lock import FileLock
from storage_core.formats.rocketmq import paths
from storage_core.job import FOLDER
from storage_core.repair.copying import Copies, copy_files, files_below, is_copied, own_files
from storage_core.rocketmq.write.job import raise_guard
from storage_core.rocketmq.write.store_end import log_folders


def copy_store(root: str, log_paths: Sequence[str], target: str) -> None:
    """Copies the store at `root` to `target`, which must be new, empty, or such a copy of the same store.

    Its log goes into one folder. Raises MqStoreError for another directory, StoreLockedError while a broker runs.
    """
    if is_copied(root, target):
        return
    lock = os.path.join(root, paths.LOCK)
    advice = "a running broker; stop it, or copy its store first"
    with FileLock(lock, 0, advice) if system.is_local(lock) and system.exists(lock) else nullcontext():
        copy_files(root, target, lambda: _files(root, log_paths, target))


def _files(root: str, log_paths: Sequence[str], target: str) -> Copies:
    """Each file of the store and where it goes; locks and what mqstore cut before stay where they are."""
    commit_log = os.path.join(target, paths.COMMIT_LOG)
    system.make_folder(commit_log)
    raise_guard([commit_log])
    folders = log_folders(root, log_paths)
    for folder in folders:
        yield from files_below(folder, commit_log)
    for entry in system.entries(root):
        path = os.path.join(root, entry.name)
        if entry.name not in (paths.LOCK, FOLDER) and path not in folders:
            yield from files_below(path, os.path.join(target, entry.name))
    yield from own_files(root, target)
