"""Builds the record batches of a request: checks messages, applies conditions and the three modes for damaged messages.

`columns` makes the columns, `row_filter` the conditions. Source of the rules: interface.md 9, 40, 41.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from storage_core.arrays import as_array, text_array
from storage_core.conditions import Condition, all_hold, columns_of
from storage_core.errors import CorruptionError
from storage_core.files.file_chain import FileChain
from storage_core.formats.layout import Bytes, Mask, Positions
from storage_core.formats.rocketmq.consumequeue import Difference
from storage_core.formats.rocketmq.message import FLAWS, Flaw, Messages, Wanted, decode
from storage_core.formats.rocketmq.paths import LIGHT_QUEUE_PREFIX
from storage_core.formats.rocketmq.properties import MULTI_DISPATCH
from storage_core.rocketmq.read.columns import EntryColumns, MessageColumns, QueueEntries, Queues, properties_of
from storage_core.rocketmq.read.row_filter import RowFilter
from storage_core.rocketmq.schema import ENTRY_COLUMNS, message_schema
from storage_core.store import Mode, ScanRequest

FIRST_ROWS, ROWS = 1_000, 16_000
BATCH_SIZE = 5 << 20
ADVICE = "option mode=DROPMALFORMED leaves such messages out"


def batch_bounds(sizes: Positions, first_rows: int) -> Iterator[tuple[int, int]]:
    """Cuts records of these sizes into batches [start, stop) of at most BATCH_SIZE bytes, unless one record is larger.

    The first batch has at most `first_rows` records, the others at most ROWS.
    """
    start, rows = 0, first_rows
    ends = np.cumsum(sizes)
    while start < len(sizes):
        before = int(ends[start - 1]) if start else 0
        fitting = int(np.searchsorted(ends, before + BATCH_SIZE, "right"))
        stop = max(start + 1, min(fitting, start + rows, len(sizes)))
        yield start, stop
        start, rows = stop, ROWS


def none_in_place(entries: QueueEntries) -> Mask:
    """All false, for a queue whose entries state QUEUEOFFSET themselves. Shape (n,)."""
    return np.zeros(len(entries), bool)


class BatchBuilder:
    """Turns entries and messages into record batches, and counts the messages that it leaves out."""

    def __init__(
        self,
        request: ScanRequest,
        queues: Queues,
        log: FileChain,
        store_name: str,
        is_in_place: Callable[[QueueEntries], Mask] = none_in_place,
    ) -> None:
        """`is_in_place`: which entries are right although their number is not QUEUEOFFSET (interface.md 41)."""
        self.request = request
        self.schema = message_schema(request)
        self._filter = RowFilter(request)
        self._queues = queues
        self._wanted = self._wanted_of_records()
        self._is_in_place = is_in_place
        self._log = log
        self._store_name = store_name
        self._left_out = 0

    def _wanted_of_records(self) -> Wanted:
        """What is decoded from every record of a queue in one pass: what nearly every row will show.

        Bodies are left for later if conditions may exclude messages first.
        """
        names = self.schema.names
        bodies = "body" in names and not (self._filter.header or self._filter.properties)
        return Wanted(None, bodies, bodies and self.request.verify_crc, properties_of(names))

    @property
    def needs_log(self) -> bool:
        """Whether a column that is requested, or that a condition uses, is not in the consume queues."""
        return not self._filter.columns.union(self.schema.names) <= ENTRY_COLUMNS

    def selected(self, entries: QueueEntries) -> QueueEntries:
        """The entries that satisfy the conditions on queue, queue offset and physical offset."""
        if not self._filter.entries or not len(entries):
            return entries
        matching = self.matching(entries)
        return entries if matching.all() else entries.take(matching)

    def matching(self, entries: QueueEntries) -> Mask:
        """Which of the entries satisfy these conditions. Shape (n,)."""
        return all_hold(self._filter.entries, self._entry_columns(entries).column, len(entries))

    def from_entries(self, entries: QueueEntries) -> pa.RecordBatch:
        """Rows whose columns all come from the consume queues."""
        columns = self._entry_columns(entries)
        return pa.RecordBatch.from_arrays([columns.column(name) for name in self.schema.names], schema=self.schema)

    def from_queue(
        self, buffer: Bytes, positions: Positions, entries: QueueEntries, sizes: Positions | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Rows of the entries whose records begin at `positions` in `buffer`; in several batches if they are many or
        their bodies inflate to much.

        `sizes` are the record sizes, if the records were made from what the entries point to. Raises CorruptionError
        with FAILFAST.
        """
        sizes = entries.sizes if sizes is None else sizes
        matching = self.matching_bytes(buffer, positions, sizes, entries.physical_offsets)
        if matching is not None:
            positions, sizes, entries = positions[matching], sizes[matching], entries.take(matching)
            if not len(entries):
                return
        expected = self._queues.expected(entries)
        messages = decode(buffer, positions, sizes, replace(self._wanted, expected=expected))
        if messages.differences.any():
            entries = self._checked(messages, entries)
        if (wrong := messages.wrong_ports()).any():
            messages.mark(wrong, Flaw.PORT)
        physical_offsets, shown = entries.physical_offsets, self._entry_columns(entries)
        yield from self._batches(
            MessageColumns(messages, physical_offsets, self.request, self._store_name, shown),
            (self._filter.header, self._filter.properties),
            self._filter.last,
        )

    def matching_bytes(
        self, buffer: Bytes, positions: Positions, sizes: Positions, physical_offsets: Positions
    ) -> Mask | None:
        """Which records at `positions` in `buffer` can match, judging by their bytes; None if these cannot tell."""
        return self._filter.matching_bytes(buffer, positions, sizes, physical_offsets)

    def from_log(self, messages: Messages, physical_offsets: Positions, sizes: Positions) -> Iterator[pa.RecordBatch]:
        """Rows of valid records of these sizes, in batches as in `from_queue`. Raises CorruptionError with FAILFAST."""
        matching = self.matching_bytes(messages.buffer, messages.starts, sizes, physical_offsets)
        if matching is not None and not matching.all():
            messages, physical_offsets = messages.take(matching), physical_offsets[matching]
        if not len(messages):
            return
        columns = MessageColumns(messages, physical_offsets, self.request, self._store_name)
        early, last = [self._filter.header, self._filter.properties], self._filter.last
        # With PERMISSIVE a damaged row shows null topic and offset: check these conditions after the bodies.
        if self.request.mode is Mode.PERMISSIVE:
            last = last + self._filter.entries
        else:
            early.insert(0, self._filter.entries)
        yield from self._batches(columns, early, last)

    def damage(self, entries: QueueEntries, reasons: Sequence[str]) -> pa.RecordBatch | None:
        """The rows of messages that cannot be reached; None if they are left out.

        Raises CorruptionError for the first one with FAILFAST.
        """
        if self.request.mode is Mode.FAILFAST:
            raise self._error(int(entries.physical_offsets[0]), f"{reasons[0]}; {ADVICE}")
        if self.request.mode is Mode.DROPMALFORMED:
            self._left_out += len(entries)
            return None
        columns = self._entry_columns(entries)
        where = zip(entries.physical_offsets.tolist(), reasons, strict=True)
        columns.made["corruption"] = text_array(str(self._error(at, reason)) for at, reason in where)
        arrays = [columns.column(name) for name in self.schema.names]
        conditions = self._filter.last + ([] if self._queues.keys else self._filter.entries)
        return _filtered(arrays, self.schema, all_hold(conditions, columns.column, len(entries)))

    def report(self) -> None:
        """Writes one line with the number of messages left out (option mode) to this process's stderr."""
        if self._left_out:
            sys.stderr.write(
                f"mqstore: {self._store_name}: {self._left_out} damaged messages left out (mode=DROPMALFORMED)\n"
            )

    def _entry_columns(self, entries: QueueEntries) -> EntryColumns:
        return EntryColumns(entries, self._queues, self._store_name)

    def _checked(self, messages: Messages, entries: QueueEntries) -> QueueEntries:
        """Marks the messages that do not belong to their entries; returns the entries with the correct sizes."""

        def differ(kind: Difference) -> Mask:
            return (messages.differences & np.uint8(kind)).astype(bool)

        messages.mark(differ(Difference.PHYSICAL_OFFSET), Flaw.PRESERVED)
        wrong = differ(Difference.QUEUE)
        renumbered = differ(Difference.QUEUE_OFFSET) & ~wrong
        if renumbered.any():
            wrong[renumbered] = ~self._is_in_place(entries.take(renumbered))
        wrong &= messages.flaws == 0
        if wrong.any():
            rows = np.flatnonzero(wrong)
            wrong[rows] = ~self._through_light_queue(messages, entries, rows)
            messages.mark(wrong, Flaw.QUEUE)
        if not differ(Difference.SIZE).any():
            return entries
        # An entry with too large a size does not make its message damaged: `size` is TOTALSIZE.
        return replace(entries, sizes=np.where(messages.flaws == 0, messages.column("total_size"), entries.sizes))

    def _through_light_queue(self, messages: Messages, entries: QueueEntries, rows: npt.NDArray[np.intp]) -> Mask:
        """Whether a queue that is not the record's own may serve it (rocketmq.md 3.8)."""
        lists = messages.take(rows).property_column().values(MULTI_DISPATCH).to_pylist()
        topics = [self._queues.keys[index][0] for index in entries.queue[rows].tolist()]
        return np.array(
            [
                topic.startswith(LIGHT_QUEUE_PREFIX) or topic in (names or "").split(",")
                for topic, names in zip(topics, lists, strict=True)
            ],
            bool,
        )

    def _batches(
        self, columns: MessageColumns, early: Sequence[list[Condition]], last: list[Condition]
    ) -> Iterator[pa.RecordBatch]:
        """The rows that satisfy all conditions, checked cheapest first, at most ROWS at a time."""
        for conditions in filter(None, early):
            matching = all_hold(conditions, columns.column, len(columns)) | (columns.messages.flaws != 0)
            if not matching.all():
                columns = columns.take(matching)
        needed = columns_of(last).union(self.schema.names)
        # Whether a message is damaged is known only once its body has been checked.
        for part in columns.with_bodies() if not needed.isdisjoint(("body", "corruption")) else (columns,):
            batch = self._batch(part, needed, last)
            if 0 < batch.num_rows <= ROWS:
                yield batch
            else:
                yield from (batch.slice(start, ROWS) for start in range(0, batch.num_rows, ROWS))

    def _batch(self, columns: MessageColumns, needed: AbstractSet[str], last: list[Condition]) -> pa.RecordBatch:
        """The rows that satisfy the last conditions. The mode decides on damaged messages."""
        flaws = columns.messages.flaws
        damaged = flaws != 0
        if damaged.any() and self.request.mode is Mode.FAILFAST:
            first = int(np.flatnonzero(damaged)[0])
            raise self._error(int(columns.physical_offsets[first]), f"{FLAWS[flaws[first]].value}; {ADVICE}")
        if "corruption" in needed:
            columns.made["corruption"] = self._corruption(columns)
        arrays = columns.shown_columns(self.schema.names)
        matching = all_hold(last, columns.shown, len(flaws))
        if damaged.any() and self.request.mode is Mode.DROPMALFORMED:
            self._left_out += int(damaged.sum())
            matching &= ~damaged
        return _filtered(arrays, self.schema, matching)

    def _corruption(self, columns: MessageColumns) -> pa.StringArray:
        """Null, or for a damaged message the error text of FAILFAST without the advice."""
        flaws = columns.messages.flaws
        texts: list[str | None] = [None] * len(flaws)
        for index in np.flatnonzero(flaws).tolist():
            texts[index] = str(self._error(int(columns.physical_offsets[index]), FLAWS[flaws[index]].value))
        return text_array(texts)

    def _error(self, physical_offset: int, reason: str) -> CorruptionError:
        file = self._log.file_at(physical_offset)
        if file is not None:
            return CorruptionError(file.path, physical_offset - file.base_offset, reason)
        position = physical_offset % max(self._log.file_size, 1)
        return CorruptionError(self._log.name_of(physical_offset), position, f"there is no such file: {reason}")


def _filtered(arrays: list[pa.Array], schema: pa.Schema, rows: Mask) -> pa.RecordBatch:
    batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
    return batch if rows.all() else batch.filter(as_array(rows))
