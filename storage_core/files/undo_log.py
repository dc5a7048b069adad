"""File changes that can be undone: what is overwritten, moved or created until a commit point is passed.

Which changes belong together, and when they are final, is up to the callers.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from storage_core.files import system
from storage_core.files.sparse_write import copy_parts, move_file

CHUNK_SIZE = 8 << 20


class Changes:
    """Makes changes and remembers how to undo them. Nothing is remembered across processes."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []

    def undo(self) -> None:
        """Undoes everything, the last change first. A step that fails does not prevent the others from running."""
        failed: OSError | None = None
        while self._undo:
            try:
                self._undo.pop()()
            except OSError as error:
                failed = error
        if failed is not None:
            raise failed

    def forget(self) -> None:
        """Keeps all changes: someone else undoes or finishes them."""
        self._undo.clear()

    def folder(self, path: str) -> None:
        """Creates a folder and its missing parents."""
        missing = []
        while path and not system.is_folder(path):
            missing.append(path)
            path = os.path.dirname(path)
        for each in reversed(missing):
            system.make_folder(each)
            self._undo.append(lambda each=each: system.remove_folder(each))  # type: ignore[misc]
            system.sync_folder(os.path.dirname(each))

    def move(self, source: str, target: str) -> None:
        """Renames a file, or copies it to another disk; on the disk when this returns.

        The target's folder must exist.
        """
        move_file(source, target)
        self._undo.append(lambda: move_file(target, source))
        for folder in (os.path.dirname(target), os.path.dirname(source)):
            system.sync_folder(folder)

    def create(self, path: str, data: bytes = b"") -> None:
        """Creates a file that must not exist; on the disk when this returns."""
        descriptor = system.open_write(path, create=True, exclusive=True)
        self._undo.append(lambda: system.unlink(path))
        try:
            system.pwrite(descriptor, data, 0)
            system.fsync(descriptor)
        finally:
            system.close(descriptor)

    def made(self, path: str) -> None:
        """Notes a file that someone else has just created."""
        self._undo.append(lambda: system.unlink(path))

    def overwrite(self, path: str, position: int, data: bytes | memoryview) -> None:
        """Overwrites bytes of a file; the old ones are kept in memory. On the disk when this returns."""
        self._save_times(path)
        descriptor = system.open_write(path)
        try:
            old = system.pread(descriptor, len(data), position)
            self._undo.append(lambda: _write(path, position, old))
            system.pwrite(descriptor, data, position)
            system.fsync(descriptor)
        finally:
            system.close(descriptor)

    def reserve(self, path: str, position: int, size: int) -> None:
        """Makes sure that bytes of a file can be written; OSError ENOSPC if the disk is full."""
        self._save_times(path)
        descriptor = system.open_write(path)
        try:
            system.reserve(descriptor, position, size)
        finally:
            system.close(descriptor)

    def lengthen(self, path: str, length: int) -> None:
        """Lengthens a file with zeros; on the disk when this returns."""
        self._save_times(path)
        before = system.stat(path).size
        self._undo.append(lambda: _set_length(path, before))
        _set_length(path, length)

    def zero(self, path: str, start: int, stop: int, backup: str) -> int:
        """Zeroes the bytes [start, stop) of a file after copying them to the new file `backup`.

        Position p of `backup` holds byte start + p. Returns the number of bytes that may have been nonzero; if there
        are none, `backup` is not created.
        """
        self._save_times(path)
        descriptor = system.open_write(path)
        try:
            spans = [s for s in system.data_spans(descriptor, start, stop) if _any_set(descriptor, s)]
            if not spans:
                return 0
            self.folder(os.path.dirname(backup))
            self.create(backup)
            copy_parts(descriptor, backup, [(a, a - start, b - a) for a, b in spans])
            system.sync_folder(os.path.dirname(backup))
            self._undo.append(lambda: _copy_back(backup, path, [(a - start, a, b - a) for a, b in spans]))
            _zero(descriptor, spans)
        finally:
            system.close(descriptor)
        return sum(b - a for a, b in spans)

    def _save_times(self, path: str) -> None:
        times = system.stat(path).stamp.mtime_ns
        self._undo.append(lambda: system.set_times(path, times, times))


def zero_span(path: str, start: int, stop: int) -> None:
    """Zeroes the bytes [start, stop) of a file, on the disk when this returns; nothing is kept."""
    descriptor = system.open_write(path)
    try:
        _zero(descriptor, [span for span in system.data_spans(descriptor, start, stop) if _any_set(descriptor, span)])
    finally:
        system.close(descriptor)


def _zero(descriptor: int, spans: list[tuple[int, int]]) -> None:
    for start, stop in spans:
        for at in range(start, stop, CHUNK_SIZE):
            system.pwrite(descriptor, bytes(min(CHUNK_SIZE, stop - at)), at)
    system.fsync(descriptor)


def _any_set(descriptor: int, span: tuple[int, int]) -> bool:
    start, stop = span
    return any(
        system.pread(descriptor, min(CHUNK_SIZE, stop - at), at).strip(b"\0") for at in range(start, stop, CHUNK_SIZE)
    )


def _set_length(path: str, length: int) -> None:
    descriptor = system.open_write(path)
    try:
        system.truncate(descriptor, length)
        system.fsync(descriptor)
    finally:
        system.close(descriptor)


def _write(path: str, position: int, data: bytes) -> None:
    descriptor = system.open_write(path)
    try:
        system.pwrite(descriptor, data, position)
    finally:
        system.close(descriptor)


def _copy_back(source: str, target: str, parts: list[tuple[int, int, int]]) -> None:
    descriptor = system.open_read(source)
    try:
        copy_parts(descriptor, target, parts)
    finally:
        system.close(descriptor)
