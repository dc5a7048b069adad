"""The only access to the operating system: every open, read, write, sync and rename of the product is made here.

Tests replace functions of this module to inject short reads, full disks and stops, so callers write
`system.pread(...)` and never keep a reference to a function.
"""

from __future__ import annotations

import errno
import fcntl
import glob
import os
import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from storage_core.compiled.loading import CompiledLoops
from storage_core.errors import UnsupportedFormatError, disk_error, naming_disk_errors
from storage_core.files.address import ORIGIN_PARTS, is_remote
from storage_core.files.processes import (
    check_may_change,
    holders,
    holders_below,
    memory_total,
    memory_used,
    name_of,
    open_file_limit,
    process_space,
    process_start,
    session_process,
    try_lock_folder,
    zeros,
)
from storage_core.files.remote import registry as remote
from storage_core.files.stamp import NO_STAMP, FileStat, Stamp

__all__ = [
    "NO_STAMP", "FileStat", "Stamp",
    "check_may_change", "holders", "holders_below", "memory_total", "memory_used", "open_file_limit", "process_space",
    "process_start", "session_process", "try_lock_folder", "zeros",
]  # fmt: skip

READ_ONLY = "mqstore writes to local directories; write there, then `mqstore copy` takes the store to a URI"

NO_SECOND_NAMES = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)

Positions = npt.NDArray[np.int64]

_disk_errors_named = naming_disk_errors(name_of)
_loops = CompiledLoops("storage_core.compiled.read_loops")


@_disk_errors_named
def open_read(path: str) -> int:
    """A descriptor for reading; it changes neither the file nor, if the system allows that, its access time."""
    if is_remote(path):
        return remote.open_read(path)
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOATIME)
    except PermissionError:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)


@_disk_errors_named
def open_write(path: str, create: bool = False, exclusive: bool = False) -> int:
    """A descriptor for reading and writing; `exclusive` raises FileExistsError if the file exists."""
    _refuse_remote(path)
    flags = os.O_RDWR | os.O_CLOEXEC
    if create:
        flags |= os.O_CREAT
    if exclusive:
        flags |= os.O_EXCL
    return os.open(path, flags, 0o644)


def _refuse_remote(path: str) -> None:
    if is_remote(path):
        raise UnsupportedFormatError(f"{path}: {READ_ONLY}")


def close(descriptor: int) -> None:
    """Closes a descriptor."""
    if descriptor < remote.FIRST_DESCRIPTOR:
        os.close(descriptor)


@_disk_errors_named
def pread(descriptor: int, size: int, position: int) -> bytes:
    """At most `size` bytes at `position`; fewer only at the end of the file."""
    if descriptor >= remote.FIRST_DESCRIPTOR:
        return remote.pread(descriptor, size, position)
    parts = [os.pread(descriptor, size, position)]
    done = len(parts[0])
    while parts[-1] and done < size:
        parts.append(os.pread(descriptor, size - done, position + done))
        done += len(parts[-1])
    return parts[0] if len(parts) == 1 else b"".join(parts)


def pread_each(wanted: Sequence[tuple[int, int, int]]) -> list[bytes]:
    """`pread` of each (descriptor, size, position); remote ones concurrently."""
    if wanted and wanted[0][0] >= remote.FIRST_DESCRIPTOR:
        return remote.pread_each(wanted)
    return [pread(*each) for each in wanted]


@_disk_errors_named
def pread_into(descriptor: int, target: memoryview, position: int) -> int:
    """Fills `target` from `position`; returns the number of bytes read, fewer only at the end of the file."""
    if descriptor >= remote.FIRST_DESCRIPTOR:
        return remote.pread_into(descriptor, target, position)
    done = 0
    while done < len(target):
        count = os.preadv(descriptor, [target[done:]], position + done)
        if count == 0:
            break
        done += count
    return done


