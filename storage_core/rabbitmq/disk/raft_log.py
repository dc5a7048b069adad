"""The log of each raft server of a node: where each valid entry is stored, among segments and write-ahead logs.

Source: docs/format/rabbitmq-quorum.md 3, 4, 5 and 8. `quorum` interprets the entries, and `khepri` those of the
node's metadata.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from storage_core.errors import DataLossError, FormatError
from storage_core.files import system
from storage_core.formats.rabbitmq.quorum import raft_segment, snapshot_file, wal
from storage_core.formats.rabbitmq.quorum.snapshot_file import SnapshotFile
from storage_core.rabbitmq.disk.damage import Damage
from storage_core.rabbitmq.disk.span_reader import read_table

WAL, SEGMENT, SNAPSHOTS = ".wal", ".segment", "snapshots"
WINDOW = 32 << 20
SHORTEST_SEGMENT = 8
CHUNK = 1 << 16
"""Fewest entries to process together: a segment has 4,096 of them."""

ENTRY = np.dtype([("index", "i8"), ("term", "i8"), ("position", "i8"), ("size", "i8"), ("crc", "u4"), ("file", "i4")])
"""One entry of a log: `size` bytes of data at `position` of the file; `crc` is 0 if there is nothing to check."""

BEYOND = -1
"""The file number of an entry that is outside its segment: a node fails only when it needs the entry."""

LogEntries = npt.NDArray[np.void]


@dataclass(frozen=True)
class LogPiece:
    """The entries [first, stop) of a log, without a gap, from one file. `part` are all entries of a write-ahead log;
    those of a segment are read on demand.
    """

    root: str
    file: str
    number: int
    first: int
    stop: int
    part: LogEntries | None = None

    def between(self, first: int, stop: int) -> LogPiece:
        """The part of the piece within [first, stop)."""
        return replace(self, first=max(self.first, first), stop=min(self.stop, stop))

    def all_of_file(self) -> LogEntries:
        """All valid entries of the file, in index order; empty if it no longer exists or is no valid segment."""
        if self.part is not None:
            return self.part
        try:
            part = _rising(_read_segment(f"{self.root}/{self.file}"))
        except (FileNotFoundError, FormatError):
            return np.empty(0, ENTRY)
        part["file"] = np.where(part["file"] == BEYOND, BEYOND, self.number)
        return part

    def entries(self) -> LogEntries:
        """The entries in index order. Raises DataLossError if the file has changed."""
        part = self.all_of_file()
        low, high = np.searchsorted(part["index"], (self.first, self.stop))
        if high - low != self.stop - self.first:
            text = "the file changed while the store was read; read again, or a copy"
            raise DataLossError(f"DataLossError: {self.root}/{self.file}: {text}")
        return part[low:high]


@dataclass
class RaftLog:
    """The log of one server after its snapshot: pieces that follow each other without a gap, up to the first damage.

    `files` are paths below the store; `damages` state where the log cannot be read any further.
    """

    snapshot: SnapshotFile | None
    pieces: list[LogPiece]
    files: tuple[str, ...]
    older: list[LogPiece] = field(default_factory=list)
    """One for each file with entries at or before the last index of the snapshot; they may have gaps."""
    damages: list[Damage] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def snapshot_index(self) -> int:
        """Last index of the snapshot; -1 without one."""
        return -1 if self.snapshot is None else self.snapshot.index

    @property
    def last_index(self) -> int:
        """Last index of the log."""
        return self.pieces[-1].stop - 1 if self.pieces else self.snapshot_index

    def kept(self, wanted: npt.NDArray[np.int64]) -> LogEntries:
        """The entries with the indices `wanted` at or before the snapshot's last index that a file still has."""
        parts = [piece.all_of_file() for piece in self.older]
        chosen = [part[np.isin(part["index"], wanted) & (part["file"] != BEYOND)] for part in parts]
        found = _joined([*chosen, np.empty(0, ENTRY)])
        found = found[(found["index"] <= self.snapshot_index)]
        # Of several entries with one index the last one counts.
        _, last = np.unique(found["index"][::-1], return_index=True)
        return found[len(found) - 1 - last]

    def chunks(self, last: int | None = None) -> Iterator[LogEntries]:
        """The entries up to the index `last`, in chunks large enough for columns to pay off. Raises DataLossError."""
        stop = self.last_index + 1 if last is None else last + 1
        waiting: list[LogEntries] = []
        for piece in self.pieces:
            if piece.first < stop:
                waiting.append(piece.between(0, stop).entries())
            if sum(map(len, waiting)) >= CHUNK:
                yield _joined(waiting)
                waiting = []
        if waiting:
            yield _joined(waiting)


