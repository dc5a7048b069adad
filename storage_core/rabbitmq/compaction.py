"""Merging two neighbouring message files when more than half of a store is garbage: which, and how.

Counting references belongs to `message_store_writer`. Source: rabbitmq.md 6.6.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import NamedTuple

from storage_core.files import system
from storage_core.rabbitmq.message_files import Location, MessageFile, MessageFiles

GARBAGE_FRACTION = 0.5


class FilePair(NamedTuple):
    """Two neighbouring files; the right one is merged into the left one."""

    left: int
    right: int


def next_pair(files: Mapping[int, MessageFile], current: int, file_size_limit: int) -> FilePair | None:
    """The lowest pair to merge, None when the store is not sparse enough or no pair fits."""
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
    """Moves the survivors of both files into the left one and deletes the right one; the left one's new size.

    The left file's good prefix stays where it is; what follows goes through `<left>.rdt`, which a crash leaves for the
    next start. Locations are set anew only when their bytes are on the disk.
    """
    survivors = {number: store.survivors(number) for number in pair}
    left = survivors[pair.left]
    prefix = _prefix_size(left)
    behind = [place for place in left if place.position >= prefix]
    final = sum(place.size for places in survivors.values() for place in places)
    descriptor = system.open_write(store.path(pair.left))
    try:
        position = prefix
        if behind or prefix < store.files[pair.left].size:
            position = _move_behind(store, pair.left, descriptor, prefix, behind, final)
        _append_right(store, pair, descriptor, position, survivors[pair.right])
    finally:
        system.close(descriptor)
    system.unlink(store.path(pair.right))
    return final


def _prefix_size(places: list[Location]) -> int:
    end = 0
    for place in places:
        if place.position != end:
            break
        end += place.size
    return end


def _move_behind(
    store: MessageFiles, number: int, descriptor: int, prefix: int, behind: list[Location], final: int
) -> int:
    """Closes the gaps behind the good prefix of the left file; the end of its data."""
    records = [system.pread(descriptor, place.size, place.position) for place in behind]
    data = b"".join(records)
    spare_path = store.spare_path(number)
    if data:
        spare = system.open_write(spare_path, create=True)
        try:
            system.truncate(spare, 0)
            system.pwrite(spare, data, 0)
            system.fsync(spare)
        finally:
            system.close(spare)
    system.truncate(descriptor, prefix)
    system.truncate(descriptor, final)
    system.pwrite(descriptor, data, prefix)
    system.fsync(descriptor)
    if data:
        system.unlink(spare_path)
    _relocate(behind, number, prefix)
    return prefix + len(data)


def _append_right(store: MessageFiles, pair: FilePair, descriptor: int, position: int, places: list[Location]) -> None:
    source = system.open_read(store.path(pair.right))
    try:
        data = b"".join([system.pread(source, place.size, place.position) for place in places])
    finally:
        system.close(source)
    system.pwrite(descriptor, data, position)
    system.fsync(descriptor)
    _relocate(places, pair.left, position)


def _relocate(places: list[Location], number: int, position: int) -> None:
    for place in places:
        place.file, place.position = number, position
        position += place.size
