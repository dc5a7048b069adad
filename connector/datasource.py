"""The data source `mqstore`: what Spark calls first. Each `load()` is one instance, pickled between Spark's processes.

Leaves to others: reading (`batch_reader`), options, planning, errors. It imports little: each Spark worker is forked
before this package is loaded, so every import is paid in every worker.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NoReturn

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from connector.errors import shown_in_one_line
from connector.paths import NO_PATH, absolute, load_paths
from storage_core.errors import MqStoreError, OptionError, UnsupportedFormatError

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter

NO_STREAM = "streaming reads are not in this version of mqstore; read the store as a batch with spark.read"
NO_WRITE = "streaming writes are not in this version of mqstore; write batches with df.write"
NO_RABBITMQ_STREAM = (
    "a RabbitMQ store takes no stream, each commit costs as much as its whole vhost; "
    "write batches with df.write, or the stream to a RocketMQ store"
)


class MqStoreDataSource(DataSource):
    """`spark.read.format("mqstore").load(path)`."""

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "mqstore"

    @shown_in_one_line
    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        self._options = {name.lower(): text for name, text in options.items()}
        self._paths = load_paths(self._options)
        self._schema_is_ours = False
        if log := self._options.get("commitlogpath"):
            self._options["commitlogpath"] = ",".join(absolute(path) for path in log.split(",") if path.strip())

    @shown_in_one_line
    def schema(self) -> StructType:
        """The columns of the load; Spark asks only when the user gave no `.schema(...)`."""
        from connector.planning import Load
        from connector.schema import projected, to_spark
        from storage_core.option_table import read_options

        options = read_options(self._options)
        with Load(self._found_paths(), options) as load:
            schema = to_spark(projected(load.available(), options.columns))
        self._schema_is_ours = True
        return schema

    @shown_in_one_line
    def reader(self, schema: StructType) -> DataSourceReader:
        """The batch reader; a schema of the user's is checked here, before anything is planned."""
        from connector.batch_reader import reader_class

        if not self._schema_is_ours:
            self._check(schema)
        pushdown = self._options.get("pushdown", "").strip().lower() == "true"
        return reader_class(pushdown)(self._options, self._found_paths(), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """A reader that refuses: an error raised here would be hidden by one of Spark's own."""
        return _NoStream()

    @shown_in_one_line
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """The batch writer; columns and options are checked here, before a task runs."""
        from connector.batch_writer import MqStoreBatchWriter

        paths = self._found_paths()
        if len(paths) > 1:
            raise OptionError("path", ",".join(paths), "a write goes to one store; give one path")
        return MqStoreBatchWriter(self._options, paths[0], schema, overwrite)

    @shown_in_one_line
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        """Refuses in one line; a commit to a RabbitMQ store costs as much as its whole vhost, so it takes none ever."""
        from connector.batch_writer import writes_rabbitmq

        for path in self._found_paths():
            if writes_rabbitmq(path, self._options.get("engine", "").strip().lower()):
                raise UnsupportedFormatError(f"UnsupportedFormatError: {path}: {NO_RABBITMQ_STREAM}")
        raise MqStoreError(NO_WRITE)

    def _check(self, schema: StructType) -> None:
        from connector.planning import Load
        from connector.schema import check_user_schema
        from storage_core.option_table import read_options

        options = read_options(self._options)
        if options.columns is not None:
            raise OptionError("columns", ",".join(options.columns), "goes not with .schema(...); give one of the two")
        with Load(self._found_paths(), options) as load:
            check_user_schema(schema, load.available())

    def _found_paths(self) -> tuple[str, ...]:
        if not self._paths:
            raise MqStoreError(NO_PATH)
        return self._paths


class _NoStream(DataSourceStreamReader):
    """Refuses at the first question of a streaming query."""

    @shown_in_one_line
    def initialOffset(self) -> NoReturn:
        raise MqStoreError(NO_STREAM)

    def latestOffset(self, start: Any = None, limit: Any = None) -> NoReturn:
        self.initialOffset()

    def partitions(self, start: Any, end: Any) -> NoReturn:
        self.initialOffset()

    def read(self, partition: InputPartition) -> Iterator[Any]:
        self.initialOffset()
