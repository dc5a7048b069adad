"""Files that together form one endless address space, each named by the address of its first byte.

Which bytes in them count is up to the engine; `window` reads them in bulk.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from storage_core.files import system
from storage_core.files.stamp import NO_STAMP, Stamp

NAME_LENGTH = 20


@dataclass(frozen=True)
class ChainFile:
    """One file of a chain: address of its first byte, its length on disk, its path.

    `stamp` changes with every change of the file through the file system, even one that sets the time back.
    """

    base_offset: int
    size: int
    path: str
    stamp: Stamp = NO_STAMP

    @property
    def end(self) -> int:
        """Address one past its last byte on disk."""
        return self.base_offset + self.size


@dataclass(frozen=True)
class FileChain:
    """The files of one chain in address order, and the length of a full one. There may be holes."""

    files: tuple[ChainFile, ...]
    file_size: int

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles the chain as runs of consecutive files in one folder, without stamps.

        A chain with a file that is not named by its address is pickled as it is.
        """
        runs: list[_Run] = []
        for file in self.files:
            folder, name = os.path.split(file.path)
            if name != _name(file.base_offset):
                return FileChain, (self.files, self.file_size)
            last = runs[-1] if runs else None
            if last is not None and (folder, file.size) == (last.folder, last.size) and file.base_offset == last.stop:
                runs[-1] = last._replace(file_count=last.file_count + 1)
            else:
                runs.append(_Run(folder, file.base_offset, file.size, 1))
        return _unpickled, (self.file_size, [tuple(run) for run in runs])

    @cached_property
    def bases(self) -> list[int]:
        """Base offsets, ascending."""
        return [file.base_offset for file in self.files]

    @cached_property
    def base_array(self) -> npt.NDArray[np.int64]:
        """Base offsets, ascending, as an array."""
        return np.array(self.bases, np.int64)

    @cached_property
    def end_array(self) -> npt.NDArray[np.int64]:
        """Address one past the last byte of each file."""
        return np.array([file.end for file in self.files], np.int64)

    @property
    def start(self) -> int:
        """Address of the first byte that exists; 0 for an empty chain."""
        return self.files[0].base_offset if self.files else 0

    @property
    def stop(self) -> int:
        """Address one past the last byte that exists; 0 for an empty chain."""
        return self.files[-1].end if self.files else 0

    @cached_property
    def disjoint(self) -> FileChain:
        """The chain without the bytes by which a file that is too long reaches into the next one."""
        if all(file.end <= later.base_offset for file, later in pairwise(self.files)):
            return self
        limits = [*self.bases[1:], self.stop]
        files = (
            replace(file, size=min(file.end, limit) - file.base_offset)
            for file, limit in zip(self.files, limits, strict=True)
        )
        return FileChain(tuple(files), self.file_size)

    def index_at(self, offset: int) -> int | None:
        """Number of the file that holds `offset`; None in a hole or outside."""
        index = bisect_right(self.bases, offset) - 1
        return index if index >= 0 and offset < self.files[index].end else None

    def file_at(self, offset: int) -> ChainFile | None:
        """The file that holds `offset`; None in a hole or outside."""
        index = self.index_at(offset)
        return None if index is None else self.files[index]

    def name_of(self, offset: int) -> str:
        """The path of the file that would hold `offset`, whether it exists or not."""
        folder = os.path.dirname(self.files[0].path) if self.files else ""
        base = offset // max(self.file_size, 1) * self.file_size
        return os.path.join(folder, _name(base))

    def contains(self, starts: npt.NDArray[np.int64], stops: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Which spans [start, stop) are inside one file. Shape (n,)."""
        if not self.files:
            return np.zeros(len(starts), bool)
        index = np.searchsorted(self.base_array, starts, "right") - 1
        return (index >= 0) & (stops >= starts) & (stops <= self.end_array[index])

    def holds_in_order(self, starts: npt.NDArray[np.int64], stops: npt.NDArray[np.int64]) -> bool:
        """Whether spans [start, stop) are non-empty, ascending and disjoint, each inside one file.

        Takes a tenth of the time of `contains`: it looks up each file among the spans, not each span among the files.
        Also False if it cannot tell: without spans, or if files overlap.
        """
        bases, ends = self.base_array, self.end_array
        if not len(starts) or not len(bases) or (ends[:-1] > bases[1:]).any():
            return False
        if (stops <= starts).any() or (starts[1:] < stops[:-1]).any():
            return False
        inside = np.searchsorted(stops, ends, "right") - np.searchsorted(starts, bases)
        return int(np.maximum(inside, 0).sum()) == len(starts)


class _Run(NamedTuple):
    """Files of one size, each of which begins where the previous one ends."""

    folder: str
    base_offset: int
    size: int
    file_count: int

    @property
    def stop(self) -> int:
        return self.base_offset + self.file_count * self.size


def _unpickled(file_size: int, runs: list[tuple[str, int, int, int]]) -> FileChain:
    files = tuple(
        ChainFile(base_offset, size, os.path.join(folder, _name(base_offset)))
        for folder, start, size, count in runs
        for base_offset in range(start, start + count * size, size)
    )
    return FileChain(files, file_size)


def _name(base_offset: int) -> str:
    return f"{base_offset:0{NAME_LENGTH}d}"


def find_chain(folders: Sequence[str]) -> FileChain:
    """The chain of the files in `folders` (several if a broker spreads its log over disks).

    Ignores names that are not 20 digits, and files of length zero, which a crash between creating and sizing a file
    leaves behind: a broker deletes them or does not start. A full file's length is the length of the files; if they
    differ, it is taken from the distance between their names. Missing folders count as empty.
    """
    found = [file for folder in folders for file in _chain_files(folder)]
    if len(found) > 1:
        found.sort(key=lambda file: file.base_offset)
    files = tuple(found)
    return FileChain(files, _file_size(files))


def is_address(name: str) -> bool:
    """Whether a name is an address at which a file of a chain begins."""
    return len(name) == NAME_LENGTH and name.isascii() and name.isdigit()


def _chain_files(folder: str) -> list[ChainFile]:
    try:
        entries = system.entries(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []
    prefix = folder if folder.endswith("/") else f"{folder}/"
    return [
        ChainFile(int(name), stamp.size, prefix + name, stamp)
        for name, is_directory, stamp, _ in entries
        if is_address(name) and not is_directory and stamp.size
    ]


def _file_size(files: tuple[ChainFile, ...]) -> int:
    if len(files) < 2:
        return files[0].size if files else 0
    counts = Counter(file.size for file in files)
    distances = {b.base_offset - a.base_offset for a, b in pairwise(files)}
    least = min((distance for distance in distances if distance > 0), default=0)
    length = least if least in counts else counts.most_common(1)[0][0]
    if all(distance % length == 0 for distance in distances | {files[0].base_offset}):
        return length
    return least or length
