"""Finishes what a killed writer left: takes a draft back, publishes a committed job again.

If somebody removed the guard and a broker worked on the store in the meantime, the broker served what it found of the
job and appended after it. Everything that it accepted stays in place; records of the job that no queue lists are staged
again, and `prepare` places them after the present end. Source of the rules: commit-protocol.md 8.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from storage_core.errors import MqStoreError
from storage_core.files import system
from storage_core.files.append_file import AppendFile
from storage_core.files.file_chain import FileChain
from storage_core.files.open_files import OpenFiles
from storage_core.files.small_file import read_at, remove_file
from storage_core.files.undo_log import Changes
from storage_core.formats.layout import Bytes, Positions
from storage_core.formats.rocketmq.consumequeue import BLANK_SIZE
from storage_core.formats.rocketmq.encode import own_addresses
from storage_core.formats.rocketmq.indexfile import HEADER, Geometry, decode_header
from storage_core.job import JobFolder, check_staged, drop_staging, pending_intent, read_json, write_json
from storage_core.rocketmq.disk.directory import log_folders
from storage_core.rocketmq.index.index_files import index_paths
from storage_core.rocketmq.recovery.dispatch import has_entry
from storage_core.rocketmq.recovery.unfinished import StoreState, find_store
from storage_core.rocketmq.write.backfill import missing_entries
from storage_core.rocketmq.write.commit_plan import Chunk, Course, Plan, plan_from_json, plan_to_json
from storage_core.rocketmq.write.commit_point import (
    GUARD,
    carry_out,
    is_guarded,
    not_finished,
    raise_guard,
    remove_guard,
    take_back,
)
from storage_core.rocketmq.write.options import WriteSettings
from storage_core.rocketmq.write.prepare import prepare
from storage_core.rocketmq.write.publish import Buffers, Publisher, patched, runs
from storage_core.rocketmq.write.staging import DISPATCH, PRESERVED_OFFSETS, RECORDS
from storage_core.rocketmq.write.store_end import log_path
from storage_core.rocketmq.write.truncate import move_away
from storage_core.store import QueueKey, StagedFile, StagedPart

KINDS = (RECORDS, "dispatch", "keys")


def finish_pending(root: str, settings: WriteSettings) -> bool:
    """Finishes the job whose intent a killed writer left, and returns whether there was one. The locks must be held."""
    job_folder = JobFolder(root)
    intent = read_json(job_folder.intent)
    if intent is None:
        _drop_draft(root)
        remove_guard(log_folders(root, settings.commit_log_path))
        return False
    plan = plan_from_json(intent, root)
    if pending_intent(root) is None:
        Publisher(root, plan).done(os.path.join(plan.folders[0], GUARD))
    else:
        check_staged(job_folder, plan.job, _needed(plan), crc=True)
        carry_out(root, _replanned(root, plan))
    drop_staging(job_folder, plan.job)
    return True


def _drop_draft(root: str) -> None:
    """Takes back a job that was stopped before its commit point.

    If its guard was removed, a broker may have served some of its records: these stay, like everything that a broker
    accepted.
    """
    draft = read_json(JobFolder(root).draft)
    if draft is None:
        return
    plan = plan_from_json(draft, root)
    if is_guarded(plan.folders):
        take_back(root, plan)
    else:
        remove_file(JobFolder(root).draft)
    remove_guard(plan.folders)
    drop_staging(JobFolder(root), plan.job)


def _needed(plan: Plan) -> list[StagedPart]:
    """The staged files that finishing the job reads."""
    if not plan.in_log:
        return list(plan.parts)
    kept = (tuple(file for file in part.files if not file.name.endswith(RECORDS)) for part in plan.parts)
    return [replace(part, files=files) for part, files in zip(plan.parts, kept, strict=True)]


def _replanned(root: str, plan: Plan) -> Plan:
    """The plan, or a new one if somebody removed the guard, so that a broker may have worked on the store.

    The new intent is written before the guard: a stop in between leaves a store that is examined again.
    """
    if is_guarded(plan.folders):
        return plan
    changes = Changes()
    try:
        found = _after_visit(root, plan, changes)
        write_json(JobFolder(root).intent, plan_to_json(found, root))
        raise_guard(found.folders, changes)
    except BaseException as error:
        changes.undo()
        if plan.preserve and isinstance(error, MqStoreError):
            raise _addresses_taken(root, error) from error
        if isinstance(error, OSError | MqStoreError):
            raise not_finished(root, error) from error
        raise
    return found


def _addresses_taken(root: str, error: MqStoreError) -> MqStoreError:
    """The error for a preserved job that can never be finished, because a broker has taken its addresses."""
    return MqStoreError(
        f"{root}: an earlier write with preserve=true is committed and can not be finished, as a broker wrote to the "
        f"store after the guard was removed ({error}); write its rows again into a new store, and remove "
        f"{JobFolder(root).intent} to keep this one as the broker left it"
    )


def _after_visit(root: str, plan: Plan, changes: Changes) -> Plan:
    """A plan that places the records that no queue lists after the present end, and completes the index."""
    settings = WriteSettings(
        preserve=plan.preserve, commit_log_path=plan.folders, query=plan.query, version=plan.version,
        log_file_size=plan.ends.log_file_size, queue_entries=plan.ends.queue_entries,
        index=plan.ends.index or Geometry(), index_given=plan.ends.index is not None,
    )  # fmt: skip
    parts = stage_missing(root, plan, find_store(root, plan.folders))
    if plan.ends.index is not None:
        drop_index(root, plan, changes)
    made = prepare(root, settings, plan.job, parts, changes, visited=True)
    queue_ids = {topic: max(count, made.queue_ids.get(topic, 0)) for topic, count in plan.queue_ids.items()}
    return replace(made, queue_ids={**made.queue_ids, **queue_ids}, in_log=False)


def stage_missing(root: str, plan: Plan, store: StoreState) -> list[StagedPart]:
    """Stages again the job's records that a broker serves through no queue; no part if there are none."""
    staging = JobFolder(root).staging(plan.job)
    listed, course = listed_physical_offsets(store, plan), Course(plan, staging)
    stem, numbers, rows = f"again-{uuid.uuid4().hex[:12]}", dict[QueueKey, int](), 0
    first: int | None = None
    with ExitStack() as opened:
        files = {
            kind: opened.enter_context(AppendFile(os.path.join(staging, f"{stem}.{kind}")))
            for kind in (*KINDS, *(("preserved",) if plan.preserve else ()))
        }
        for chunk in course:
            missing = _missing(root, plan, chunk, store, listed, files[RECORDS])
            if not missing.any():
                continue
            first = int(chunk.physical_offsets[missing][0]) if first is None else first
            rows += int(missing.sum())
            keys = [course.keys[number] for number in chunk.queue[missing].tolist()]
            queues = np.fromiter((numbers.setdefault(key, len(numbers)) for key in keys), np.int32, len(keys))
            _append(files, chunk, missing, queues)
        for file in files.values():
            file.finish()
    system.sync_folder(staging)
    staged = tuple(StagedFile(os.path.basename(file.path), file.size, file.crc) for file in files.values())
    detail = {"queues": [list(key) for key in numbers], "first": first if plan.preserve else None}
    return [StagedPart(0, rows, staged, detail)] if rows else []


