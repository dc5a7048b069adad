"""Keeps the proven index files of the stores that this process has searched."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from storage_core.files import system
from storage_core.files.file_chain import FileChain
from storage_core.files.open_files import OpenFiles
from storage_core.files.small_file import read_at
from storage_core.files.stamp import NO_STAMP, Stamp
from storage_core.formats.rocketmq.indexfile import HEADER
from storage_core.rocketmq.disk.recent import Recent
from storage_core.rocketmq.index.geometry import noted_geometry
from storage_core.rocketmq.index.index_files import NO_HASHES, Index, index_paths, open_index, uncovered
from storage_core.rocketmq.index.joined_reads import read_headers

_State = tuple[object, ...]
_indexes: Recent[str, tuple[_State, Index]] = Recent()


def cached_index(
    root: str, log: FileChain, log_start: int, log_end: int, hashes: npt.NDArray[np.int32] = NO_HASHES
) -> Index:
    """The index of a store whose log is [log_start, log_end), for a local store with the spans that it does not cover.

    `hashes` will be looked up in it. A broker writes index files through memory maps, which may not update their times,
    so their headers are read each time.
    """
    found, is_local = index_paths(root), system.is_local(root)
    if not is_local:
        read_headers(found, noted_geometry(root), hashes)
    files_now = tuple((path, *_head(path)) for path in found)
    state = (tuple(file.stamp.identity for file in log.files), files_now, log_start, log_end)
    known = _indexes.get(root)
    if known is not None and known[0] == state:
        return _indexes.keep(root, known)[1]
    with OpenFiles() as files:
        index = open_index(root, log, log_start, log_end, files, noted_geometry(root), hashes)
        if is_local:
            index = replace(index, left=tuple(uncovered(list(index.covered), log, files, log_start, log_end)))
    return _indexes.keep(root, (state, index))[1]


def _head(path: str) -> tuple[Stamp, bytes]:
    """Stamp and header of an index file; an empty stamp and no bytes if it is missing."""
    try:
        return system.stamp(path), read_at(path, HEADER.size)
    except FileNotFoundError:
        return NO_STAMP, b""
