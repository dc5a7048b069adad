"""The methods that Structured Streaming calls to read a store.

One process of a query computes offsets and plans; tasks read, with a copy that holds only the request. Offsets and
plans belong to `source`, types to `schema`, the form of errors to `errors`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from connector.batches import batches_of
from connector.errors import shown_in_one_line
from connector.paths import NO_PATH
from storage_core.errors import MqStoreError, OptionError

if TYPE_CHECKING:
    import pyarrow as pa

    from connector.stream.source import StreamSource


class MqStoreStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """`spark.readStream.format("mqstore").load(path)`. The first call opens the store: an error raised earlier would be
    hidden by one of Spark's own.
    """

    def __init__(
        self, options: Mapping[str, str], paths: tuple[str, ...], schema: StructType, schema_is_ours: bool
    ) -> None:
        self._options, self._paths, self._schema = dict(options), paths, schema
        self._schema_is_ours = schema_is_ours
        self._source: StreamSource | None = None

    def __getstate__(self) -> dict[str, Any]:
        """The state of a task's copy: the request without the open store."""
        return {**self.__dict__, "_source": None}

    def _opened(self) -> StreamSource:
        if not self._paths:
            raise MqStoreError(NO_PATH)
        if self._source is None:
            from connector.stream.source import StreamSource
            from storage_core.option_table import read_options

            options = read_options(self._options, stream=True)
            if not self._schema_is_ours:
                self._check_schema()
            self._source = StreamSource(self._paths, options, tuple(self._schema.fieldNames()))
        return self._source

    def _check_schema(self) -> None:
        from connector.planning import Load
        from connector.schema import check_user_schema
        from storage_core.option_table import read_options

        options = read_options(self._options, stream=True)
        if options.columns is not None:
            raise OptionError(
                "columns", ",".join(options.columns), "cannot be combined with .schema(...); give one of the two"
            )
        with Load(self._paths, options) as load:
            check_user_schema(self._schema, load.available())

    @shown_in_one_line
    def initialOffset(self) -> dict[str, Any]:
        """Where a query without a checkpoint starts."""
        return self._opened().initial()

    @shown_in_one_line
    def getDefaultReadLimit(self) -> ReadLimit:
        """The limit set by the options; Spark passes it back, or `ReadAllAvailable` for `Trigger.Once`."""
        limits = self._opened().limits
        if limits.most_messages is not None:
            return ReadMaxRows(limits.most_messages)
        if limits.most_bytes is not None:
            return ReadMaxBytes(limits.most_bytes)
        return ReadAllAvailable() if limits.fewest_messages is None else ReadMinRows(limits.fewest_messages)

    @shown_in_one_line
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """The end of the next micro-batch; `start` if there is nothing new."""
        return self._opened().latest(start, not isinstance(limit, ReadAllAvailable))

    @shown_in_one_line
    def reportLatestOffset(self) -> dict[str, Any] | None:
        """The end of the store, for the query's progress."""
        return self._opened().reported()

    @shown_in_one_line
    def prepareForTriggerAvailableNow(self) -> None:
        """Limits the query to what the store holds now."""
        self._opened().freeze()

    @shown_in_one_line
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """The plan of one micro-batch."""
        return list(self._opened().partitions(start, end))

    @shown_in_one_line
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The batches of one partition, in exactly the query's schema."""
        from connector.partition import MqStorePartition
        from connector.schema import to_arrow

        if isinstance(partition, MqStorePartition):  # otherwise Spark's placeholder for a plan without partitions
            yield from batches_of(partition, to_arrow(self._schema))

    def commit(self, end: dict[str, Any]) -> None:
        """Does nothing: a store belongs to its broker, and the checkpoint records the query's progress."""

    def stop(self) -> None:
        """Closes the store. Spark usually ends the process without this call."""
        if self._source is not None:
            self._source.close()
            self._source = None
