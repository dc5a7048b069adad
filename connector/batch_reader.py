"""Reads one load in a batch: plans on the driver, yields Arrow batches in tasks.

Leaves to others: what a plan is (`planning`), decoding (engines), types (`schema`), what errors look like (`errors`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from connector.errors import host_name, shown_in_one_line
from storage_core.errors import StoreNotFoundError

if TYPE_CHECKING:
    import pyarrow as pa


class MqStoreBatchReader(DataSourceReader):
    """Travels to the executors inside Spark's read function, so it holds the question and nothing of its answer."""

    def __init__(self, options: Mapping[str, str], paths: tuple[str, ...], schema: StructType) -> None:
        self._options, self._paths, self._schema = dict(options), paths, schema

    @shown_in_one_line
    def partitions(self) -> list[InputPartition]:
        """The plan: ranges of queues or spans of the log, never entries. Runs once per `load()` from Spark 4.1 on."""
        from connector.options import read_options
        from connector.planning import Load

        with Load(self._paths, read_options(self._options)) as load:
            return list(load.plan(tuple(self._schema.fieldNames())))

    @shown_in_one_line
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The batches of one partition, in exactly the load's schema."""
        from connector.partition import MqStorePartition
        from connector.schema import fit, to_arrow

        if not isinstance(partition, MqStorePartition):
            return  # Spark's stand-in for a plan without partitions
        target = to_arrow(self._schema)
        try:
            for batch in partition.read():
                yield fit(batch, target)
        except Exception as error:
            if not os.path.isdir(partition.store_path):
                raise StoreNotFoundError(
                    f"{partition.store_path} is not there on host {host_name()}, where a task reads it; "
                    "every machine that runs Spark must see the store at this path: mount it there, or read where it is"
                ) from error
            raise
