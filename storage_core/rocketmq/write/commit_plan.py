"""The plan of a job: where each staged record, entry and key is written. Every computation gives the same plan.

Nothing here changes a file: `prepare` makes a plan and reserves its space; `publish` carries it out, and does so again
after a crash.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from storage_core.errors import MqStoreError
from storage_core.files.small_file import read_at
from storage_core.formats.layout import Positions
from storage_core.formats.rocketmq.index_insert import EMPTY
from storage_core.formats.rocketmq.indexfile import IndexHeader
from storage_core.job import part_from_json, part_to_json, refuse_outside
from storage_core.rocketmq.recovery.dispatch import has_entry
from storage_core.rocketmq.write.placement import (
    Blank,
    Numbering,
    Placement,
    number,
    number_preserved,
    placement_of,
    preserved_placement,
)
from storage_core.rocketmq.write.staging import DISPATCH, NAMED_ENTRY, PRESERVED_OFFSETS
from storage_core.rocketmq.write.store_end import Ends, ends_from_json, ends_to_json
from storage_core.store import QueueKey, StagedPart

CHUNK_COUNT = 1 << 16
KEPT_COUNT = 1 << 19
"""The most records of a job whose chunks are kept for its next walk; they take about 80 bytes per record."""


@dataclass
class Walked:
    """The results of a complete walk over a small job's records, kept because a commit walks three times.

    Empty until the first walk is complete.
    """

    chunks: tuple[Chunk, ...] | None = None
    keys: list[QueueKey] = field(default_factory=list)
    next_queue_offsets: Positions = field(default_factory=lambda: np.empty(0, np.int64))
    firsts: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Plan:
    """Everything that publishing needs besides the staged files.

    `index_name` and `index_header` describe the index file that is continued, `index_names` are the new ones.
    `files` maps each new file's path, relative to the store or absolute, to its name in the staging folder and length.
    `queue_ids` is the number of queues that topics.json must state for each topic, `newest_ms` the largest store time.
    `recover`: the log holds messages that queues do not list, or `abort` exists. `seen` is the state outside the log
    that recovery saw, None if the last job's state was trusted or the store is new. `in_log`: the records were forced
    into the log before the commit point, so the staged ones are no longer needed. `unlisted` counts preserved records
    that no queue accepts. `walked` is valid only for the present values of `parts`, `ends`, `store_ms` and `preserve`.
    """

    job: str
    parts: tuple[StagedPart, ...]
    preserve: bool
    store_ms: int
    ends: Ends
    after: Ends
    folders: tuple[str, ...]
    index_name: str | None = None
    index_header: IndexHeader = EMPTY
    index_from: int | None = None
    index_names: tuple[str, ...] = ()
    files: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    queue_ids: Mapping[str, int] = field(default_factory=dict)
    query: str | None = None
    version: int = 0
    newest_ms: int = 0
    recover: bool = False
    seen: Mapping[str, Any] | None = None
    in_log: bool = True
    unlisted: int = 0
    walked: Walked = field(default_factory=Walked, repr=False, compare=False)

    @property
    def rows(self) -> int:
        """Number of records of the job."""
        return sum(part.rows for part in self.parts)


def plan_to_json(plan: Plan, root: str) -> dict[str, Any]:
    """The intent of a plan. Folders inside the store are named relative to it, so a copy is finished within itself."""
    header = plan.index_header
    inside = os.path.join(root, "")
    return {
        **{name: getattr(plan, name) for name in _PLAIN},
        "folders": [folder.removeprefix(inside) for folder in plan.folders],
        "parts": [part_to_json(part) for part in plan.parts],
        "ends": ends_to_json(plan.ends),
        "after": ends_to_json(plan.after),
        "index_header": [getattr(header, name) for name in IndexHeader.__dataclass_fields__],
    }


def plan_from_json(intent: Mapping[str, Any], root: str) -> Plan:
    """The plan of an intent of the store at `root`. Raises MqStoreError for a path outside the store and its log."""
    _refuse_outside(intent, root)
    # An intent written before drafts existed has no `in_log`: its records are in the staging folder.
    plain = {name: intent.get(name, False) if name == "in_log" else intent[name] for name in _PLAIN}
    plain["folders"] = tuple(os.path.join(root, folder) for folder in plain["folders"])
    plain["index_names"] = tuple(plain["index_names"])
    plain["files"] = {target: (name, length) for target, (name, length) in plain["files"].items()}
    return Plan(
        parts=tuple(part_from_json(part) for part in intent["parts"]),
        ends=ends_from_json(intent["ends"]),
        after=ends_from_json(intent["after"]),
        index_header=IndexHeader(*intent["index_header"]),
        **plain,
    )


def _refuse_outside(intent: Mapping[str, Any], root: str) -> None:
    """Checks all names that become paths. Those of the log's folders and of files in them may be absolute."""
    folders = [folder for folder in intent["folders"] if os.path.isabs(folder)]
    parts = [part_from_json(part) for part in intent["parts"]]
    refuse_outside(
        root,
        [
            intent["job"], *intent["index_names"], *([] if intent["index_name"] is None else [intent["index_name"]]),
            *(folder for folder in intent["folders"] if folder not in folders),
            *(target for target in intent["files"] if os.path.dirname(target) not in folders),
            *(name for name, _ in intent["files"].values()),
            *(file.name for part in parts for file in part.files),
            *(topic for part in parts for topic, _ in part.detail["queues"]),
        ],
    )  # fmt: skip


