"""The rows of one partition in the types that Spark expects, for every kind of read.

Partitions belong to `partition`, types to `schema`. Callers include `batch_reader` and `read`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from connector.errors import host_name
from connector.paths import is_uri
from storage_core.errors import StoreNotFoundError

if TYPE_CHECKING:
    import pyarrow as pa

    from connector.partition import MqStorePartition


def batches_of(partition: MqStorePartition, target: pa.Schema) -> Iterator[pa.RecordBatch]:
    """A partition's batches in exactly the schema `target`.

    Raises StoreNotFoundError if the task's machine cannot see the store.
    """
    from connector.schema import fit
    from connector.spark_worker import prepare_worker

    prepare_worker()
    try:
        for batch in partition.read():
            yield fit(batch, target)
    except Exception as error:
        if not is_uri(partition.store_path) and not os.path.isdir(partition.store_path):
            raise StoreNotFoundError(
                f"{partition.store_path} does not exist on host {host_name()}, where a task reads it; "
                "every machine that runs Spark must see the store at this path: mount it there, or read where it is"
            ) from error
        raise
