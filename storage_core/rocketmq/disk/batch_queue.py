"""One batch queue on disk: entries that state their queue offset, and the log that they point into. That is the commit
log or, for a compacted topic, a log of the queue's own, whose files have the same names as the files of entries.

Which topics have such queues is stated in topics.json. Source of the rules: rocketmq.md 3.7, 3.9.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from storage_core.errors import CorruptionError
from storage_core.files import system
from storage_core.files.file_chain import FileChain, find_chain
from storage_core.files.open_files import OpenFiles
from storage_core.files.small_file import names_in
from storage_core.files.window import vanished
from storage_core.formats.layout import Positions
from storage_core.formats.rocketmq import paths
from storage_core.formats.rocketmq.consumequeue import BATCH_ENTRY, leading_batches
from storage_core.store import QueueKey

FIRST_CHUNK = 1_000 * BATCH_ENTRY.size
GROWTH = 8
UNBOUNDED = (1 << 63) - 1


@dataclass(frozen=True)
class BatchQueue:
    """The log with the records of one queue, and the files of its entries. Queue offsets increase from entry to entry;
    those of a compacted queue have holes. In each file, the first entry that points behind `log_end` and all after it
    are ignored. `is_half`: whether a compacted queue lacks the folder of its log or that of its entries, but has files
    in the other one.
    """

    log: FileChain
    entry_files: FileChain
    is_compacted: bool
    log_end: int
    is_half: bool = False

    def entries(self, files: OpenFiles, index: int) -> npt.NDArray[Any]:
        """The entries of file number `index` that name a record, in disk byte order. Shape (n,).

        Raises CorruptionError when the file is missing.
        """
        file = self.entry_files.files[index]
        parts, position, chunk = list[bytes](), 0, FIRST_CHUNK
        while count := min(chunk, file.size - position) // BATCH_ENTRY.size:
            found = self.entries_at(files, index, position // BATCH_ENTRY.size, count)
            valid = leading_batches(found, self.log_end)
            parts.append(found[:valid].tobytes())
            if valid < count:
                break
            position, chunk = position + count * BATCH_ENTRY.size, chunk * GROWTH
        return np.frombuffer(b"".join(parts), BATCH_ENTRY.dtype)

    def entries_at(self, files: OpenFiles, index: int, first: int, count: int) -> npt.NDArray[Any]:
        """`count` entries of file number `index` from number `first` on, whatever they contain; fewer at its end.

        Raises CorruptionError when the file is missing.
        """
        file = self.entry_files.files[index]
        try:
            descriptor = files.descriptor(file.path)
        except FileNotFoundError:
            raise vanished(file) from None
        data = system.pread(descriptor, count * BATCH_ENTRY.size, first * BATCH_ENTRY.size)
        return np.frombuffer(data, BATCH_ENTRY.dtype, len(data) // BATCH_ENTRY.size)

    def begins_empty(self, files: OpenFiles) -> bool:
        """Whether the first file of entries has none. False if a compaction has just removed the file."""
        try:
            return bool(self.entry_files.files) and not leading_batches(self.entries_at(files, 0, 0, 1), self.log_end)
        except CorruptionError:
            return False

    def every(self, files: OpenFiles) -> Iterator[npt.NDArray[Any]]:
        """The entries of each file."""
        for index in range(len(self.entry_files.files)):
            yield self.entries(files, index)

    def stop(self, files: OpenFiles) -> int:
        """The queue offset after the last message; 0 if there is none."""
        for index in range(len(self.entry_files.files) - 1, -1, -1):
            entries = self.entries(files, index)
            if len(entries):
                return int(ends_of(entries)[-1])
        return 0

    def last_from(self, files: OpenFiles, count: int) -> int:
        """The queue offset of the first of the last `count` entries; 0 if there are fewer."""
        for index in range(len(self.entry_files.files) - 1, -1, -1):
            entries = self.entries(files, index)
            if 0 < count <= len(entries):
                return int(entries["queue_offset"][-count])
            count -= len(entries)
        return 0

    def first_since(self, files: OpenFiles, time_ms: int) -> int | None:
        """The queue offset of the first message that was stored at or after a time; None if there is none."""
        for entries in self.every(files):
            late = entries["store_ms"] >= time_ms
            if late.any():
                return int(entries["queue_offset"][late.argmax()])
        return None


NO_FILES = BatchQueue(FileChain((), 0), FileChain((), 0), is_compacted=True, log_end=UNBOUNDED)
UNSERVED = replace(NO_FILES, log_end=0)
"""Stands for a compacted queue of which a broker serves nothing; `log_end` tells it from NO_FILES."""


def ends_of(entries: npt.NDArray[Any]) -> Positions:
    """The queue offset after the last message of each entry. Shape (n,)."""
    return entries["queue_offset"].astype(np.int64) + entries["count"].astype(np.int64)


def addresses(queue: BatchQueue, files: OpenFiles) -> Positions:
    """Addresses of the records that a queue's entries name, in entry order. Shape (n,)."""
    parts = [entries["physical_offset"].astype(np.int64) for entries in queue.every(files)]
    return np.concatenate([np.empty(0, np.int64), *parts])


def batch_queue_files(root: str) -> dict[QueueKey, FileChain]:
    """The files of entries in `batchconsumequeue/`, by topic and queue id."""
    folder = os.path.join(root, paths.BATCH_CONSUME_QUEUE)
    return {
        (topic, queue_id): find_chain([os.path.join(folder, topic, name)])
        for topic in names_in(folder)
        for name in names_in(os.path.join(folder, topic))
        if (queue_id := paths.queue_id_of(name)) is not None
    }


def compacted_queues(root: str, topic: str) -> dict[QueueKey, BatchQueue]:
    """The queues of a compacted topic that have a folder of entries, or files in their log; by topic and queue id."""
    if not paths.has_folder(topic, 0):
        return {}  # topics.json may name anything
    logs, entries = (os.path.join(root, folder, topic) for folder in (paths.COMPACTION_LOG, paths.COMPACTION_QUEUE))
    names = set(names_in(logs)), set(names_in(entries))
    found = {}
    for name in sorted(names[0] | names[1]):
        if (queue_id := paths.queue_id_of(name)) is None:
            continue
        chains = find_chain([os.path.join(logs, name)]), find_chain([os.path.join(entries, name)])
        is_half = name in names[0] ^ names[1] and any(chain.files for chain in chains)
        if name in names[1] or is_half:
            found[topic, queue_id] = BatchQueue(*chains, is_compacted=True, log_end=UNBOUNDED, is_half=is_half)
    return found
