"""Which numbers the staged files of a job get: pure arithmetic over what the store holds and what tasks staged.

Leaves to `job` the moving. Source: commit-protocol.md 15, rabbitmq.md 4.3.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from storage_core.formats.rabbitmq import paths
from storage_core.rabbitmq.index.queue_directory import QueueFiles, check_versions
from storage_core.rabbitmq.message_store.locations import file_sizes
from storage_core.rabbitmq.read.snapshot import VhostSnapshot
from storage_core.store import StagedPart

CLEAN_PATHS = (
    f"{paths.PERSISTENT_FOLDER}/{paths.CLEAN_FILE}",
    f"{paths.PERSISTENT_FOLDER}/{paths.SUMMARY_FILE}",
    f"{paths.PERSISTENT_FOLDER}/{paths.INDEX_FILE}",
    paths.RECOVERY_FILE,
)
"""What a node trusts after a clean stop; gone before a job changes anything, written anew at its end."""


@dataclass
class PlacedQueue:
    """What a job adds to one directory: `segments` maps new segment numbers to (messages, body bytes)."""

    name: bytes
    priority: int | None
    known: bool
    first_segment: int
    segments: dict[int, tuple[int, int]] = field(default_factory=dict)


@dataclass
class Placement:
    """Moves from the staging folder into the store, in their order, and what is needed to note them.

    `clean`: the store was stopped cleanly, or is new, and will be clean again. `file_sizes` are the new message files.
    """

    clean: bool
    queues: dict[str, PlacedQueue] = field(default_factory=dict)
    file_numbers: dict[str, int] = field(default_factory=dict)
    file_sizes: dict[int, int] = field(default_factory=dict)
    has_message_files: bool = False
    moves: list[tuple[str, str]] = field(default_factory=list)
    clean_moves: list[tuple[str, str]] = field(default_factory=list)

    def intent(self) -> dict[str, Any]:
        """What the intent file says."""
        return {"moves": self.moves, "cleanMoves": self.clean_moves, "removes": list(CLEAN_PATHS)}


def placement_of(snapshot: VhostSnapshot, parts: Sequence[StagedPart], entry_count: int) -> Placement:
    """Numbers for the files of `parts`, which are in their final order.

    UnsupportedFormatError for a store with a queue of version 2.
    """
    check_versions(snapshot.root, snapshot.directories)
    existing = file_sizes(snapshot.root)
    directories = {directory.directory: directory for directory in snapshot.directories}
    is_new = not directories and not snapshot.terms and not sum(existing.values())
    placement = Placement(clean=snapshot.locations.clean or is_new)
    numbers = [paths.number_of(path.rsplit("/", 1)[1], paths.MESSAGE_SUFFIX) for path in existing]
    number = max((n for n in numbers if n is not None), default=-1) + 1
    for part in parts:
        for name, size in part.detail["messageFiles"]:
            placement.file_numbers[name], placement.file_sizes[number] = number, size
            placement.moves.append((name, f"{paths.PERSISTENT_FOLDER}/{number}{paths.MESSAGE_SUFFIX}"))
            number += 1
    placement.has_message_files = bool(existing or placement.file_numbers)
    for part in parts:
        for directory, staged in part.detail["queues"].items():
            queue = placement.queues.get(directory)
            if queue is None:
                known = directories.get(directory)
                files = snapshot.files(known) if known is not None else None
                first = _first_segment(files, snapshot, directory, entry_count)
                queue = PlacedQueue(bytes.fromhex(staged["name"]), staged["priority"], known is not None, first)
                placement.queues[directory] = queue
            for name, count, size in staged["segments"]:
                segment = queue.first_segment + len(queue.segments)
                queue.segments[segment] = (count, size)
                placement.moves.append((name, f"{paths.QUEUES_FOLDER}/{directory}/{segment}{paths.SEGMENT_SUFFIX}"))
    return placement


def _first_segment(files: QueueFiles | None, snapshot: VhostSnapshot, directory: str, entry_count: int) -> int:
    """The first segment that holds nothing yet, on disk or in what the last stop noted."""
    terms = snapshot.terms.get(directory)
    following = (terms.next_sequence_id or 0) if terms is not None else 0
    if files is None:
        return -(-following // entry_count)
    names = [paths.number_of(name, paths.SEGMENT_SUFFIX) for name in files.directory.sizes]
    highest = max((number for number in names if number is not None), default=-1)
    following = max(following, files.next_sequence_id, files.end_of_entries)
    return max(-(-following // entry_count), highest + 1)
