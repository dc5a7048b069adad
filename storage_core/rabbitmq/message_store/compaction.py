"""Merges two neighbouring message files when more than half of a store is garbage: which ones, and how.

`message_store` counts references. Source: rabbitmq.md 6.6.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import NamedTuple

from storage_core.files import system
from storage_core.rabbitmq.message_store.message_files import MessageFile, MessageFiles

GARBAGE_FRACTION = 0.5


class FilePair(NamedTuple):
    """Two neighbouring files; the right one is merged into the left one."""

    left: int
    right: int


def next_pair(files: Mapping[int, MessageFile], current: int, file_size_limit: int) -> FilePair | None:
    """The lowest pair to merge, None if the store is not sparse enough or no pair fits."""
    total = sum(file.size for file in files.values())
    valid = sum(file.valid_size for file in files.values())
    if total <= 2 * file_size_limit or (total - valid) / total <= GARBAGE_FRACTION:
        return None
    numbers = sorted(files)
    for left, right in pairwise(numbers):
        sizes = files[left].valid_size, files[right].valid_size
        if right != current and min(sizes) > 0 and sum(sizes) <= file_size_limit:
            return FilePair(left, right)
    return None


def combine(store: MessageFiles, pair: FilePair) -> int:
    """Moves the survivors of both files into the left one and deletes the right one; returns the left one's new size.

    The bytes are those that a node's merge leaves, but the method differs: a node moves records within the left file,
    and if it dies half-way, loses those after the first zeros. Here the merged file replaces the left one once it is
    completely on disk; until the right one is deleted too, messages are in both, which recovery allows.
    """
    survivors = [location for number in pair for location in store.survivors(number)]
    target = store.merged_path(pair.left)
    merged = system.open_write(target, create=True)
    try:
        system.truncate(merged, 0)
        position = 0
        for number in pair:
            data = _records(store, number)
            system.pwrite(merged, data, position)
            position += len(data)
        system.fsync(merged)
    finally:
        system.close(merged)
    system.rename(target, store.path(pair.left))
    system.sync_folder(store.directory)
    system.unlink(store.path(pair.right))
    position = 0
    for location in survivors:
        location.file, location.position = pair.left, position
        position += location.size
    return position


def _records(store: MessageFiles, number: int) -> bytes:
    """The surviving records of a file, in order."""
    source = system.open_read(store.path(number))
    try:
        return b"".join(
            [system.pread(source, location.size, location.position) for location in store.survivors(number)]
        )
    finally:
        system.close(source)
