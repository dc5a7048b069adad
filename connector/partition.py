"""Partitions that Spark sends from the driver to a task: one piece of an engine's plan, or one store's view.

How pieces are cut belongs to the engines, reading them to `batch_reader`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

import storage_core
from connector import kafka_layout
from connector.selection import matching_topics
from storage_core.arrays import as_scalar, text_array
from storage_core.store import ScanPartition, ScanRequest

if TYPE_CHECKING:
    from pyspark.sql.datasource import InputPartition
else:
    try:
        from pyspark.sql.datasource import InputPartition
    except ImportError:  # Spark 3.5 has no Python data sources; `pyspark_mqstore.read` needs none
        InputPartition = object


class MqStorePartition(InputPartition):
    """A piece of a read and the directory that it needs, so that an executor can report that it cannot see it."""

    def __init__(self, store_path: str, piece: ScanPartition | KafkaPiece | ViewPiece) -> None:
        self.value = None  # Spark's InputPartition has it
        self.store_path, self.piece = store_path, piece

    @property
    def estimated_bytes(self) -> int:
        """Bytes that reading will touch; 0 for a view."""
        piece = self.piece.piece if isinstance(self.piece, KafkaPiece) else self.piece
        return piece.estimated_bytes if isinstance(piece, ScanPartition) else 0

    def read(self) -> Iterator[pa.RecordBatch]:
        """The batches of this piece."""
        return self.piece.read()


@dataclass(frozen=True)
class KafkaPiece:
    """A piece of an engine's plan for native columns, read in Kafka's `columns`."""

    piece: ScanPartition
    columns: tuple[str, ...]
    engine: str

    def read(self) -> Iterator[pa.RecordBatch]:
        """The piece's batches in Kafka's layout."""
        for batch in self.piece.read():
            yield kafka_layout.from_native(batch, self.columns, self.engine)


@dataclass(frozen=True)
class ViewPiece:
    """All rows of one view of one store, computed on the executor, because a view may read every file.

    A column of `columns` that the views of other queues have and this store's view lacks is null. `store` is the value
    of the column of that name; None if there is only one store, or if the view has a column `store` of its own.
    """

    path: str
    engine: str
    store_options: Mapping[str, str] = field(repr=False)
    view: str
    request: ScanRequest
    columns: pa.Schema
    store: str | None

    def read(self) -> Iterator[pa.RecordBatch]:
        """The rows that match the selection options, in the requested columns."""
        with storage_core.open_store(self.path, self.engine, **self.store_options) as store:
            for batch in store.view(self.view, self.request):
                kept = self._selected(batch)
                if self.store is not None:
                    names = pa.repeat(as_scalar(self.store), kept.num_rows)
                    kept = kept.append_column(pa.field("store", pa.string()), names)
                yield self._arranged(kept)

    def _arranged(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        own = set(batch.schema.names)
        columns = [
            batch.column(field.name) if field.name in own else pa.nulls(batch.num_rows, field.type)
            for field in self.columns
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self.columns) if columns else batch.select([])

    def _selected(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        request = self.request
        if self.engine == "rabbitmq":  # its views apply the selection themselves, and have rows of no queue
            return batch
        if request.topics is not None:
            batch = batch.filter(pc.is_in(batch.column("topic"), text_array(request.topics)))
        if request.topic_pattern is not None:
            batch = batch.filter(matching_topics(batch.column("topic"), request.topic_pattern))
        if request.assign is not None:
            batch = batch.filter(_assigned(batch, request.assign))
        return batch


def _assigned(batch: pa.RecordBatch, queues: tuple[tuple[str, int], ...]) -> pa.Array:
    # A queue id contains no slash, so topic/id is unambiguous.
    ids = batch.column("queueId").cast(pa.string())
    named = pc.binary_join_element_wise(batch.column("topic"), ids, "/")
    return pc.is_in(named, text_array(f"{topic}/{queue_id}" for topic, queue_id in queues))
