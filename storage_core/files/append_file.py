"""A new file that only grows: staged bytes with a running length and CRC, forced to the disk at the end or not.

What the bytes are, and what becomes of the file, belongs to the engine.
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

    `forced`: the bytes go to the disk as they come, and `finish` waits for them. Otherwise they may stay in memory, and
    a file that is read and removed soon costs the disk nothing.
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
        """Adds bytes. They must not change until enough are together, or `finish`, but where they go out at once."""
        view = memoryview(data).cast("B")
        self.crc = crc32(view, self.crc)
        self._parts.append(view)
        self._waiting += len(view)
        if at_once or self._waiting >= CHUNK_SIZE:
            self.flush()

    def room(self, size: int) -> npt.NDArray[np.uint8]:
        """A place for `size` bytes that are to be appended at once. The next call gives the same memory: new memory
        costs more than what is written to it.
        """
        if size > len(self._room):
            self._room = np.empty(max(size, CHUNK_SIZE), np.uint8)
        return self._room[:size]

    def finish(self) -> None:
        """Writes what waits, and forces the file to the disk where that was asked for."""
        self.flush()
        if self._forced:
            system.fsync(self._descriptor)

    def flush(self) -> None:
        """Writes what waits. A file that is forced is on its way to the disk then, but may not be there."""
        first = self.size
        for view in self._parts:
            system.pwrite(self._descriptor, view, self.size)
            self.size += len(view)
        if self._forced:
            system.release(self._descriptor, first, self.size - first)
        self._parts.clear()
        self._waiting = 0

    def close(self) -> None:
        """Closes the file; what still waits is lost."""
        system.close(self._descriptor)
