"""What only a look at all chunks shows: those that fail their checksums, or do not hold what their heads say."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from storage_core.rabbitmq.disk.damage import Damage
from storage_core.rabbitmq.disk.span_reader import SpanReader
from storage_core.rabbitmq.stream_queues.batch import Chunks, MessageReader, read_chunks
from storage_core.rabbitmq.stream_queues.partition import chunk_ranges
from storage_core.rabbitmq.stream_queues.stream_log import StreamLog


def damaged_chunks(log: StreamLog) -> Iterator[Damage]:
    """The damaged chunks and messages of a log, in its order."""
    reader = SpanReader(log.root, [segment.file for segment in log.segments])
    try:
        for number, every in enumerate(log.chunks):
            messages = MessageReader()
            for start, stop in chunk_ranges(every, True):
                table = every[start:stop]
                zeros = np.zeros(len(table), np.int64)
                entries, found = read_chunks(reader, Chunks(table, zeros + number, zeros), True)
                batch = messages.batch(entries, found.buffer, found.starts, found.stops, dict(found.reasons))
                for row, reason in sorted(batch.reasons.items()):
                    entry = entries.row(row)
                    yield Damage(
                        log.segments[number].file, entry["position"], entry["length"],
                        "chunk" if row in found.reasons else "message",
                        f"offset {entry['sequence_id']}: {reason}", log.stream.queue,
                    )  # fmt: skip
    finally:
        reader.close()
