"""Rebuilds batch queues from the log, with every message that a dispatcher lists if it finds no batch queue.

Source of the rules: rocketmq.md 3.7.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from storage_core.files import system
from storage_core.files.open_files import OpenFiles
from storage_core.formats.rocketmq import paths
from storage_core.formats.rocketmq.consumequeue import BATCH_ENTRY, encode_batch_entries
from storage_core.job import JobFolder
from storage_core.repair.cut_bytes import CutBytes
from storage_core.rocketmq.disk.commit_log import RecordRun
from storage_core.rocketmq.disk.tags_code import tags_codes
from storage_core.rocketmq.recovery.batch_queues import batch_entries
from storage_core.rocketmq.recovery.recovery import dispatched_records
from storage_core.rocketmq.recovery.verdict import DEFAULT_ENTRIES_PER_FILE
from storage_core.rocketmq.repair.queue_repair import drop_staged, put_in_place
from storage_core.rocketmq.verify.kinds import Subject
from storage_core.rocketmq.write.prepare import make_file
from storage_core.store import QueueKey

NEW = "repair-batch-queues"
MOST_MESSAGES = 0x7FFF
"""The largest count of an entry."""


def list_batches(subject: Subject, keys: Collection[QueueKey], cut: CutBytes) -> None:
    """Replaces batch queues with new ones that list every message of the log, from the last one with queue offset 0 on.

    Messages before that one were deleted with their topic. After a stop at any point, each queue is unchanged, missing
    or new. Raises OSError.
    """
    root = subject.listing.root
    staging = os.path.join(JobFolder(root).folder, NEW)
    drop_staged(staging)
    _Lists(subject, keys, staging).write()
    for key in sorted(keys):
        target = os.path.join(root, paths.BATCH_CONSUME_QUEUE, key[0], str(key[1]))
        put_in_place(os.path.join(staging, key[0], str(key[1])), target, cut)
    drop_staged(staging)


class _Lists:
    """The entries of some queues, written to `folder` in one walk through the log."""

    def __init__(self, subject: Subject, keys: Collection[QueueKey], folder: str) -> None:
        self._subject = subject
        sizes = Counter(chain.file_size for chain in subject.listing.batch_queues.values() if chain.files)
        size = sizes.most_common(1)[0][0] if sizes else DEFAULT_ENTRIES_PER_FILE * BATCH_ENTRY.size
        self._files = {key: _Files(os.path.join(folder, key[0], str(key[1])), size) for key in keys}

    def write(self) -> None:
        log, verdict = self._subject.listing.log, self._subject.verdict
        with OpenFiles() as files:
            for run in dispatched_records(log, files, log.start, verdict.log_end, verdict.rules):
                self._add(run)
        for each in self._files.values():
            each.finish()

    def _add(self, run: RecordRun) -> None:
        entries = batch_entries(run, {topic for topic, _ in self._files})
        if entries is None:
            return
        codes, store_ms = tags_codes(run.messages)[entries.rows], run.messages.column("store_ms")[entries.rows]
        for number, key in enumerate(entries.keys):
            if key in self._files:
                own, begins = entries.of(number)
                if begins:
                    self._files[key].clear()
                ranges = entries.queue_offsets, entries.stops
                columns = (entries.physical_offsets, entries.sizes, codes, store_ms, *ranges)
                self._files[key].add([column[own] for column in columns])


@dataclass
class _Files:
    """The files of one queue, each of `size` bytes, filled one after another. The last entry is held back."""

    folder: str
    size: int
    position: int = 0
    last: list[npt.NDArray[Any]] = field(default_factory=list)

    def add(self, columns: list[npt.NDArray[Any]]) -> None:
        """Adds entries, given as the columns of a batch entry, but with the end of each instead of its count.

        Where messages are lost, the entry before them counts them too, if a count can hold so many: from a queue offset
        that no entry covers, a consumer would get that entry again and again (rocketmq.md 3.7).
        """
        if self.last:
            columns = [np.concatenate(pair) for pair in zip(self.last, columns, strict=True)]
        self.last = [column[-1:] for column in columns]
        *_, starts, stops = columns
        is_gap = (starts[1:] > stops[:-1]) & (starts[1:] - starts[:-1] <= MOST_MESSAGES)
        stops = np.where(is_gap, starts[1:], stops[:-1])
        self._write([column[:-1] for column in columns[:-1]], stops)

    def finish(self) -> None:
        """Writes the last entry, and forces the files to the disk."""
        if self.last:
            self._write(self.last[:-1], self.last[-1])
        for base_offset in range(0, self.position, self.size):
            descriptor = system.open_write(self._path(base_offset))
            try:
                system.fsync(descriptor)
            finally:
                system.close(descriptor)

    def clear(self) -> None:
        """Removes what was written."""
        for base_offset in range(0, self.position, self.size):
            system.unlink(self._path(base_offset))
        self.position, self.last = 0, []

    def _write(self, columns: list[npt.NDArray[Any]], stops: npt.NDArray[np.int64]) -> None:
        physical_offsets, sizes, codes, store_ms, starts = columns
        data = encode_batch_entries(physical_offsets, sizes, codes, store_ms, starts, stops - starts).tobytes()
        while data:
            inside = self.position % self.size
            path = self._path(self.position - inside)
            if not inside:
                system.make_folder(self.folder)
                make_file(path, self.size)
            part, data = data[: self.size - inside], data[self.size - inside :]
            descriptor = system.open_write(path)
            try:
                system.pwrite(descriptor, part, inside)
            finally:
                system.close(descriptor)
            self.position += len(part)

    def _path(self, base_offset: int) -> str:
        return os.path.join(self.folder, paths.chain_name(base_offset))
