"""What a listing knows of a file or folder, wherever it lies: name, length, and what changes when it changes."""

from __future__ import annotations

import os
from typing import NamedTuple


class Stamp(NamedTuple):
    """What changes with every change of a file or folder through the file system; zeros where there is none.

    Times are in nanoseconds, the size in bytes. Device and inode tell a file from another one under its name. Of an
    object the inode is its ETag, hashed, and of a folder of objects what lies in it.
    """

    mtime_ns: int = 0
    ctime_ns: int = 0
    size: int = 0
    inode: int = 0
    device: int = 0

    @classmethod
    def of(cls, found: os.stat_result) -> Stamp:
        """The stamp of what the system says of a path."""
        return cls(found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino, found.st_dev)

    @property
    def identity(self) -> tuple[int, int]:
        """Device and inode: the same as long as it is the same file, whatever is written to it."""
        return self.device, self.inode


NO_STAMP = Stamp()


class FileStat(NamedTuple):
    """What a listing knows of a file or folder."""

    name: str
    is_directory: bool
    stamp: Stamp

    @property
    def size(self) -> int:
        """Length in bytes."""
        return self.stamp.size
