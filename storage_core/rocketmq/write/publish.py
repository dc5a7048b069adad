"""Carries out a plan: the log before the commit point; queues, index, topics, checkpoint and done marks after it.

Each step can be repeated. `prepare` makes the plan and reserves its space; the commit point is in `commit_point`.
Source of the rules: commit-protocol.md 4 to 6, 8.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from isal.isal_zlib import crc32

from storage_core.errors import MqStoreError
from storage_core.files import system
from storage_core.files.open_files import OpenFiles
from storage_core.files.small_file import read_start, write_whole
from storage_core.files.sparse_write import move_file
from storage_core.files.threads import both, overlapped
from storage_core.formats.layout import Bytes
from storage_core.formats.rocketmq import paths
from storage_core.formats.rocketmq.checkpoint import FILE_SIZE, decode_checkpoint, encode_times
from storage_core.formats.rocketmq.config_json import encode_config, merged_topics
from storage_core.formats.rocketmq.consumequeue import encode_entries
from storage_core.formats.rocketmq.encode import blank_record, encode, patch
from storage_core.formats.rocketmq.message import BORN_HOST_V6
from storage_core.job import JobFolder, check_rights, set_mark
from storage_core.rocketmq.disk.config_files import config_to_change
from storage_core.rocketmq.index.index_writer import IndexWriter, Keys
from storage_core.rocketmq.recovery.unfinished import StoreState, find_store
from storage_core.rocketmq.write.backfill import missing_entries, unindexed
from storage_core.rocketmq.write.commit_plan import Chunk, Course, Plan, plan_to_json
from storage_core.rocketmq.write.prepare import make_file
from storage_core.rocketmq.write.queue_writer import QueueWriter
from storage_core.rocketmq.write.staging import RECORDS, KeptRows
from storage_core.rocketmq.write.store_end import log_path, save_state

BUFFER_SIZE = 4 << 20
WORTH_THREADS = 4 << 20
"""Bytes of a job in the log above which threads pay off."""
LAG = 16 << 20


class Publisher:
    """Publishes one plan into the store at `root`. `kept`: the rows whose records were not staged."""

    def __init__(self, root: str, plan: Plan, kept: KeptRows | None = None) -> None:
        self._root, self._plan, self._kept = root, plan, kept
        self._staging = JobFolder(root).staging(plan.job)
        self._folders: set[str] = set()
        self._store: StoreState | None = None

    def check_rights(self) -> None:
        """Raises PermissionError for a folder that the steps after the commit point may not change."""
        folders = {self._root, *(os.path.dirname(os.path.join(self._root, target)) for target in self._plan.files)}
        if self._merged_topics() is not None:
            folders.add(os.path.join(self._root, paths.CONFIG))
        check_rights(folders)

    def publish(self) -> None:
        """Runs all steps up to the checkpoint. Raises OSError; the same call may be made again later."""
        plan = self._plan
        if plan.recover or plan.index_from is not None:
            self._store = find_store(self._root, plan.folders, plan_to_json(plan, self._root))
        if plan.in_log:
            self._both(self._write_queues, self._drop_records)
        else:
            self.write_log()
            self._write_queues()
        for predicate in (_is_log, _is_queue, _is_any):
            self._rename_new(predicate)
        self._merge_topics()
        for folder in sorted(self._folders):
            system.sync_folder(folder)
        if plan.recover:
            self._remove_abort()
        self._write_checkpoint()

    def done(self, guard: str) -> None:
        """Marks the job done and removes what only an unfinished job needs, except the staging folder."""
        plan, job_folder = self._plan, JobFolder(self._root)
        if plan.query is not None:
            set_mark(self._root, plan.query, plan.version)
        save_state(self._root, plan.job, plan.after)
        for path in (guard, job_folder.intent):
            if system.exists(path):
                system.unlink(path)
                system.sync_folder(os.path.dirname(path))

    @property
    def _is_large(self) -> bool:
        return self._plan.after.log_end - self._plan.ends.log_end > WORTH_THREADS

    def _both(self, one: Callable[[], None], other: Callable[[], None]) -> None:
        """Runs both at the same time if the job is large enough, else one after the other."""
        if self._is_large:
            both(one, other)
        else:
            one()
            other()

    # -- log

    def write_log(self) -> None:
        """Writes the staged records to the log and syncs them; new files stay in the staging folder.

        Raises OSError, and MqStoreError if the bytes are not those that a task staged.
        """
        course, staged = Course(self._plan, self._staging), dict[str, int]()
        descriptors: dict[str, int] = {}
        try:
            if self._is_large:
                overlapped(self._pieces(course, staged), partial(self._write_at, descriptors))
            else:
                for piece in self._pieces(course, staged):
                    self._write_at(descriptors, piece)
            for descriptor in descriptors.values():
                system.fsync(descriptor)
        finally:
            for descriptor in descriptors.values():
                system.close(descriptor)
        for file in (file for part in self._plan.parts for file in part.files if file.name in staged):
            if staged[file.name] != file.crc:
                raise MqStoreError(
                    f"{os.path.join(self._staging, file.name)} is not what a task staged; run the job again"
                )

    def _pieces(self, course: Course, staged: dict[str, int]) -> Iterator[tuple[int, bytes | memoryview]]:
        """Addresses and bytes in log order, none across a file's end. `staged` receives the CRC of each file."""
        buffers = Buffers()
        for chunk in course:
            if self._kept is not None:
                yield from self._made(self._kept, chunk, buffers)
            else:
                for first, _, data in patched(self._plan, self._staging, chunk, buffers, staged):
                    yield int(chunk.physical_offsets[first]), data.data
            for blank in chunk.blanks:
                yield blank.offset, blank_record(blank.size)

    def _made(self, kept: KeptRows, chunk: Chunk, buffers: Buffers) -> Iterator[tuple[int, memoryview]]:
        """Addresses and bytes of the chunk's records, encoded from kept rows."""
        queue_offsets = chunk.queue_offsets
        for first, last in runs(chunk):
            for rows in kept.take(last - first):
                here = slice(first, first + len(rows))
                if not self._plan.preserve:
                    rows = rows.placed(queue_offsets[here], chunk.physical_offsets[here], self._plan.store_ms)
                encoded = encode(rows, buffers.take)
                yield int(chunk.physical_offsets[first]), memoryview(encoded.data)[: int(encoded.bounds[-1])]
                first = here.stop

    def _write_at(self, descriptors: dict[str, int], piece: tuple[int, bytes | memoryview]) -> None:
        physical_offset, data = piece
        size = self._plan.ends.log_file_size
        path = self._resolve(self._inside(log_path(self._plan.folders, physical_offset // size * size, size)))
        if path not in descriptors:
            for other in list(descriptors):
                system.fsync(descriptors[other])
                system.close(descriptors.pop(other))
            descriptors[path] = system.open_write(path)
        system.pwrite(descriptors[path], data, physical_offset % size)
        # What was written a while ago is on the disk by now; its memory is reused for what follows.
        written_from = max(physical_offset % size - LAG, 0)
        system.release(descriptors[path], written_from, physical_offset % size + len(data) - written_from)

    def _drop_records(self) -> None:
        """Removes the staged records, which the log has by now. Takes a while, because their memory is freed."""
        for file in (file for part in self._plan.parts for file in part.files if file.name.endswith(RECORDS)):
            with suppress(FileNotFoundError):
                system.unlink(os.path.join(self._staging, file.name))

    # -- queues and index: one walk

    def _write_queues(self) -> None:
        course = Course(self._plan, self._staging)
        queues, index = self._queue_writer(), self._index_writer()
        filled: set[int] = set()
        try:
            for chunk in course:
                entries = partial(self._write_entries, queues, course, chunk, filled)
                self._both(partial(_add_keys, index, chunk), entries)
            self._both(queues.finish, partial(_finish, index))
        finally:
            queues.close()
            if index is not None:
                index.close()

    def _queue_writer(self) -> QueueWriter:
        """A writer that has already added the entries that the queues lack."""
        writer = QueueWriter(self._plan.ends.queue_entries, self._resolve)
        if self._store is not None and self._plan.recover:
            self._write_missing(self._store, writer)
        return writer

    def _write_entries(self, writer: QueueWriter, course: Course, chunk: Chunk, filled: set[int]) -> None:
        numbering, size = chunk.numbering, self._plan.ends.queue_entries
        for number in numbering.queues.tolist():
            if number in course.firsts and number not in filled:
                filled.add(number)
                first = course.firsts[number]
                writer.fill(course.keys[number], first // size * size, first)
        order = numbering.order
        rows = order if chunk.entry_rows is None else chunk.entry_rows[order]
        entries = encode_entries(chunk.physical_offsets, chunk.sizes, chunk.tags_codes, rows)
        bounds = numbering.bounds.tolist()
        for queue, start, stop in zip(numbering.queues.tolist(), bounds[:-1], bounds[1:], strict=True):
            first = int(numbering.values[order[start]])
            writer.write(course.keys[queue], first, entries[start:stop], int(chunk.store_ms[rows[stop - 1]]))

    def _write_missing(self, store: StoreState, writer: QueueWriter) -> None:
        for key, verdict in store.verdict.queues.items():
            if verdict.filler < verdict.first and verdict.disk_stop < verdict.stop and paths.has_folder(*key):
                writer.fill(key, verdict.filler, verdict.first)
        for missing in missing_entries(store):
            entries = encode_entries(missing.physical_offsets, missing.sizes, missing.tags_codes)
            writer.write(missing.key, missing.first, entries, missing.store_ms)

    def _index_writer(self) -> IndexWriter | None:
        """A writer that has already added the keys that the index lacks; None if the store has no index."""
        plan = self._plan
        if plan.ends.index is None:
            return None
        names = iter(plan.index_names)
        path = None if plan.index_name is None else os.path.join(self._root, paths.INDEX, plan.index_name)
        writer = IndexWriter(
            plan.ends.index, path, plan.index_header,
            lambda: self._resolve(os.path.join(paths.INDEX, next(names))),
        )  # fmt: skip
        if self._store is not None and plan.index_from is not None:
            for keys in unindexed(self._store, plan.index_from):
                writer.add(keys)
        return writer

    # -- the rest

    def _merged_topics(self) -> dict[str, Any] | None:
        return merged_topics(config_to_change(self._root, "topics.json"), self._plan.queue_ids, self._plan.store_ms)

    def _merge_topics(self) -> None:
        folder = os.path.join(self._root, paths.CONFIG)
        path = os.path.join(folder, "topics.json")
        merged = self._merged_topics()
        if merged is not None:
            system.make_folder(folder)
            write_whole(path, encode_config(merged))
            self._folders |= {folder, self._root}

    def _remove_abort(self) -> None:
        path = os.path.join(self._root, paths.ABORT)
        if system.exists(path):
            system.unlink(path)
            system.sync_folder(self._root)

    def _write_checkpoint(self) -> None:
        path = os.path.join(self._root, paths.CHECKPOINT)
        before = read_start(path, FILE_SIZE)
        there, newest = decode_checkpoint(before), self._plan.newest_ms
        indexed = max(there.index_ms, newest) if self._plan.ends.index is not None else there.index_ms
        data = encode_times(before, max(there.physic_ms, newest), max(there.logics_ms, newest), indexed)
        if data != before:
            write_whole(path, data)

    def _inside(self, path: str) -> str:
        inside = os.path.relpath(path, self._root)
        return path if inside.startswith("..") else inside

    def _resolve(self, target: str) -> str:
        """The present path of a file: its place in the store, or still the staging folder. Recreated if missing."""
        path = os.path.join(self._root, target)
        name, length = self._plan.files.get(target, (None, 0))
        staged = None if name is None else os.path.join(self._staging, name)
        if staged is not None and system.exists(staged):
            return staged
        if system.exists(path):
            return path
        if staged is None:
            raise FileNotFoundError(2, "the file vanished while the job was published", path)
        system.make_folder(os.path.dirname(staged))
        make_file(staged, length)
        return staged

    def _rename_new(self, predicate: Callable[[str], bool]) -> None:
        for target, (name, _) in self._plan.files.items():
            path, staged = os.path.join(self._root, target), os.path.join(self._staging, name)
            if predicate(target) and system.exists(staged):
                folder = os.path.dirname(path)
                self._note_folders(folder)
                system.make_folder(folder)
                move_file(staged, path)
                self._folders.add(os.path.dirname(staged))

    def _note_folders(self, folder: str) -> None:
        """Notes a folder and its parents up to the store: each may gain a name, so each is synced."""
        self._folders.add(folder)
        while folder.startswith(self._root + os.sep):
            folder = os.path.dirname(folder)
            self._folders.add(folder)


def _is_log(target: str) -> bool:
    return not target.startswith((paths.INDEX + os.sep, paths.CONSUME_QUEUE + os.sep))


def _is_queue(target: str) -> bool:
    return target.startswith(paths.CONSUME_QUEUE + os.sep)


def _is_any(_target: str) -> bool:
    return True


def _add_keys(index: IndexWriter | None, chunk: Chunk) -> None:
    if index is not None:
        index.add(Keys(chunk.hashes, chunk.key_counts, chunk.physical_offsets, chunk.store_ms))


def _finish(index: IndexWriter | None) -> None:
    if index is not None:
        index.finish()


class Buffers:
    """Two buffers that are used in turn and made once: new memory costs more than writing to it."""

    def __init__(self) -> None:
        self._next, self._last = (np.empty(0, np.uint8) for _ in range(2))

    def take(self, size: int) -> Bytes:
        """A buffer of `size` bytes, valid until the call after next."""
        self._next, self._last = self._last, self._next
        if size > len(self._last):
            self._last = np.empty(max(size, BUFFER_SIZE), np.uint8)
        return self._last[:size]


def patched(
    plan: Plan, staging: str, chunk: Chunk, buffers: Buffers, staged: dict[str, int] | None = None
) -> Iterator[tuple[int, int, Bytes]]:
    """The chunk's records as the log will hold them: runs [first, last) of records that are consecutive there.

    The bytes of a run are in `buffers`. If `staged` is given, it accumulates the CRC of the staged file.
    """
    starts = np.cumsum(chunk.sizes) - chunk.sizes
    with OpenFiles() as files:
        descriptor = files.descriptor(os.path.join(staging, chunk.records))
        for first, last in runs(chunk):
            begin, end = int(starts[first]), int(starts[last - 1] + chunk.sizes[last - 1])
            data = buffers.take(end - begin)
            if system.pread_into(descriptor, data.data, chunk.position + begin) < len(data):
                raise FileNotFoundError(2, "the staged file is shorter than it was", chunk.records)
            if staged is not None:
                name = os.path.basename(chunk.records)
                staged[name] = crc32(data, staged.get(name, 0))
            if not plan.preserve:
                rows = slice(first, last)
                patch(
                    data, starts[rows] - begin, chunk.queue_offsets[rows], chunk.physical_offsets[rows],
                    plan.store_ms,
                    chunk.sys_flags[rows] & BORN_HOST_V6 != 0,
                )  # fmt: skip
            yield first, last, data


def runs(chunk: Chunk) -> Iterator[tuple[int, int]]:
    """Runs [first, last) of a chunk's records that are consecutive in the log, each at most one buffer long."""
    stops = np.cumsum(chunk.sizes)
    breaks = chunk.physical_offsets[1:] != chunk.physical_offsets[:-1] + chunk.sizes[:-1]
    cuts = np.concatenate(([0], np.flatnonzero(breaks) + 1, [len(stops)])).tolist()
    for low, high in pairwise(cuts):
        first = low
        while first < high:
            limit = int(stops[first] - chunk.sizes[first]) + BUFFER_SIZE
            last = max(first + 1, low + int(np.searchsorted(stops[low:high], limit, "right")))
            yield first, last
            first = last
