"""Damage that only reading all chunks reveals: chunks that fail their checksums, or do not match their heads."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

import numpy as np

from storage_core.formats.rabbitmq.stream_queues.log_files import HEAD_SIZE, INDEX_RECORD
from storage_core.rabbitmq.disk.damage import Damage
from storage_core.rabbitmq.disk.span_reader import SpanReader
from storage_core.rabbitmq.stream_queues.batch import OTHER_TYPE, LoadedChunks, MessageReader, records_in_parts
from storage_core.rabbitmq.stream_queues.partition import ChunkRange, loaded_chunks
from storage_core.rabbitmq.stream_queues.segment import Segment, Table, index_of
from storage_core.rabbitmq.stream_queues.stream_log import StreamLog

_NO_END = 1 << 62


def damaged_chunks(log: StreamLog, of_3_13: bool) -> Iterator[Damage]:
    """The damaged chunks and messages of a log, in log order, and index records that do not match their chunks.

    `of_3_13`: the node is known to be of 3.13 or later.
    """
    reader = SpanReader(log.root, [segment.file for segment in log.segments])
    try:
        for number, segment in enumerate(log.segments):
            messages = MessageReader(of_3_13)
            table, was_walked = segment.chunks(), segment.is_walked
            every = ChunkRange(segment, 0, 0, len(table), 0, _NO_END, 0, 0)
            parts = (records_in_parts(loaded, True) for loaded in loaded_chunks(reader, every, number, True))
            for loaded, (entries, found) in chain.from_iterable(parts):
                batch = messages.batch(entries, found.buffer, found.starts, found.stops, dict(found.reasons))
                for row, reason in sorted(batch.reasons.items()):
                    entry = entries.row(row)
                    kind = "message" if row not in found.reasons else "type" if reason == OTHER_TYPE else "chunk"
                    yield _damage(log, segment, entry["position"], kind, entry["sequence_id"], reason, entry["length"])
                for chunk in _without_next(loaded, segment):
                    if not any(entries["sequence_id"][row] == chunk["id"] for row in found.reasons):
                        reason = "the chunk does not lead to the next one"
                        yield _damage(log, segment, chunk["position"], "chain", chunk["id"], reason)
            if segment.is_walked and not was_walked:
                yield from _wrong_records(log, segment, table)
    finally:
        reader.close()


def _without_next(loaded: LoadedChunks, segment: Segment) -> Table:
    """The chunks whose heads state an end, or a next id, that does not match the chunk after them."""
    table = loaded.chunks.table
    wrong = (loaded.ends != table["stop"]) & ((table["stop"] < segment.size) | (loaded.ends < table["stop"]))
    if segment.is_last:
        wrong &= loaded.ends != segment.end
    wrong |= table["id"] + loaded.heads["records"].astype(np.int64) != table["stop_id"]
    found: Table = table[wrong]
    return found


def _damage(
    log: StreamLog, segment: Segment, position: int, kind: str, offset: int, reason: str, length: int = 0
) -> Damage:
    return Damage(segment.file, position, length, kind, f"offset {offset}: {reason}", log.stream.queue)


def _wrong_records(log: StreamLog, segment: Segment, listed: Table) -> Iterator[Damage]:
    """The records of an index whose id, position or type differs from that of the chunks."""
    true = {int(chunk["position"]): chunk for chunk in segment.chunks()}
    for number, record in enumerate(listed):
        chunk = true.get(int(record["position"]))
        if chunk is None or (chunk["id"], chunk["type"]) != (record["id"], record["type"]):
            position = HEAD_SIZE + number * INDEX_RECORD.size
            reason = "a record of the index is not of the chunk that lies there"
            yield Damage(index_of(segment.file), position, INDEX_RECORD.size, "index", reason, log.stream.queue)
