"""A committed job as numbers: where each staged record, entry and key goes. The same whenever it is computed.

Nothing here changes a file: `prepare` makes a plan and its room, `publish` carries it out, once or again after a crash.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from storage_core.errors import MqStoreError
from storage_core.files.small_file import read_at
from storage_core.formats.layout import Positions
from storage_core.formats.rocketmq.index_insert import EMPTY
from storage_core.formats.rocketmq.indexfile import IndexHeader
from storage_core.job import part_from_json, part_to_json
from storage_core.rocketmq.recovery.dispatch import has_entry
from storage_core.rocketmq.write.placement import (
    Blank,
    Numbering,
    number,
    number_preserved,
    placement_of,
    preserved_placement,
)
from storage_core.rocketmq.write.staging import DISPATCH, PRESERVED_OFFSETS
from storage_core.rocketmq.write.store_end import Ends, ends_from_json, ends_to_json
from storage_core.store import QueueKey, StagedPart

CHUNK_COUNT = 1 << 16
KEPT_COUNT = 1 << 17
"""Records of a job, at about 80 bytes each, whose chunks are kept for its next walk."""


@dataclass
class Walked:
    """What a whole walk over the records of a small job found: a commit walks three times. Nothing before that."""

    chunks: tuple[Chunk, ...] | None = None
    keys: list[QueueKey] = field(default_factory=list)
    next_queue_offsets: Positions = field(default_factory=lambda: np.empty(0, np.int64))
    firsts: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Plan:
    """All that publishing needs besides the staged files.

    `index_name` and `index_header` are the index file that is continued, `index_names` those that are made.
    `files` maps each new file's path, relative to the store or absolute, to its name in the staging folder and length.
    `queue_ids` is the number of queues that topics.json must give each topic, `newest_ms` the largest store time.
    `recover`: the log holds messages that queues or index do not list, or `abort` is there. `seen` is what recovery
    saw beside the log, None where the last job's state was trusted. `in_log`: the records were forced into the log
    before the commit point, and the staged ones are not needed any more. `walked` holds for `parts`, `ends`, `store_ms`
    and `preserve` as they are.
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
    walked: Walked = field(default_factory=Walked, repr=False, compare=False)

    @property
    def rows(self) -> int:
        """Records of the job."""
        return sum(part.rows for part in self.parts)


def plan_to_json(plan: Plan, root: str) -> dict[str, Any]:
    """The intent that says this plan. Folders are named as seen from the store: a copy of it is finished in itself."""
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
    """The plan of an intent of the store at `root`."""
    # An intent from before there were drafts does not say `in_log`: its records lie in the staging folder.
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


_PLAIN = (
    "job", "preserve", "store_ms", "folders", "index_name", "index_from", "index_names", "files", "queue_ids",
    "query", "version", "newest_ms", "recover", "seen", "in_log",
)  # fmt: skip


@dataclass(frozen=True)
class Chunk:
    """Records that follow each other in one staged file, with all that the plan gives them. Arrays have shape (n,).

    `position` is where the first one begins in the staged file `records`, which is not there when rows were kept;
    `next_queue_offsets` are those of the queues before this chunk; `preserved` has the numbers of records that bring
    their own.
    """

    records: str
    position: int
    sizes: Positions
    sys_flags: npt.NDArray[np.int32]
    physical_offsets: Positions
    blanks: tuple[Blank, ...]
    queue: npt.NDArray[np.int64]
    next_queue_offsets: Positions
    tags_codes: Positions
    store_ms: Positions
    key_counts: npt.NDArray[np.int64]
    hashes: npt.NDArray[np.int32]
    stop: int
    preserved: tuple[Numbering, Positions] | None = None

    @cached_property
    def numbering(self) -> Numbering:
        """The place of each record in its queue. Found when it is first asked for: a walk that only counts does not."""
        if self.preserved is not None:
            return self.preserved[0]
        return number(self.queue, has_entry(self.sys_flags), self.next_queue_offsets.copy())

    @property
    def queue_offsets(self) -> Positions:
        """QUEUEOFFSET of each record."""
        if self.preserved is not None:
            return self.preserved[1]
        listed = len(self.numbering.order) == len(self.sizes)
        return self.numbering.values if listed else np.maximum(self.numbering.values, 0)


