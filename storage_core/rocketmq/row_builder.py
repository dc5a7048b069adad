"""Record batches of one request: its columns, the checks of each message, and the three modes for damaged ones.

Source of the rules: interface.md 9, 40, 41.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from storage_core.errors import CorruptionError
from storage_core.files.file_chain import FileChain
from storage_core.formats.columns import masked
from storage_core.formats.known_texts import KnownTexts
from storage_core.formats.rocketmq.message import FLAWS, Flaw, Messages, decode
from storage_core.formats.rocketmq.paths import LIGHT_QUEUE_PREFIX
from storage_core.formats.rocketmq.properties import MULTI_DISPATCH, PropertyColumn
from storage_core.rocketmq.row_filter import Condition, RowFilter, all_hold
from storage_core.rocketmq.rows import Found, Queues, Rows, unit_column
from storage_core.rocketmq.schema import UNIT_COLUMNS, message_schema
from storage_core.store import Mode, ScanRequest


class RowBuilder:
    """Turns found messages into record batches. Counts what it leaves out."""

    def __init__(
        self, request: ScanRequest, queues: Queues, rebuilt: npt.NDArray[np.bool_], log: FileChain, store_name: str
    ) -> None:
        """`rebuilt` tells, by queue index, where ordinals need not equal QUEUEOFFSET (interface.md 41)."""
        self.request = request
        self.schema = message_schema(request)
        self.filter = RowFilter(request)
        self._queues = queues
        self._topics = KnownTexts([topic.encode() for topic, _ in queues.keys])
        self._rebuilt = rebuilt
        self._log = log
        self._store_name = store_name
        self.left_out = 0

    @property
    def needs_log(self) -> bool:
        """Whether some column that is requested, or asked by a condition, is not in the consume queues."""
        return not self.filter.columns.union(self.schema.names) <= UNIT_COLUMNS

    def wanted(self, found: Found) -> Found:
        """The found messages that the conditions on queue, ordinal and place leave."""
        if not self.filter.units or not len(found):
            return found
        kept = all_hold(self.filter.units, lambda name: self._unit_column(name, found), len(found))
        return found if kept.all() else found.take(kept)

    def from_units(self, found: Found) -> pa.RecordBatch:
        """Rows whose columns the consume queues answer alone."""
        columns = [self._unit_column(name, found) for name in self.schema.names]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def from_queue(self, messages: Messages, found: Found) -> pa.RecordBatch:
        """Rows of messages found through their queues. Raises CorruptionError with FAILFAST."""
        messages.mark(messages.column("physical_offset") != found.places, Flaw.PLACE)
        self._check_queue(messages, found)
        total = messages.column("total_size")
        if (total != found.sizes).any():
            # A unit that says too much is no damage of its message: `size` is TOTALSIZE.
            found = replace(found, sizes=np.where(messages.flaws == 0, total, found.sizes))
        rows = Rows(messages, found.places, self.request, self._store_name)
        for conditions in filter(None, (self.filter.header, self.filter.properties)):
            kept = self._left(conditions, rows, found)
            if not kept.all():
                messages, found = _taken(rows.messages, found.sizes, kept), found.take(kept)
                rows = Rows(messages, found.places, self.request, self._store_name)
        return self._batch(rows, found)

    def from_log(self, messages: Messages, places: npt.NDArray[np.int64]) -> pa.RecordBatch:
        """Rows of right records in their own right. Raises CorruptionError with FAILFAST."""
        rows = Rows(messages, places, self.request, self._store_name)
        units = [] if self._permissive else self.filter.units
        for conditions in filter(None, (units, self.filter.header, self.filter.properties)):
            kept = self._left(conditions, rows, None)
            if not kept.all():
                sizes = messages.column("total_size").astype(np.int64)
                messages, places = _taken(messages, sizes, kept), places[kept]
                rows = Rows(messages, places, self.request, self._store_name)
        return self._batch(rows, None)

    def damage(self, found: Found, reasons: Sequence[str]) -> pa.RecordBatch | None:
        """What becomes of messages that cannot be reached; None when they are left out.

        Raises CorruptionError for the first one with FAILFAST.
        """
        if self.request.mode is Mode.FAILFAST:
            raise self._error(int(found.places[0]), reasons[0])
        if self.request.mode is Mode.DROPMALFORMED:
            self.left_out += len(found)
            return None
        columns = [self._damage_column(name, found, reasons) for name in self.schema.names]
        batch = pa.RecordBatch.from_arrays(columns, schema=self.schema)
        conditions = self.filter.last + ([] if self._queues.keys else self.filter.units)
        kept = all_hold(conditions, lambda name: self._damage_column(name, found, reasons), len(found))
        return batch if kept.all() else batch.filter(pa.array(kept))

    def _damage_column(self, name: str, found: Found, reasons: Sequence[str]) -> pa.Array:
        if name == "corruption":
            texts = [self._place(p, why) for p, why in zip(found.places.tolist(), reasons, strict=True)]
            return pa.array(texts, pa.string())
        if name in UNIT_COLUMNS and (self._queues.keys or name in ("store", "physicalOffset")):
            return self._unit_column(name, found)
        return pa.nulls(len(found), message_schema(ScanRequest(columns=(name,))).field(0).type)

    def _unit_column(self, name: str, found: Found) -> pa.Array:
        return unit_column(name, found, self._queues, self._store_name)

    @property
    def _permissive(self) -> bool:
        return self.request.mode is Mode.PERMISSIVE

    def _left(self, conditions: Sequence[Condition], rows: Rows, found: Found | None) -> npt.NDArray[np.bool_]:
        """Which rows the conditions leave; damaged ones stay, for `mode` to decide."""

        def columns(name: str) -> pa.Array:
            return rows.column(name) if found is None or name not in UNIT_COLUMNS else self._unit_column(name, found)

        kept = all_hold(conditions, columns, len(rows.messages))
        kept |= rows.messages.flaws != 0
        return kept

    def report(self) -> None:
        """One line on this process's stderr that counts the messages left out (option mode)."""
        if self.left_out:
            sys.stderr.write(
                f"mqstore: {self._store_name}: {self.left_out} damaged messages left out (mode=DROPMALFORMED)\n"
            )

    def _check_queue(self, messages: Messages, found: Found) -> None:
        wrong = messages.column("queue_id") != self._queues.ids(found.queue)
        wrong |= ~self._topics.equal(messages.buffer, messages.topic_start, messages.topic_size, found.queue)
        shifted = messages.column("queue_offset") != found.ordinals
        if shifted.any():
            wrong |= shifted & ~self._rebuilt[found.queue]
        wrong &= messages.flaws == 0
        if wrong.any():
            rows = np.flatnonzero(wrong)
            wrong[rows] = ~self._through_light_queue(messages, found, rows)
            messages.mark(wrong, Flaw.QUEUE)

    def _through_light_queue(
        self, messages: Messages, found: Found, rows: npt.NDArray[np.intp]
    ) -> npt.NDArray[np.bool_]:
        """Whether a queue that is not the record's own may serve it (rocketmq.md 3.8)."""
        starts, sizes = messages.properties_start[rows], messages.properties_size[rows]
        lists = PropertyColumn(messages.buffer, starts, sizes).values(MULTI_DISPATCH).to_pylist()
        topics = [self._queues.keys[index][0] for index in found.queue[rows].tolist()]
        return np.array(
            [
                topic.startswith(LIGHT_QUEUE_PREFIX) or topic in (names or "").split(",")
                for topic, names in zip(topics, lists, strict=True)
            ],
            bool,
        )

    def _batch(self, rows: Rows, found: Found | None) -> pa.RecordBatch:
        last = self.filter.last + (self.filter.units if self._permissive and found is None else [])
        bodies = None
        if "body" in self.schema.names or any("body" in each.columns for each in last):
            bodies = rows.checked_bodies()
        flaws = rows.messages.flaws
        damaged = bool(flaws.any())
        if damaged and self.request.mode is Mode.FAILFAST:
            first = int(np.flatnonzero(flaws)[0])
            raise self._error(int(rows.places[first]), FLAWS[flaws[first]].value)
        columns = [self._column(name, rows, found, bodies) for name in self.schema.names]
        batch = pa.RecordBatch.from_arrays(columns, schema=self.schema)
        kept = all_hold(last, lambda name: self._column(name, rows, found, bodies), len(flaws))
        if damaged and self.request.mode is Mode.DROPMALFORMED:
            self.left_out += int((flaws != 0).sum())
            kept &= flaws == 0
        return batch if kept.all() else batch.filter(pa.array(kept))

    def _column(self, name: str, rows: Rows, found: Found | None, bodies: pa.Array | None) -> pa.Array:
        """A column; of a damaged row what names its place, and else null (PERMISSIVE)."""
        if name == "corruption":
            return self._corruption(rows)
        if found is not None and name in UNIT_COLUMNS:
            return self._unit_column(name, found)
        values = bodies if name == "body" else rows.column(name)
        return values if name == "store" else masked(values, rows.messages.flaws == 0)

    def _corruption(self, rows: Rows) -> pa.StringArray:
        """Null, or where a message is damaged and why."""
        texts: list[str | None] = [None] * len(rows.messages)
        for index in np.flatnonzero(rows.messages.flaws).tolist():
            reason = FLAWS[rows.messages.flaws[index]].value
            texts[index] = self._place(int(rows.places[index]), reason)
        return pa.array(texts, pa.string())

    def _error(self, place: int, reason: str) -> CorruptionError:
        file = self._log.file_at(place)
        hint = "option mode=DROPMALFORMED leaves such messages out"
        if file is None:
            missing = self._log.name_of(place)
            return CorruptionError(missing, place % max(self._log.file_size, 1), f"{reason}, in no file of it; {hint}")
        return CorruptionError(file.path, place - file.base_offset, f"{reason}; {hint}")

    def _place(self, place: int, reason: str) -> str:
        file = self._log.file_at(place)
        where = f"physical offset {place}" if file is None else f"{file.path} at {place - file.base_offset}"
        return f"{where}: {reason}"


def _taken(messages: Messages, sizes: npt.NDArray[np.int64], kept: npt.NDArray[np.bool_]) -> Messages:
    """Some of the messages, with what is known to be wrong with them."""
    taken = decode(messages.buffer, messages.starts[kept], sizes[kept])
    taken.flaws[:] = messages.flaws[kept]
    return taken
