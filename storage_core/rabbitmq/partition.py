"""A piece of a plan: entries with their places, read and turned into batches wherever it is sent.

Leaves to `snapshot` how pieces are cut, to `rows` the columns.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from storage_core.rabbitmq.damage import Damage
from storage_core.rabbitmq.entries import Entries, packed, unpacked
from storage_core.rabbitmq.message_batch import read_batch
from storage_core.rabbitmq.rows import RowPlace, Rows
from storage_core.rabbitmq.schema import PLACE_COLUMNS
from storage_core.rabbitmq.span_reader import SpanReader
from storage_core.store import Mode, ScanPartition

FIRST_BATCH_ROWS, BATCH_ROWS, BATCH_BYTES = 512, 16384, 8 << 20


@dataclass(frozen=True)
class QueuePartition(ScanPartition):
    """Messages of one store in delivery order, and the damages that PERMISSIVE shows beside them."""

    place: RowPlace
    entries: Entries
    damages: tuple[Damage, ...]
    verify_crc: bool

    def __reduce__(self) -> tuple[Any, ...]:
        """Millions of entries go through Spark's driver into each task: as few bytes as they need."""
        return _restored, (self.place, packed(self.entries), self.damages, self.verify_crc)

    @property
    def estimated_bytes(self) -> int:
        """Bytes of records."""
        return int(self.entries["length"].sum())

    def read(self) -> Iterator[pa.RecordBatch]:
        """The rows in batches. Raises CorruptionError (FAILFAST), DataLossError when files vanished or shrank."""
        rows = Rows(self.place)
        reader = SpanReader(self.place.root, list(self.place.files))
        try:
            for start, stop in batch_ranges(self.entries["length"]):
                yield rows.batch(read_batch(reader, self.entries[start:stop], self.verify_crc))
        finally:
            reader.close()
        if self.damages and self.place.mode is Mode.PERMISSIVE:
            yield _damage_rows(self.place, self.damages)
        left_out = rows.left_out + (len(self.damages) if self.place.mode is Mode.DROPMALFORMED else 0)
        if left_out:
            sys.stderr.write(f"mqstore: {self.place.root}: {left_out} damaged messages or places were left out\n")


def _restored(place: RowPlace, entries: bytes, damages: tuple[Damage, ...], verify_crc: bool) -> QueuePartition:
    return QueuePartition(place, unpacked(entries), damages, verify_crc)


def batch_ranges(lengths: np.ndarray[tuple[int, ...], np.dtype[np.int64]]) -> Iterator[tuple[int, int]]:
    """Half-open ranges of rows: a small first batch, then as many rows as fit both limits, at least one each."""
    ends = np.cumsum(lengths)
    start, most = 0, FIRST_BATCH_ROWS
    while start < len(ends):
        before = int(ends[start - 1]) if start else 0
        stop = int(np.searchsorted(ends, before + BATCH_BYTES, side="right"))
        stop = max(start + 1, min(stop, start + most))
        yield start, stop
        start, most = stop, BATCH_ROWS


def _damage_rows(place: RowPlace, damages: tuple[Damage, ...]) -> pa.RecordBatch:
    """One row for each place of an index that could not be read: what names it, and the reason."""
    columns = []
    for column in place.schema:
        values: list[object] = [None] * len(damages)
        if column.name in PLACE_COLUMNS or column.name == "corruption":
            values = [_value(column.name, place, damage) for damage in damages]
        columns.append(pa.array(values, column.type))
    return pa.RecordBatch.from_arrays(columns, schema=place.schema)


def _value(name: str, place: RowPlace, damage: Damage) -> object:
    known = {
        "vhost": place.vhost,
        "store": place.store,
        "queue": damage.queue,
        "file": damage.file,
        "position": damage.position,
        "corruption": str(damage.error(place.root)),
    }
    return known.get(name)
