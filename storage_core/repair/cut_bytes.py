"""Keeps every byte that a repair overwrites, cuts or moves away, below `.mqstore/cut` of the store.

The engines decide what is changed, and in which order. Each call has the old bytes on disk before it changes one, so an
interrupted repair loses none and can be run again.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from storage_core.files import system
from storage_core.files.small_file import write_whole
from storage_core.files.sparse_write import move_file
from storage_core.job import JobFolder

CHUNK_SIZE = 8 << 20


@dataclass(frozen=True)
class CutBytes:
    """The folder with the bytes of one repair. `root` is the store; nothing is created until something is kept."""

    root: str
    repair: str

    @property
    def folder(self) -> str:
        """Where the bytes are kept, under their paths in the store."""
        return os.path.join(JobFolder(self.root).cut, self.repair)

    def move(self, path: str) -> None:
        """Moves a file or a folder away, to its path below the folder of the repair."""
        target = self._free(path, "")
        move_file(path, target)
        system.sync_folder(os.path.dirname(target))
        system.sync_folder(os.path.dirname(path))

    def overwrite(self, path: str, position: int, data: bytes) -> None:
        """Overwrites bytes of a file after the old ones are kept; its times do not change."""
        times = system.stat(path).stamp.mtime_ns
        descriptor = system.open_write(path)
        try:
            self._save_bytes(descriptor, path, position, len(data))
            system.pwrite(descriptor, data, position)
            system.fsync(descriptor)
        finally:
            system.close(descriptor)
        system.set_times(path, times, times)

    def replace(self, path: str, data: bytes) -> None:
        """Replaces the contents of a small file in one step; the whole old file is kept."""
        descriptor = system.open_read(path)
        try:
            self._save_bytes(descriptor, path, 0, system.stat(path).size)
        finally:
            system.close(descriptor)
        write_whole(path, data)

    def zero(self, path: str, position: int, size: int) -> None:
        """Zeroes bytes of a file, a part at a time."""
        for at in range(0, size, CHUNK_SIZE):
            self.overwrite(path, position + at, bytes(min(CHUNK_SIZE, size - at)))

    def resize(self, path: str, size: int) -> None:
        """Sets the length of a file; the bytes that are cut are kept."""
        times = system.stat(path)
        descriptor = system.open_write(path)
        try:
            if times.size > size:
                self._save_bytes(descriptor, path, size, times.size - size)
            system.truncate(descriptor, size)
            system.fsync(descriptor)
        finally:
            system.close(descriptor)
        system.set_times(path, times.stamp.mtime_ns, times.stamp.mtime_ns)

    def _save_bytes(self, descriptor: int, path: str, position: int, size: int) -> None:
        """Copies bytes of a file to `<path>.from-<position>`."""
        target = self._free(path, f".from-{position}")
        output = system.open_write(target, create=True, exclusive=True)
        try:
            for at in range(0, size, CHUNK_SIZE):
                data = system.pread(descriptor, min(CHUNK_SIZE, size - at), position + at)
                system.pwrite(output, data, at)
            system.fsync(output)
        finally:
            system.close(output)
        system.sync_folder(os.path.dirname(target))

    def _make_folder(self, path: str) -> None:
        """Creates a folder and its parents, each of which is on disk when this returns."""
        if not system.is_folder(path):
            parent = os.path.dirname(path)
            self._make_folder(parent)
            system.make_folder(path)
            system.sync_folder(parent)

    def _free(self, path: str, suffix: str) -> str:
        """An unused path below the folder of the repair; its parent folder is created."""
        inside = os.path.relpath(path, self.root)
        inside = os.path.basename(path) if inside.startswith("..") else inside
        target = os.path.join(self.folder, inside + suffix)
        self._make_folder(os.path.dirname(target))
        number = 1
        while system.exists(target):
            number += 1
            target = os.path.join(self.folder, f"{inside}{suffix}.{number}")
        return target
