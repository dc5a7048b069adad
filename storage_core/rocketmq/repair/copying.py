"""A copy of a store for a repair: every file with its holes and times, into a directory that no broker loads meanwhile.

A stopped copy is begun anew, a copy that was whole is repaired further. The store itself is only read.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import nullcontext

from storage_core.errors import MqStoreError
from storage_core.files import system
from storage_core.files.lock import FileLock
from storage_core.files.small_file import names_in, remove_file
from storage_core.formats.rocketmq import paths
from storage_core.job import FOLDER, JobFolder, drop_tree, read_json, write_json
from storage_core.progress import report
from storage_core.rocketmq.write.job import raise_guard
from storage_core.rocketmq.write.store_end import log_folders

CHUNK_SIZE = 8 << 20
NOTE = "repair-copy.json"
WORK = "copying"


def copy_store(root: str, log_paths: Sequence[str], target: str) -> None:
    """Copies the store at `root` to `target`, which must be new, empty, or such a copy of the same store.

    Its log goes into one folder. Raises MqStoreError for another directory, StoreLockedError while a broker runs.
    """
    note = os.path.join(JobFolder(target).folder, NOTE)
    noted = read_json(note)
    own, other = (system.real_path(path) for path in (root, target))
    if own == other or other.startswith(own + os.sep) or own.startswith(other + os.sep):
        raise MqStoreError(f"{target} is the store itself, or one lies in the other; repair to another directory")
    if noted is not None and noted["source"] == own and noted["whole"]:
        return
    if noted is None and names_in(target):
        raise MqStoreError(f"{target} is not empty; repair to a new directory")
    lock = os.path.join(root, paths.LOCK)
    advice = "a running broker; stop it, or copy its store first"
    with FileLock(lock, 0, advice) if system.exists(lock) else nullcontext():
        for name in names_in(target):
            if name != FOLDER:
                _drop(os.path.join(target, name))
        system.make_folder(os.path.dirname(note))
        write_json(note, {"source": own, "whole": False})
        commit_log = os.path.join(target, paths.COMMIT_LOG)
        system.make_folder(commit_log)
        raise_guard([commit_log])
        _copy_all(list(_files(root, log_paths, target)))
        write_json(note, {"source": own, "whole": True})


def finish_copy(target: str) -> None:
    """Removes the note of the copy when it is repaired."""
    remove_file(os.path.join(JobFolder(target).folder, NOTE))


def _drop(path: str) -> None:
    drop_tree(path) if system.is_folder(path) else remove_file(path)


def _files(root: str, log_paths: Sequence[str], target: str) -> Iterator[tuple[str, str]]:
    """Each file of the store and where it goes; locks and what mqstore cut before stay where they are."""
    folders = log_folders(root, log_paths)
    for folder in folders:
        yield from _below(folder, os.path.join(target, paths.COMMIT_LOG))
    for entry in system.entries(root):
        path = os.path.join(root, entry.name)
        if entry.name == paths.LOCK or path in folders:
            continue
        if entry.name == FOLDER:
            for inner in names_in(path):
                if inner not in ("lock", "cut", NOTE):
                    yield from _below(os.path.join(path, inner), os.path.join(target, FOLDER, inner))
        else:
            yield from _below(path, os.path.join(target, entry.name))


def _below(path: str, target: str) -> Iterator[tuple[str, str]]:
    if not system.is_folder(path):
        if system.exists(path):
            yield path, target
        return
    system.make_folder(target)
    for name in names_in(path):
        yield from _below(os.path.join(path, name), os.path.join(target, name))


def _copy_all(files: list[tuple[str, str]]) -> None:
    total = sum(system.stat(source).size for source, _ in files)
    done = 0
    for source, target in files:
        _copy(source, target)
        done += system.stat(source).size
        report(WORK, done, total)
    for folder in sorted({os.path.dirname(target) for _, target in files}):
        system.sync_folder(folder)


def _copy(source: str, target: str) -> None:
    """Copies what is not a hole."""
    found = system.stat(source)
    reading, writing = system.open_read(source), system.open_write(target, create=True)
    try:
        system.truncate(writing, found.size)
        for start, stop in system.data_spans(reading, 0, found.size):
            for at in range(start, stop, CHUNK_SIZE):
                system.pwrite(writing, system.pread(reading, min(CHUNK_SIZE, stop - at), at), at)
        system.fsync(writing)
    finally:
        system.close(reading)
        system.close(writing)
    system.set_times(target, found.stamp.mtime_ns, found.stamp.mtime_ns)
