"""Writes files with holes: blocks of zeros are left out if the source has no notion of holes, otherwise its holes."""

from __future__ import annotations

import errno
import os
from contextlib import suppress

from storage_core.files import system

BLOCK_SIZE, CHUNK_SIZE = 64 << 10, 8 << 20
_ZEROS = bytes(BLOCK_SIZE)


def write_sparse(descriptor: int, data: bytes | memoryview, position: int) -> None:
    """Writes bytes into a file that already has its length, and zeros there; each run of other blocks by one call."""
    view, begin = memoryview(data), None
    for start in range(0, len(view), BLOCK_SIZE):
        block = view[start : start + BLOCK_SIZE]
        if block == _ZEROS[: len(block)]:
            if begin is not None:
                system.pwrite(descriptor, view[begin:start], position + begin)
            begin = None
        elif begin is None:
            begin = start
    if begin is not None:
        system.pwrite(descriptor, view[begin:], position + begin)


def copy_parts(source: int, target: str, parts: list[tuple[int, int, int]]) -> None:
    """Copies parts (position, position in the target, size) of an open file into an existing one; on the disk when
    this returns.
    """
    descriptor = system.open_write(target)
    try:
        for position, to, size in parts:
            for at in range(0, size, CHUNK_SIZE):
                data = system.pread(source, min(CHUNK_SIZE, size - at), position + at)
                system.pwrite(descriptor, data, to + at)
        system.fsync(descriptor)
    finally:
        system.close(descriptor)


def copy_file(source: str, target: str) -> None:
    """Copies content, length and time of a file to another, which may exist; on the disk when this returns."""
    found = system.stat(source)
    descriptor, copy = system.open_read(source), system.open_write(target, create=True)
    try:
        system.truncate(copy, 0)
        system.truncate(copy, found.size)
        spans = system.data_spans(descriptor, 0, found.size)
        copy_parts(descriptor, target, [(start, start, stop - start) for start, stop in spans])
    finally:
        system.close(descriptor)
        system.close(copy)
    system.set_times(target, found.stamp.mtime_ns, found.stamp.mtime_ns)


def move_file(source: str, target: str) -> None:
    """Renames a file; to another disk, it is copied, and removed once the copy is on the disk.

    The caller syncs the folders. Raises OSError; `source` is then unchanged, and a partial copy is removed.
    """
    try:
        system.rename(source, target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
    else:
        return
    try:
        copy_file(source, target)
        system.sync_folder(os.path.dirname(target))
    except OSError:
        with suppress(OSError):
            system.unlink(target)
        raise
    system.unlink(source)
