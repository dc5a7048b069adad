"""What is left to do of a committed job when somebody removed its guard and a broker worked on the store meanwhile.

The broker served what it found of the job and appended after it. All that it accepted stays where it is; records of
the job that no queue lists are staged again, and `prepare` places them after the present end. docs/commit-protocol.md.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import ExitStack

import numpy as np
import numpy.typing as npt

from storage_core.files import system
from storage_core.files.append_file import AppendFile
from storage_core.files.file_chain import FileChain
from storage_core.files.small_file import read_at
from storage_core.files.undo_log import Changes
from storage_core.files.window import OpenFiles
from storage_core.formats.layout import Bytes, Positions
from storage_core.formats.rocketmq.consumequeue import BLANK_SIZE
from storage_core.formats.rocketmq.indexfile import HEADER, decode_header
from storage_core.job import JobFolder
from storage_core.rocketmq.index.index_files import index_paths
from storage_core.rocketmq.recovery.dispatch import has_entry
from storage_core.rocketmq.recovery.unfinished import StoreState
from storage_core.rocketmq.write.backfill import missing_entries
from storage_core.rocketmq.write.commit_plan import Chunk, Course, Plan
from storage_core.rocketmq.write.publish import patched
from storage_core.rocketmq.write.staging import DISPATCH, PRESERVED_OFFSETS
from storage_core.rocketmq.write.truncate import move_away
from storage_core.store import QueueKey, StagedFile, StagedPart

KINDS = ("records", "dispatch", "keys")


def stage_missing(root: str, plan: Plan, store: StoreState) -> list[StagedPart]:
    """The job's records that a broker serves through no queue, staged anew; no part when there is none."""
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
            kept = _missing(plan, staging, chunk, store, listed, files["records"])
            if not kept.any():
                continue
            first = int(chunk.physical_offsets[kept][0]) if first is None else first
            rows += int(kept.sum())
            keys = [course.keys[number] for number in chunk.queue[kept].tolist()]
            queues = np.fromiter((numbers.setdefault(key, len(numbers)) for key in keys), np.int32, len(keys))
            _append(files, chunk, kept, queues)
        for file in files.values():
            file.sync()
    system.sync_folder(staging)
    staged = tuple(StagedFile(os.path.basename(file.path), file.size, file.crc) for file in files.values())
    detail = {"queues": [list(key) for key in numbers], "first": first if plan.preserve else None}
    return [StagedPart(0, rows, staged, detail)] if rows else []


def listed_physical_offsets(store: StoreState, plan: Plan) -> Positions:
    """Addresses that queues list since the job, or will list once a broker has dispatched the rest; ascending."""
    parts = [np.empty(0, np.int64)]
    with OpenFiles() as files:
        for key, verdict in store.verdict.queues.items():
            queue = store.listing.queues.get(key)
            start = plan.ends.queues.get(key, 0)
            if queue is not None and start < verdict.disk_stop:
                entries = queue.entries(files, start, verdict.disk_stop)
                parts.append(entries["physical_offset"][entries["size"] != BLANK_SIZE].astype(np.int64))
    parts += [missing.physical_offsets for missing in missing_entries(store)]
    return np.unique(np.concatenate(parts))


def _missing(
    plan: Plan, staging: str, chunk: Chunk, store: StoreState, listed: Positions, target: AppendFile
) -> npt.NDArray[np.bool_]:
    """Which of the chunk's records are not served; their bytes are appended to `target`."""
    wanted = np.isin(chunk.physical_offsets, listed) | ~has_entry(chunk.sys_flags)
    wanted &= chunk.physical_offsets + chunk.sizes <= store.verdict.log_end
    for first, last, data in patched(plan, staging, chunk):
        sizes = chunk.sizes[first:last]
        wanted[first:last] &= _there(store.listing.log, int(chunk.physical_offsets[first]), data, sizes)
        stops = np.cumsum(sizes)
        for row in np.flatnonzero(~wanted[first:last]).tolist():
            target.append(data[int(stops[row] - sizes[row]) : int(stops[row])].tobytes())
    return ~wanted


def _there(log: FileChain, physical_offset: int, wanted: Bytes, sizes: Positions) -> npt.NDArray[np.bool_]:
    """Which of the records in `wanted`, which belong at `physical_offset`, lie there."""
    file = log.file_at(physical_offset)
    there = np.zeros(len(wanted), np.uint8)
    if file is not None:
        with OpenFiles() as files:
            raw = system.pread(files.descriptor(file.path), len(wanted), physical_offset - file.base_offset)
        there[: len(raw)] = np.frombuffer(raw, np.uint8)
    equal: npt.NDArray[np.bool_] = np.logical_and.reduceat(there == wanted, np.cumsum(sizes) - sizes)
    return equal


def _append(
    files: dict[str, AppendFile], chunk: Chunk, kept: npt.NDArray[np.bool_], queues: npt.NDArray[np.int32]
) -> None:
    dispatch = np.zeros(int(kept.sum()), DISPATCH.dtype)
    dispatch["size"], dispatch["queue"], dispatch["tags_code"] = chunk.sizes[kept], queues, chunk.tags_codes[kept]
    dispatch["sys_flag"], dispatch["key_count"] = chunk.sys_flags[kept] & 0xFFFF, chunk.key_counts[kept]
    files["dispatch"].append(dispatch.data)
    files["keys"].append(np.ascontiguousarray(chunk.hashes[np.repeat(kept, chunk.key_counts)], "<i4").data)
    if "preserved" in files:
        preserved = np.empty(len(dispatch), PRESERVED_OFFSETS.dtype)
        preserved["physical_offset"], preserved["queue_offset"] = (
            chunk.physical_offsets[kept],
            chunk.queue_offsets[kept],
        )
        preserved["store_ms"] = chunk.store_ms[kept]
        files["preserved"].append(preserved.data)


def drop_index(root: str, plan: Plan, changes: Changes) -> None:
    """Moves away the index files that reach beyond the job's beginning: what they hold is found in the log again."""
    kept = os.path.join(JobFolder(root).cut, plan.job)
    for path, stop in _index_stops(root):
        if stop < plan.ends.log_end:
            return
        move_away(root, path, changes, kept)


def _index_stops(root: str) -> Iterator[tuple[str, int]]:
    """Index files from the last one on, and the address of the last record in each; without any it counts as last."""
    for path in reversed(index_paths(root)):
        header = decode_header(read_at(path, HEADER.size))
        yield path, header.end_offset if header.count else 1 << 62