_PLAIN = (
    "job", "preserve", "store_ms", "folders", "index_name", "index_from", "index_names", "files", "queue_ids",
    "query", "version", "newest_ms", "recover", "seen", "in_log",
)  # fmt: skip


@dataclass(frozen=True)
class StagedRecords:
    """Consecutive records of one task with their staged fields. Arrays have shape (n,).

    `position` is where the first one begins in the staged file `records`, which does not exist if rows were kept;
    `queue` holds the queue numbers of the course.
    """

    records: str
    position: int
    sizes: Positions
    sys_flags: npt.NDArray[np.int32]
    queue: npt.NDArray[np.int64]
    tags_codes: Positions
    key_counts: npt.NDArray[np.int64]
    hashes: npt.NDArray[np.int32]


@dataclass(frozen=True)
class Chunk(StagedRecords):
    """Staged records with everything that the plan assigns to them. Arrays have shape (n,).

    `next_queue_offsets` are those of the queues before this chunk; `preserved` has the numbering and the queue offsets
    of records that keep their own. If records name queues besides their own, the numbering is one of entries, and
    `entry_rows` has the record of each entry.
    """

    physical_offsets: Positions
    blanks: tuple[Blank, ...]
    next_queue_offsets: Positions
    store_ms: Positions
    stop: int
    preserved: tuple[Numbering, Positions] | None = None
    entry_rows: npt.NDArray[np.int64] | None = None

    @cached_property
    def numbering(self) -> Numbering:
        """The place of each record in its queue. Computed on first access: a walk that only counts does not need it."""
        if self.preserved is not None:
            return self.preserved[0]
        return number(self.queue, has_entry(self.sys_flags), self.next_queue_offsets.copy())

    @property
    def unlisted(self) -> int:
        """How many entries that records call for have a queue offset below the end of their queue."""
        listed = slice(None) if self.entry_rows is not None else has_entry(self.sys_flags)
        return int((self.numbering.values[listed] < 0).sum())

    @property
    def queue_offsets(self) -> Positions:
        """QUEUEOFFSET of each record."""
        if self.preserved is not None:
            return self.preserved[1]
        listed = len(self.numbering.order) == len(self.sizes)
        return self.numbering.values if listed else np.maximum(self.numbering.values, 0)


