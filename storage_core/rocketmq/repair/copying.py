"""Copies a RocketMQ store for a repair, into a directory that no broker loads in the meantime."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import nullcontext

from storage_core.files import system
from storage_core.files.lock import FileLock
from storage_core.formats.rocketmq import paths
from storage_core.job import FOLDER
from storage_core.repair.copying import Copies, copy_files, files_below, is_copied, own_parts
from storage_core.rocketmq.disk.directory import log_folders
from storage_core.rocketmq.disk.ledger import ledger_of
from storage_core.rocketmq.write.commit_point import raise_guard

LOCK = paths.LOCK
MESSAGES = (paths.COMMIT_LOG, paths.DLEDGER_PREFIX)
"""Name prefixes of the folders that hold messages."""


def copy_store(root: str, log_paths: Sequence[str], target: str) -> None:
    """Copies the store at `root` to `target`, which must be new, empty, or an earlier copy of the same store.

    Its log goes into one folder. Raises MqStoreError for any other directory, StoreLockedError while a broker runs.
    """
    if is_copied(root, target):
        return
    lock = os.path.join(root, LOCK)
    advice = "a running broker; stop it, or copy its store first"
    with FileLock(lock, 0, advice) if system.is_local(lock) and system.exists(lock) else nullcontext():
        copy_files(root, target, lambda: _files(root, log_paths, target))


def parts_of(root: str, log_paths: Sequence[str]) -> Iterator[tuple[str, str]]:
    """The files and folders of a store and the name of each in a copy, the log first; without the lock file."""
    # A ledger is copied with the rest: in another folder nothing would identify it as a ledger.
    folders = [folder for folder in log_folders(root, log_paths) if ledger_of(root) != os.path.dirname(folder)]
    yield from ((folder, paths.COMMIT_LOG) for folder in folders)
    for entry in sorted(system.entries(root), key=lambda entry: entry.name):
        path = os.path.join(root, entry.name)
        if entry.name not in (LOCK, FOLDER) and path not in folders:
            yield path, entry.name
    yield from own_parts(root)


def _files(root: str, log_paths: Sequence[str], target: str) -> Copies:
    """Each file of the store and its path in the copy; locks and bytes that mqstore cut before are not copied."""
    commit_log = os.path.join(target, paths.COMMIT_LOG)
    system.make_folder(commit_log)
    raise_guard([commit_log])
    for path, name in parts_of(root, log_paths):
        yield from files_below(path, os.path.join(target, name))
