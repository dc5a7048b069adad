"""Drives the data source as Spark does, but without Spark: pickles where Spark pickles, calls in Spark's order."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from connector.datasource import MqStoreDataSource


def sent(value: Any) -> Any:
    """The value as another process receives it."""
    return pickle.loads(pickle.dumps(value))


def source(path: Path | str, **options: str) -> MqStoreDataSource:
    """`spark.read.format("mqstore").options(…).load(path)`: option names arrive in lower case."""
    return MqStoreDataSource({"path": str(path), **{name.lower(): text for name, text in options.items()}})


def planned(path: Path | str, **options: str) -> tuple[DataSourceReader, list[InputPartition], pa.Schema]:
    """The reader, its partitions and the schema of the rows."""
    received = sent(source(path, **options))
    schema = received.schema()
    reader = sent(received).reader(schema)
    return reader, list(reader.partitions()), to_arrow_schema(schema, timezone="UTC")


def load(path: Path | str, **options: str) -> pa.Table:
    """All rows of a load."""
    reader, partitions, schema = planned(path, **options)
    batches = [batch for partition in partitions for batch in sent(reader).read(sent(partition))]
    return pa.Table.from_batches(batches, schema)


def writer(path: Path | str, table: pa.Table, overwrite: bool = False, **options: str) -> DataSourceArrowWriter:
    """`df.write.format("mqstore").options(…).save(path)`, up to just before the first task."""
    return sent(source(path, **options)).writer(from_arrow_schema(table.schema), overwrite)


def save(path: Path | str, table: pa.Table, **options: str) -> None:
    """A complete write, with one task."""
    made = writer(path, table, **options)
    try:
        messages = [sent(made).write(iter(table.to_batches()))]
        made.commit(messages)
    except BaseException:
        made.abort([])
        raise
