"""The index files of a store: which of them can be proven correct, and which part of the log they cover.

The index never changes a result: a file that is not proven is not used, and its part of the log is scanned.
`key_lookup` walks the chains. Source of the rules: rocketmq.md 4, interface.md 11.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from storage_core.arrays import as_array
from storage_core.files import system
from storage_core.files.file_chain import FileChain
from storage_core.files.open_files import OpenFiles
from storage_core.formats.columns import words
from storage_core.formats.layout import Positions
from storage_core.formats.rocketmq import paths
from storage_core.formats.rocketmq.indexfile import (
    ENTRY,
    HEADER,
    Geometry,
    IndexHeader,
    decode_header,
    key_hash,
    key_hashes,
)
from storage_core.formats.rocketmq.ledger import BLANK_END
from storage_core.formats.rocketmq.message import BLANK, MAGIC_BLANK, Messages
from storage_core.formats.rocketmq.properties import KEYS, UNIQ_KEY, parse
from storage_core.rocketmq.disk.ledger import header_size
from storage_core.rocketmq.disk.record_reader import record_at
from storage_core.rocketmq.index.geometry import found_geometry
from storage_core.rocketmq.index.joined_reads import FILES_AT_ONCE, read_ends

Span = tuple[int, int]

FEW = 16
NO_HASHES = np.empty(0, np.int32)


@dataclass(frozen=True)
class IndexFile:
    """An index file that was proven correct, or whose `flaw` says why it is not used."""

    path: str
    geometry: Geometry
    header: IndexHeader
    flaw: str = ""

    @property
    def entries(self) -> int:
        """Number of entries."""
        return self.header.count


@dataclass(frozen=True)
class Index:
    """Proven files in the order of their names, and what they cover.

    `covered` holds for each file the span of the log whose records it indexes. Keys of a record at the edge of a file
    may be in the previous or next file, which may be lost: `edge_hashes` are all hashes of such records,
    `edge_physical_offsets` their addresses. `unused` are the files that could not be proven correct; expired and empty
    ones are in neither. `left`: the spans of the log that no file covers, if requested.
    """

    files: tuple[IndexFile, ...]
    covered: tuple[Span, ...]
    edge_hashes: npt.NDArray[np.int32]
    edge_physical_offsets: Positions
    unused: tuple[IndexFile, ...] = ()
    left: tuple[Span, ...] | None = None

    @cached_property
    def edges(self) -> Mapping[int, list[int]]:
        """For each hash of a record at an edge, the addresses of the edge records that have it."""
        found: dict[int, list[int]] = {}
        for key, physical_offset in zip(self.edge_hashes.tolist(), self.edge_physical_offsets.tolist(), strict=True):
            found.setdefault(key, []).append(physical_offset)
        return found


def index_paths(root: str) -> list[str]:
    """The index files of a store, in the order in which a broker reads them: by name."""
    folder = os.path.join(root, paths.INDEX)
    try:
        found = [entry.name for entry in system.entries(folder) if not entry.is_directory]
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [os.path.join(folder, name) for name in sorted(found) if name.isascii() and name.isdigit()]


def open_index(
    root: str,
    log: FileChain,
    log_start: int,
    log_end: int,
    files: OpenFiles,
    noted: Geometry | None = None,
    hashes: npt.NDArray[np.int32] = NO_HASHES,
) -> Index:
    """Proves the index files of a store against its log [log_start, log_end).

    `noted` is the geometry that mqstore recorded when it made the store; None if a broker made it. `hashes` will be
    looked up next.
    """
    used: list[IndexFile] = []
    unused: list[IndexFile] = []
    covered: list[Span] = []
    edge_hashes, physical_offsets = [NO_HASHES], [np.empty(0, np.int64)]
    for path in _ahead(root, log, (log_start, log_end), files, noted, hashes):
        try:
            file = described(path, files, used[-1].geometry if used else noted)
        except FileNotFoundError:
            continue
        edges: list[Messages] = []
        if not file.flaw:
            if not file.entries or file.header.end_offset < log_start:
                continue
            file, edges = _prove(file, log, log_start, log_end, files)
        if file.flaw:
            unused.append(file)
            continue
        used.append(file)
        last = file.header.end_offset
        covered.append((max(file.header.begin_offset, log_start), last + int(edges[0].column("total_size")[0])))
        for messages in edges:
            own, _ = hashes_of(messages)
            edge_hashes.append(own)
            physical_offsets.append(np.repeat(messages.column("physical_offset"), len(own)))
    unproven = np.concatenate(edge_hashes), np.concatenate(physical_offsets)
    return Index(tuple(used), tuple(covered), *unproven, tuple(unused))


def _ahead(
    root: str,
    log: FileChain,
    log_span: Span,
    files: OpenFiles,
    noted: Geometry | None,
    hashes: npt.NDArray[np.int32],
) -> Iterator[str]:
    """The index files of a store; remote ones in groups, once the data needed to prove a group has been read."""
    found = index_paths(root)
    if system.is_local(root) or not found:
        yield from found
        return
    known = _sampled_geometry(found[0], files, noted)
    for first in range(0, len(found), FILES_AT_ONCE):
        group = found[first : first + FILES_AT_ONCE]
        read_ends(group, log, log_span, files, known, hashes)
        yield from group


def _sampled_geometry(path: str, files: OpenFiles, noted: Geometry | None) -> Geometry | None:
    """The most likely geometry of the files of a store: the recorded one, or that of one file."""
    if noted is not None:
        return noted
    with suppress(FileNotFoundError):
        if system.stat(path).size != Geometry().file_size:
            return described(path, files, None).geometry
    return None


def hashes_of(messages: Messages) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]:
    """The hashes under which records are indexed, and for each the row of its record; flawed records have none."""
    if len(messages) <= FEW:
        return _hashes_of_few(messages)
    properties = messages.property_column()
    unique, listed = properties.values(UNIQ_KEY), words(properties.values(KEYS))
    unique_rows = np.flatnonzero(unique.is_valid().to_numpy(zero_copy_only=False))
    word_rows = np.repeat(np.arange(len(messages)), np.nan_to_num(_lengths(listed)).astype(np.int64))
    rows = np.concatenate((unique_rows, word_rows)).astype(np.int64)
    keys = pa.concat_arrays([unique.take(as_array(unique_rows)), listed.flatten()])
    topics = messages.topics().take(as_array(rows))
    right = messages.flaws[rows] == 0
    return key_hashes(topics, keys)[right], rows[right]


def _hashes_of_few(messages: Messages) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]:
    """The same, one by one: the fixed cost of a column is that of twenty messages."""
    found: list[tuple[int, int]] = []
    for row in np.flatnonzero(messages.flaws == 0).tolist():
        at, size = int(messages.topic_start[row]), int(messages.topic_size[row])
        topic = messages.buffer[at : at + size].tobytes().decode("utf-8", "replace")
        at, size = int(messages.properties_start[row]), int(messages.properties_size[row])
        pairs = parse(messages.buffer[at : at + size].tobytes())
        keys = [pairs[UNIQ_KEY]] if UNIQ_KEY in pairs else []
        found += [(key_hash(topic, key), row) for key in [*keys, *filter(None, pairs.get(KEYS, "").split(" "))]]
    hashes, rows = np.array(found, np.int64).reshape(-1, 2).T
    return hashes.astype(np.int32), rows


def _lengths(listed: pa.ListArray) -> npt.NDArray[np.float64]:
    lengths: npt.NDArray[np.float64] = listed.value_lengths().to_numpy(zero_copy_only=False).astype(np.float64)
    return lengths


def described(path: str, files: OpenFiles, known: Geometry | None) -> IndexFile:
    """Header and geometry of a file, checked against its length and its first and last entry.

    `known` is the geometry of another file of the store, which is tried first.
    """
    descriptor = files.descriptor(path)
    size = system.stat(path).size
    head = system.pread(descriptor, HEADER.size, 0)
    if len(head) < HEADER.size:
        return IndexFile(path, Geometry(), IndexHeader(0, 0, 0, 0, 0, 0), f"it has {size} bytes, less than a header")
    header = decode_header(head)
    if header.count == 0:
        return IndexFile(path, known or Geometry(), header)
    if header.begin_offset < 0 or header.end_offset < header.begin_offset or header.count < 1:
        return IndexFile(path, known or Geometry(), header, "its header makes no sense")
    for geometry in dict.fromkeys([known or Geometry(), Geometry()]):
        if geometry.file_size == size:
            flaw = "" if ends_fit(descriptor, geometry, header) else "its first or last entry is not that of its header"
            return IndexFile(path, geometry, header, flaw)
    found = found_geometry(descriptor, size, header)
    if found is None:
        return IndexFile(path, Geometry(), header, f"no number of slots and entries explains its {size} bytes")
    return IndexFile(path, found, header)


def ends_fit(descriptor: int, geometry: Geometry, header: IndexHeader) -> bool:
    """Whether the first and the last entry point where the header says."""
    if header.entry_count > geometry.entries:
        return False
    expected = {1: header.begin_offset, header.count: header.end_offset}
    positions = geometry.entry_positions(np.array(list(expected))).tolist()
    ends = system.pread_each([(descriptor, ENTRY.size, position) for position in positions])
    return all(
        len(data) == ENTRY.size and int.from_bytes(data[4:12], "big", signed=True) == offset
        for data, offset in zip(ends, expected.values(), strict=True)
    )


def _prove(
    file: IndexFile, log: FileChain, log_start: int, log_end: int, files: OpenFiles
) -> tuple[IndexFile, list[Messages]]:
    """Checks a file against the last and, unless expired, the first record it indexes; also returns these records."""
    header = file.header
    ends = [(header.end_offset, header.end_ms)]
    if header.begin_offset >= log_start:
        ends.append((header.begin_offset, header.begin_ms))
    edges = []
    for physical_offset, store_ms in ends:
        record = record_at(log, files, physical_offset, log_end)
        if record is None or int(record.column("store_ms")[0]) != store_ms:
            flaw = f"its header names a record at {physical_offset} of store time {store_ms}, which is not there"
            return replace(file, flaw=flaw), []
        edges.append(record)
    return file, edges


def uncovered(covered: list[Span], log: FileChain, files: OpenFiles, log_start: int, log_end: int) -> list[Span]:
    """The parts of the log [log_start, log_end) outside of the spans, except holes that hold no record."""
    left: list[Span] = []
    at = log_start
    for start, stop in [*sorted(covered), (log_end, log_end)]:
        if start > at and not _is_blank(log, files, at, start):
            left.append((at, start))
        at = max(at, stop)
    return left


def _is_blank(log: FileChain, files: OpenFiles, start: int, stop: int) -> bool:
    """Whether [start, stop) is the blank record at the end of a file, a DLedger header, or in no file."""
    file = log.file_at(start)
    if file is None:
        return all(each.base_offset >= stop or each.end <= start for each in log.files)
    if stop - start <= header_size(log, file):
        return True
    if stop != file.end or stop - start < BLANK.size:
        return False
    head = system.pread(files.descriptor(file.path), BLANK.size, start - file.base_offset)
    if header_size(log, file):
        return int.from_bytes(head[:4], "big", signed=True) == BLANK_END
    return int.from_bytes(head[4:8], "big") == MAGIC_BLANK