def pread_runs(
    descriptors: Positions, target: npt.NDArray[np.uint8], starts: Positions, stops: Positions, positions: Positions
) -> tuple[int, int] | None:
    """Fills each [start, stop) of `target` from its position in the file of its descriptor, all local or all remote.
    If a file ended too early, returns the row and the number of bytes that it had, else None.
    """
    done, local = 0, len(starts) > 0 and int(descriptors[0]) < remote.FIRST_DESCRIPTOR
    if local and (loops := _loops.after()) is not None:
        done = loops.read_runs(descriptors, target, starts, stops, positions)
    view = target.data
    rows = zip(*(each[done:].tolist() for each in (descriptors, starts, stops, positions)), strict=True)
    for row, (descriptor, start, stop, position) in enumerate(rows, done):
        count = pread_into(descriptor, view[start:stop], position)
        if start + count < stop:
            return row, count
    return None


@_disk_errors_named
def pwrite(descriptor: int, data: memoryview | bytes, position: int) -> None:
    """Writes all of `data` at `position`, however many calls the system needs."""
    view = memoryview(data)
    done = 0
    while done < len(view):
        count = os.pwrite(descriptor, view[done:], position + done)
        if count == 0:
            raise OSError(errno.EIO, "a write made no progress")
        done += count


@_disk_errors_named
def fsync(descriptor: int) -> None:
    """Forces a file's data and length to the disk."""
    os.fsync(descriptor)


def release(descriptor: int, position: int, size: int) -> None:
    """Starts writing these bytes to the disk without waiting, and drops those already there from memory.

    Later writes reuse that memory, while fresh memory of a virtual machine costs several times the copy; and a later
    sync has little left to do. Advice only: the bytes do not change.
    """
    os.posix_fadvise(descriptor, position, size, os.POSIX_FADV_DONTNEED)


@_disk_errors_named
def sync_folder(path: str) -> None:
    """Forces a folder's names to the disk."""
    _refuse_remote(path)
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@_disk_errors_named
def reserve(descriptor: int, position: int, size: int) -> None:
    """Makes sure that the bytes [position, position + size) can be written; OSError ENOSPC if the disk is full."""
    if size > 0:
        os.posix_fallocate(descriptor, position, size)


@_disk_errors_named
def truncate(descriptor: int, size: int) -> None:
    """Sets a file's length."""
    os.ftruncate(descriptor, size)


@_disk_errors_named
def rename(source: str, target: str) -> None:
    """Atomically renames `source` to `target`, replacing it."""
    _refuse_remote(source)
    _refuse_remote(target)
    os.rename(source, target)


@_disk_errors_named
def link(source: str, target: str) -> bool:
    """Gives a file a second name (a hard link), which must be free; False if the file system does not support that."""
    _refuse_remote(source)
    _refuse_remote(target)
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno in NO_SECOND_NAMES:
            return False
        raise
    return True


@_disk_errors_named
def unlink(path: str) -> None:
    """Removes a file."""
    _refuse_remote(path)
    os.unlink(path)


@_disk_errors_named
def make_folder(path: str, exist_ok: bool = True) -> None:
    """Creates a folder and its missing parents."""
    _refuse_remote(path)
    os.makedirs(path, exist_ok=exist_ok)


@_disk_errors_named
def remove_folder(path: str) -> None:
    """Removes an empty folder."""
    _refuse_remote(path)
    os.rmdir(path)


@_disk_errors_named
def set_times(path: str, access_ns: int, modify_ns: int) -> None:
    """Sets a file's times, in nanoseconds since 1970."""
    _refuse_remote(path)
    os.utime(path, ns=(access_ns, modify_ns))


def will_need(earlier: object, spans: Iterable[tuple[str, int, int]]) -> object:
    """Starts reading remote spans (path, start, stop). Pass the result to the next call, and to `need_no_more`."""
    far = [span for span in spans if is_remote(span[0])]
    return remote.will_need(earlier, far) if far else earlier


def read_soon(descriptor: int, position: int, size: int) -> None:
    """Starts reading local bytes that are not in memory, in large pieces, without waiting. Advice only."""
    os.posix_fadvise(descriptor, position, size, os.POSIX_FADV_WILLNEED)


def need_no_more(earlier: object) -> None:
    """Drops what was requested ahead and not read."""
    if earlier is not None:
        remote.need_no_more(earlier)


@_disk_errors_named
def stat(path: str) -> FileStat:
    """The name, kind and stamp of a path; symbolic links are followed. Raises FileNotFoundError."""
    return remote.stat(path) if is_remote(path) else FileStat.of(os.path.basename(path), os.stat(path))


