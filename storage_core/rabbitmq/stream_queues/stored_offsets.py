"""What publishers and consumers stored in a stream: the newest record of each reference.

Source: docs/format/rabbitmq-streams.md 5. Every later segment begins with a snapshot of them; reads start at the last.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from storage_core.errors import FormatError
from storage_core.formats.rabbitmq.stream_queues import log_files, tracking
from storage_core.formats.rabbitmq.stream_queues.log_files import CHUNK
from storage_core.formats.spans import structs_at
from storage_core.rabbitmq.disk.span_reader import SpanReader
from storage_core.rabbitmq.stream_queues.stream_log import StreamLog

_CHUNKS = 4096
_ENTRY_HEAD = 4


@dataclass(frozen=True)
class Stored:
    """The newest record of a reference: a publisher's sequence or a consumer's offset, and the chunk that has it."""

    kind: str
    reference: str
    value: int
    chunk: int


def read_stored(log: StreamLog) -> list[Stored]:
    """The newest records, by kind and reference. Records that cannot be read are skipped: no node reads them either."""
    found: dict[tuple[int, bytes], Stored] = {}
    for chunk, kind, data in _tracking(log):
        try:
            for record in tracking.records(data, kind == log_files.TRACKING_SNAPSHOT):
                if record.kind == tracking.TIMESTAMP:
                    continue
                name = record.reference.decode("utf-8", "replace")
                stored = Stored(tracking.KINDS[record.kind], name, record.value, chunk)
                found[record.kind, record.reference] = stored
        except FormatError:
            continue
    offsets = [each for key, each in sorted(found.items()) if each.kind == "publisher" or each.value >= log.start]
    return sorted(offsets, key=lambda each: (each.kind, each.reference))


def _tracking(log: StreamLog) -> Iterator[tuple[int, int, bytes]]:
    """Chunk id, chunk type and tracking bytes of the chunks from the last snapshot on."""
    begin = 0
    for number, chunks in enumerate(log.chunks):
        if (chunks["type"] == log_files.TRACKING_SNAPSHOT).any():
            begin = number
    reader = SpanReader(log.root, [segment.file for segment in log.segments])
    try:
        for number in range(begin, len(log.segments)):
            chunks = log.chunks[number]
            snapshots = np.flatnonzero(chunks["type"] == log_files.TRACKING_SNAPSHOT)
            first = int(snapshots[-1]) if len(snapshots) else 0
            for start in range(first, len(chunks), _CHUNKS):
                yield from _of_chunks(reader, number, chunks[start : start + _CHUNKS])
    finally:
        reader.close()


def _of_chunks(reader: SpanReader, number: int, chunks: npt.NDArray[Any]) -> Iterator[tuple[int, int, bytes]]:
    """The trailers of user chunks, the entries of tracking chunks."""
    chunks = chunks[chunks["stop"] - chunks["position"] >= CHUNK.size]
    files = np.full(len(chunks), number, np.int64)
    buffer, starts = reader.load(files, chunks["position"], chunks["position"] + CHUNK.size)
    heads = structs_at(buffer, CHUNK.dtype, starts)
    begins = chunks["position"] + CHUNK.size + heads["filter_size"].astype(np.int64)
    data_ends = begins + heads["data_size"].astype(np.int64)
    ends = data_ends + heads["trailer_size"].astype(np.int64)
    users = heads["type"] == log_files.USER
    begins = np.where(users, data_ends, begins + _ENTRY_HEAD)
    ends = np.where(users, ends, data_ends)
    good = (begins < ends) & (ends <= chunks["stop"]) & (heads["first"] == log_files.FIRST_BYTE)
    buffer, starts = reader.load(files[good], begins[good], ends[good])
    for start, size, chunk, kind in zip(
        starts.tolist(), (ends - begins)[good].tolist(), chunks["id"][good].tolist(), heads["type"][good].tolist(),
        strict=True,
    ):  # fmt: skip
        yield chunk, kind, buffer[start : start + size].tobytes()
