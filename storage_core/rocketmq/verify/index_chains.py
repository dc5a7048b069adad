"""Checks each index file by itself: its header, the order of its entries, and its chains.

Comparing the entries with their records belongs to `log_spans`. Source of the rules: rocketmq.md 4.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from storage_core.errors import CorruptionError
from storage_core.files import system
from storage_core.files.open_files import OpenFiles
from storage_core.finding import Finding
from storage_core.formats.layout import Positions
from storage_core.formats.radix_sort import stable_order
from storage_core.formats.rocketmq.indexfile import ENTRY, HEADER, SLOT, Geometry
from storage_core.rocketmq.index.index_files import IndexFile, described, index_paths
from storage_core.rocketmq.verify.kinds import Kind, Subject, counted

PIECE = 1 << 20


@dataclass(frozen=True)
class CheckedIndex:
    """An index file whose entries are in log order.

    `bounds[i]` is the number of the first entry whose record is at or after the i-th edge.
    """

    file: IndexFile
    bounds: Positions

    def entries(self, files: OpenFiles, first: int, stop: int) -> npt.NDArray[Any]:
        """Entries [first, stop) in disk byte order."""
        return _entries(self.file, files, first, stop)


@dataclass
class _Chains:
    """The newest entry of each slot, while the entries of a file are read in order."""

    geometry: Geometry

    def __post_init__(self) -> None:
        self.newest = np.zeros(self.geometry.slots, np.int32)

    def broken(self, entries: npt.NDArray[Any], first: int) -> Positions:
        """The numbers of the entries that do not link to the previous entry of their slot."""
        slot = entries["key_hash"].astype(np.int64) % self.geometry.slots
        order = stable_order(slot)
        ordered = slot[order]
        heads = np.flatnonzero(np.diff(ordered, prepend=-1))
        numbers = (first + order).astype(np.int32)
        before = np.empty(len(entries), np.int32)
        before[1:] = numbers[:-1]
        before[heads] = self.newest[ordered[heads]]
        self.newest[ordered[heads]] = numbers[np.append(heads[1:], len(entries)) - 1]
        wrong: Positions = np.sort(order[entries["previous"][order].astype(np.int32) != before]) + first
        return wrong


def checked_indexes(subject: Subject, edges: Positions) -> Iterator[tuple[list[Finding], CheckedIndex | None]]:
    """The findings about each index file, and the file if its entries can be compared with the log."""
    found_paths = index_paths(subject.listing.root)
    with OpenFiles() as files:
        # A damaged file is read with the geometry of an intact one.
        described_alone = (described(path, files, None) for path in found_paths)
        known = next((file.geometry for file in described_alone if file.entries and not file.flaw), None)
        for path in found_paths:
            file = described(path, files, known)
            size = system.stat(path).size
            header = file.header
            if file.flaw or header.entry_count < 0 or header.begin_offset < 0:
                reason = file.flaw or "its header makes no sense"
                yield [subject.finding(Kind.INDEX_FILE, path, 0, size, reason)], None
            elif file.entries:
                yield _checked(subject, file, files, edges)


def _entries(file: IndexFile, files: OpenFiles, first: int, stop: int) -> npt.NDArray[Any]:
    position = int(file.geometry.entry_positions(np.array([first]))[0])
    size = (stop - first) * ENTRY.size
    data = system.pread(files.descriptor(file.path), size, position)
    if len(data) < size:
        reason = f"the file ends here, it had {file.entries} entries when the read began; read again, or a copy"
        raise CorruptionError(file.path, position + len(data), reason)
    return np.frombuffer(data, ENTRY.dtype, len(data) // ENTRY.size)


def _checked(
    subject: Subject, file: IndexFile, files: OpenFiles, edges: Positions
) -> tuple[list[Finding], CheckedIndex | None]:
    chains, bounds, last = _Chains(file.geometry), np.full(len(edges), -1, np.int64), -1
    broken: list[Positions] = []
    for first in range(1, file.entries + 1, PIECE):
        entries = _entries(file, files, first, min(first + PIECE, file.entries + 1))
        offsets = entries["physical_offset"].astype(np.int64)
        disorder = np.flatnonzero((np.diff(offsets, prepend=last) < 0) | (entries["key_hash"] < 0))
        if len(disorder):
            at = first + int(disorder[0])
            return [_finding(subject, file, Kind.INDEX_FILE, at, 1, f"entry {at} is not in the order of the log")], None
        last = int(offsets[-1])
        reached = np.flatnonzero((bounds < 0) & (edges <= last))
        bounds[reached] = first + np.searchsorted(offsets, edges[reached])
        broken.append(chains.broken(entries, first))
    bounds[bounds < 0] = file.entries + 1
    return _chain_findings(subject, file, files, chains, np.concatenate(broken)), CheckedIndex(file, bounds)


def _chain_findings(
    subject: Subject, file: IndexFile, files: OpenFiles, chains: _Chains, broken: Positions
) -> list[Finding]:
    findings = []
    if len(broken):
        text = counted(len(broken), "entry is", "entries are")
        reason = f"{text} not chained to the one before in the slot, the first is {broken[0]}"
        findings.append(_finding(subject, file, Kind.INDEX_ENTRY, int(broken[0]), 1, reason))
    data = system.pread(files.descriptor(file.path), SLOT.size * file.geometry.slots, HEADER.size)
    held = np.frombuffer(data, ">i4").astype(np.int32)
    wrong = np.flatnonzero(np.where((held < 0) | (held > file.entries), 0, held) != chains.newest[: len(held)])
    if len(wrong):
        text = counted(len(wrong), "slot does", "slots do")
        reason = f"{text} not lead to the newest entry, the first is slot {wrong[0]}"
        position = HEADER.size + SLOT.size * int(wrong[0])
        findings.append(subject.finding(Kind.INDEX_ENTRY, file.path, position, SLOT.size, reason))
    return findings


def _finding(subject: Subject, file: IndexFile, kind: Kind, number: int, count: int, reason: str) -> Finding:
    position = int(file.geometry.entry_positions(np.array([number]))[0])
    return subject.finding(kind, file.path, position, count * ENTRY.size, reason)


def index_finding(subject: Subject, index: CheckedIndex, kind: Kind, number: int, reason: str) -> Finding:
    """A finding about entry `number` of an index file."""
    return _finding(subject, index.file, kind, number, 1, reason)
