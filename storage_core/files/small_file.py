"""Reads and writes small files whole, and handles names that may be missing: one call each.

What a missing file means is up to the engines.
"""

from __future__ import annotations

from contextlib import suppress

from storage_core.files import system

CHUNK_SIZE = 1 << 20


def read_at(path: str, size: int, position: int = 0) -> bytes:
    """At most `size` bytes of a file from `position` on; fewer only at its end. Raises FileNotFoundError."""
    descriptor = system.open_read(path)
    try:
        return system.pread(descriptor, size, position)
    finally:
        system.close(descriptor)


def read_start(path: str, size: int) -> bytes:
    """The first bytes of a file, at most `size`; empty if there is no such file."""
    try:
        return read_at(path, size)
    except (FileNotFoundError, NotADirectoryError):
        return b""


def read_whole(path: str) -> bytes | None:
    """All bytes of a small file; None if there is none. Another file may take its name during the read."""
    try:
        descriptor = system.open_read(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    data = bytearray()
    try:
        while part := system.pread(descriptor, CHUNK_SIZE, len(data)):
            data += part
    finally:
        system.close(descriptor)
    return bytes(data)


def write_synced(path: str, data: bytes) -> None:
    """Rewrites the content of `path` and syncs it. An interruption may leave only a part of it."""
    descriptor = system.open_write(path, create=True)
    try:
        system.truncate(descriptor, 0)
        system.pwrite(descriptor, data, 0)
        system.fsync(descriptor)
    finally:
        system.close(descriptor)


def write_whole(path: str, data: bytes) -> None:
    """Replaces the content of `path` in one step that survives a power failure."""
    aside = path + ".tmp"
    write_synced(aside, data)
    system.rename(aside, path)
    system.sync_folder(path.rpartition("/")[0] or ".")


def names_in(folder: str) -> list[str]:
    """The names in a folder, sorted; empty if there is no such folder."""
    try:
        return system.names(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []


def remove_file(path: str) -> None:
    """Removes a file if it exists."""
    with suppress(FileNotFoundError):
        system.unlink(path)


def remove_empty_folder(path: str) -> None:
    """Removes a folder if it exists and is empty."""
    with suppress(OSError):
        system.remove_folder(path)
