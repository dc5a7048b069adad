"""Locks: on a file's first byte, as Java's `FileChannel.tryLock(0, 1)` takes it, and on a folder; who has a file open.

What locks what is up to the callers. Source: rocketmq.md 5.2: Java does not see `flock`, and a `lockf` lock is lost
when any descriptor of the file closes. A folder can only be locked by `flock`: commit-protocol.md 10.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from storage_core.closable import Closable
from storage_core.errors import StoreLockedError
from storage_core.files import system

PAUSE_S = 0.05


def is_locked(path: str) -> bool:
    """Whether another process holds the lock. Only tests: no lock is taken, and a missing file is not created."""
    try:
        descriptor = system.open_read(path)
    except OSError:
        return False
    try:
        return system.is_locked(descriptor)
    finally:
        system.close(descriptor)


class _Lock(Closable):
    """A lock that is held by an open descriptor, until `close`."""

    _descriptor = -1

    def close(self) -> None:
        """Releases the lock."""
        if self._descriptor >= 0:
            system.close(self._descriptor)
            self._descriptor = -1


class FileLock(_Lock):
    """Holds the lock from creation to `close`. The file is created when it is missing, and never removed."""

    def __init__(self, path: str, timeout_s: float, who: str) -> None:
        """Waits up to `timeout_s` seconds. Raises StoreLockedError, which names `who` as the holder."""
        self.path = path
        self._descriptor = system.open_write(path, create=True)
        try:
            _wait(lambda: system.try_lock(self._descriptor), path, timeout_s, who)
        except BaseException:
            system.close(self._descriptor)
            raise

    def other_holders(self) -> list[int]:
        """Other processes of this machine that have the file open, locked or not, as far as this user may see them."""
        return system.holders(self.path, self._descriptor)


class FolderLock(_Lock):
    """Holds the lock on a folder from creation to `close`. Only writers of mqstore notice it."""

    def __init__(self, path: str, timeout_s: float, who: str) -> None:
        """Waits up to `timeout_s` seconds. Raises StoreLockedError, which names `who` as the holder, and OSError."""
        _wait(lambda: self._take(path), path, timeout_s, who)

    def _take(self, path: str) -> bool:
        found = system.try_lock_folder(path)
        self._descriptor = -1 if found is None else found
        return found is not None


def _wait(taken: Callable[[], bool], path: str, timeout_s: float, who: str) -> None:
    """Tries to take a lock until `taken` or the time is over."""
    until = time.monotonic() + timeout_s
    while not taken():
        left = until - time.monotonic()
        if left <= 0:
            raise StoreLockedError(f"StoreLockedError: {path} is locked by {who}")
        time.sleep(min(PAUSE_S, left))
