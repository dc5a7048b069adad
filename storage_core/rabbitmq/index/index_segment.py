"""One segment of a queue's index: what its file holds, and what the journal adds to it in memory.

`queue_index` decides when it is flushed. Source: rabbitmq.md 3 and 5.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from storage_core.errors import CorruptionError, TornWriteError
from storage_core.files import system
from storage_core.files.small_file import remove_file
from storage_core.formats.layout import Positions
from storage_core.formats.rabbitmq import paths
from storage_core.formats.rabbitmq.classic import index_records, segment
from storage_core.formats.rabbitmq.classic.index_records import ACKED, DELIVERED, PERSISTENT, PUBLISHED, Flags, Numbers
from storage_core.rabbitmq.index import message_run as status
from storage_core.rabbitmq.index.message_run import ROW, MessageRun, Terms, object_array
from storage_core.rabbitmq.index.segment_reader import decode


@dataclass(frozen=True)
class SegmentFile:
    """A segment file by relative sequence: which records each entry has, and where its publish starts."""

    data: bytes
    flags: Flags
    positions: Positions

    def messages(self, relatives: Numbers, base: int) -> MessageRun:
        """The published messages `relatives`, as they are loaded into a queue; `base` is the segment's first id."""
        starts = self.positions[relatives]
        buffer = np.frombuffer(self.data, np.uint8)
        fixed = index_records.bodies_at(buffer, starts + segment.MARK.size)
        begins = starts + segment.PUBLISH.size
        ends = begins + fixed["embedded_size"].astype(np.int64)
        terms = [self.data[a:b] for a, b in zip(begins.tolist(), ends.tolist(), strict=True)]
        return _loaded(base + relatives, fixed, object_array(terms), self.flags[relatives])


def load(path: str, entry_count: int) -> SegmentFile:
    """Reads a segment file; one that is missing or all zeros is empty.

    Raises TornWriteError for an unfinished record at the end, CorruptionError for an invalid or a surplus record.
    """
    try:
        descriptor = system.open_read(path)
    except FileNotFoundError:
        return SegmentFile(b"", np.zeros(entry_count, np.uint8), np.zeros(entry_count, np.int64))
    try:
        data = system.pread(descriptor, system.stat(path).size, 0)
    finally:
        system.close(descriptor)
    content = decode(data, path, entry_count)
    if content.torn_at is not None:
        raise TornWriteError(
            path, content.torn_at, "an unfinished record; restore the file, or cut it at this position"
        )
    for damage in content.damages:
        raise CorruptionError(path, damage.position, f"{damage.text}; restore the file from a copy")
    return SegmentFile(data, content.flags, content.positions)


def _loaded(sequence_ids: Numbers, fixed: npt.NDArray[np.void], payloads: Terms, flags: Flags) -> MessageRun:
    rows = np.empty(len(sequence_ids), ROW)
    rows["sequence_id"], rows["id"], rows["expiry"], rows["size"] = (
        sequence_ids,
        fixed["id"],
        fixed["expiry"],
        fixed["size"],
    )
    embedded = fixed["embedded_size"] > 0
    rows["flags"] = np.where(embedded, status.IN_RAM | status.TO_INDEX, status.IN_STORE) | status.INDEX_ON_DISK
    rows["flags"] |= np.where(flags & PERSISTENT, status.PERSISTENT, 0).astype(np.uint8)
    payloads[~embedded] = None
    return MessageRun(rows, payloads)


@dataclass
class JournalShare:
    """What the journal adds to a segment, by relative sequence; `terms` are b"" for messages in the shared store."""

    flags: Flags
    bodies: npt.NDArray[np.void]
    terms: Terms

    @classmethod
    def empty(cls, entry_count: int) -> JournalShare:
        """Nothing yet."""
        bodies = np.zeros(entry_count, index_records.BODY.dtype)
        return cls(np.zeros(entry_count, np.uint8), bodies, np.empty(entry_count, np.object_))

    def forget(self, gone: npt.NDArray[np.bool_]) -> None:
        """Drops the entries in `gone` (complete, or without a publish), and the terms of unpublished entries."""
        self.flags[gone] = 0
        self.terms[(self.flags & PUBLISHED) == 0] = None

    def block(self) -> bytes:
        """The bytes that a flush appends."""
        used = np.flatnonzero(self.flags)[::-1]
        return index_records.segment_block(used, self.flags[used], self.bodies[used], self.terms[used].tolist())


