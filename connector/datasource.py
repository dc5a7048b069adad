"""The data source `mqstore`, Spark's entry point. Each `load()` is one instance, pickled between Spark's processes.

Reading belongs to `batch_reader`; options, planning and errors have their own modules. Imports are kept few: each Spark
worker is forked before this package is loaded, so every worker pays for every import.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyspark
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from connector.errors import shown_in_one_line
from connector.paths import NO_PATH, absolute, is_uri, load_paths
from storage_core.errors import MqStoreError, OptionError, UnsupportedFormatError

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter

    from storage_core.options.read import ReadOptions

WRITES = "mqstore writes to local directories; write there, then `mqstore copy` takes the store to a URI"
SEVERAL = "a write goes to one store; give one path"
OLD_SPARK = f"streams need Spark 4.2 or newer; this is {pyspark.__version__}"
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
        """The columns of the load; Spark calls this only if the user gave no `.schema(...)`."""
        from connector.planning import Load
        from connector.schema import projected, to_spark

        options = self._options_of_any_read()
        with Load(self._found_paths(), options) as load:
            schema = to_spark(projected(load.available(), options.columns))
        self._schema_is_ours = True
        return schema

    @shown_in_one_line
    def reader(self, schema: StructType) -> DataSourceReader:
        """The batch reader; a schema given by the user is checked here, before anything is planned."""
        from connector.batch_reader import reader_class

        if not self._schema_is_ours:
            self._check(schema)
        pushdown = self._options.get("pushdown", "").strip().lower() == "true"
        return reader_class(pushdown)(self._options, self._found_paths(), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """The stream reader, which checks nothing yet: an error raised here would be hidden by one of Spark's own."""
        try:
            from connector.stream.reader import MqStoreStreamReader
        except ImportError:
            raise MqStoreError(OLD_SPARK) from None

        return MqStoreStreamReader(self._options, self._paths, schema, self._schema_is_ours)

    @shown_in_one_line
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """The batch writer; columns and options are checked here, before a task runs."""
        from connector.batch_writer import MqStoreBatchWriter

        paths = self._found_paths()
        _refuse_uri(paths, WRITES)
        if len(paths) > 1:
            raise OptionError("path", ",".join(paths), SEVERAL)
        return MqStoreBatchWriter(self._options, paths[0], schema, overwrite)

    @shown_in_one_line
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        """The writer of one micro-batch. RabbitMQ stores are refused: a commit costs as much as the whole vhost."""
        from connector.batch_writer import writes_rabbitmq

        try:
            from connector.stream.writer import MqStoreStreamWriter
        except ImportError:
            raise MqStoreError(OLD_SPARK) from None

        paths = self._found_paths()
        _refuse_uri(paths, WRITES)
        for path in paths:
            if writes_rabbitmq(path, self._options.get("engine", "").strip().lower()):
                raise UnsupportedFormatError(f"UnsupportedFormatError: {path}: {NO_RABBITMQ_STREAM}")
        if len(paths) > 1:
            raise OptionError("path", ",".join(paths), SEVERAL)
        return MqStoreStreamWriter(self._options, paths[0], schema, overwrite)

    def _options_of_any_read(self) -> ReadOptions:
        """Options of a batch or a stream: Spark does not say which it reads, so both are accepted and checked later."""
        from storage_core.option_table import STREAM_OPTIONS, read_options

        try:
            return read_options(self._options)
        except OptionError as in_batch:
            try:
                return read_options(self._options, stream=True)
            except OptionError as in_stream:
                raise in_stream if in_batch.name in STREAM_OPTIONS else in_batch from None

    def _check(self, schema: StructType) -> None:
        from connector.planning import Load
        from connector.schema import check_user_schema
        from storage_core.option_table import read_options

        options = read_options(self._options)
        if options.columns is not None:
            raise OptionError(
                "columns", ",".join(options.columns), "cannot be combined with .schema(...); give one of the two"
            )
        with Load(self._found_paths(), options) as load:
            check_user_schema(schema, load.available())

    def _found_paths(self) -> tuple[str, ...]:
        if not self._paths:
            raise MqStoreError(NO_PATH)
        return self._paths


def _refuse_uri(paths: tuple[str, ...], why: str) -> None:
    for path in paths:
        if is_uri(path):
            raise UnsupportedFormatError(f"{path}: {why}")
