"""The open `journal.jif` of one queue: appends are kept in memory until a sync, a flush forgets them.

What the records mean belongs to `queue_index`. Source: rabbitmq.md 5.2 and 5.3.
"""

from __future__ import annotations

import os

from storage_core.files import system
from storage_core.formats.rabbitmq import paths

NAMED_ANEW = 3
"""Folders that gain a name with a queue: its own, the one of all queues, and the store's."""


class JournalFile:
    """Created, with the queue's directory and its name stub (if it is known), by the first append."""

    def __init__(self, directory: str, stub: bytes | None) -> None:
        self.directory, self._stub = directory, stub
        self.path = f"{directory}/{paths.JOURNAL_FILE}"
        self._descriptor: int | None = None
        self._size = 0
        self._buffered: list[bytes] = []

    @property
    def pending(self) -> bool:
        """Whether records wait to be synced."""
        return bool(self._buffered)

    def open(self) -> int:
        """The descriptor; makes directory, stub and file when they are missing."""
        if self._descriptor is None:
            system.make_folder(self.directory)
            if self._stub is not None:
                self._write_stub(self._stub)
            self._descriptor = system.open_write(self.path, create=True)
            self._size = system.stat(self.path).size
            folder = self.directory
            for _ in range(NAMED_ANEW):
                system.sync_folder(folder)
                folder = os.path.dirname(folder)
        return self._descriptor

    def _write_stub(self, stub: bytes) -> None:
        descriptor = system.open_write(f"{self.directory}/{paths.STUB_FILE}", create=True)
        try:
            system.pwrite(descriptor, stub, 0)
            system.fsync(descriptor)
        finally:
            system.close(descriptor)

    def read(self) -> bytes:
        """What is on disk."""
        return system.pread(self.open(), self._size, 0)

    def cut(self, size: int) -> None:
        """Drops what follows the first `size` bytes on disk: an unfinished record."""
        if size < self._size:
            system.truncate(self.open(), size)
            self._size = size

    def append(self, records: bytes) -> None:
        """Keeps `records` to be written at the next sync."""
        self.open()
        self._buffered.append(records)

    def sync(self) -> None:
        """Writes what is kept and forces it to the disk."""
        if not self._buffered:
            return
        descriptor, data = self.open(), b"".join(self._buffered)
        system.pwrite(descriptor, data, self._size)
        system.fsync(descriptor)
        self._size += len(data)
        self._buffered.clear()

    def clear(self) -> None:
        """Empties file and memory; not synced."""
        self._buffered.clear()
        system.truncate(self.open(), 0)
        self._size = 0

    def close(self) -> None:
        """Syncs and lets go of the file."""
        self.sync()
        self.abandon()

    def abandon(self) -> None:
        """Lets go of the file; what was not synced is lost."""
        self._buffered.clear()
        if self._descriptor is not None:
            system.close(self._descriptor)
            self._descriptor = None
