"""Copies a store for a repair: every file with its holes and times; the store itself is only read.

The engines define which files belong to a store. An interrupted copy is started from scratch; a complete copy is used
for further repair.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator

from storage_core.errors import CorruptionError, MqStoreError
from storage_core.files import system
from storage_core.files.small_file import names_in, remove_file
from storage_core.files.sparse_write import write_sparse
from storage_core.job import COPY_NOTE, COPYING, FOLDER, MANIFEST, JobFolder, drop_tree, read_json, write_json
from storage_core.progress import report

CHUNK_SIZE = 8 << 20
NOTE = "repair-copy.json"
WORK = "copying"
NOT_COPIED = ("lock", "cut", NOTE, COPY_NOTE, COPYING, MANIFEST)
"""The parts of `.mqstore` that are not copied."""

Copies = Iterator[tuple[str, str]]
"""A file of the store, and its target path."""


def copy_files(root: str, target: str, files: Callable[[], Copies]) -> None:
    """Copies the files that `files` lists to `target`, which must be new, empty, or an earlier copy of the store at
    `root`.

    `files` is called when the target is clear, and creates the folders that it needs. Raises MqStoreError for any other
    target.
    """
    note = os.path.join(JobFolder(target).folder, NOTE)
    own = system.real_path(root)
    if is_copied(root, target):
        return
    for name in names_in(target):
        if name != FOLDER:
            _drop(os.path.join(target, name))
    system.make_folder(os.path.dirname(note))
    write_json(note, {"source": own, "whole": False})
    system.sync_folder(target)
    _copy_all(list(files()))
    _sync_folders(target)
    write_json(note, {"source": own, "whole": True})


def is_copied(root: str, target: str) -> bool:
    """Whether `target` already holds a complete copy of the store. Raises MqStoreError for an unsuitable directory."""
    noted = read_json(os.path.join(JobFolder(target).folder, NOTE))
    own, other = (system.real_path(path) for path in (root, target))
    if own == other or other.startswith(own + os.sep) or own.startswith(other + os.sep):
        raise MqStoreError(f"{target} is the store itself, or one is inside the other; repair to another directory")
    if noted is None and not _is_almost_empty(target):
        raise MqStoreError(f"{target} is not empty; repair to a new directory")
    return noted is not None and bool(noted["source"] == own and noted["whole"])


def _is_almost_empty(target: str) -> bool:
    """Whether the target is empty, or has only what a copy leaves that was interrupted before its note was complete."""
    return set(names_in(target)) <= {FOLDER} and set(names_in(JobFolder(target).folder)) <= {NOTE + ".tmp"}


def finish_copy(target: str) -> None:
    """Removes the note of a copy that has been repaired."""
    remove_file(os.path.join(JobFolder(target).folder, NOTE))


def files_below(path: str, target: str) -> Copies:
    """A file, or all files below a folder; creates their folders at the target."""
    if not system.is_folder(path):
        if system.exists(path):
            yield path, target
        return
    system.make_folder(target)
    for name in names_in(path):
        check_copyable(os.path.join(path, name))
        yield from files_below(os.path.join(path, name), os.path.join(target, name))


def check_copyable(path: str) -> None:
    """Raises MqStoreError for what a folder contains and no copy can: a link to nothing or to a folder around itself, a
    pipe, a socket, a device.
    """
    if not system.is_local(path):
        return
    folder = system.real_path(os.path.dirname(path)) + os.sep
    try:
        found = system.stat(path)
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ELOOP):
            raise
        raise MqStoreError(f"{path}: it is a link to nothing, which no copy can hold; remove it, or mend it") from None
    if found.is_special:
        raise MqStoreError(f"{path}: it is a pipe, a socket or a device, which no copy can hold; remove it")
    if found.is_directory and folder.startswith(system.real_path(path) + os.sep):
        raise MqStoreError(f"{path}: it is a link to a folder that it lies in, which no copy can hold; remove it")


def own_parts(root: str) -> Copies:
    """What mqstore keeps beside a store, and its name in a copy: an unfinished write and marks, but neither the lock
    nor bytes that were cut earlier.
    """
    for name in names_in(JobFolder(root).folder):
        if name not in NOT_COPIED:
            yield os.path.join(root, FOLDER, name), os.path.join(FOLDER, name)


def _drop(path: str) -> None:
    drop_tree(path) if system.is_folder(path) else remove_file(path)


def _copy_all(files: list[tuple[str, str]]) -> None:
    sizes = [system.stat(source).size for source, _ in files]
    done, ahead = 0, system.will_need(None, [(source, 0, size) for (source, _), size in zip(files, sizes, strict=True)])
    try:
        for (source, target), size in zip(files, sizes, strict=True):
            _copy(source, target)
            done += size
            report(WORK, done, sum(sizes))
    finally:
        system.need_no_more(ahead)


def _sync_folders(path: str) -> None:
    """Syncs a folder and all folders below it, including those that hold only folders, so that the entries of each
    survive a power failure.
    """
    for entry in system.entries(path):
        if entry.is_directory:
            _sync_folders(os.path.join(path, entry.name))
    system.sync_folder(path)


def _copy(source: str, target: str) -> None:
    """Copies the parts of a file that are not holes."""
    found = system.stat(source)
    reading, writing = system.open_read(source), system.open_write(target, create=True)
    try:
        system.truncate(writing, found.size)
        for start, stop in system.data_spans(reading, 0, found.size):
            for at in range(start, stop, CHUNK_SIZE):
                data = system.pread(reading, min(CHUNK_SIZE, stop - at), at)
                if len(data) < min(CHUNK_SIZE, stop - at):
                    raise CorruptionError(source, at + len(data), "the file ends here, it was longer before")
                if system.is_local(source):
                    system.pwrite(writing, data, at)
                else:
                    write_sparse(writing, data, at)
        system.fsync(writing)
    finally:
        system.close(reading)
        system.close(writing)
    system.set_times(target, found.stamp.mtime_ns, found.stamp.mtime_ns)
