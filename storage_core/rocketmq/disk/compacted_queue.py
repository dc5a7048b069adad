"""One queue of a compacted topic on disk: a log of its own, and files of entries that are named as those of the log.

Which topics are compacted is said by topics.json. Source of the rules: rocketmq.md 3.9.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from storage_core.files import system
from storage_core.files.file_chain import FileChain, find_chain
from storage_core.files.open_files import OpenFiles
from storage_core.files.small_file import names_in
from storage_core.files.window import vanished
from storage_core.formats.rocketmq import paths
from storage_core.formats.rocketmq.consumequeue import COMPACTED_ENTRY, leading_compacted
from storage_core.store import QueueKey

FIRST_CHUNK = 1_000 * COMPACTED_ENTRY.size
GROWTH = 8


@dataclass(frozen=True)
class CompactedQueue:
    """The records of one queue, and the files of its entries. Queue offsets rise from entry to entry, with holes."""

    log: FileChain
    entry_files: FileChain

    def entries(self, files: OpenFiles, index: int) -> npt.NDArray[Any]:
        """The entries of file number `index` that name a record, in disk byte order. Shape (n,).

        Raises CorruptionError when the file is gone.
        """
        file = self.entry_files.files[index]
        parts, position, chunk = [np.empty(0, COMPACTED_ENTRY.dtype)], 0, FIRST_CHUNK
        try:
            descriptor = files.descriptor(file.path)
        except FileNotFoundError:
            raise vanished(file) from None
        while count := min(chunk, file.size - position) // COMPACTED_ENTRY.size:
            data = system.pread(descriptor, count * COMPACTED_ENTRY.size, position)
            found = np.frombuffer(data, COMPACTED_ENTRY.dtype, len(data) // COMPACTED_ENTRY.size)
            valid = leading_compacted(found)
            parts.append(found[:valid])
            if valid < count:
                break
            position, chunk = position + len(data), chunk * GROWTH
        return np.concatenate(parts)

    def every(self, files: OpenFiles) -> Iterator[npt.NDArray[Any]]:
        """The entries of each file."""
        for index in range(len(self.entry_files.files)):
            yield self.entries(files, index)

    def stop(self, files: OpenFiles) -> int:
        """The queue offset after the last entry; 0 without one."""
        for index in range(len(self.entry_files.files) - 1, -1, -1):
            entries = self.entries(files, index)
            if len(entries):
                return int(entries["queue_offset"][-1]) + 1
        return 0

    def last_from(self, files: OpenFiles, count: int) -> int:
        """The queue offset of the first of the last `count` entries; 0 where there are fewer."""
        for index in range(len(self.entry_files.files) - 1, -1, -1):
            entries = self.entries(files, index)
            if 0 < count <= len(entries):
                return int(entries["queue_offset"][-count])
            count -= len(entries)
        return 0

    def first_since(self, files: OpenFiles, time_ms: int) -> int | None:
        """The queue offset of the first message that was stored at a time or later; None without one."""
        for entries in self.every(files):
            late = entries["store_ms"] >= time_ms
            if late.any():
                return int(entries["queue_offset"][late.argmax()])
        return None


NO_FILES = CompactedQueue(FileChain((), 0), FileChain((), 0))


def compacted_queues(root: str, topic: str) -> dict[QueueKey, CompactedQueue]:
    """The queues of a compacted topic that have files, by topic and queue id."""
    folders = [os.path.join(root, folder, topic) for folder in (paths.COMPACTION_LOG, paths.COMPACTION_QUEUE)]
    return {
        (topic, int(name)): CompactedQueue(*(find_chain([os.path.join(folder, name)]) for folder in folders))
        for name in names_in(folders[1])
        if name.isascii() and name.isdigit()
    }
