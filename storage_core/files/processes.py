"""Processes of this machine: memory and rights, which are running, since when, and which have a file open.

Callers use these functions through `system`, like everything else of the operating system.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import resource
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress

from storage_core.files.address import is_remote

NO_FOLDER_LOCKS = (errno.EBADF, errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)
"""Errors of `flock` on file systems that lock no folder: NFS wants a descriptor for writing."""


def memory_used() -> int:
    """Bytes of memory that this process holds (resident)."""
    with open("/proc/self/statm", "rb") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def memory_total() -> int:
    """Bytes of memory of this machine."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def open_file_limit() -> int:
    """How many files this process may have open at once."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft


def check_may_change(folder: str) -> None:
    """Raises PermissionError if this process may not add names to a folder and remove them."""
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), folder)


def zeros(size: int) -> memoryview:
    """`size` zero bytes. A page takes memory and time only when it is touched; on the heap, all pages might at once."""
    return memoryview(mmap.mmap(-1, size))


def name_of(file: object) -> str:
    """A path unchanged; for a descriptor of this process, the path of its file, if it has one."""
    if not isinstance(file, int):
        return str(file)
    try:
        return os.readlink(f"/proc/self/fd/{file}")
    except OSError:
        return f"descriptor {file}"


def holders(path: str, descriptor: int | None = None) -> list[int]:
    """Other processes of this machine that have the file open, as far as this user may see them.

    `descriptor`: this process's own for the file. With it, the kernel can usually tell at once that there is no other.
    """
    if is_remote(path) or (descriptor is not None and _is_open_once(descriptor)):
        return []
    wanted, own, found = os.path.realpath(path), os.getpid(), []
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == own:
            continue
        try:
            if any(os.readlink(f"/proc/{name}/fd/{fd}") == wanted for fd in os.listdir(f"/proc/{name}/fd")):
                found.append(int(name))
        except OSError:  # the process, or the descriptor, is gone or belongs to someone else
            continue
    return found


def _is_open_once(descriptor: int) -> bool:
    """Whether this is the only descriptor of its file: only then does the kernel grant a write lease. Also False if it
    grants none at all, for a file of another user or on a file system without leases.
    """
    try:
        # Anyone who opens the file meanwhile waits for the end of the lease, and no SIGIO, which would kill, is sent.
        fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except OSError:
        return False
    return True


def process_start(pid: int) -> int | None:
    """When a process of this machine started, in clock ticks since boot; None if there is no such process, or only a
    zombie, which in a container may stay forever.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            state, *fields = file.read().rpartition(b")")[2].split()
            return None if state in (b"Z", b"X") else int(fields[18])
    except (OSError, IndexError, ValueError):
        return None


def session_process(marks: tuple[bytes, ...]) -> int:
    """This process, or its nearest ancestor, whose command line has none of `marks`: it started the workers."""
    pid = os.getpid()
    while pid > 1:
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                words = file.read()
            with open(f"/proc/{pid}/stat", "rb") as file:
                parent = int(file.read().rpartition(b")")[2].split()[1])
        except OSError:
            break
        if not any(mark in words for mark in marks):
            return pid
        pid = parent
    return os.getpid()


def holders_below(folder: str, apart: str) -> list[int]:
    """Other processes of this machine that have a file below the folder open, as far as this user may see them; files
    below its subfolder `apart` do not count.
    """
    if is_remote(folder):
        return []
    start, own = os.path.realpath(folder) + "/", os.getpid()
    others = [int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) != own]
    uncounted = f"{start}{apart}/"
    return [pid for pid in others if any(p.startswith(start) and not p.startswith(uncounted) for p in _open_paths(pid))]


def _open_paths(pid: int) -> Iterator[str]:
    try:
        descriptors = os.listdir(f"/proc/{pid}/fd")
    except OSError:  # the process is gone or belongs to someone else
        return
    for descriptor in descriptors:
        with suppress(OSError):  # it was closed meanwhile
            yield os.readlink(f"/proc/{pid}/fd/{descriptor}")


def process_space() -> str:
    """The scope in which this process's number means the same to others: this boot of the machine, and its PID
    namespace; containers have their own.
    """
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return f"{file.read().strip()} {os.readlink('/proc/self/ns/pid')}"


def try_lock_folder(path: str) -> int | None:
    """A descriptor that holds the lock on a folder until it is closed; None if someone else holds it.

    By `flock`, since a folder cannot be opened for writing. A file system without it locks nothing.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except OSError as error:
        if error.errno not in NO_FOLDER_LOCKS:
            os.close(descriptor)
            raise
    return descriptor
