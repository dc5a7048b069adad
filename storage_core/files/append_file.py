"""A new, append-only file: staged bytes with a running length and CRC, optionally forced to the disk at the end.

What the bytes are, and what happens to the file, is up to the engine.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from isal.isal_zlib import crc32

from storage_core.closable import Closable
from storage_core.files import system

CHUNK_SIZE = 4 << 20


class AppendFile(Closable):
    """Creates a file that must not exist; its folder must. A context manager that closes without a sync.

    `forced`: bytes are sent to the disk as they arrive, and `finish` waits for them. Otherwise they may stay in memory,
    and a file that is soon read and removed causes no disk writes.
    """

    def __init__(self, path: str, forced: bool = True) -> None:
        self.path = path
        self._forced = forced
        self.size = 0
        self.crc = 0
        self._parts: list[memoryview] = []
        self._waiting = 0
        self._room = np.empty(0, np.uint8)
        self._descriptor = system.open_write(path, create=True, exclusive=True)

    def append(self, data: bytes | memoryview, at_once: bool = False) -> None:
        """Adds bytes. Unless `at_once`, they must not change until enough have accumulated, or until `finish`."""
        view = memoryview(data).cast("B")
        self.crc = crc32(view, self.crc)
        self._parts.append(view)
        self._waiting += len(view)
        if at_once or self._waiting >= CHUNK_SIZE:
            self.flush()

    def room(self, size: int) -> npt.NDArray[np.uint8]:
        """A buffer for `size` bytes that are to be appended at once.

        The next call returns the same memory, because new memory costs more than writing to it.
        """
        if size > len(self._room):
            self._room = np.empty(max(size, CHUNK_SIZE), np.uint8)
        return self._room[:size]

    def finish(self) -> None:
        """Writes pending bytes, and forces the file to the disk if `forced`."""
        self.flush()
        if self._forced:
            system.fsync(self._descriptor)

    def flush(self) -> None:
        """Writes pending bytes. With `forced`, they are then on their way to the disk, but may not have arrived."""
        first = self.size
        for view in self._parts:
            system.pwrite(self._descriptor, view, self.size)
            self.size += len(view)
        if self._forced:
            system.release(self._descriptor, first, self.size - first)
        self._parts.clear()
        self._waiting = 0

    def close(self) -> None:
        """Closes the file; pending bytes are lost."""
        system.close(self._descriptor)