@dataclass
class WalEntries:
    """Entries of all write-ahead logs of a node: for each uid one part per file, in file order."""

    files: list[str]
    parts: dict[bytes, list[LogEntries]]
    damages: list[Damage]
    torn: list[Damage]
    """Incomplete records at the ends of files, and everything after them: a node silently drops these."""


def read_wals(root: str) -> WalEntries:
    """Reads all write-ahead logs of the node's folder, one window at a time."""
    found = WalEntries([], {}, [], [])
    for number, name in enumerate(files_named(root, WAL)):
        found.files.append(name)
        by_uid: dict[bytes, list[LogEntries]] = {}
        try:
            torn = _read_wal(f"{root}/{name}", number, by_uid)
            if torn is not None:
                reason = f"the last record is not whole; a node drops its {torn[1]} bytes"
                found.torn.append(Damage(name, *torn, "wal", reason, served=False))
        except FormatError as error:
            found.damages.append(Damage(name, error.position, 0, "wal", error.reason))
        for uid, pieces in by_uid.items():
            found.parts.setdefault(uid, []).append(_joined(pieces))
    return found


def _joined(pieces: Sequence[LogEntries]) -> LogEntries:
    return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)


def _read_wal(path: str, number: int, by_uid: dict[bytes, list[LogEntries]]) -> tuple[int, int] | None:
    """Groups the entries by uid. Returns position and length of an incomplete last record. Raises FormatError."""
    descriptor = system.open_read(path)
    writers = wal.Writers()
    try:
        wal.check_header(system.pread(descriptor, wal.HEADER_SIZE, 0))
        position, size = wal.HEADER_SIZE, WINDOW
        while True:
            data = system.pread(descriptor, size, position)
            is_last = len(data) < size
            window = wal.walk(data, position, is_last, writers)
            named = np.isin(window.entries["writer"], list(writers.uids))
            known = len(named) if named.all() else int(np.argmin(named))
            _sort_out(window.entries[:known], number, writers, by_uid)
            if known < len(named):
                begin = int(window.entries["position"][known]) - wal.KNOWN_SIZE
                raise FormatError(begin, "a record of a writer that the file does not name")
            if window.damaged:
                raise FormatError(window.stop, "the checksum of a record does not fit, and more records follow")
            if window.ended or is_last:
                rest = data[window.stop - position :]
                return (window.stop, len(rest)) if any(rest[: wal.LAST_RECORD_TAIL]) else None
            # A record longer than the window needs a longer one.
            size = WINDOW if window.stop > position else 2 * size
            position = window.stop
    finally:
        system.close(descriptor)


def _sort_out(
    entries: npt.NDArray[np.void], number: int, writers: wal.Writers, by_uid: dict[bytes, list[LogEntries]]
) -> None:
    for writer in np.unique(entries["writer"]).tolist():
        chosen = entries[entries["writer"] == writer]
        uid = writers.uids[writer]
        resets = np.flatnonzero(chosen["truncate"])
        if len(resets):
            # The writer started again at this index: what it wrote before does not count.
            by_uid[uid] = []
            chosen = chosen[int(resets[-1]) :]
        part = np.zeros(len(chosen), ENTRY)
        for name in ("index", "term", "position", "size"):
            part[name] = chosen[name]
        part["file"] = number
        by_uid.setdefault(uid, []).append(part)


def _rising(part: LogEntries) -> LogEntries:
    """The entries without those that a later one of an equal or lower index replaced."""
    if len(part) < 2:
        return part
    index = part["index"]
    lowest = np.minimum.accumulate(index[::-1])[::-1]
    kept = np.ones(len(part), bool)
    kept[:-1] = index[:-1] < lowest[1:]
    return part if kept.all() else part[kept]


def files_named(root: str, suffix: str) -> list[str]:
    """Names of the files in a folder that end with `suffix`, ascending; empty if the folder does not exist."""
    try:
        return sorted(name for name in system.names(root) if name.endswith(suffix))
    except (FileNotFoundError, NotADirectoryError):
        return []