def listed_physical_offsets(store: StoreState, plan: Plan) -> Positions:
    """Addresses that queues list since the job, or will list when a broker has dispatched the rest; ascending."""
    parts, job_begin = [np.empty(0, np.int64)], np.array([plan.ends.log_end], np.int64)
    with OpenFiles() as files:
        for key, verdict in store.verdict.queues.items():
            queue = store.listing.queues.get(key)
            if queue is not None and queue.start < verdict.disk_stop:
                # Not from the planned offset on: a broker that found only some of the job's queue files listed its
                # records further in front.
                (start,) = queue.lower_bounds(files, queue.start, verdict.disk_stop, job_begin).tolist()
                entries = queue.entries(files, start, verdict.disk_stop)
                parts.append(entries["physical_offset"][entries["size"] != BLANK_SIZE].astype(np.int64))
    parts += [missing.physical_offsets for missing in missing_entries(store)]
    return np.unique(np.concatenate(parts))


def _missing(
    root: str, plan: Plan, chunk: Chunk, store: StoreState, listed: Positions, target: AppendFile
) -> npt.NDArray[np.bool_]:
    """Which of the chunk's records are not served; their bytes are appended to `target`."""
    served = np.isin(chunk.physical_offsets, listed) | ~has_entry(chunk.sys_flags)
    served &= chunk.physical_offsets + chunk.sizes <= store.verdict.log_end
    staging = JobFolder(root).staging(plan.job)
    source = _placed(root, plan, chunk) if plan.in_log else patched(plan, staging, chunk, Buffers())
    for first, last, data in source:
        sizes = chunk.sizes[first:last]
        served[first:last] &= _there(store.listing.log, int(chunk.physical_offsets[first]), data, sizes)
        stops = np.cumsum(sizes)
        for row in np.flatnonzero(~served[first:last]).tolist():
            target.append(data[int(stops[row] - sizes[row]) : int(stops[row])].tobytes())
    return ~served