class Course:
    """One walk over a job's records in order. `keys` and `next_queue_offsets` grow with the queues it meets."""

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
        kept: list[Chunk] | None = [] if self._plan.rows <= KEPT_COUNT else None
        for part in self._plan.parts:
            for chunk in self._part(part):
                if kept is not None:
                    kept.append(chunk)
                yield chunk
        if kept is not None:
            walked.keys, walked.firsts, walked.next_queue_offsets = self.keys, self.firsts, self.next_queue_offsets
            walked.chunks = tuple(kept)

    def _part(self, part: StagedPart) -> Iterator[Chunk]:
        names = {file.name.rpartition(".")[2]: os.path.join(self._folder, file.name) for file in part.files}
        numbers = self._queue_numbers(part)
        position = key_position = 0
        for start in range(0, part.rows, CHUNK_COUNT):
            count = min(CHUNK_COUNT, part.rows - start)
            dispatch = _structs(names["dispatch"], DISPATCH.dtype, start, count)
            sizes, key_counts = (dispatch[name].astype(np.int64) for name in ("size", "key_count"))
            key_count = int(key_counts.sum())
            hashes = _structs(names["keys"], np.dtype("<i4"), key_position, key_count)
            own = _structs(names["preserved"], PRESERVED_OFFSETS.dtype, start, count) if self._plan.preserve else None
            yield self._chunk(names.get("records", ""), position, sizes, dispatch, key_counts, hashes, own, numbers)
            position, key_position = position + int(sizes.sum()), key_position + key_count

    def _chunk(
        self,
        records: str,
        position: int,
        sizes: Positions,
        dispatch: npt.NDArray[Any],
        key_counts: npt.NDArray[np.int64],
        hashes: npt.NDArray[np.int32],
        own: npt.NDArray[Any] | None,
        numbers: npt.NDArray[np.int64],
    ) -> Chunk:
        flags = dispatch["sys_flag"].astype(np.int32)
        queue = numbers[dispatch["queue"]]
        file_size = self._plan.ends.log_file_size
        before, preserved = self.next_queue_offsets, None
        if own is None:
            placed = placement_of(sizes, self.stop, file_size)
            store_ms = np.broadcast_to(np.int64(self._plan.store_ms), len(sizes))
            listed = queue[has_entry(flags)] if flags.any() else queue
            self.next_queue_offsets = before + np.bincount(listed, minlength=len(before))
        else:
            placed = preserved_placement(own["physical_offset"].astype(np.int64), sizes, self.stop, file_size)
            offsets = own["queue_offset"].astype(np.int64)
            store_ms = own["store_ms"].astype(np.int64)
            numbering = number_preserved(
                queue, has_entry(flags), offsets, placed.physical_offsets + sizes, self.next_queue_offsets, self.firsts
            )
            preserved = numbering, offsets
        self.stop = placed.stop
        return Chunk(
            records, position, sizes, flags, placed.physical_offsets, placed.blanks, queue, before,
            dispatch["tags_code"].astype(np.int64), store_ms, key_counts, hashes,
            placed.stop, preserved,
        )  # fmt: skip

    def _queue_numbers(self, part: StagedPart) -> npt.NDArray[np.int64]:
        """The course's number of each queue in the part's list; new queues start at 0, or where `preserve` says."""
        fresh = -1 if self._plan.preserve else 0
        for topic, queue_id in part.detail["queues"]:
            if (topic, queue_id) not in self._numbers:
                self._numbers[topic, queue_id] = len(self.keys)
                self.keys.append((topic, queue_id))
        missing = len(self.keys) - len(self.next_queue_offsets)
        self.next_queue_offsets = np.concatenate((self.next_queue_offsets, np.full(missing, fresh, np.int64)))
        return np.array([self._numbers[topic, queue_id] for topic, queue_id in part.detail["queues"]], np.int64)


def _structs(path: str, dtype: np.dtype[Any], start: int, count: int) -> npt.NDArray[Any]:
    data = read_at(path, count * dtype.itemsize, start * dtype.itemsize)
    if len(data) < count * dtype.itemsize:
        raise MqStoreError(f"{path} is shorter than its task wrote it; the job cannot be finished without it")
    return np.frombuffer(data, dtype)
