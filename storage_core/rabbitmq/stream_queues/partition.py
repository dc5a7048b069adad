"""One partition of a plan of streams: ranges of chunks, read into batches wherever it is sent.

How partitions are cut belongs to `snapshot`, reading messages from chunks to `batch`, building rows to `batch_builder`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from storage_core.conditions import all_hold, condition
from storage_core.rabbitmq.disk.damage import Damage
from storage_core.rabbitmq.disk.span_reader import SpanReader
from storage_core.rabbitmq.index.entries import Entries
from storage_core.rabbitmq.read.batch_builder import BatchBuilder, RowContext
from storage_core.rabbitmq.read.partition import BATCH_BYTES, BATCH_ROWS, FIRST_BATCH_ROWS
from storage_core.rabbitmq.stream_queues.batch import (
    Chunks,
    LoadedChunks,
    MessageReader,
    StreamBatch,
    load_chunks,
    records_in_parts,
)
from storage_core.rabbitmq.stream_queues.columns import MessageColumns
from storage_core.rabbitmq.stream_queues.rows import StreamColumns
from storage_core.rabbitmq.stream_queues.segment import Segment
from storage_core.rabbitmq.stream_queues.selection import chunk_span
from storage_core.store import Mode, ScanPartition


@dataclass(frozen=True)
class ChunkRange:
    """The chunks with numbers [start, stop) of one segment of queue number `queue`, and of their messages those with
    offsets [first, end), which are in no other range of the plan. `size` is their bytes and `rows` the messages, both
    according to the index. `goes_on`: another piece of the plan has the first messages of the first chunk.
    """

    segment: Segment
    queue: int
    start: int
    stop: int
    first: int
    end: int
    size: int
    rows: int
    goes_on: bool = False


@dataclass(frozen=True)
class StreamPartition(ScanPartition):
    """Messages in offset order, and the damages that PERMISSIVE shows beside them. `vhosts` correspond to the queues of
    the context, its files to the ranges. `of_3_13`: the node is known to be of 3.13 or later.
    """

    context: RowContext
    vhosts: tuple[str | None, ...]
    ranges: tuple[ChunkRange, ...]
    damages: tuple[Damage, ...]
    verify_crc: bool
    of_3_13: bool = False

    @property
    def estimated_bytes(self) -> int:
        """Total bytes of the chunks."""
        return sum(each.size for each in self.ranges)

    @property
    def estimated_rows(self) -> int:
        """Number of messages; a filter may leave fewer."""
        return sum(each.rows for each in self.ranges)

    @property
    def file_count(self) -> int:
        """Number of segments and their indexes."""
        return 2 * len(self.ranges)

    def files(self) -> Sequence[str]:
        """Segments that hold the messages."""
        return [f"{self.context.root}/{each.segment.file}" for each in self.ranges]

    def read(self) -> Iterator[pa.RecordBatch]:
        """The rows in batches. Raises CorruptionError (FAILFAST), and DataLossError if files vanished or shrank."""
        context = self.context
        columns = StreamColumns(self.vhosts, context.store, context.queues, context.files)
        builder = BatchBuilder(context, columns, MessageColumns(context.queues))
        for batch in self._batches(columns):
            made = builder.batch(batch)
            if made.num_rows:
                yield made
        if self.damages and context.mode is Mode.PERMISSIVE:
            yield builder.damage_rows(self.damages)
        left_out = builder.left_out + (len(self.damages) if context.mode is Mode.DROPMALFORMED else 0)
        if left_out:
            sys.stderr.write(f"mqstore: {context.root}: {left_out} damaged messages or chunks were left out\n")

    def _batches(self, columns: StreamColumns) -> Iterator[StreamBatch]:
        """The messages of the ranges that match the predicates on their index."""
        early = [one for one in map(condition, self.context.predicates) if one.columns <= columns.names]
        messages = MessageReader(self.of_3_13)
        reader = SpanReader(self.context.root, list(self.context.files))
        try:
            for number, each in enumerate(self.ranges):
                at = self.context.files.index(each.segment.file)
                parts = (
                    records_in_parts(loaded, self.verify_crc)
                    for loaded in loaded_chunks(reader, each, at, bool(number))
                )
                for _, (entries, found) in chain.from_iterable(parts):
                    wanted = _wanted(entries, each, found.reasons)
                    wanted &= all_hold(early, lambda name: columns.values(name, entries), len(entries))  # noqa: B023
                    rows = np.flatnonzero(wanted)
                    reasons = _of_rows(found.reasons, rows)
                    for begin in range(0, len(rows), BATCH_ROWS):
                        some = rows[begin : begin + BATCH_ROWS]
                        own = _of_rows(found.reasons, some) if len(some) < len(rows) else reasons
                        yield messages.batch(entries[some], found.buffer, found.starts[some], found.stops[some], own)
        finally:
            reader.close()


def _wanted(entries: Entries, each: ChunkRange, reasons: dict[int, str]) -> npt.NDArray[np.bool_]:
    wanted: npt.NDArray[np.bool_] = (entries["sequence_id"] >= each.first) & (entries["sequence_id"] < each.end)
    # A damaged chunk is reported by the range that would have its first message, or the first one requested.
    for row in reasons:
        wanted[row] |= not each.goes_on and int(entries["sequence_id"][row]) < each.first
    return wanted


def _of_rows(reasons: dict[int, str], rows: npt.NDArray[np.int64]) -> dict[int, str]:
    """The reasons, keyed by the index of their rows in `rows`, which is ascending."""
    found = {}
    for row, reason in reasons.items():
        at = int(np.searchsorted(rows, row))
        if at < len(rows) and rows[at] == row:
            found[at] = reason
    return found


def loaded_chunks(reader: SpanReader, each: ChunkRange, file: int, warm: bool) -> Iterator[LoadedChunks]:
    """The chunks of a range, batch by batch. From the first chunk whose head does not match the index, chunks are
    found by walking from head to head, and selected by the offsets of the range.
    """
    segment, first, walked = each.segment, each.first, False
    while not walked:
        walked, table = segment.is_walked, segment.chunks()
        table = table[slice(*chunk_span(table, first, each.end))] if walked else table[each.start : each.stop]
        for start, stop in chunk_ranges(table, warm):
            part = table[start:stop]
            of_part = np.full((2, len(part)), ((file,), (each.queue,)), np.int64)
            loaded = load_chunks(reader, Chunks(part, of_part[0], of_part[1]))
            if not walked and not loaded.fit:
                first = max(first, int(part["id"][0])) if start else first
                segment.walk()
                break
            yield loaded
        else:
            return


def chunk_ranges(table: npt.NDArray[np.void], warm: bool) -> Iterator[tuple[int, int]]:
    """Half-open ranges of chunks: a small first one, then as many chunks as fit both limits, at least one per range."""
    sizes = np.cumsum(table["stop"] - table["position"])
    rows = np.cumsum(table["stop_id"] - table["id"])
    start, most = 0, BATCH_ROWS if warm else FIRST_BATCH_ROWS
    while start < len(table):
        before = (int(sizes[start - 1]), int(rows[start - 1])) if start else (0, 0)
        stop = min(
            int(np.searchsorted(sizes, before[0] + BATCH_BYTES, side="right")),
            int(np.searchsorted(rows, before[1] + most, side="right")),
        )
        stop = max(start + 1, stop)
        yield start, stop
        start, most = stop, BATCH_ROWS
