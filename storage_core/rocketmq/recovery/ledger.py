"""Where a DLedger log ends when a node opens it: DLedger's own recovery, which looks at headers alone.

Every record up to that end is committed once the node leads its group, which the only node of a group does at once.
Source of the rules: rocketmq.md 2.11.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from storage_core.files import system
from storage_core.files.file_chain import ChainFile, FileChain, find_chain
from storage_core.files.open_files import OpenFiles
from storage_core.files.window import Window
from storage_core.formats.bisection import first_where
from storage_core.formats.layout import Bytes, Positions
from storage_core.formats.rocketmq import paths
from storage_core.formats.rocketmq.ledger import (
    BLANK_END,
    LEDGER_HEADER,
    LEDGER_INDEX,
    headers_at,
    right_headers,
    walk_ledger,
)
from storage_core.formats.rocketmq.message import BLANK
from storage_core.formats.rocketmq.record_walk import Stop
from storage_core.rocketmq.disk.commit_log import WINDOW_SIZE
from storage_core.rocketmq.disk.ledger import LedgerChain, ledger_of

FILES_WALKED = 3


@dataclass(frozen=True)
class LedgerEnd:
    """Where a ledger ends and why, and the address after the last record that the node knows to be committed, 0 if it
    knows of none.
    """

    end_offset: int
    reason: Stop
    committed_offset: int


def ledger_end(
    root: str, log: LedgerChain, committed: int, files: OpenFiles, known_end: int | None = None
) -> LedgerEnd:
    """Walks the last three files of a ledger, and earlier ones until the ledger's index lists the first header of one;
    or only the part from the last record before a `known_end` on, if that end still holds and the index lists the
    record. `committed` is the number of the last committed record.
    """
    walk = _HeaderWalk(log, files, committed)
    listed = find_chain([os.path.join(ledger_of(root) or root, paths.DLEDGER_INDEX)])
    ledger = [file for file in log.files if log.is_ledger(file)]
    at = None if known_end is None else _record_before(known_end, log, listed, files)
    if at is None:
        first = max(0, len(ledger) - FILES_WALKED)
        while first and not _is_listed(ledger[first], listed, files):
            first -= 1
        at = ledger[first].base_offset
    for file in ledger:
        if file.end <= at:
            continue
        at = walk.through(file, max(at, file.base_offset))
        if walk.reason is not Stop.BLANK:
            break
    if committed > walk.number:
        return LedgerEnd(at, walk.reason, at if walk.number >= 0 else 0)
    return LedgerEnd(at, walk.reason, walk.committed_offset or _listed_stop(committed, listed, files))


def _record_before(end: int, log: LedgerChain, listed: FileChain, files: OpenFiles) -> int | None:
    """Address of the header of the last record before an address, where a record or a file ended; None if the index of
    the ledger does not list that record.
    """

    def is_past(number: int) -> bool:
        entry = _listed_at(number, listed, files)
        return entry is None or entry["number"] != number or not 0 <= entry["address"] < end

    first = listed.start // LEDGER_INDEX.size
    number = first_where(first, listed.stop // LEDGER_INDEX.size, is_past) - 1
    entry = _listed_at(number, listed, files) if number >= first else None
    file = None if entry is None else log.file_at(int(entry["address"]))
    if entry is None or file is None or not log.is_ledger(file):
        return None
    at = int(entry["address"])
    ends_there = at + int(entry["size"]) == end or file.end <= end
    return at if ends_there and _is_listed(file, listed, files, at - file.base_offset) else None


def _is_listed(file: ChainFile, listed: FileChain, files: OpenFiles, position: int = 0) -> bool:
    """Whether the first header of a file, or another one, is valid and the ledger's index agrees with it."""
    data = system.pread(files.descriptor(file.path), LEDGER_HEADER.size, position)
    if len(data) < LEDGER_HEADER.size:
        return False
    header = np.frombuffer(data, LEDGER_HEADER.dtype)
    entry = _listed_at(int(header[0]["number"]), listed, files)
    if entry is None or not right_headers(header, np.array([file.base_offset + position]))[0]:
        return False
    return all(entry[field.name] == header[0][field.name] for field in LEDGER_INDEX.fields)


def _listed_stop(number: int, listed: FileChain, files: OpenFiles) -> int:
    """The address after a record according to the ledger's index; 0 if the index does not list the record."""
    entry = _listed_at(number, listed, files)
    return 0 if entry is None or entry["number"] != number else int(entry["address"]) + int(entry["size"])


def _listed_at(number: int, listed: FileChain, files: OpenFiles) -> np.void | None:
    """The entry of a record in the ledger's index; None if the index is too short."""
    at = number * LEDGER_INDEX.size
    file = listed.file_at(at) if number >= 0 else None
    if file is None:
        return None
    data = system.pread(files.descriptor(file.path), LEDGER_INDEX.size, at - file.base_offset)
    entry: np.void | None = np.frombuffer(data, LEDGER_INDEX.dtype)[0] if len(data) == LEDGER_INDEX.size else None
    return entry


@dataclass
class _HeaderWalk:
    """Steps from header to header as DLedger does, whatever the records contain. `number` and `term` are those of the
    last record, -1 before the first; `committed_offset` is the address after record number `committed`, 0 before it.
    """

    log: LedgerChain
    files: OpenFiles
    committed: int
    number: int = -1
    term: int = -1
    committed_offset: int = 0
    reason: Stop = Stop.END

    def through(self, file: ChainFile, at: int) -> int:
        """Walks one file from a header on; returns the address after the last record that counts, or the blank end."""
        window = Window(self.log, self.files)
        while at + BLANK.size <= file.end:
            buffer = window.load(at, min(at + WINDOW_SIZE, file.end))
            if int.from_bytes(buffer[:4].tobytes(), "big", signed=True) == BLANK_END:
                self.reason = Stop.BLANK
                return file.end
            headers, addresses = _headers(buffer, at)
            stops = addresses + headers["size"]
            count = self._count(headers, addresses, stops, file.end)
            if not count:
                self.reason = Stop.CORRUPT if buffer[: BLANK.size].any() else Stop.END
                return at
            committed_row = self.committed - int(headers[0]["number"])
            if 0 <= committed_row < count:
                self.committed_offset = int(stops[committed_row])
            self.number, self.term = int(headers[count - 1]["number"]), int(headers[count - 1]["term"])
            at = int(stops[count - 1])
        self.reason = Stop.TORN
        return at

    def _count(self, headers: npt.NDArray[np.void], addresses: Positions, stops: Positions, file_end: int) -> int:
        """The number of leading headers that follow one another and the last record."""
        right = right_headers(headers, addresses) & (stops <= file_end)
        numbers = headers["number"].astype(np.int64)
        terms = headers["term"].astype(np.int64)
        right[1:] &= (addresses[1:] == stops[:-1]) & (np.diff(numbers) == 1) & (np.diff(terms) >= 0)
        right[:1] &= (terms[:1] >= self.term) & ((self.number == -1) | (numbers[:1] == self.number + 1))
        return len(right) if right.all() else int(right.argmin())


def _headers(buffer: Bytes, at: int) -> tuple[npt.NDArray[np.void], Positions]:
    """The headers of the records in a buffer that begins at address `at`, and their addresses; the first one alone if
    no whole record follows it.
    """
    starts = walk_ledger(buffer).starts - LEDGER_HEADER.size
    if not len(starts) or starts[0] != 0:
        starts = np.zeros(min(len(buffer) // LEDGER_HEADER.size, 1), np.int64)
    return headers_at(buffer, starts), starts + at
