"""What a queue's index holds after a restart: the journal and the segments, made to agree.

The three ways (clean, dirty with terms, dirty without) and what each may drop: rabbitmq.md 3.1 and 4.2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from storage_core.errors import TornWriteError
from storage_core.files import system
from storage_core.formats.rabbitmq import index_batch, journal
from storage_core.formats.rabbitmq.index_batch import ACKED, DELIVERED, PERSISTENT, PUBLISHED, Flags
from storage_core.rabbitmq import index_segment
from storage_core.rabbitmq.index_segment import IndexSegment, SegmentFile
from storage_core.rabbitmq.paging import message_status as status
from storage_core.rabbitmq.paging.message_status import Mask, MessageRun, Rows, Terms
from storage_core.rabbitmq.queue_index import IndexTerms, QueueIndex

TRUE_ATOM_END = b"\x04true"
"""How a message term ends whose last element, is_persistent, is true: length and name of the atom."""

Contains = Callable[[MessageRun], Mask]
"""Which messages of a run (none of them embedded) the persistent store still has."""


@dataclass(frozen=True)
class Recovered:
    """Messages that are left, and the body bytes of the persistent ones including those just dropped."""

    count: int
    bytes: int


def recover_clean(index: QueueIndex, terms: IndexTerms) -> None:
    """After a clean stop: the journal goes into memory as it is, the unacked counts come from the terms."""
    for number, flags, bodies in _journal(index):
        index.segment(number).set_journal(flags, bodies)
    for number, unacked in terms.segments:
        index.segment(number).unacked = unacked


def recover_dirty(index: QueueIndex, durable: bool, stopped: bool, contains: Contains) -> Recovered:
    """After a crash, or a stop whose message store is not clean (`stopped`): entries whose message is gone are
    dropped, missing delivers are added (not when `stopped`), and everything is flushed.
    """
    count = size = 0
    for segment, file in _reconciled(index):
        flags = segment.journal_flags
        run = segment.read(0, index.entry_count)
        size += run.body_bytes(run.has(status.PERSISTENT))
        kept = _found(run, contains) if durable else np.zeros(len(run), np.bool_)
        delivered = ((flags | file.flags)[run.seqs % index.entry_count] & DELIVERED) != 0
        relatives = run.seqs % index.entry_count
        added = relatives[~delivered & ~kept] if stopped else relatives[~delivered]
        segment.unacked = len(run)
        segment.deliver(added)
        segment.ack(relatives[~kept])
        count += segment.unacked
    index.flush()
    return Recovered(count, size)


def references(index: QueueIndex) -> Rows:
    """The id of each live persistent message that lies in the shared store: what the store counts after a crash."""
    found = []
    for segment, _ in _reconciled(index):
        run = segment.read(0, index.entry_count)
        found.append(run.ids[run.where(status.PERSISTENT | status.TO_INDEX, status.PERSISTENT)])
    return np.concatenate(found) if found else np.empty(0, "V16")


def _reconciled(index: QueueIndex) -> Iterator[tuple[IndexSegment, SegmentFile]]:
    """Every segment known, its share of the journal without what its file has already."""
    journals = {number: (flags, bodies) for number, flags, bodies in _journal(index)}
    for number in sorted({*journals, *index.segment_numbers_on_disk()}):
        segment = index.segment(number)
        file = _load_whole(segment.path, index.entry_count)
        if number in journals:
            flags, bodies = journals[number]
            flags &= ~file.flags
            # An acknowledged segment was deleted after its entries: what is left of them in the journal is nothing.
            flags[(file.flags & PUBLISHED == 0) & (flags & PUBLISHED == 0)] = 0
            bodies[(flags & PUBLISHED) == 0] = None
            segment.set_journal(flags, bodies)
        yield segment, file


def _found(run: MessageRun, contains: Contains) -> Mask:
    embedded = run.has(status.TO_INDEX)
    found = np.zeros(len(run), np.bool_)
    found[embedded] = [term.endswith(TRUE_ATOM_END) for term in run.terms[embedded]]
    if not embedded.all():
        found[~embedded] = contains(run[~embedded])
    return found


def _load_whole(path: str, entry_count: int) -> SegmentFile:
    """A segment file; the unfinished record that a crash left at its end is cut: the journal still has the entry."""
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


def _journal(index: QueueIndex) -> Iterator[tuple[int, Flags, Terms]]:
    """The journal by segment: number, what it holds of each entry, the publishes' bodies."""
    data = index.journal.read()
    records = journal.walk(data)
    index.journal.cut(records.stop)
    numbers, relatives = np.divmod(records.sequence_ids, index.entry_count)
    added = np.array([PUBLISHED | PERSISTENT, PUBLISHED, DELIVERED, ACKED], np.uint8)[records.kinds]
    for number in np.unique(numbers).tolist():
        chosen = np.flatnonzero(numbers == number)
        flags = np.zeros(index.entry_count, np.uint8)
        np.bitwise_or.at(flags, relatives[chosen], added[chosen])
        bodies = np.empty(index.entry_count, np.object_)
        for at in chosen[records.kinds[chosen] <= journal.PUBLISH_TRANSIENT].tolist():
            start = int(records.positions[at]) + journal.MARK.size
            stop = start + index_batch.BODY.size + int(records.embedded_sizes[at])
            bodies[relatives[at]] = data[start:stop]
        whole = PUBLISHED | DELIVERED | ACKED
        gone = (flags & whole) == whole
        flags[gone] = 0
        bodies[gone] = None
        yield number, flags, bodies
