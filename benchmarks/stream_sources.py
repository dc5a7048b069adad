"""The Python stream source and sink that ours are compared with: ready batches, and a writer that drops its batches.

Spark's workers import this module.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from benchmarks.sources import CountMessage, ReadyPartition, parts_of, ready_batch

Offset = dict[str, Any]


class ReadyStreamSource(DataSource):
    """`format("readystream")`: as many micro-batches as the option `triggers` states, each with everything that
    `write_ready` saved in `path`, or with its first `rows` rows.
    """

    @classmethod
    def name(cls) -> str:
        return "readystream"

    def schema(self) -> StructType:
        from pyspark.sql.pandas.types import from_arrow_schema

        return from_arrow_schema(ready_batch(parts_of(self.options["path"])[0].path).schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return _ReadyStreamReader(dict(self.options))


class _ReadyStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: dict[str, str]) -> None:
        self._folder, self._triggers = options["path"], int(options.get("triggers", "1"))
        self._rows = int(options.get("rows", "0"))

    def initialOffset(self) -> Offset:
        return {"trigger": 0}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """Does nothing: nothing arrives later."""

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        return {"trigger": min(start["trigger"] + 1, self._triggers)}

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        found = parts_of(self._folder) if end["trigger"] > start["trigger"] else []
        return [ReadyPartition(found[0].path, [self._rows])] if self._rows and found else list(found)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, ReadyPartition):
            batch = ready_batch(partition.path)
            for count in partition.counts:
                yield batch if count == batch.num_rows else batch.slice(0, count)


class DroppingStreamSink(DataSource):
    """`format("droppingstream")`: what a streaming write costs when the sink does nothing with the rows."""

    @classmethod
    def name(cls) -> str:
        return "droppingstream"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        return _DroppingStreamWriter()


class _DroppingStreamWriter(DataSourceStreamArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return CountMessage(sum(batch.num_rows for batch in iterator))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Does nothing: there is nothing to commit."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Does nothing: there is nothing to drop."""
