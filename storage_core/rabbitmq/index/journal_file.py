"""The open `journal.jif` of one queue: appends are buffered in memory until a sync; a flush discards them.

`queue_index` interprets the records. Source: rabbitmq.md 5.2 and 5.3.
"""

from __future__ import annotations

import os

from storage_core.files import system
from storage_core.formats.rabbitmq import paths

FOLDERS_OF_NEW_QUEUE = 3
"""Folders that gain an entry with a new queue: its own, the one of all queues, and the store's."""


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
        """Whether there are records to sync."""
        return bool(self._buffered)

    def open(self) -> int:
        """Returns the descriptor; creates directory, stub and file if they are missing."""
        if self._descriptor is None:
            system.make_folder(self.directory)
            if self._stub is not None:
                self._write_stub(self._stub)
            self._descriptor = system.open_write(self.path, create=True)
            self._size = system.stat(self.path).size
            folder = self.directory
            for _ in range(FOLDERS_OF_NEW_QUEUE):
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
        """The content on disk."""
        return system.pread(self.open(), self._size, 0)

    def cut(self, size: int) -> None:
        """Truncates the file after its first `size` bytes, to drop an unfinished record."""
        if size < self._size:
            system.truncate(self.open(), size)
            self._size = size

    def append(self, records: bytes) -> None:
        """Buffers `records` for the next sync."""
        self.open()
        self._buffered.append(records)

    def sync(self) -> None:
        """Writes the buffered records and forces them to disk."""
        if not self._buffered:
            return
        descriptor, data = self.open(), b"".join(self._buffered)
        system.pwrite(descriptor, data, self._size)
        system.fsync(descriptor)
        self._size += len(data)
        self._buffered.clear()

    def clear(self) -> None:
        """Empties the file and the buffer; not synced."""
        self._buffered.clear()
        system.truncate(self.open(), 0)
        self._size = 0

    def close(self) -> None:
        """Syncs and closes the file."""
        self.sync()
        self.abandon()

    def abandon(self) -> None:
        """Closes the file without syncing; buffered records are lost."""
        self._buffered.clear()
        if self._descriptor is not None:
            system.close(self._descriptor)
            self._descriptor = None