def _placed(root: str, plan: Plan, chunk: Chunk) -> Iterator[tuple[int, int, Bytes]]:
    """Runs of the chunk's records, as in `patched`, from where the job wrote them: the log, or a staged file for it.

    Raises MqStoreError if something else is there by now.
    """
    size, staging = plan.ends.log_file_size, JobFolder(root).staging(plan.job)
    new = {os.path.normpath(os.path.join(root, target)): name for target, (name, _) in plan.files.items()}
    starts = np.cumsum(chunk.sizes) - chunk.sizes
    for first, last in runs(chunk):
        physical_offset = int(chunk.physical_offsets[first])
        base = physical_offset // size * size
        path = os.path.normpath(log_path(plan.folders, base, size))
        if path in new and system.exists(os.path.join(staging, new[path])):
            path = os.path.join(staging, new[path])
        length = int(chunk.sizes[first:last].sum())
        data = np.frombuffer(read_at(path, length, physical_offset - base), np.uint8)
        expected, at = chunk.physical_offsets[first:last], starts[first:last] - starts[first]
        if len(data) < length or not np.array_equal(own_addresses(data, at), expected):
            raise MqStoreError(f"{path}: the records that the job {plan.job} wrote at {physical_offset} are gone")
        yield first, last, data


def _there(log: FileChain, physical_offset: int, data: Bytes, sizes: Positions) -> npt.NDArray[np.bool_]:
    """Which of the records in `data` the log holds where they belong, from `physical_offset` on."""
    file = log.file_at(physical_offset)
    there = np.zeros(len(data), np.uint8)
    if file is not None:
        with OpenFiles() as files:
            raw = system.pread(files.descriptor(file.path), len(data), physical_offset - file.base_offset)
        there[: len(raw)] = np.frombuffer(raw, np.uint8)
    equal: npt.NDArray[np.bool_] = np.logical_and.reduceat(there == data, np.cumsum(sizes) - sizes)
    return equal


def _append(
    files: dict[str, AppendFile], chunk: Chunk, missing: npt.NDArray[np.bool_], queues: npt.NDArray[np.int32]
) -> None:
    dispatch = np.zeros(int(missing.sum()), DISPATCH.dtype)
    dispatch["size"], dispatch["queue"], dispatch["tags_code"] = chunk.sizes[missing], queues, chunk.tags_codes[missing]
    dispatch["sys_flag"], dispatch["key_count"] = chunk.sys_flags[missing] & 0xFFFF, chunk.key_counts[missing]
    files["dispatch"].append(dispatch.data)
    files["keys"].append(np.ascontiguousarray(chunk.hashes[np.repeat(missing, chunk.key_counts)], "<i4").data)
    if "preserved" in files:
        preserved = np.empty(len(dispatch), PRESERVED_OFFSETS.dtype)
        preserved["physical_offset"], preserved["queue_offset"] = (
            chunk.physical_offsets[missing],
            chunk.queue_offsets[missing],
        )
        preserved["store_ms"] = chunk.store_ms[missing]
        files["preserved"].append(preserved.data)


def drop_index(root: str, plan: Plan, changes: Changes) -> None:
    """Moves away the index files that reach past the job's beginning; their keys are read from the log again."""
    folder = os.path.join(JobFolder(root).cut, plan.job)
    for path, stop in _index_stops(root):
        if stop < plan.ends.log_end:
            return
        move_away(root, path, changes, folder)


def _index_stops(root: str) -> Iterator[tuple[str, int]]:
    """Index files, last one first, and the address of the last record in each; 1 << 62 for a file without any."""
    for path in reversed(index_paths(root)):
        header = decode_header(read_at(path, HEADER.size))
        yield path, header.end_offset if header.count else 1 << 62
