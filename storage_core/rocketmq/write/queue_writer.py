"""Writes entries to the files of their queues, and finds which files these are.

`placement` decides which entry has which queue offset. Source of the rules: rocketmq.md 3.1, 3.3.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from storage_core.files import system
from storage_core.files.open_files import most_open_files
from storage_core.formats.rocketmq import paths
from storage_core.formats.rocketmq.consumequeue import QUEUE_ENTRY, filler_entries
from storage_core.store import QueueKey


def queue_file(key: QueueKey, queue_offset: int, entries: int) -> str:
    """The file that holds an entry of a queue, relative to the store's directory."""
    base_offset = queue_offset // entries * entries * QUEUE_ENTRY.size
    return os.path.join(paths.CONSUME_QUEUE, key[0], str(key[1]), paths.chain_name(base_offset))


def file_parts(start: int, stop: int, entries: int) -> Iterator[tuple[int, int]]:
    """The queue offsets [start, stop), split at the ends of files."""
    while start < stop:
        end = min((start // entries + 1) * entries, stop)
        yield start, end
        start = end


class QueueWriter:
    """Writes entries by queue offset. `resolve` returns the present path of a file that `queue_file` names.

    The time search of 4.9 uses the files' times, so each file gets the store time of its last entry.
    """

    def __init__(self, entries: int, resolve: Callable[[str], str]) -> None:
        self._entries, self._resolve = entries, resolve
        self._open: dict[str, int] = {}
        self._most_open_files = most_open_files()
        self._times: dict[str, int] = {}

    def write(self, key: QueueKey, first: int, entries: npt.NDArray[Any], store_ms: int) -> None:
        """Writes entries at the queue offsets from `first` on; `store_ms` is the store time of the last one."""
        for start, stop in file_parts(first, first + len(entries), self._entries):
            path = self._resolve(queue_file(key, start, self._entries))
            position = start % self._entries * QUEUE_ENTRY.size
            part = entries[start - first : stop - first].view(np.uint8)
            system.pwrite(self._descriptor(path), part.data, position)
            self._times[path] = store_ms

    def fill(self, key: QueueKey, start: int, stop: int) -> None:
        """Writes filler entries at the queue offsets [start, stop)."""
        for low, high in file_parts(start, stop, self._entries):
            path = self._resolve(queue_file(key, low, self._entries))
            position = low % self._entries * QUEUE_ENTRY.size
            system.pwrite(self._descriptor(path), filler_entries(high - low).tobytes(), position)

    def finish(self) -> None:
        """Forces all files to the disk and sets their times."""
        while self._open:
            self._close(next(iter(self._open)))
        for path, store_ms in self._times.items():
            system.set_times(path, store_ms * 1_000_000, store_ms * 1_000_000)

    def close(self) -> None:
        """Closes the files that an error left open."""
        while self._open:
            system.close(self._open.popitem()[1])

    def _descriptor(self, path: str) -> int:
        if path not in self._open:
            while len(self._open) >= self._most_open_files:
                self._close(next(iter(self._open)))
            self._open[path] = system.open_write(path)
        return self._open[path]

    def _close(self, path: str) -> None:
        descriptor = self._open.pop(path)
        try:
            system.fsync(descriptor)
        finally:
            system.close(descriptor)
