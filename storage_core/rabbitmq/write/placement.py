"""Assigns numbers to the staged files of a job: pure arithmetic over what the store holds and what tasks staged.

`publish` moves the files. Source: commit-protocol.md 15, rabbitmq.md 4.3.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from storage_core.errors import MqStoreError
from storage_core.formats.rabbitmq import paths
from storage_core.rabbitmq.index.queue_directory import QueueFiles
from storage_core.rabbitmq.message_store.locations import file_sizes
from storage_core.rabbitmq.read.snapshot import VhostSnapshot
from storage_core.rabbitmq.write.file_numbers import highest_number, spare_of
from storage_core.rabbitmq.write.store_facts import StoreFacts, known_versions
from storage_core.store import StagedPart

CLEAN_PATHS = (
    f"{paths.PERSISTENT_FOLDER}/{paths.CLEAN_FILE}",
    f"{paths.PERSISTENT_FOLDER}/{paths.SUMMARY_FILE}",
    f"{paths.PERSISTENT_FOLDER}/{paths.INDEX_FILE}",
    paths.RECOVERY_FILE,
)
"""The files that a node trusts after a clean stop; removed before a job changes anything, rewritten at its end if the
store is `clean`.
"""


@dataclass
class PlacedQueue:
    """What a job adds to one directory: `segments` maps new segment numbers, of `segment_size` sequence ids each, to
    (messages, body bytes).
    """

    name: bytes
    priority: int | None
    version: int
    known: bool
    segment_size: int
    first_segment: int
    segments: dict[int, tuple[int, int]] = field(default_factory=dict)


@dataclass
class Placement:
    """Moves from the staging folder into the store, in order, and what is needed to record them.

    `clean`: the store was stopped cleanly, or is new, and will be clean again. `file_sizes` has the new message files.
    """

    clean: bool
    queues: dict[str, PlacedQueue] = field(default_factory=dict)
    file_numbers: dict[str, int] = field(default_factory=dict)
    file_sizes: dict[int, int] = field(default_factory=dict)
    has_message_files: bool = False
    moves: list[tuple[str, str]] = field(default_factory=list)
    clean_moves: list[tuple[str, str]] = field(default_factory=list)

    def intent(self) -> dict[str, Any]:
        """The contents of the intent file."""
        spare = spare_of(self.moves)
        return {"moves": self.moves, "cleanMoves": self.clean_moves, "removes": list(CLEAN_PATHS), "spare": spare}


def placement_of(snapshot: VhostSnapshot, parts: Sequence[StagedPart], facts: StoreFacts) -> Placement:
    """Assigns numbers to the files of `parts`, which are in their final order and were staged with `facts`.

    Raises MqStoreError when the version of a queue has changed since.
    """
    existing = file_sizes(snapshot.root)
    directories = {directory.directory: directory for directory in snapshot.directories}
    is_new = not directories and not snapshot.terms and not sum(existing.values())
    placement = Placement(clean=snapshot.locations.clean or is_new)
    number = highest_number([path.rsplit("/", 1)[1] for path in existing]) + 1
    for part in parts:
        for name, size in part.detail["messageFiles"]:
            placement.file_numbers[name], placement.file_sizes[number] = number, size
            placement.moves.append((name, f"{paths.PERSISTENT_FOLDER}/{number}{paths.MESSAGE_SUFFIX}"))
            number += 1
    placement.has_message_files = bool(existing or placement.file_numbers)
    versions = known_versions(snapshot)
    for part in parts:
        for directory, staged in part.detail["queues"].items():
            queue = placement.queues.get(directory)
            if queue is None:
                _check_version(snapshot.root, directory, staged["version"], versions)
                known = directories.get(directory)
                files = snapshot.files(known) if known is not None else None
                size = facts.segment_size(staged["version"])
                first = _first_segment(files, snapshot, directory, size)
                name = bytes.fromhex(staged["name"])
                queue = PlacedQueue(name, staged["priority"], staged["version"], known is not None, size, first)
                placement.queues[directory] = queue
            for names, count, size in staged["segments"]:
                segment = queue.first_segment + len(queue.segments)
                queue.segments[segment] = (count, size)
                for name in names:
                    suffix = paths.suffix_of(name)
                    placement.moves.append((name, f"{paths.QUEUES_FOLDER}/{directory}/{segment}{suffix}"))
    return placement


def _check_version(root: str, directory: str, staged: int, versions: Mapping[str, int]) -> None:
    """Raises MqStoreError when the version in which a queue was staged is not that of its files."""
    found = versions.get(directory, staged)
    if found != staged:
        raise MqStoreError(
            f"{root}/{paths.QUEUES_FOLDER}/{directory} has become a queue of version {found} meanwhile; nothing was "
            "written: run this write again"
        )


def _first_segment(files: QueueFiles | None, snapshot: VhostSnapshot, directory: str, segment_size: int) -> int:
    """The number of the first segment that is still unused, both on disk and in the terms of the last stop."""
    terms = snapshot.terms.get(directory)
    following = (terms.next_sequence_id or 0) if terms is not None else 0
    if files is None:
        return -(-following // segment_size)
    highest = highest_number(files.directory.sizes)
    following = max(following, files.next_sequence_id, files.end_of_entries)
    return max(-(-following // segment_size), highest + 1)