def read_log(root: str, server: str, wals: WalEntries) -> RaftLog:
    """Reads the log of the server whose folder below `root` is called `server`, which is also its uid."""
    notes: list[str] = []
    snapshot = _newest_snapshot(f"{root}/{server}/{SNAPSHOTS}", notes)
    files = [*wals.files]
    first = (-1 if snapshot is None else snapshot.index) + 1
    pieces: list[LogPiece] = []
    older: list[LogPiece] = []
    damages = list(wals.damages)
    beyond: dict[str, LogEntries] = {}
    for name in files_named(f"{root}/{server}", SEGMENT):
        path = f"{server}/{name}"
        if _is_link(f"{root}/{path}"):
            continue
        try:
            part = _rising(_read_segment(f"{root}/{path}"))
        except FormatError as error:
            damages.append(Damage(path, error.position, 0, "segment", error.reason))
            continue
        if len(part):
            beyond[path] = part[part["file"] == BEYOND]
            new = LogPiece(root, path, len(files), 0, first)
            _over(pieces, part, new)
            older += [new] if part["index"][0] < first else []
            files.append(path)
    for part in wals.parts.get(server.encode(), []):
        if len(part):
            number = int(part["file"][0])
            part = _rising(part)
            new = LogPiece(root, files[number], number, 0, first, part)
            _over(pieces, part, new)
            older += [new] if part["index"][0] < first else []
    pieces = [piece.between(first, piece.stop) for piece in pieces if piece.stop > first]
    pieces, cut = _whole(pieces, first, beyond)
    damages += cut
    return RaftLog(snapshot, pieces, tuple(files), older, damages, notes)


def _is_link(path: str) -> bool:
    """Whether the path links to another segment, into which a node of 4.3 moved what was left of this one."""
    return posixpath.basename(system.real_path(path)) != posixpath.basename(path)


def _whole(pieces: list[LogPiece], wanted: int, beyond: dict[str, LogEntries]) -> tuple[list[LogPiece], list[Damage]]:
    """The pieces from the entry `wanted` on, up to the first entry that is missing or outside its segment."""
    for number, piece in enumerate(pieces):
        if piece.first != wanted:
            position = int(piece.entries()["position"][0])
            reason = f"entry {wanted} of the raft log is missing; the next one is {piece.first}"
            return pieces[:number], [Damage(piece.file, position, 0, "gap", reason)]
        for entry in beyond.get(piece.file, ()):
            index = int(entry["index"])
            if piece.first <= index < piece.stop:
                reason = f"entry {index} reaches beyond the end of the segment"
                before = [piece.between(piece.first, index)] if index > piece.first else []
                return pieces[:number] + before, [Damage(piece.file, int(entry["position"]), 0, "segment", reason)]
        wanted = piece.stop
    return pieces, []


def _over(pieces: list[LogPiece], part: LogEntries, new: LogPiece) -> None:
    """Replaces the entries of a log from the first of `part` on with `part`; `new` states its file, and the index
    before which the snapshot covers everything.
    """
    first = int(part["index"][0])
    while pieces and pieces[-1].first >= first:
        pieces.pop()
    if pieces and pieces[-1].stop > first:
        pieces[-1] = replace(pieces[-1], stop=first)
    index = part["index"][int(np.searchsorted(part["index"], new.stop)) :]
    if len(index):
        edges = [0, *(np.flatnonzero(np.diff(index) != 1) + 1).tolist(), len(index)]
        pieces += [replace(new, first=int(index[low]), stop=int(index[high - 1]) + 1) for low, high in pairwise(edges)]


def _read_segment(path: str) -> LogEntries:
    descriptor = system.open_read(path)
    try:
        head = system.pread(descriptor, raft_segment.HEADER_SIZE, 0)
        if len(head) < SHORTEST_SEGMENT:
            return np.empty(0, ENTRY)
        size = raft_segment.index_size(head)
        index = raft_segment.entries(system.pread(descriptor, size, raft_segment.HEADER_SIZE))
        length = system.stat(path).size
    finally:
        system.close(descriptor)
    part = np.zeros(len(index), ENTRY)
    for name in ("index", "term", "position", "size", "crc"):
        part[name] = index[name]
    part["file"][part["position"] > length - part["size"]] = BEYOND
    return part


def _newest_snapshot(folder: str, notes: list[str]) -> SnapshotFile | None:
    """The newest intact snapshot; a node skips the others."""
    try:
        names = sorted(system.names(folder), reverse=True)
    except (FileNotFoundError, NotADirectoryError):
        return None
    for name in names:
        path = f"{folder}/{name}/snapshot.dat"
        try:
            data = read_table(path, snapshot_file.MAGIC)
            if not data:
                continue
            return snapshot_file.decode(data)
        except FormatError as error:
            notes.append(f"{path}: {error.reason}; as for a node, an older one is taken, or none")
    return None
