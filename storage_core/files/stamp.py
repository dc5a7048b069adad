"""What a listing reports of a file or folder, local or remote: name, length, and what changes when it changes."""

from __future__ import annotations

import os
from stat import S_IFDIR, S_IFMT, S_IFREG
from typing import NamedTuple


class Stamp(NamedTuple):
    """Values that change with every change of a file or folder through the file system; zeros if there is none.

    Times are in nanoseconds, the size in bytes. Device and inode distinguish a file from another one of the same name.
    The inode of an object is a hash of its ETag, that of a folder of objects a hash of its content.
    """

    mtime_ns: int = 0
    ctime_ns: int = 0
    size: int = 0
    inode: int = 0
    device: int = 0

    @classmethod
    def of(cls, found: os.stat_result) -> Stamp:
        """The stamp from an `os.stat` result."""
        return cls(found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino, found.st_dev)

    @property
    def identity(self) -> tuple[int, int]:
        """Device and inode: the same as long as it is the same file, whatever is written to it."""
        return self.device, self.inode


NO_STAMP = Stamp()


class FileStat(NamedTuple):
    """What a listing reports of a file or folder. `is_special`: it is neither, such as a pipe, and may block."""

    name: str
    is_directory: bool
    stamp: Stamp
    is_special: bool = False

    @classmethod
    def of(cls, name: str, found: os.stat_result) -> FileStat:
        """What the result of `os.stat` says."""
        kind = S_IFMT(found.st_mode)
        return cls(name, kind == S_IFDIR, Stamp.of(found), kind not in (S_IFDIR, S_IFREG))

    @property
    def size(self) -> int:
        """Length in bytes."""
        return self.stamp.size
