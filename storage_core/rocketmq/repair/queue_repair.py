"""Clears a queue that is rebuilt, and lists all of its messages where a broker's own rule leaves some out.

A broker that rebuilds a queue skips a message whose queue offset is too small (rocketmq.md 3.3). A log has such
messages if the offsets of a queue began again, because the queue was deleted or lost its newest entries in a crash.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

import numpy as np

from storage_core.files import system
from storage_core.files.open_files import OpenFiles
from storage_core.files.small_file import names_in, remove_empty_folder
from storage_core.formats.rocketmq import paths
from storage_core.formats.rocketmq.consumequeue import QUEUE_ENTRY, encode_entries
from storage_core.job import JobFolder
from storage_core.repair.cut_bytes import CutBytes
from storage_core.rocketmq.disk.commit_log import RecordRun
from storage_core.rocketmq.disk.tags_code import tags_codes
from storage_core.rocketmq.recovery.dispatch import due_entries
from storage_core.rocketmq.recovery.recovery import dispatched_records
from storage_core.rocketmq.recovery.verdict import Rules
from storage_core.rocketmq.verify.kinds import Subject
from storage_core.rocketmq.verify.queues import began_at
from storage_core.rocketmq.write.prepare import make_file
from storage_core.rocketmq.write.queue_writer import QueueWriter
from storage_core.store import QueueKey

NEW = "repair-queues"


def empty_queue(subject: Subject, key: QueueKey, cut: CutBytes) -> None:
    """Clears a queue except for the entry with which it began at 0, if that is right, so `complete` continues from it.

    Messages of the log before that entry's message belong to a queue that was deleted.
    """
    folder = _folder(subject, key)
    queue = subject.listing.queues.get(key)
    if queue is None or began_at(subject, queue) < 0 or queue.chain.files[0].size != queue.chain.file_size:
        if system.exists(folder):
            cut.move(folder)
        return
    first = queue.chain.files[0]
    for name in system.names(folder):
        if name != os.path.basename(first.path):
            cut.move(os.path.join(folder, name))
    cut.zero(first.path, QUEUE_ENTRY.size, first.size - QUEUE_ENTRY.size)


def list_in_order(subject: Subject, keys: Iterable[QueueKey], entries_per_file: int, cut: CutBytes) -> None:
    """Replaces queues with new ones that list every message of the log, in log order and without gaps.

    After a stop at any point, each queue is unchanged, missing or new. Raises OSError.
    """
    staging = os.path.join(JobFolder(subject.listing.root).folder, NEW)
    drop_staged(staging)
    _Lists(subject, frozenset(keys), entries_per_file, staging).write()
    for key in keys:
        put_in_place(os.path.join(staging, key[0], str(key[1])), _folder(subject, key), cut)
    drop_staged(staging)


def put_in_place(source: str, target: str, cut: CutBytes) -> None:
    """Puts the staged folder of a queue in place and keeps the old one; does nothing if none is staged."""
    if not system.exists(source):
        return
    if system.exists(target):
        cut.move(target)
    system.make_folder(os.path.dirname(target))
    system.sync_folder(source)
    system.rename(source, target)
    system.sync_folder(os.path.dirname(target))
    system.sync_folder(os.path.dirname(os.path.dirname(target)))


def without_beginning(subject: Subject, keys: Iterable[QueueKey]) -> set[QueueKey]:
    """The queues whose first message in a log that begins at 0 has a queue offset above 0: earlier ones are lost.

    A broker that rebuilds them writes fillers there, which point to address 0. While the log holds that address, a read
    from the filler on omits every message of the log's first file (rocketmq.md 3.3).
    """
    log, verdict = subject.listing.log, subject.verdict
    remaining = {key for key in keys if _has_no_start(subject, key)} if log.start == 0 else set()
    headless: set[QueueKey] = set()
    with OpenFiles() as files:
        for run in dispatched_records(log, files, log.start, verdict.log_end, verdict.rules):
            if not remaining:
                break
            due = due_entries(run.messages, verdict.rules is Rules.V5, verdict.is_batched)
            for number in (number for number, key in enumerate(due.keys) if key in remaining):
                offsets = due.queue_offsets[due.queue == number]
                if len(offsets):
                    remaining.remove(due.keys[number])
                    headless |= {due.keys[number]} if offsets[0] > 0 else set()
    return headless


def _has_no_start(subject: Subject, key: QueueKey) -> bool:
    queue = subject.listing.queues.get(key)
    return queue is None or began_at(subject, queue) < 0


def _folder(subject: Subject, key: QueueKey) -> str:
    return os.path.join(subject.listing.root, paths.CONSUME_QUEUE, key[0], str(key[1]))


def drop_staged(folder: str) -> None:
    """Removes a staging folder: topics, queues, files."""
    for topic in names_in(folder):
        for queue_id in system.names(os.path.join(folder, topic)):
            inside = os.path.join(folder, topic, queue_id)
            for name in system.names(inside):
                system.unlink(os.path.join(inside, name))
            remove_empty_folder(inside)
        remove_empty_folder(os.path.join(folder, topic))
    remove_empty_folder(folder)


class _Lists:
    """The entries of some queues, written to `folder` in one walk through the log."""

    def __init__(self, subject: Subject, keys: frozenset[QueueKey], entries_per_file: int, folder: str) -> None:
        self._subject, self._keys, self._folder = subject, keys, folder
        self._entries_per_file = entries_per_file
        self._next: dict[QueueKey, int] = {}
        self._writer = QueueWriter(self._entries_per_file, self._made)

    def write(self) -> None:
        log, verdict = self._subject.listing.log, self._subject.verdict
        with OpenFiles() as files:
            for run in dispatched_records(log, files, log.start, verdict.log_end, verdict.rules):
                self._add(run)
        self._writer.finish()

    def _add(self, run: RecordRun) -> None:
        verdict = self._subject.verdict
        due = due_entries(run.messages, verdict.rules is Rules.V5, verdict.is_batched)
        codes = tags_codes(run.messages)
        for number in (number for number, key in enumerate(due.keys) if key in self._keys):
            mine = np.flatnonzero(due.queue == number)
            if not len(mine):
                continue
            key, rows = due.keys[number], due.rows[mine]
            if key not in self._next:
                self._next[key] = self._begin(key, int(due.queue_offsets[mine[0]]))
            entries = encode_entries(run.physical_offsets[rows], run.sizes[rows], codes[rows])
            store_ms = int(run.messages.column("store_ms")[rows[-1]])
            self._writer.write(key, self._next[key], entries, store_ms)
            self._next[key] += len(rows)

    def _begin(self, key: QueueKey, first: int) -> int:
        """Returns the queue offset of the first message, after writing fillers before it in its file, as a broker does.

        In a log that begins at 0, where fillers would hide messages, it is 0.
        """
        if self._subject.listing.log.start == 0:
            return 0
        self._writer.fill(key, first // self._entries_per_file * self._entries_per_file, first)
        return first

    def _made(self, target: str) -> str:
        path = os.path.join(self._folder, os.path.relpath(target, paths.CONSUME_QUEUE))
        if not system.exists(path):
            system.make_folder(os.path.dirname(path))
            make_file(path, self._entries_per_file * QUEUE_ENTRY.size)
        return path
