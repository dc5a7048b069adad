"""The log of each quorum queue of a node: where every entry lies that counts, out of segments and write-ahead logs.

Source: docs/format/rabbitmq-quorum.md 3, 4, 5 and 8. Leaves to `replay` what the entries say.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from storage_core.errors import FormatError
from storage_core.files import system
from storage_core.formats.rabbitmq.quorum import raft_segment, snapshot_file, wal
from storage_core.formats.rabbitmq.quorum.snapshot_file import SnapshotFile
from storage_core.rabbitmq.disk.damage import Damage
from storage_core.rabbitmq.disk.span_reader import read_table
from storage_core.rabbitmq.quorum.directory import SEGMENT, SNAPSHOTS, WAL, QueueDirectory, files_named

WINDOW = 32 << 20
SHORTEST_SEGMENT = 8

ENTRY = np.dtype([("index", "i8"), ("term", "i8"), ("position", "i8"), ("size", "i8"), ("crc", "u4"), ("file", "i4")])
"""One entry of a log: `size` bytes of data at `position` of the file; `crc` 0 where nothing is to be checked."""

LogEntries = npt.NDArray[np.void]


@dataclass
class RaftLog:
    """The log of one queue behind its snapshot: entries in index order without a hole, up to the first damage.

    `files` are paths below the store; `damages` say where the log cannot be read on.
    """

    snapshot: SnapshotFile | None
    entries: LogEntries
    files: tuple[str, ...]
    damages: list[Damage] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def snapshot_index(self) -> int:
        """Last index of the snapshot; -1 without one."""
        return -1 if self.snapshot is None else self.snapshot.index

    @property
    def last_index(self) -> int:
        """Last index of the log."""
        return int(self.entries["index"][-1]) if len(self.entries) else self.snapshot_index


@dataclass
class WalEntries:
    """Entries of all write-ahead logs of a node: for each uid one part a file, in file order."""

    files: list[str]
    parts: dict[bytes, list[LogEntries]]
    damages: list[Damage]


def read_wals(root: str) -> WalEntries:
    """All write-ahead logs of the node's folder, a window at a time."""
    found = WalEntries([], {}, [])
    for number, name in enumerate(files_named(root, WAL)):
        found.files.append(name)
        by_uid: dict[bytes, list[LogEntries]] = {}
        try:
            _read_wal(f"{root}/{name}", number, by_uid)
        except FormatError as error:
            found.damages.append(Damage(name, error.position, 0, "wal", error.reason))
        for uid, pieces in by_uid.items():
            found.parts.setdefault(uid, []).append(_joined(pieces))
    return found


def _joined(pieces: Sequence[LogEntries]) -> LogEntries:
    return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)


def _read_wal(path: str, number: int, by_uid: dict[bytes, list[LogEntries]]) -> None:
    descriptor = system.open_read(path)
    writers = wal.Writers()
    try:
        wal.check_header(system.pread(descriptor, wal.HEADER_SIZE, 0))
        position, size = wal.HEADER_SIZE, WINDOW
        while True:
            data = system.pread(descriptor, size, position)
            is_last = len(data) < size
            window = wal.walk(data, position, is_last, writers)
            _sort_out(window.entries, number, writers, by_uid)
            if window.damaged:
                raise FormatError(window.stop, "the checksum of a record does not fit, and more records follow")
            if window.ended or is_last:
                return
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
        uid = writers.uids.get(writer)
        if uid is None:
            continue
        resets = np.flatnonzero(chosen["truncate"])
        if len(resets):
            # A writer that starts again at this index: what it wrote below does not count.
            by_uid[uid] = []
            chosen = chosen[int(resets[-1]) :]
        part = np.zeros(len(chosen), ENTRY)
        for name in ("index", "term", "position", "size"):
            part[name] = chosen[name]
        part["file"] = number
        by_uid.setdefault(uid, []).append(part)


def _rising(part: LogEntries) -> LogEntries:
    """Without the entries that a later one of an equal or lower index made void."""
    if len(part) < 2:
        return part
    index = part["index"]
    lowest = np.minimum.accumulate(index[::-1])[::-1]
    kept = np.ones(len(part), bool)
    kept[:-1] = index[:-1] < lowest[1:]
    return part if kept.all() else part[kept]


def read_log(root: str, queue: QueueDirectory, wals: WalEntries) -> RaftLog:
    """The log of one queue."""
    notes: list[str] = []
    snapshot = _newest_snapshot(root, queue, notes)
    files = [*wals.files]
    parts, damages = [], list(wals.damages)
    for name in files_named(f"{root}/{queue.folder}", SEGMENT):
        path = f"{queue.folder}/{name}"
        try:
            part = _read_segment(f"{root}/{path}")
        except FormatError as error:
            damages.append(Damage(path, error.position, 0, "segment", error.reason))
            continue
        if len(part):
            part["file"] = len(files)
            files.append(path)
            parts.append(_rising(part))
    parts += [_rising(part) for part in wals.parts.get(queue.config.uid, []) if len(part)]
    log = np.empty(0, ENTRY)
    for part in parts:
        before = log[: int(np.searchsorted(log["index"], part["index"][0]))]
        log = np.concatenate([before, part]) if len(before) else part
    first = (-1 if snapshot is None else snapshot.index) + 1
    log = log[int(np.searchsorted(log["index"], first)) :]
    holes = np.flatnonzero(log["index"] != np.arange(first, first + len(log)))
    if len(holes):
        at = log[int(holes[0])]
        wanted = first + int(holes[0])
        reason = f"entry {wanted} of the raft log is missing; the next one is {int(at['index'])}"
        damages.append(Damage(files[int(at["file"])], int(at["position"]), 0, "gap", reason))
        log = log[: int(holes[0])]
    return RaftLog(snapshot, log, tuple(files), damages, notes)


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
    beyond = np.flatnonzero((part["position"] < 0) | (part["position"] + part["size"] > length))
    if len(beyond):
        at = part[int(beyond[0])]
        raise FormatError(int(at["position"]), f"entry {int(at['index'])} reaches beyond the end of the segment")
    return part


def _newest_snapshot(root: str, queue: QueueDirectory, notes: list[str]) -> SnapshotFile | None:
    """The newest snapshot that is whole; a node skips the others."""
    folder = f"{root}/{queue.folder}/{SNAPSHOTS}"
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