@_disk_errors_named
def stamp(path: str) -> Stamp:
    """The stamp of a path, symbolic links followed: a single system call, for use with many paths."""
    if is_remote(path):
        return remote.stamp(path)
    try:
        found = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return NO_STAMP
    return Stamp.of(found)


def unchanged(stamps: Iterable[tuple[str, Stamp]]) -> bool:
    """Whether every path still has its stamp."""
    for path, known in stamps:
        if is_remote(path):
            if stamp(path) != known:
                return False
            continue
        try:
            found = os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            if any(known):
                return False
            continue
        if (found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino, found.st_dev) != known:
            return False
    return True


def exists(path: str) -> bool:
    """Whether there is a file or folder of that name; also False without permission to look."""
    return remote.exists(path) if is_remote(path) else os.path.exists(path)


@_disk_errors_named
def is_own(path: str) -> bool:
    """Whether a file belongs to the user of this process. Raises FileNotFoundError."""
    return os.stat(path).st_uid == os.geteuid()


def is_folder(path: str) -> bool:
    """Whether the path is a folder, symbolic links followed."""
    return remote.is_folder(path) if is_remote(path) else os.path.isdir(path)


def is_local(path: str) -> bool:
    """Whether a path is on a disk of this machine, where the processes that use it are visible."""
    return not is_remote(path)


def real_path(path: str) -> str:
    """The absolute path with every symbolic link followed: one name for one place."""
    return path if is_remote(path) else os.path.realpath(path)


def folder_above(path: str, levels: int) -> str:
    """The folder so many levels above; `path` itself if there are fewer, as a bucket is in no folder."""
    parts, least = path.split("/"), ORIGIN_PARTS if is_remote(path) else 1
    return "/".join(parts[:-levels]) if len(parts) - levels >= least else path


def entries(path: str) -> list[FileStat]:
    """The entries of a folder in no particular order; broken links and names that vanish meanwhile are omitted."""
    if is_remote(path):
        return list(remote.entries(path))
    found = []
    with _opened(path) as scanned:
        for entry in scanned:
            try:
                found.append(FileStat.of(entry.name, entry.stat()))
            except OSError as error:
                if error.errno not in (errno.ENOENT, errno.ELOOP):
                    raise disk_error(error, entry.path) from None
    return found


@_disk_errors_named
def _opened(path: str) -> Any:
    return os.scandir(path)


@_disk_errors_named
def names(path: str) -> list[str]:
    """The names in a folder, sorted."""
    return sorted(entry.name for entry in remote.entries(path)) if is_remote(path) else sorted(os.listdir(path))


def matching(pattern: str) -> list[str]:
    """The paths that match a shell pattern, sorted."""
    return remote.matching(pattern) if is_remote(pattern) else sorted(glob.glob(pattern))


@_disk_errors_named
def try_lock(descriptor: int) -> bool:
    """Takes the lock on byte 0 for this open file, visible to Java processes; False if someone else holds it.

    An open-file-description lock: `lockf` locks are lost when this process closes any descriptor of the file.
    """
    wanted = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
    try:
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, wanted)
    except (BlockingIOError, PermissionError):
        return False
    return True


@_disk_errors_named
def is_locked(descriptor: int) -> bool:
    """Whether someone else holds the lock on byte 0; also works for a file open for reading only."""
    if descriptor >= remote.FIRST_DESCRIPTOR:
        return False
    wanted = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
    found = fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, wanted)
    return int(struct.unpack("hhqqi4x", found)[0]) != fcntl.F_UNLCK


def data_spans(descriptor: int, start: int, stop: int) -> Iterator[tuple[int, int]]:
    """The parts of [start, stop) that may hold bytes other than zero: holes of a sparse file are left out."""
    if descriptor >= remote.FIRST_DESCRIPTOR:
        stop = min(stop, remote.size_of(descriptor))
        yield from [(start, stop)] if start < stop else []
        return
    position = start
    while position < stop:
        try:
            position = os.lseek(descriptor, position, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return
            raise disk_error(error, name_of(descriptor)) from None
        end = min(os.lseek(descriptor, position, os.SEEK_HOLE), stop)
        if position < end:
            yield position, end
        position = end