class IndexSegment:
    """Segment `number`: how many entries are not yet acknowledged (`unacked`), and its share of the journal."""

    def __init__(self, directory: str, number: int, entry_count: int) -> None:
        self.number, self.entry_count = number, entry_count
        self.path = f"{directory}/{number}{paths.SEGMENT_SUFFIX}"
        self.unacked = 0
        self._share: JournalShare | None = None

    @property
    def journal(self) -> JournalShare:
        """The segment's share of the journal, which callers may modify."""
        if self._share is None:
            self._share = JournalShare.empty(self.entry_count)
        return self._share

    def publish(self, relatives: Numbers, flags: Flags, bodies: npt.NDArray[np.void], terms: Terms) -> None:
        """Adds publishes; `flags` are PUBLISHED, with PERSISTENT where it applies."""
        share = self.journal
        share.flags[relatives], share.bodies[relatives], share.terms[relatives] = flags, bodies, terms
        self.unacked += len(relatives)

    def deliver(self, relatives: Numbers) -> None:
        """Adds delivers."""
        self.journal.flags[relatives] |= np.uint8(DELIVERED)

    def ack(self, relatives: Numbers) -> None:
        """Adds acknowledgements; an entry whose publish is still in the journal disappears."""
        share = self.journal
        flags = share.flags
        whole = (flags[relatives] & (PUBLISHED | DELIVERED)) == PUBLISHED | DELIVERED
        flags[relatives] = np.where(whole, 0, flags[relatives] | ACKED).astype(np.uint8)
        share.terms[relatives] = None
        self.unacked -= len(relatives)

    def set_journal(self, share: JournalShare) -> None:
        """Sets the share of the journal that recovery found."""
        self._share = share

    def highest(self) -> int:
        """One more than the highest relative sequence in the journal, 0 if there is none."""
        if self._share is None:
            return 0
        used = np.flatnonzero(self._share.flags)
        return int(used[-1]) + 1 if len(used) else 0

    def read(self, start: int, stop: int) -> MessageRun:
        """The live messages with relative sequences [start, stop), ascending: the file combined with the journal."""
        base = self.number * self.entry_count
        file = load(self.path, self.entry_count)
        on_disk = file.flags[start:stop]
        share = self._share
        if share is None:
            return file.messages(start + np.flatnonzero(_live(on_disk)), base)
        added = share.flags[start:stop]
        live = _live(on_disk | added)
        from_file = file.messages(start + np.flatnonzero(live & ((on_disk & PUBLISHED) != 0)), base)
        relatives = start + np.flatnonzero(live & ((on_disk & PUBLISHED) == 0))
        if not len(relatives):
            return from_file
        from_journal = _loaded(
            base + relatives, share.bodies[relatives], share.terms[relatives], share.flags[relatives]
        )
        return status.by_sequence(status.joined([from_file, from_journal]) if len(from_file) else from_journal)

    def flush(self) -> bool:
        """Appends the journal's share to the file and syncs it; deletes the file of a segment without live entries.

        Returns whether a file was created or deleted; the folder is not synced.
        """
        share, self._share = self._share, None
        there = system.exists(self.path)
        if self.unacked == 0:
            remove_file(self.path)
            return there
        if share is None or not share.flags.any():
            return False
        descriptor = system.open_write(self.path, create=True)
        try:
            system.pwrite(descriptor, share.block(), system.stat(self.path).size)
            system.fsync(descriptor)
        finally:
            system.close(descriptor)
        return not there


def _live(flags: Flags) -> npt.NDArray[np.bool_]:
    found: npt.NDArray[np.bool_] = (flags & (PUBLISHED | ACKED)) == PUBLISHED
    return found