class Course:
    """One walk over a job's records in order. `keys` and `next_queue_offsets` grow as it meets new queues."""

    def __init__(self, plan: Plan, folder: str) -> None:
        self._plan, self._folder = plan, folder
        self.keys: list[QueueKey] = list(plan.ends.queues)
        self._numbers = {key: index for index, key in enumerate(self.keys)}
        self.next_queue_offsets = np.fromiter(plan.ends.queues.values(), np.int64, len(self.keys))
        self.firsts: dict[int, int] = {}
        self.stop = plan.ends.log_end

    def __iter__(self) -> Iterator[Chunk]:
        walked = self._plan.walked
        if walked.chunks is None:
            yield from self._walk(walked)
            return
        self.keys, self.firsts = walked.keys, walked.firsts
        self.next_queue_offsets = walked.next_queue_offsets
        self.stop = walked.chunks[-1].stop if walked.chunks else self._plan.ends.log_end
        yield from walked.chunks

    def _walk(self, walked: Walked) -> Iterator[Chunk]:
        chunks: list[Chunk] | None = [] if self._plan.rows <= KEPT_COUNT else None
        for part in self._plan.parts:
            for chunk in self._part(part):
                if chunks is not None:
                    chunks.append(chunk)
                yield chunk
        if chunks is not None:
            walked.keys, walked.firsts, walked.next_queue_offsets = self.keys, self.firsts, self.next_queue_offsets
            walked.chunks = tuple(chunks)

    def _part(self, part: StagedPart) -> Iterator[Chunk]:
        names = {file.name.rpartition(".")[2]: os.path.join(self._folder, file.name) for file in part.files}
        numbers, of_named = (self._queue_numbers(part, which) for which in ("queues", "named"))
        named = _NamedEntries(names.get("named"), len(of_named))
        position = key_position = 0
        for start in range(0, part.rows, CHUNK_COUNT):
            count = min(CHUNK_COUNT, part.rows - start)
            dispatch = _structs(names["dispatch"], DISPATCH.dtype, start, count)
            sizes, key_counts = (dispatch[name].astype(np.int64) for name in ("size", "key_count"))
            key_count = int(key_counts.sum())
            hashes = _structs(names["keys"], np.dtype("<i4"), key_position, key_count)
            staged = StagedRecords(
                names.get("records", ""), position, sizes, dispatch["sys_flag"].astype(np.int32),
                numbers[dispatch["queue"]], dispatch["tags_code"].astype(np.int64), key_counts, hashes,
            )  # fmt: skip
            if self._plan.preserve:
                own = _structs(names["preserved"], PRESERVED_OFFSETS.dtype, start, count)
                rows, queue, offsets = named.of(start, start + count)
                yield self._preserved(staged, own, (rows, of_named[queue], offsets))
            else:
                yield self._numbered(staged)
            position, key_position = position + int(sizes.sum()), key_position + key_count

    def _numbered(self, staged: StagedRecords) -> Chunk:
        """The chunk of records whose address, queue offset and store time are assigned here."""
        placed = placement_of(staged.sizes, self.stop, self._plan.ends.log_file_size)
        before, flags = self.next_queue_offsets, staged.sys_flags
        listed = staged.queue[has_entry(flags)] if flags.any() else staged.queue
        self.next_queue_offsets = before + np.bincount(listed, minlength=len(before))
        store_ms = np.broadcast_to(np.int64(self._plan.store_ms), len(staged.sizes))
        return self._chunk(staged, placed, store_ms, before)

    def _preserved(
        self, staged: StagedRecords, own: npt.NDArray[Any], named: tuple[Positions, npt.NDArray[np.int64], Positions]
    ) -> Chunk:
        """The chunk of records that keep their own values.

        `named`: rows, queues and queue offsets of the entries in further queues that records name.
        """
        physical_offsets, offsets = (own[name].astype(np.int64) for name in ("physical_offset", "queue_offset"))
        placed = preserved_placement(physical_offsets, staged.sizes, self.stop, self._plan.ends.log_file_size)
        ends = placed.physical_offsets + staged.sizes
        listed, queue, requested, rows = has_entry(staged.sys_flags), staged.queue, offsets, None
        if len(named[0]):
            # In log order, each record's own queue first, as a dispatcher proceeds.
            own_rows = np.flatnonzero(listed)
            rows = np.concatenate((own_rows, named[0]))
            order = np.argsort(rows, kind="stable")
            rows = rows[order]
            queue = np.concatenate((queue[own_rows], named[1]))[order]
            requested = np.concatenate((offsets[own_rows], named[2]))[order]
            listed, ends = np.ones(len(rows), bool), ends[rows]
        before = self.next_queue_offsets
        numbering = number_preserved(queue, listed, requested, ends, before, self.firsts)
        chunk = self._chunk(staged, placed, own["store_ms"].astype(np.int64), before)
        return replace(chunk, preserved=(numbering, offsets), entry_rows=rows)

    def _chunk(self, staged: StagedRecords, placed: Placement, store_ms: Positions, before: Positions) -> Chunk:
        self.stop = placed.stop
        return Chunk(
            **vars(staged), physical_offsets=placed.physical_offsets, blanks=placed.blanks, next_queue_offsets=before,
            store_ms=store_ms, stop=placed.stop,
        )  # fmt: skip

    def _queue_numbers(self, part: StagedPart, which: str) -> npt.NDArray[np.int64]:
        """The course's number of each queue in a list of the part.

        A new queue begins at 0, or with `preserve` at its first record's offset.
        """
        fresh, keys = -1 if self._plan.preserve else 0, part.detail.get(which, [])
        for topic, queue_id in keys:
            if (topic, queue_id) not in self._numbers:
                self._numbers[topic, queue_id] = len(self.keys)
                self.keys.append((topic, queue_id))
        missing = len(self.keys) - len(self.next_queue_offsets)
        self.next_queue_offsets = np.concatenate((self.next_queue_offsets, np.full(missing, fresh, np.int64)))
        return np.array([self._numbers[topic, queue_id] for topic, queue_id in keys], np.int64)


class _NamedEntries:
    """The staged entries of the queues that records name, read once, front to back."""

    def __init__(self, path: str | None, queues: int) -> None:
        """`queues`: the number of named queues; 0 means that there are no entries."""
        self._path, self._at = path if queues else None, 0
        self._read = np.empty(0, NAMED_ENTRY.dtype)

    def of(self, start: int, stop: int) -> tuple[Positions, npt.NDArray[np.int64], Positions]:
        """The entries of the task's records [start, stop): record numbers from `start` on, queues and queue offsets."""
        while self._path is not None and not (len(self._read) and self._read["row"][-1] >= stop):
            position = self._at * NAMED_ENTRY.size
            more = read_at(self._path, CHUNK_COUNT * NAMED_ENTRY.size, position)
            if not more:
                break
            self._read = np.concatenate((self._read, np.frombuffer(more, NAMED_ENTRY.dtype)))
            self._at += len(more) // NAMED_ENTRY.size
        count = int(np.searchsorted(self._read["row"], stop))
        found, self._read = self._read[:count], self._read[count:]
        rows, queue, offsets = (found[name].astype(np.int64) for name in ("row", "queue", "queue_offset"))
        return rows - start, queue, offsets


def _structs(path: str, dtype: np.dtype[Any], start: int, count: int) -> npt.NDArray[Any]:
    data = read_at(path, count * dtype.itemsize, start * dtype.itemsize)
    if len(data) < count * dtype.itemsize:
        raise MqStoreError(f"{path} is shorter than its task wrote it; the job cannot be finished without it")
    return np.frombuffer(data, dtype)
