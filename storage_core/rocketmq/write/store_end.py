"""The end of a store as a writer needs it: log, queues, geometry; and `state.json`, which saves finding it again.

Recovery finds the end; this module only keeps it, and decides whether what was kept is still valid.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from storage_core.files import system
from storage_core.files.small_file import read_at, read_start
from storage_core.formats.rocketmq import paths
from storage_core.formats.rocketmq.checkpoint import CHECKPOINT
from storage_core.formats.rocketmq.indexfile import Geometry
from storage_core.job import JobFolder, read_json, write_json
from storage_core.rocketmq.write.queue_writer import queue_file
from storage_core.store import QueueKey

END_SIZE = 8


@dataclass(frozen=True)
class Ends:
    """The end of a store. `queues` holds the next queue offset of each; `index` is None if no index is written.

    `indexed_to`: the address up to which the index is complete, or None if that has yet to be found out.
    """

    log_start: int
    log_end: int
    last_store_ms: int
    queues: Mapping[QueueKey, int]
    log_file_size: int
    queue_entries: int
    index: Geometry | None
    indexed_to: int | None = None


def ends_to_json(ends: Ends) -> dict[str, Any]:
    """The form in which `state.json` and an intent keep the end of a store."""
    return {
        "log_start": ends.log_start,
        "log_end": ends.log_end,
        "last_store_ms": ends.last_store_ms,
        "queues": [[*key, stop] for key, stop in ends.queues.items()],
        "log_file_size": ends.log_file_size,
        "queue_entries": ends.queue_entries,
        "index": None if ends.index is None else [ends.index.slots, ends.index.entries],
        "indexed_to": ends.indexed_to,
    }


def ends_from_json(noted: Mapping[str, Any]) -> Ends:
    """The end of a store from the form that `ends_to_json` returns."""
    queues = {(topic, queue_id): stop for topic, queue_id, stop in noted["queues"]}
    index = None if noted["index"] is None else Geometry(*noted["index"])
    rest = {name: noted[name] for name in noted if name not in ("queues", "index")}
    return Ends(queues=queues, index=index, **rest)


def log_path(folders: Sequence[str], base_offset: int, file_size: int) -> str:
    """The path of the log file that begins at an address: of the existing file, or where it is to be made."""
    name = paths.chain_name(base_offset)
    for folder in folders:
        if system.exists(os.path.join(folder, name)):
            return os.path.join(folder, name)
    return os.path.join(folders[base_offset // file_size % len(folders)], name)


def save_state(root: str, job: str, ends: Ends) -> None:
    """Notes where the store ends after a job, and the checkpoint, which reveals a later visit by a broker."""
    write_json(JobFolder(root).state, {"job": job, "checkpoint": _noted_times(root), **ends_to_json(ends)})


def trusted_ends(root: str, folders: Sequence[str]) -> Ends | None:
    """The end that the last job noted, if nobody has written to the store since; None otherwise.

    A broker that ran leaves `abort`, a different checkpoint, or a record at the noted end; one that only deleted topics
    leaves queues without files. Only one place in the log is read, whatever the size of the store.
    """
    state = read_json(JobFolder(root).state)
    if state is None or system.exists(os.path.join(root, paths.ABORT)):
        return None
    if _noted_times(root) != state.pop("checkpoint", None):
        return None
    state.pop("job", None)
    ends = ends_from_json(state)
    size = ends.log_file_size
    base = ends.log_end // size * size
    if ends.log_end == base and not _has_file(folders, base):
        base -= size  # the end of the last file
    if base < 0 or not _has_file(folders, base) or _has_file(folders, base + size):
        return None
    position = ends.log_end - base
    length = min(END_SIZE, size - position)
    found = read_at(log_path(folders, base, size), length, position)
    return None if len(found) < length or any(found) or _lacks_queues(root, ends) else ends


def _lacks_queues(root: str, ends: Ends) -> bool:
    """Whether the file with the last entry of a queue is missing."""
    lasts = ((key, stop - 1) for key, stop in ends.queues.items() if stop > 0)
    return not all(system.exists(os.path.join(root, queue_file(key, last, ends.queue_entries))) for key, last in lasts)


def noted_queue_entries(root: str) -> int | None:
    """Entries of a queue file as the last job noted it; None if there is no note."""
    state = read_json(JobFolder(root).state)
    return None if state is None else state.get("queue_entries")


def _noted_times(root: str) -> str:
    return read_start(os.path.join(root, paths.CHECKPOINT), CHECKPOINT.size).hex()


def _has_file(folders: Sequence[str], base_offset: int) -> bool:
    return any(system.exists(os.path.join(folder, paths.chain_name(base_offset))) for folder in folders)
