"""Makes the plan of a job and reserves its space, before the commit point: nothing that is served changes here.

Every change goes through `Changes`, so a refused job leaves each file as it was. `publish` carries the plan out.
Source of the rules: commit-protocol.md 2.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from storage_core.errors import MqStoreError, UnsupportedFormatError, listing
from storage_core.files import system
from storage_core.files.open_files import OpenFiles
from storage_core.files.small_file import names_in, read_at
from storage_core.files.undo_log import Changes
from storage_core.formats.rocketmq import paths
from storage_core.formats.rocketmq.config_json import queue_counts
from storage_core.formats.rocketmq.consumequeue import QUEUE_ENTRY
from storage_core.formats.rocketmq.index_insert import room
from storage_core.formats.rocketmq.indexfile import ENTRY, HEADER, SLOT, Geometry, decode_header
from storage_core.job import JobFolder
from storage_core.rocketmq.disk.batch_queue import batch_queue_files
from storage_core.rocketmq.disk.config_files import batch_topics, compacted_topics, config_to_change
from storage_core.rocketmq.disk.directory import find_log, looks_like_store
from storage_core.rocketmq.index.geometry import noted_geometry
from storage_core.rocketmq.index.index_files import index_paths, open_index
from storage_core.rocketmq.index.index_writer import PAGE_SLOTS, FileNeeds, new_index_names
from storage_core.rocketmq.recovery.unfinished import StoreState, find_store, noted_state
from storage_core.rocketmq.write.backfill import last_store_ms, unindexed
from storage_core.rocketmq.write.commit_plan import Course, Plan
from storage_core.rocketmq.write.options import DEFAULT_LOG_FILE_SIZE, WriteSettings
from storage_core.rocketmq.write.queue_writer import file_parts, queue_file
from storage_core.rocketmq.write.store_end import Ends, log_path, noted_queue_entries, trusted_ends
from storage_core.rocketmq.write.truncate import (
    cut,
    refuse_intact_records,
    refuse_long_file,
    refuse_long_files,
    refuse_lost_dispatch,
    refuse_lost_end,
    refuse_stale_entries,
)
from storage_core.store import QueueKey, StagedPart

HARMLESS = frozenset({".mqstore", "lock"})
NEW = "new"
"""Folder of the files that a job adds to the store. After a broker's visit a second one is made, because the first may
still be needed.
"""


def check_directory(root: str, folders: Sequence[str]) -> None:
    """Refuses a directory that holds anything but a store, whose log may lie in other folders."""
    if not system.exists(root) or looks_like_store(root) or find_log(root, folders).files:
        return
    others = [name for name in system.names(root) if name not in HARMLESS]
    if others:
        raise MqStoreError(
            f"{root} is not empty and no RocketMQ store (it holds {', '.join(others[:5])}); "
            "write into an empty or new directory"
        )


def refuse_batched(root: str, parts: Sequence[StagedPart]) -> None:
    """Refuses rows of topics that a broker serves from files that only its own dispatcher fills (rocketmq.md 3.7, 3.9).

    A topic with batch queues must not have consume queues as well: no broker would start.
    """
    written = {topic for part in parts for topic, _ in part.detail["queues"]}
    found, reason = frozenset[str](), "is in batch queues (queue.type=BatchCQ"
    if any(not system.is_folder(os.path.join(root, paths.CONSUME_QUEUE, topic)) for topic in written):
        found = batch_topics(root) | {topic for topic, _ in batch_queue_files(root)}
    if not written & found and system.is_folder(os.path.join(root, paths.COMPACTION)):
        found, reason = compacted_topics(root), "is compacted (cleanup.policy=COMPACTION"
    if refused := sorted(written & found):
        raise MqStoreError(
            f"{root}: {listing(refused)} {reason} in topics.json): a broker would not "
            "serve messages that it did not get itself; write them to another topic, or send them to the broker"
        )


def known_queues(root: str) -> dict[str, int]:
    """Number of queues of each existing topic: from topics.json, else from the queues on disk."""
    counts: dict[str, int] = {}
    folder = os.path.join(root, paths.CONSUME_QUEUE)
    for topic in names_in(folder):
        ids = [paths.queue_id_of(name) for name in names_in(os.path.join(folder, topic))]
        if known := [queue_id for queue_id in ids if queue_id is not None]:
            counts[topic] = max(known) + 1
    return {**counts, **queue_counts(config_to_change(root, "topics.json"))}


def store_ends(
    root: str, settings: WriteSettings, folders: Sequence[str], trusting: bool = True
) -> tuple[Ends, StoreState | None]:
    """Where the store ends: as the last job noted, else as a broker would find it; at 0 for a new store.

    Without `trusting`, an index of unknown geometry is left as it is, and queue files of unknown length get the default
    one; otherwise either raises UnsupportedFormatError.
    """
    check_directory(root, folders)
    trusted = trusted_ends(root, folders) if trusting else None
    if trusted is not None:
        refuse_long_files(find_log(root, folders), trusted.log_file_size)
        return trusted, None
    if not find_log(root, folders).files:
        entries = settings.queue_entries
        if looks_like_store(root) and any(_log_names(os.path.join(root, paths.CONSUME_QUEUE))):
            raise MqStoreError(
                f"{root} has queues and no commit log; a broker would destroy them: name the log with option "
                "commitLogPath, or write into a new directory"
            )
        return Ends(0, 0, 0, {}, settings.log_file_size, entries, settings.index, 0), None
    store = find_store(root, folders)
    refuse_intact_records(store)
    refuse_stale_entries(store)
    if trusting and settings.commit_log_path:
        refuse_lost_end(store)
    log, verdict = store.listing.log, store.verdict
    queues = {key: bounds.stop for key, bounds in verdict.queues.items() if paths.has_folder(*key)}
    known = store.listing.entries_per_file or noted_queue_entries(root)
    if not known and trusting:
        _refuse_unknown_queues(root, settings, log.file_size)
    entries = known or settings.queue_entries
    ends = Ends(log.start, verdict.log_end, last_store_ms(store), queues, log.file_size, entries, None)
    try:
        index = _index_geometry(root, settings, ends, store)
    except UnsupportedFormatError:
        if trusting:
            raise
        index = None
    return replace(ends, index=index), store


def _refuse_unknown_queues(root: str, settings: WriteSettings, log_file_size: int) -> None:
    """Raises UnsupportedFormatError if nothing says how long the broker's queue files are: it would not load the store.

    The default is used if the files of the log have the default size too.
    """
    if not settings.queue_entries_given and log_file_size != DEFAULT_LOG_FILE_SIZE:
        raise UnsupportedFormatError(
            f"{os.path.join(root, paths.CONSUME_QUEUE)}: no queue has a file, so nothing says how many entries the "
            f"broker gives to one; give its mappedFileSizeConsumeQueue / {QUEUE_ENTRY.size} as option "
            "consumeQueueFileEntries"
        )


def _log_names(folder: str) -> list[str]:
    try:
        return system.names(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []


def _index_geometry(root: str, settings: WriteSettings, ends: Ends, store: StoreState) -> Geometry | None:
    """Slots and entries of the store's index files; None if the store has no index and none should be begun.

    Nothing in a store states the geometry that its broker will use. Without an index file to take it from, an index is
    begun only if the geometry was given or noted, the log is empty, or its files have the default size too.
    """
    noted = noted_geometry(root)
    files = index_paths(root)
    if not files:
        if noted is not None or settings.index_given or not ends.log_end:
            return noted or settings.index
        return settings.index if ends.log_file_size == DEFAULT_LOG_FILE_SIZE else None
    length = system.stat(files[-1]).size
    with OpenFiles() as opened:
        proven = open_index(root, store.listing.log, ends.log_start, ends.log_end, opened, noted)
    known = [file.geometry for file in reversed(proven.files)]
    for geometry in [*known, *([noted] if noted else []), settings.index, Geometry()]:
        if geometry.file_size == length:
            return geometry
    given = f", and indexSlots={settings.index.slots} with indexEntries={settings.index.entries} means "
    raise UnsupportedFormatError(
        f"{files[-1]}: nothing in this index file of {length} bytes says how many slots and entries the broker gives "
        f"to a file{f'{given}{settings.index.file_size} bytes' if settings.index_given else ''}; give its "
        "maxHashSlotNum and maxIndexNum as options indexSlots and indexEntries"
    )


def prepare(
    root: str, settings: WriteSettings, job: str, parts: Sequence[StagedPart], changes: Changes, visited: bool = False
) -> Plan:  # fmt: skip
    """The plan of a job. All files that it needs are made, all bytes are reserved.

    `visited`: a broker worked on the store while the job was unfinished, or a repair completes queues and index. Noted
    state is then not trusted, keys missing from the index files are added, and messages that await a broker start do
    not hold up the job. Raises MqStoreError; the caller then takes `changes` back.
    """
    folders = settings.commit_log_path or (os.path.join(root, paths.COMMIT_LOG),)
    ends, store = store_ends(root, settings, folders, trusting=not visited)
    if store is not None and not visited:
        refuse_lost_dispatch(store.listing, store.verdict)
    parts = sorted(parts, key=lambda part: part.detail["first"] or 0 if settings.preserve else part.partition)
    parts = [part for part in parts if part.rows]
    if settings.preserve and parts and not ends.log_end:
        base = parts[0].detail["first"] // ends.log_file_size * ends.log_file_size
        ends = replace(ends, log_start=base, log_end=base, indexed_to=base)
    if store is not None:
        cut(store, changes, os.path.join(JobFolder(root).cut, job))
    now_ms = time.time_ns() // 1_000_000
    plan = Plan(
        job, tuple(parts), settings.preserve, max(now_ms, ends.last_store_ms), ends, ends, tuple(folders),
        query=settings.query, version=settings.version,
        recover=store is not None and (store.incomplete or store.listing.abort),
        seen=None if store is None else noted_state(store),
    )  # fmt: skip
    if ends.index is not None:
        plan = _with_index(root, plan, store)
        if visited and plan.index_from is None:
            plan = replace(plan, index_from=ends.log_start - 1)
    new = f"{NEW}-{uuid.uuid4().hex[:12]}" if visited else NEW
    return _Reservation(root, plan, store, settings.queues, changes, new).made()


def _with_index(root: str, plan: Plan, store: StoreState | None) -> Plan:
    """Adds the index file that is continued: the last one, unless it is not valid or points past the log's end."""
    files = index_paths(root)
    ends = plan.ends
    if not files:
        return plan
    path = files[-1]
    header = decode_header(read_at(path, HEADER.size))
    if store is not None and header.count:
        with OpenFiles() as opened:
            proven = open_index(root, store.listing.log, ends.log_start, ends.log_end, opened, ends.index)
        if path not in [file.path for file in proven.files] and header.end_offset >= ends.log_start:
            return plan
    last_indexed = header.end_offset if header.count and store is not None else None
    return replace(plan, index_name=os.path.basename(path), index_header=header, index_from=last_indexed)


