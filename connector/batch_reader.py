"""Batch reads of one `load()`: plans on the driver, yields Arrow batches in tasks.

Planning belongs to `planning`, decoding to the engines, types to `schema`, the form of errors to `errors`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from connector.batches import batches_of
from connector.errors import shown_in_one_line, warn
from connector.spark_worker import prepare_worker

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import Filter

    from connector.planning import Load
    from storage_core.options.read import ReadOptions
    from storage_core.store import Predicate

# Before Spark 5, filters pushed by one query stay in the load() and reach the next query (docs/find.md "where").
LEAK_FIXED = hasattr(DataSourceReader, "pushLimit")
PUSHDOWN_CONF = "spark.sql.python.filterPushdown.enabled"


class MqStoreBatchReader(DataSourceReader):
    """Is pickled to the executors inside Spark's read function, so it holds the request but no results."""

    def __init__(self, options: Mapping[str, str], paths: tuple[str, ...], schema: StructType) -> None:
        self._options, self._paths, self._schema = dict(options), paths, schema

    @shown_in_one_line
    def partitions(self) -> list[InputPartition]:
        """The plan: ranges of queues or spans of the log, never entries. Runs once per `load()` from Spark 4.1 on."""
        from connector.planning import Load
        from storage_core.option_table import read_options

        prepare_worker()
        options = read_options(self._options)
        if options.pushdown and not LEAK_FIXED:
            warn(self._pushdown_warning())
        with Load(self._paths, options) as load:
            return list(load.plan(tuple(self._schema.fieldNames()), self._predicates(load, options)))

    def _pushdown_warning(self) -> str:
        return (
            f"option pushdown=true had no effect: this query has no filter that Spark passes on, or {PUSHDOWN_CONF} is "
            "false; set it, or use pyspark_mqstore.read"
        )

    def _predicates(self, load: Load, options: ReadOptions) -> tuple[Predicate, ...]:
        """The predicates for the pushed filters; none, unless the session pushes filters."""
        return ()

    @shown_in_one_line
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The batches of one partition, in exactly the load's schema."""
        from connector.partition import MqStorePartition
        from connector.schema import to_arrow

        if isinstance(partition, MqStorePartition):  # otherwise Spark's placeholder for a plan without partitions
            yield from batches_of(partition, to_arrow(self._schema))


class PushingBatchReader(MqStoreBatchReader):
    """A batch reader that accepts pushed filters; Spark evaluates them again on every row. It is a separate class
    because Spark refuses a reader that has `pushFilters` while filter pushdown is off.
    """

    def __init__(self, options: Mapping[str, str], paths: tuple[str, ...], schema: StructType) -> None:
        super().__init__(options, paths, schema)
        self._filters: list[Filter] = []

    def pushFilters(self, filters: list[Filter]) -> list[Filter]:
        """Keeps the filters for the plan and returns all of them; deterministic, because Spark 5 calls it twice."""
        self._filters = list(filters)
        return filters

    def _pushdown_warning(self) -> str:
        return (
            "option pushdown=true on Spark 4: use this load() in one query, another one may get its filters; "
            "pyspark_mqstore.read is the safe way"
        )

    def _predicates(self, load: Load, options: ReadOptions) -> tuple[Predicate, ...]:
        from connector.filters import pushed

        if options.view != "messages":
            return ()
        return pushed(self._filters, load.native(), load.engine if options.kafka else None)


def reader_class(pushdown: bool) -> type[MqStoreBatchReader]:
    """The reader class for a session: one that accepts filters if the session pushes, and it is safe or requested."""
    pushes = "pyspark.sql.worker.data_source_pushdown_filters" in sys.modules
    return PushingBatchReader if pushes and (pushdown or LEAK_FIXED) else MqStoreBatchReader
