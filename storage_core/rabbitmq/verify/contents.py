"""What a look at names and tables does not show: messages that cannot be read, and delivers of no message.

Source: rabbitmq.md 3.1, 6.3.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from storage_core.formats.rabbitmq import paths
from storage_core.formats.rabbitmq.classic import journal
from storage_core.progress import report
from storage_core.rabbitmq.disk.damage import Damage
from storage_core.rabbitmq.disk.span_reader import SpanReader, read_file
from storage_core.rabbitmq.index import journal_reader
from storage_core.rabbitmq.index.entries import MISSING, filtered, flagged
from storage_core.rabbitmq.index.queue_directory import QueueFiles
from storage_core.rabbitmq.index.segment_reader import mark_counts
from storage_core.rabbitmq.read.message_batch import read_batch
from storage_core.rabbitmq.read.partition import batch_ranges

WORK = "reading messages"


def unreadable(root: str, files: QueueFiles) -> Iterator[tuple[dict[str, int], str]]:
    """The live entries whose message is there and cannot be read, each with the reason."""
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
                    yield entries.row(start + row), batch.reasons[row]
    finally:
        reader.close()


def stray_delivers(folder: str, name: str, entry_count: int) -> Iterator[Damage]:
    """Delivers in the journal of the queue directory `folder` for which neither journal nor segment has a publish, or
    whose message the segment knows as acknowledged.
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
            file = f"{name}/{paths.JOURNAL_FILE}"
            yield Damage(file, int(records.positions[row]), journal.MARK.size, "journal", reason)