class _Reservation:
    """Walks over a job once, only counting, then makes the files and reserves the space that it needs."""

    def __init__(
        self, root: str, plan: Plan, store: StoreState | None, queues: int, changes: Changes, new: str
    ) -> None:
        self._root, self._plan, self._store, self._changes = root, plan, store, changes
        self._queues, self._new = queues, new
        self._staging = JobFolder(root).staging(plan.job)
        self._files: dict[str, tuple[str, int]] = {}
        index = plan.ends.index or Geometry()
        self._has_keys = np.zeros(index.slots // PAGE_SLOTS + 1, bool)
        self._needs = FileNeeds(index, None)
        self._key_count = 0

    def made(self) -> Plan:
        """The finished plan."""
        plan, ends = self._plan, self._plan.ends
        if ends.index is not None and plan.index_name is not None:
            self._needs.left = room(plan.index_header, ends.index)
        self._old_keys()
        course = Course(plan, self._staging)
        last_ms, log_ms = ends.last_store_ms, ends.last_store_ms
        unlisted = 0
        try:
            for chunk in course:
                unlisted += chunk.unlisted if plan.preserve else 0
                last_ms, log_ms = max(last_ms, int(chunk.store_ms.max())), int(chunk.store_ms[-1])
                self._count_keys(chunk.hashes, bool(chunk.key_counts[-1]))
        except ValueError as error:
            raise MqStoreError(f"{self._root}: {error}") from None
        queues = dict(zip(course.keys, course.next_queue_offsets.tolist(), strict=True))
        system.make_folder(os.path.join(self._staging, self._new))
        self._log_room(course.stop)
        for number, key in enumerate(course.keys):
            first = course.firsts.get(number, ends.queues.get(key, 0))
            start = first // ends.queue_entries * ends.queue_entries if number in course.firsts else first
            self._queue_room(key, start, queues[key])
        names = self._index_room()
        after = replace(
            ends, log_end=course.stop, queues={key: stop for key, stop in queues.items() if stop >= 0},
            last_store_ms=log_ms, indexed_to=None if ends.index is None else course.stop,
        )  # fmt: skip
        return replace(
            plan, after=after, files=self._files, index_names=names, queue_ids=self._queue_ids(), newest_ms=last_ms,
            unlisted=unlisted,
        )  # fmt: skip

    def _queue_ids(self) -> dict[str, int]:
        counts, known = dict[str, int](), known_queues(self._root)
        for part in self._plan.parts:
            for topic, queue_id in part.detail["queues"]:
                least = known.get(topic, self._queues)
                counts[topic] = max(counts.get(topic, least), queue_id + 1)
        return counts

    def _log_room(self, stop: int) -> None:
        ends = self._plan.ends
        size = ends.log_file_size
        for base in range(ends.log_end // size * size, stop, size):
            path = log_path(self._plan.folders, base, size)
            start, end = max(ends.log_end - base, 0), min(stop - base, size)
            if end > start:
                self._make(path, size, [(start, end - start)])

    def _queue_room(self, key: QueueKey, start: int, stop: int) -> None:
        entries = self._plan.ends.queue_entries
        verdict = self._store.verdict.queues.get(key) if self._store is not None else None
        if verdict is not None:
            missing = verdict.disk_stop < verdict.stop
            start = min(start, verdict.filler if missing and verdict.filler < verdict.first else verdict.disk_stop)
        for low, high in file_parts(start, stop, entries):
            path = os.path.join(self._root, queue_file(key, low, entries))
            position = low % entries * QUEUE_ENTRY.size
            if system.exists(path):
                refuse_long_file(path, system.stat(path).size, entries * QUEUE_ENTRY.size)
            self._make(path, entries * QUEUE_ENTRY.size, [(position, (high - low) * QUEUE_ENTRY.size)])

    def _index_room(self) -> tuple[str, ...]:
        geometry = self._plan.ends.index
        if geometry is None:
            return ()
        runs = [(0, HEADER.size)] + [
            (HEADER.size + SLOT.size * PAGE_SLOTS * low, SLOT.size * PAGE_SLOTS * (high - low))
            for low, high in slot_runs_of_pages(np.flatnonzero(self._has_keys))
        ]
        runs = [(start, min(size, geometry.entries_position - start)) for start, size in runs]
        left = self._key_count
        if self._plan.index_name is not None:
            fit = min(left, room(self._plan.index_header, geometry))
            first = max(self._plan.index_header.entry_count, 1)
            path = os.path.join(self._root, paths.INDEX, self._plan.index_name)
            if fit:
                entries = (geometry.entries_position + ENTRY.size * first, ENTRY.size * fit)
                self._make(path, geometry.file_size, [*runs, entries])
            left -= fit
        names = tuple(new_index_names(self._root, self._needs.new_files))
        for name in names:
            fit = min(left, geometry.entries - 1)
            entries = (geometry.entries_position, ENTRY.size * (fit + 1))
            self._make(os.path.join(self._root, paths.INDEX, name), geometry.file_size, [*runs, entries])
            left -= fit
        return names

    def _old_keys(self) -> None:
        if self._store is not None and self._plan.index_from is not None:
            for keys in unindexed(self._store, self._plan.index_from):
                self._count_keys(keys.hashes, bool(keys.counts[-1]))

    def _count_keys(self, hashes: npt.NDArray[np.int32], last: bool) -> None:
        geometry = self._plan.ends.index
        if geometry is None:
            return
        self._needs.add(len(hashes), last)
        self._key_count += len(hashes)
        # No hash is negative, and numpy divides unsigned 32-bit numbers several times faster than it computes `%`.
        numbers, count = hashes.view(np.uint32), np.uint32(geometry.slots)
        self._has_keys[(numbers - numbers // count * count) // np.uint32(PAGE_SLOTS)] = True

    def _make(self, path: str, length: int, parts: list[tuple[int, int]]) -> None:
        """Reserves parts of a file; a file that does not exist is made in the staging folder.

        No broker starts with too short a file, so one gets its full length.
        """
        if system.exists(path):
            if size := system.stat(path).size:
                if size < length:
                    self._changes.lengthen(path, length)
                for position, count in parts:
                    self._changes.reserve(path, position, count)
                return
            # A crash between creating and sizing a file leaves it empty.
            self._changes.move(path, os.path.join(self._staging, f"empty-{len(self._files)}"))
        target = os.path.relpath(path, self._root)
        target = path if target.startswith("..") else target
        name = os.path.join(self._new, str(len(self._files)))
        self._files[target] = (name, length)
        make_file(os.path.join(self._staging, name), length, parts)


def make_file(path: str, length: int, parts: Sequence[tuple[int, int]] = ()) -> None:
    """Makes a new file of zeros at full length, sparse except for the parts that will be written."""
    descriptor = system.open_write(path, create=True, exclusive=True)
    try:
        system.truncate(descriptor, length)
        for position, size in parts:
            system.reserve(descriptor, position, size)
        system.fsync(descriptor)
    finally:
        system.close(descriptor)


def slot_runs_of_pages(pages: npt.NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Ranges of consecutive pages."""
    if not len(pages):
        return
    cuts = np.flatnonzero(np.diff(pages) > 1) + 1
    for run in np.split(pages, cuts):
        yield int(run[0]), int(run[-1]) + 1
