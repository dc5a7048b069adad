"""A streaming query without Spark: calls in Spark's order, offsets as JSON, readers pickled where Spark does it."""

from __future__ import annotations

import inspect
import json
import pickle
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable

from connector.datasource import MqStoreDataSource
from connector.stream.reader import MqStoreStreamReader

Json = dict[str, Any]


@dataclass
class Query:
    """One query and its checkpoint: `offsets` are the recorded ends, of which the last may not be committed yet."""

    path: Path
    options: dict[str, str]
    offsets: list[Json] = field(default_factory=list)
    committed: int = 0
    tables: list[pa.Table] = field(default_factory=list)
    partition_counts: list[int] = field(default_factory=list)
    reader: MqStoreStreamReader | None = None

    def start(self, available_now: bool = False) -> None:
        """Starts the process of a query; the state of a previous process is discarded."""
        self.stop()
        source = pickle.loads(pickle.dumps(self.source()))
        self.schema = source.schema()
        self.reader = pickle.loads(pickle.dumps(source)).streamReader(self.schema)
        if available_now:
            self.reader.prepareForTriggerAvailableNow()
        self.limit = self.reader.getDefaultReadLimit()

    def source(self) -> MqStoreDataSource:
        """`spark.readStream.format("mqstore").options(…).load(path)`."""
        return MqStoreDataSource(
            {"path": str(self.path), **{name.lower(): text for name, text in self.options.items()}}
        )

    def stop(self) -> None:
        """Ends the process; the reader is stopped, though a real process usually ends without that."""
        if self.reader is not None:
            self.reader.stop()
            self.reader = None

    def trigger(self, once: bool = False, dies: Callable[[], bool] = lambda: False) -> bool:
        """Runs one micro-batch; False if there is nothing new. If it `dies`, the batch is planned but not committed."""
        assert self.reader is not None
        if len(self.offsets) <= self.committed + (1 if self.offsets else 0):
            start = self.offsets[-1] if self.offsets else _through_json(self.reader.initialOffset())
            if not self.offsets:
                self.offsets.append(start)
            end = _through_json(self.reader.latestOffset(start, ReadAllAvailable() if once else self.limit))
            self.reader.reportLatestOffset()
            if json.dumps(end) == json.dumps(start):
                return False
            self.offsets.append(end)
        if dies():
            return True
        self.tables.append(self.rows(self.offsets[-2], self.offsets[-1]))
        self.committed = len(self.offsets) - 1
        return True

    def rows(self, start: Json, end: Json) -> pa.Table:
        """The rows of one micro-batch, as its tasks read them."""
        assert self.reader is not None
        partitions = self.reader.partitions(_through_json(start), _through_json(end))
        self.partition_counts.append(len(partitions))
        task = pickle.loads(pickle.dumps(self.reader))
        batches = [batch for each in partitions for batch in task.read(pickle.loads(pickle.dumps(each)))]
        return pa.Table.from_batches(batches, to_arrow_schema(self.schema, timezone="UTC"))

    def run(self, most: int = 1000) -> pa.Table:
        """Triggers until there is nothing new; returns all rows so far."""
        while self.trigger():
            most -= 1
            assert most, "the query never comes to an end"
        return pa.concat_tables(self.tables) if self.tables else pa.table({})


def _through_json(offset: Json) -> Json:
    found: Json = json.loads(json.dumps(offset))
    return found


def takes_a_start() -> bool:
    """Whether `latestOffset` accepts a start: Spark inspects its signature to learn if a source supports limits."""
    return len(inspect.signature(MqStoreStreamReader.latestOffset).parameters) > 1
