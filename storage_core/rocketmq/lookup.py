"""Where messages with a key may lie: through the index files where these prove right, and what is left to scan.

Every candidate is only a candidate: the message itself decides (`row_filter`). What the index files cover is told by
`index_files`. Source of the rules: rocketmq.md 4.6, interface.md 11.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from storage_core.files.file_chain import FileChain
from storage_core.files.scattered import PAGE_SIZE, read_scattered
from storage_core.files.window import OpenFiles, Window
from storage_core.formats.layout import Positions
from storage_core.formats.rocketmq.indexfile import ENTRY, SLOT, key_hashes
from storage_core.formats.rocketmq.message import HEADER_V4, Messages, decode
from storage_core.rocketmq.index_files import Index, IndexFile, Span, hashes_of, uncovered

MOST_CANDIDATES = 50_000
RECORD_GUESS = 2048


@dataclass
class Lookup:
    """What an index says of some keys: right records that have one of them, and spans of the log to be scanned.

    `places` are the records' addresses, ascending. `pages` counts the 4 KB pages of index files that were read.
    """

    places: Positions
    spans: list[Span]
    pages: int = 0


@dataclass
class _Chains:
    """The chains of some hashes in all files at once. One element a chain that has not ended, in each array."""

    index: Index
    hashes: npt.NDArray[np.int32]
    descriptors: list[int]
    places: list[Positions] = field(default_factory=list)
    owners: list[npt.NDArray[np.int64]] = field(default_factory=list)
    found_hashes: list[npt.NDArray[np.int32]] = field(default_factory=list)
    pages: set[tuple[int, int]] = field(default_factory=set)

    def __post_init__(self) -> None:
        files = self.index.files
        self.wrong = np.zeros(len(files), bool)
        self._slots = np.array([file.geometry.slots for file in files], np.int64)
        self._base = np.array([file.geometry.entries_position for file in files], np.int64)
        self._counts = np.array([file.entries for file in files], np.int64)
        self._begin = np.array([file.header.begin_offset for file in files], np.int64)
        self._end = np.array([file.header.end_offset for file in files], np.int64)

    def walk(self) -> None:
        """Follows every chain to its end; files with a chain that cannot be right are marked in `wrong`."""
        file = np.repeat(np.arange(len(self.index.files)), len(self.hashes))
        wanted = np.tile(self.hashes, len(self.index.files)).astype(np.int64)
        slot = wanted % self._slots[file]
        numbers = self._read(file, 40 + SLOT.size * slot, SLOT.size).view(SLOT.dtype)["entry"].ravel().astype(np.int64)
        self._condemn(file, (numbers < 0) | (numbers > self._counts[file]))
        ceiling = self._end[file]
        active = numbers > 0
        while True:
            active &= ~self.wrong[file]
            if not active.any():
                return
            file, wanted, slot, numbers, ceiling = (part[active] for part in (file, wanted, slot, numbers, ceiling))
            entries = self._read(file, self._base[file] + ENTRY.size * numbers, ENTRY.size).view(ENTRY.dtype).ravel()
            hashes, places = entries["key_hash"].astype(np.int64), entries["physical_offset"].astype(np.int64)
            previous = entries["previous"].astype(np.int64)
            bad = (hashes < 0) | (hashes % self._slots[file] != slot) | (places > ceiling) | (places < self._begin[file])
            bad |= (entries["seconds"] < 0) | (previous < 0) | (previous >= numbers)
            self._condemn(file, bad)
            hit = (hashes == wanted) & ~bad
            self.places.append(places[hit])
            self.owners.append(file[hit])
            self.found_hashes.append(wanted[hit].astype(np.int32))
            numbers, ceiling, active = previous, places, previous > 0

    def _condemn(self, file: npt.NDArray[np.int64], bad: npt.NDArray[np.bool_]) -> None:
        if bad.any():
            self.wrong[file[bad]] = True

    def _read(self, file: npt.NDArray[np.int64], positions: Positions, width: int) -> npt.NDArray[np.uint8]:
        pages = np.concatenate((positions, positions + width - 1)) // PAGE_SIZE
        self.pages.update(zip(np.concatenate((file, file)).tolist(), pages.tolist(), strict=True))
        return read_scattered(self.descriptors, file, positions, width)


def hashes_to_find(topics: Sequence[str], keys: Sequence[str]) -> npt.NDArray[np.int32]:
    """The distinct hashes under which some keys of some topics may be indexed."""
    pairs = [(topic, key) for topic in topics for key in keys]
    first, second = (pa.array([pair[part] for pair in pairs], pa.string()) for part in (0, 1))
    return np.unique(key_hashes(first, second))


def look_up(
    index: Index, hashes: npt.NDArray[np.int32], log: FileChain, files: OpenFiles, log_start: int, log_end: int
) -> Lookup:
    """Right records of the log [log_start, log_end) that may have a key of one of `hashes`, and spans to be scanned.

    A file with a chain that makes no sense, or with an entry that points to a record without such a key, is not
    believed: its span is among those to be scanned.
    """
    chains = _Chains(index, hashes, [files.descriptor(file.path) for file in index.files])
    if len(hashes) and index.files:
        chains.walk()
    places, owners, found = (
        np.concatenate([np.empty(0, kind), *parts])
        for kind, parts in ((np.int64, chains.places), (np.int64, chains.owners), (np.int32, chains.found_hashes))
    )
    here = (places >= log_start) & ~chains.wrong[owners] if len(owners) else np.zeros(0, bool)
    places, owners, found = places[here], owners[here], found[here]
    if len(places) > MOST_CANDIDATES:
        return Lookup(np.empty(0, np.int64), [(log_start, log_end)], len(chains.pages))
    edges = index.edge_places[np.isin(index.edge_hashes, hashes)]
    distinct, row = np.unique(places, return_inverse=True)
    proven = _proven(distinct, row, found, log, files, log_end)
    chains.wrong[owners[~proven]] = True
    right = proven & ~chains.wrong[owners] if len(owners) else proven
    spans = [span for span, wrong in zip(index.covered, _wrong_spans(index, chains.wrong), strict=True) if not wrong]
    return Lookup(
        np.union1d(places[right], edges),
        uncovered(spans, log, files, log_start, log_end),
        len(chains.pages),
    )


def _wrong_spans(index: Index, wrong: npt.NDArray[np.bool_]) -> list[bool]:
    return [bool(wrong[owner]) for owner in index.owners]


def _proven(
    places: Positions,
    row: npt.NDArray[np.intp],
    hashes: npt.NDArray[np.int32],
    log: FileChain,
    files: OpenFiles,
    log_end: int,
) -> npt.NDArray[np.bool_]:
    """Whether the record at `places[row]` is right and has a key of the hash, for each hash. Shape of `hashes`."""
    if not len(hashes):
        return np.zeros(0, bool)
    known: list[npt.NDArray[np.int64]] = []
    for first, messages in read_records(places, log, files, log_end):
        right = np.flatnonzero(messages.flaws == 0)
        kept = decode(messages.buffer, messages.starts[right], messages.column("total_size")[right].astype(np.int64))
        own, at = hashes_of(kept)
        known.append((right[at] + first) << 32 | own.astype(np.int64))
    wanted = row.astype(np.int64) << 32 | hashes.astype(np.int64)
    return np.isin(wanted, np.concatenate(known))


def read_records(
    places: Positions, log: FileChain, files: OpenFiles, log_end: int
) -> list[tuple[int, Messages]]:
    """The records at ascending addresses, read a bounded number of bytes at a time; flawed ones are marked.

    Each element: the number of its first record among `places`, and the decoded records.
    """
    window = Window(log, files)
    sizes = np.zeros(len(places), np.int64)
    room = np.zeros(len(places), np.int64)
    for number, place in enumerate(places.tolist()):
        file = log.file_at(place)
        room[number] = 0 if file is None else max(0, min(file.end, log_end) - place)
    guess = np.minimum(room, RECORD_GUESS)
    out: list[tuple[int, Messages]] = []
    step = 4096
    for first in range(0, len(places), step):
        part = slice(first, first + step)
        sizes[part] = _sizes(window, places[part], guess[part], room[part])
        buffer, starts = window.load_runs(places[part], places[part] + sizes[part])
        buffer = buffer.copy() if len(buffer) >= HEADER_V4.size else np.zeros(HEADER_V4.size, np.uint8)
        messages = decode(buffer, starts, sizes[part])
        messages.flaws[(messages.column("physical_offset") != places[part]) & (messages.flaws == 0)] = 1
        out.append((first, messages))
    return out


def _sizes(window: Window, places: Positions, guess: Positions, room: Positions) -> Positions:
    """TOTALSIZE of each record, 0 where none fits."""
    guess = np.minimum(guess, 4) * (room >= HEADER_V4.size)
    right = guess == 4
    sizes = np.zeros(len(places), np.int64)
    heads, _ = window.load_runs(places[right], places[right] + 4)
    sizes[right] = heads.view(">i4").astype(np.int64)
    return np.where((sizes >= HEADER_V4.size) & (sizes <= room), sizes, 0)


def unproven(files: Sequence[IndexFile]) -> list[str]:
    """One line for each index file that is not used."""
    return [f"{file.path}: {file.flaw}" for file in files]
