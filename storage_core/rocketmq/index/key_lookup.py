"""Finds where messages with a key may be: through the index files that prove correct, and in what is left to scan.

Each result is only a candidate: the message itself decides (`row_filter`). `index_files` says what the index files
cover. Source of the rules: rocketmq.md 4.6, interface.md 11.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from struct import Struct as PackedStruct

import numpy as np
import numpy.typing as npt

from storage_core.arrays import text_array
from storage_core.files import system
from storage_core.files.file_chain import FileChain
from storage_core.files.open_files import OpenFiles, most_open_files
from storage_core.files.scattered_read import PAGE_SIZE, read_scattered
from storage_core.formats.layout import Positions
from storage_core.formats.rocketmq.indexfile import ENTRY, HEADER, SLOT, key_hash, key_hashes
from storage_core.rocketmq.disk.record_reader import RecordReader
from storage_core.rocketmq.index.index_files import FEW, Index, IndexFile, Span, hashes_of, uncovered

MOST_CANDIDATES = 50_000
FEW_CHAINS = 64
_entry = PackedStruct(">iqii").unpack


@dataclass
class Lookup:
    """The result of looking up keys in an index: valid records that have one of them, and spans of the log to scan.

    `physical_offsets` are those of the records, ascending. `pages` counts the 4 KB pages of index files that were read.
    """

    physical_offsets: Positions
    spans: list[Span]
    pages: int = 0


@dataclass
class _Chains:
    """The chains of some hashes in all files at once. Each array has one element per chain that has not ended."""

    files: Sequence[IndexFile]
    hashes: npt.NDArray[np.int32]
    descriptors: list[int]
    physical_offsets: list[Positions] = field(default_factory=list)
    owners: list[npt.NDArray[np.int64]] = field(default_factory=list)
    found_hashes: list[npt.NDArray[np.int32]] = field(default_factory=list)
    pages: set[tuple[int, int]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.wrong = np.zeros(len(self.files), bool)

    def walk(self) -> None:
        """Follows every chain to its end; files with a chain that cannot be valid are marked in `wrong`."""
        files = self.files
        slots = np.array([file.geometry.slots for file in files], np.int64)
        base = np.array([file.geometry.entries_position for file in files], np.int64)
        counts = np.array([file.entries for file in files], np.int64)
        begin = np.array([file.header.begin_offset for file in files], np.int64)
        file = np.repeat(np.arange(len(self.files)), len(self.hashes))
        wanted = np.tile(self.hashes, len(self.files)).astype(np.int64)
        slot = wanted % slots[file]
        numbers = self._read(file, 40 + SLOT.size * slot, SLOT.size).view(SLOT.dtype)["entry"].ravel().astype(np.int64)
        self._condemn(file, (numbers < 0) | (numbers > counts[file]))
        ceiling = np.array([each.header.end_offset for each in files], np.int64)[file]
        active = numbers > 0
        while True:
            active &= ~self.wrong[file]
            if not active.any():
                return
            file, wanted, slot, numbers, ceiling = (part[active] for part in (file, wanted, slot, numbers, ceiling))
            entries = self._read(file, base[file] + ENTRY.size * numbers, ENTRY.size).view(ENTRY.dtype).ravel()
            hashes, physical_offsets = entries["key_hash"].astype(np.int64), entries["physical_offset"].astype(np.int64)
            previous = entries["previous"].astype(np.int64)
            bad = (hashes < 0) | (hashes % slots[file] != slot)
            bad |= (physical_offsets > ceiling) | (physical_offsets < begin[file])
            bad |= (entries["seconds"] < 0) | (previous < 0) | (previous >= numbers)
            self._condemn(file, bad)
            hit = (hashes == wanted) & ~bad
            self.physical_offsets.append(physical_offsets[hit])
            self.owners.append(file[hit])
            self.found_hashes.append(wanted[hit].astype(np.int32))
            numbers, ceiling, active = previous, physical_offsets, previous > 0

    def walk_one_by_one(self) -> None:
        """The same for a few chains, one at a time: a step of all costs as much as twenty steps of one."""
        for number, file in enumerate(self.files):
            touched = set[int]()
            for wanted in self.hashes.tolist():
                hits = follow(file, self.descriptors[number], wanted, touched)
                if hits is None:
                    self.wrong[number] = True
                    break
                self.physical_offsets.append(np.array(hits, np.int64))
                self.owners.append(np.full(len(hits), number, np.int64))
                self.found_hashes.append(np.full(len(hits), wanted, np.int32))
            self.pages.update((number, page) for page in touched)

    def _condemn(self, file: npt.NDArray[np.int64], bad: npt.NDArray[np.bool_]) -> None:
        if bad.any():
            self.wrong[file[bad]] = True

    def _read(self, file: npt.NDArray[np.int64], positions: Positions, width: int) -> npt.NDArray[np.uint8]:
        pages = np.concatenate((positions, positions + width - 1)) // PAGE_SIZE
        self.pages.update(zip(np.concatenate((file, file)).tolist(), pages.tolist(), strict=True))
        return read_scattered(self.descriptors, file, positions, width)


def follow(file: IndexFile, descriptor: int, wanted: int, pages: set[int]) -> list[int] | None:
    """The addresses of the entries of one chain that have the hash `wanted`; None for a chain that cannot be valid.

    The numbers of the 4 KB pages that were read are added to `pages`.
    """
    hits = []
    slots, begin, ceiling = file.geometry.slots, file.header.begin_offset, file.header.end_offset
    slot, base = wanted % slots, file.geometry.entries_position
    entry = int.from_bytes(_at(descriptor, HEADER.size + SLOT.size * slot, SLOT.size, pages), "big", signed=True)
    if not 0 <= entry <= file.entries:
        return None
    while entry:
        own, physical_offset, seconds, previous = _entry(_at(descriptor, base + ENTRY.size * entry, ENTRY.size, pages))
        outside = own < 0 or own % slots != slot or not begin <= physical_offset <= ceiling
        if outside or seconds < 0 or not 0 <= previous < entry:
            return None
        if own == wanted:
            hits.append(physical_offset)
        entry, ceiling = previous, physical_offset
    return hits


def _at(descriptor: int, position: int, width: int, pages: set[int]) -> bytes:
    pages.add(position // PAGE_SIZE)
    pages.add((position + width - 1) // PAGE_SIZE)
    return system.pread(descriptor, width, position).ljust(width, b"\0")


def hashes_to_find(topics: Sequence[str], keys: Sequence[str]) -> npt.NDArray[np.int32]:
    """The distinct hashes under which some keys of some topics may be indexed."""
    pairs = [(topic, key) for topic in topics for key in keys]
    if len(pairs) <= FEW:
        return np.unique(np.array([key_hash(topic, key) for topic, key in pairs], np.int32))
    first, second = (text_array(pair[part] for pair in pairs) for part in (0, 1))
    return np.unique(key_hashes(first, second))


def look_up(
    index: Index,
    hashes: npt.NDArray[np.int32],
    log: FileChain,
    files: OpenFiles,
    log_start: int,
    log_end: int,
    records: RecordReader,
) -> Lookup:
    """Valid records of the log [log_start, log_end) that may have a key of one of `hashes`, and spans to scan.

    A file with a chain that cannot be valid, or with an entry that points to a record without such a key, is not
    trusted: its span is among those to scan.
    """
    physical_offsets, owners, found, wrong, pages = _walked(index.files, hashes)
    here = (physical_offsets >= log_start) & ~wrong[owners]
    physical_offsets, owners, found = physical_offsets[here], owners[here], found[here]
    if len(physical_offsets) > MOST_CANDIDATES:
        return Lookup(np.empty(0, np.int64), [(log_start, log_end)], pages)
    distinct, row = np.unique(physical_offsets, return_inverse=True)
    proven = _proven(distinct, row, found, records)
    wrong[owners[~proven]] = True
    spans = [span for span, wrong in zip(index.covered, wrong.tolist(), strict=True) if not wrong]
    left = uncovered(spans, log, files, log_start, log_end)
    edges = index.edge_physical_offsets[np.isin(index.edge_hashes, hashes)]
    return Lookup(_outside(np.union1d(physical_offsets[proven], edges), left), left, pages)


def _walked(
    files: Sequence[IndexFile], hashes: npt.NDArray[np.int32]
) -> tuple[Positions, npt.NDArray[np.int64], npt.NDArray[np.int32], npt.NDArray[np.bool_], int]:
    """Entries with one of the hashes: address, number of the file, hash; which files are wrong; pages read."""
    physical_offsets, owners = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    found, wrong, pages = [np.empty(0, np.int32)], np.zeros(len(files), bool), 0
    most = most_open_files()
    for first in range(0, len(files), most):
        part = files[first : first + most]
        with OpenFiles() as opened:
            chains = _Chains(part, hashes, [opened.descriptor(file.path) for file in part])
            # For remote files, a step of all chains takes the time of a step of one.
            few = len(part) * len(hashes) <= FEW_CHAINS and all(system.is_local(file.path) for file in part)
            chains.walk_one_by_one() if few else chains.walk()
        physical_offsets += chains.physical_offsets
        owners += [owner + first for owner in chains.owners]
        found += chains.found_hashes
        wrong[first : first + most] = chains.wrong
        pages += len(chains.pages)
    return np.concatenate(physical_offsets), np.concatenate(owners), np.concatenate(found), wrong, pages


def _outside(physical_offsets: Positions, spans: Sequence[Span]) -> Positions:
    """The addresses outside of the spans, which are ascending."""
    if not spans:
        return physical_offsets
    starts, stops = np.array(spans, np.int64).T
    span = np.searchsorted(starts, physical_offsets, "right") - 1
    left: Positions = physical_offsets[(span < 0) | (physical_offsets >= stops[span])]
    return left


def _proven(
    physical_offsets: Positions,
    row: npt.NDArray[np.intp],
    hashes: npt.NDArray[np.int32],
    records: RecordReader,
) -> npt.NDArray[np.bool_]:
    """Whether the record at `physical_offsets[row]` is valid and has a key with the hash. Same shape as `hashes`."""
    known = [np.empty(0, np.int64)]
    for first, messages in records.records(physical_offsets):
        own, at = hashes_of(messages)
        known.append((at + first) << 32 | own.astype(np.int64))
    proven: npt.NDArray[np.bool_] = np.isin(row.astype(np.int64) << 32 | hashes, np.concatenate(known))
    return proven
