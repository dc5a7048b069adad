"""Checks that need more than names and tables: messages that cannot be read or whose id differs from their record's,
and delivers without a message.

Source: rabbitmq.md 2, 3.1, 6.3.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from storage_core.formats.layout import values_at
from storage_core.formats.rabbitmq import paths
from storage_core.formats.rabbitmq.classic import index_records, journal
from storage_core.formats.rabbitmq.message.basic_message import ID_SIZE, Reach
from storage_core.progress import report
from storage_core.rabbitmq.disk import effects
from storage_core.rabbitmq.disk.damage import Damage
from storage_core.rabbitmq.disk.span_reader import SpanReader, read_file
from storage_core.rabbitmq.index import journal_reader
from storage_core.rabbitmq.index.entries import JOURNAL, MISSING, SEGMENT, filtered, flagged
from storage_core.rabbitmq.index.queue_directory import QueueFiles
from storage_core.rabbitmq.index.segment_reader import mark_counts
from storage_core.rabbitmq.read.message_batch import MessageBatch, read_batch
from storage_core.rabbitmq.read.partition import batch_ranges

WORK = "reading messages"


@dataclass(frozen=True)
class Flaw:
    """A live entry whose message exists but is flawed: why it cannot be read, and how far a node gets with it.

    If `own_id` is set, the message can be read; these 16 bytes are the id in its term, which its index record should
    have.
    """

    entry: dict[str, int]
    reason: str
    reach: Reach
    own_id: bytes | None = None


def flaws(root: str, files: QueueFiles) -> Iterator[Flaw]:
    """The live entries whose message cannot be read, or has another id than its record."""
    entries = filtered(files.served, ~flagged(files.served, MISSING))
    reader = SpanReader(root, files.files)
    done, total = 0, int(entries["length"].sum())
    try:
        for start, stop in batch_ranges(entries["length"]):
            batch = read_batch(reader, entries[start:stop], True)
            done += int(entries["length"][start:stop].sum())
            report(WORK, done, total)
            for row in sorted(batch.reasons):
                if not batch.dropped[row]:
                    reach = batch.reach.get(row, Reach.NOWHERE)
                    yield Flaw(entries.row(start + row), batch.reasons[row], reach)
            for row in _of_another_id(batch).tolist():
                at = int(batch.messages.id_starts[row])
                own = batch.buffer[at : at + ID_SIZE].tobytes()
                reason = "its id is not that of its index record"
                yield Flaw(entries.row(start + row), reason, Reach.NOWHERE, own)
    finally:
        reader.close()


def _of_another_id(batch: MessageBatch) -> npt.NDArray[np.int64]:
    """The embedded messages whose term has another id than the record around it (rabbitmq.md 2)."""
    embedded = (batch.entries["kind"] == SEGMENT) | (batch.entries["kind"] == JOURNAL)
    embedded[list(batch.reasons)] = False
    rows = np.flatnonzero(embedded & batch.messages.ok)
    if batch.terms is None or not len(rows):
        return rows[:0]
    own, starts = batch.messages.id_starts[rows], batch.terms.starts[rows]
    as_read = (own >= starts) & (own < batch.terms.stops[rows])
    rows, own, starts = rows[as_read], own[as_read], starts[as_read]
    noted = values_at(batch.buffer, "V16", starts - index_records.BODY.size).view("u8").reshape(-1, 2)
    stated = values_at(batch.buffer, "V16", own).view("u8").reshape(-1, 2)
    differing: npt.NDArray[np.int64] = rows[(noted != stated).any(axis=1)]
    return differing


def stray_delivers(folder: str, name: str, entry_count: int) -> Iterator[Damage]:
    """Delivers in the journal of the queue directory `folder` for which neither the journal nor a segment has a
    publish, or whose message is acknowledged according to the segment.
    """
    data = read_file(f"{folder}/{paths.JOURNAL_FILE}")
    records = journal_reader.decode(data, name).records if data else journal.walk(data)
    published = records.sequence_ids[records.kinds <= journal.PUBLISH_TRANSIENT]
    alone = (records.kinds == journal.DELIVER) & ~np.isin(records.sequence_ids, published)
    segments: dict[int, dict[int, int]] = {}
    for row in np.flatnonzero(alone).tolist():
        sequence_id = int(records.sequence_ids[row])
        number, relative = divmod(sequence_id, entry_count)
        if number not in segments:
            segments[number] = mark_counts(read_file(f"{folder}/{number}{paths.SEGMENT_SUFFIX}"))
        marks = segments[number].get(relative)
        if marks is None or marks > 1:
            reason = f"a deliver of sequence id {sequence_id}, which is not published"
            file, position, size = f"{name}/{paths.JOURNAL_FILE}", int(records.positions[row]), journal.MARK.size
            yield Damage(file, position, size, "journal", reason, effect=effects.STRAY_DELIVER)
