"""What a queue's index holds after a restart: the journal and the segments, made to agree.

The three ways (clean, dirty with terms, dirty without) and what each may drop: rabbitmq.md 3.1 and 4.2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from storage_core.errors import CorruptionError, TornWriteError
from storage_core.files import system
from storage_core.formats.layout import Mask
from storage_core.formats.rabbitmq.classic import index_records, journal
from storage_core.formats.rabbitmq.classic.index_records import ACKED, DELIVERED, PERSISTENT, PUBLISHED
from storage_core.rabbitmq.index import index_segment, journal_reader
from storage_core.rabbitmq.index import message_run as status
from storage_core.rabbitmq.index.index_segment import IndexSegment, JournalShare, SegmentFile
from storage_core.rabbitmq.index.message_run import MessageRun, Rows, object_array
from storage_core.rabbitmq.index.queue_index import QueueIndex

TRUE_ATOM_END = b"\x04true"
"""The end of a message term whose last element, is_persistent, is true: length and name of the atom."""

Contains = Callable[[MessageRun], Mask]
"""Which messages of a run (none of them embedded) the persistent store still has."""


@dataclass(frozen=True)
class Recovered:
    """Number of remaining messages, and body bytes of the persistent ones including those just dropped."""

    count: int
    bytes: int


def recover_clean(index: QueueIndex, unacked: Mapping[int, int]) -> None:
    """Recovers after a clean stop: loads the journal into memory as is; `unacked` are the terms' counts by segment."""
    for number, share in _journal(index):
        index.segment(number).set_journal(share)
    for number, count in unacked.items():
        index.segment(number).unacked = count


def recover_dirty(index: QueueIndex, durable: bool, stopped: bool, contains: Contains) -> Recovered:
    """Recovers after a crash, or after a stop whose message store is not clean (`stopped`): drops entries whose
    message is missing, adds missing delivers (if `stopped`, only to the dropped entries), and flushes everything.
    """
    count = size = 0
    for segment, file in _reconciled(index):
        flags = segment.journal.flags
        run = segment.read(0, index.entry_count)
        size += run.body_bytes(run.has(status.PERSISTENT))
        present = _found(run, contains) if durable else np.zeros(len(run), np.bool_)
        delivered = ((flags | file.flags)[run.sequence_ids % index.entry_count] & DELIVERED) != 0
        relatives = run.sequence_ids % index.entry_count
        added = relatives[~delivered & ~present] if stopped else relatives[~delivered]
        segment.unacked = len(run)
        segment.deliver(added)
        segment.ack(relatives[~present])
        count += segment.unacked
    index.flush()
    return Recovered(count, size)


def references(index: QueueIndex) -> Rows:
    """The id of each live persistent message in the shared store: what the store counts after a crash."""
    found = []
    for segment, _ in _reconciled(index):
        run = segment.read(0, index.entry_count)
        found.append(run.ids[run.where(status.PERSISTENT | status.TO_INDEX, status.PERSISTENT)])
    return np.concatenate(found) if found else np.empty(0, "V16")


def _reconciled(index: QueueIndex) -> Iterator[tuple[IndexSegment, SegmentFile]]:
    """Every known segment with its file; its share of the journal excludes what the file already has."""
    journals = dict(_journal(index))
    for number in sorted({*journals, *index.segment_numbers_on_disk()}):
        segment = index.segment(number)
        file = _load_whole(segment.path, index.entry_count)
        if number in journals:
            share = journals[number]
            share.flags &= ~file.flags
            # A segment whose entries were all acknowledged was deleted: its leftovers in the journal mean nothing.
            share.forget((file.flags & PUBLISHED == 0) & (share.flags & PUBLISHED == 0))
            segment.set_journal(share)
        yield segment, file


def _found(run: MessageRun, contains: Contains) -> Mask:
    embedded = run.has(status.TO_INDEX)
    found = np.zeros(len(run), np.bool_)
    found[embedded] = [term.endswith(TRUE_ATOM_END) for term in run.terms[embedded]]
    if not embedded.all():
        found[~embedded] = contains(run[~embedded])
    return found


def _load_whole(path: str, entry_count: int) -> SegmentFile:
    """Loads a segment file. Cuts an unfinished record that a crash left at its end: the journal still has the entry."""
    try:
        return index_segment.load(path, entry_count)
    except TornWriteError as error:
        descriptor = system.open_write(path)
        try:
            system.truncate(descriptor, error.position)
            system.fsync(descriptor)
        finally:
            system.close(descriptor)
        return index_segment.load(path, entry_count)


def _journal(index: QueueIndex) -> Iterator[tuple[int, JournalShare]]:
    """The journal, split by segment."""
    data = index.journal.read()
    content = journal_reader.decode(data, index.journal.path)
    if content.illegal is not None:
        damage = content.illegal
        raise CorruptionError(damage.file, damage.position, f"{damage.text}; restore the file from a copy")
    records = content.records
    index.journal.cut(records.stop)
    numbers, relatives = np.divmod(records.sequence_ids, index.entry_count)
    added = np.array([PUBLISHED | PERSISTENT, PUBLISHED, DELIVERED, ACKED], np.uint8)[records.kinds]
    buffer = np.frombuffer(data, np.uint8)
    for number in np.unique(numbers).tolist():
        chosen = np.flatnonzero(numbers == number)
        share = JournalShare.empty(index.entry_count)
        np.bitwise_or.at(share.flags, relatives[chosen], added[chosen])
        published = chosen[records.kinds[chosen] <= journal.PUBLISH_TRANSIENT]
        starts = records.positions[published] + journal.MARK.size
        share.bodies[relatives[published]] = index_records.bodies_at(buffer, starts)
        starts += index_records.BODY.size
        stops = starts + records.embedded_sizes[published]
        terms = [data[start:stop] for start, stop in zip(starts.tolist(), stops.tolist(), strict=True)]
        share.terms[relatives[published]] = object_array(terms)
        whole = PUBLISHED | DELIVERED | ACKED
        share.forget((share.flags & whole) == whole)
        yield number, share
