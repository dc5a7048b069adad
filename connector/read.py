"""The second entry point: `pyspark_mqstore.read` plans on the driver and reads with `mapInArrow`.

It uses the planner and partitions of the data source, without its frozen plan, its leaking filters and part of its
cost. Planning belongs to `planning`, filters to `filters`, the rows of a partition to the engines.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from importlib import metadata
from os import PathLike
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (Spark's own habit)

from connector.batches import batches_of
from connector.errors import shown_in_one_line
from connector.filters import predicates
from connector.hadoop_settings import storage_options
from connector.partition import MqStorePartition
from connector.paths import absolute, is_uri
from connector.planning import Load
from connector.schema import projected, to_arrow, to_spark
from connector.spark_worker import prepare_worker
from storage_core.errors import MqStoreError, OptionError
from storage_core.option_table import read_options
from storage_core.options.read import STORAGE
from storage_core.options.values import as_text

__all__ = ["DataFrame", "SparkSession", "read"]

OLDEST_PANDAS = (2, 2)
LARGEST_ESTIMATE = 1 << 30
# A column of ten nulls, which Spark estimates at 1000 bytes, so that an id counts as 508 bytes instead of 8.
PADDING, ID_SIZE = "struct<" + ",".join(f"b{number}:binary" for number in range(10)) + ">", 508


def read(
    spark: SparkSession,
    path: str | PathLike[str] | Sequence[str | PathLike[str]],
    filters: Sequence[Any] | None = None,
    columns: Sequence[str] | None = None,
    **options: Any,
) -> DataFrame:
    """The rows of a store, or of several, that satisfy `filters`, in `columns`.

    `filters`: triples (column, operator, value) that must all hold, or lists of such triples, one of which must hold;
    `("keys", "contains", word)` uses the index files. `options` are those of the data source. Raises OptionError,
    StoreNotFoundError and all errors of planning, in one line each.
    """
    _refuse_what_cannot_work(spark)
    texts = {name: as_text(value) for name, value in options.items()}
    given_paths = [path] if isinstance(path, str | os.PathLike) else path
    paths = tuple(absolute(os.fspath(each)) for each in given_paths)
    if any(map(is_uri, paths)) and not any(name.lower().startswith(STORAGE) for name in texts):
        texts |= storage_options(spark)
    if columns is not None:
        texts["columns"] = columns if isinstance(columns, str) else json.dumps(list(columns))
    given = read_options(texts)
    with Load(paths, given) as load:
        schema = projected(load.available(), given.columns)
        if filters is not None and (given.view != "messages" or given.kafka):
            raise OptionError("filters", repr(filters), "go with messages in layout=native; use where(...)")
        conditions = predicates(filters, load.native()) if filters is not None else ()
        return _frame(spark, load.plan(tuple(schema.names), conditions), schema)


def _frame(spark: SparkSession, partitions: Sequence[MqStorePartition], schema: pa.Schema) -> DataFrame:
    """A DataFrame with one task per partition.

    One id of each stride reaches Python. The stride makes Spark estimate the size of the table as the bytes that will
    be read: a table of a few rows would be broadcast in every join.
    """
    wanted = to_spark(schema)
    if not partitions:
        return spark.createDataFrame([], wanted)
    count = len(partitions)
    size = sum(partition.estimated_bytes for partition in partitions)
    stride = max(1, -(-min(size, LARGEST_ESTIMATE) // ID_SIZE) // count)
    chosen = spark.range(0, count * stride, 1, count).where(F.col("id") % stride == 0)
    ids = chosen.select("id", F.lit(None).cast(PADDING).alias("padding"))
    target = to_arrow(wanted)

    def rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        prepare_worker()
        return _rows(batches, partitions, stride, target)

    return ids.mapInArrow(rows, wanted)


@shown_in_one_line
def _rows(
    batches: Iterator[pa.RecordBatch], partitions: Sequence[MqStorePartition], stride: int, target: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """The rows of the partitions that the ids name. TaskContext's number is not used: `coalesce` changes it."""
    for batch in batches:
        for number in batch.column(0).to_pylist():
            yield from batches_of(partitions[number // stride], target)


def _refuse_what_cannot_work(spark: object) -> None:
    if not isinstance(spark, SparkSession):
        raise MqStoreError(
            "pyspark_mqstore.read plans where it is called and needs a classic SparkSession; "
            'over Spark Connect use spark.read.format("mqstore")'
        )
    try:
        installed = metadata.version("pandas")
    except metadata.PackageNotFoundError:
        installed = "none"
    if not _is_recent(installed):
        raise MqStoreError(
            f"pyspark_mqstore.read needs pandas 2.2 or newer for mapInArrow, and here is {installed}; "
            'pip install "mqstore[spark]", or use spark.read.format("mqstore")'
        )


def _is_recent(version: str) -> bool:
    numbers = version.split(".")[:2]
    return all(number.isdigit() for number in numbers) and tuple(map(int, numbers)) >= OLDEST_PANDAS
