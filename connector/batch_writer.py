"""Writes one DataFrame as one atomic job: tasks stage rows, the driver commits or aborts.

Leaves to others: what a row must be, staging, committing (engines), options (`write_options`), errors (`errors`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from connector.errors import shown_in_one_line, warn
from storage_core.errors import MqStoreError, StoreNotFoundError

if TYPE_CHECKING:
    import pyarrow as pa

    from storage_core.store import StagedPart, Store

NO_OVERWRITE = (
    "mode('overwrite') is refused: a message store only grows; use mode('append'), "
    "or delete the directory yourself and then append"
)


@dataclass
class StagedMessage(WriterCommitMessage):
    """What a task tells the driver."""

    part: StagedPart


class MqStoreBatchWriter(DataSourceArrowWriter):
    """Made once on the driver, before any task runs, and pickled to tasks and to the process that commits."""

    @shown_in_one_line
    def __init__(self, options: Mapping[str, str], path: str, schema: StructType, overwrite: bool) -> None:
        from connector.write_options import write_options

        if overwrite:
            raise MqStoreError(NO_OVERWRITE)
        given = write_options(options)
        with store_to_write(path, given.engine) as store:
            self._job = store.begin_job(schema.fieldNames(), **given.job)

    @shown_in_one_line
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stages the rows of one task."""
        from pyspark import TaskContext

        task = TaskContext.get()
        if task is None:
            return StagedMessage(self._job.stage(iterator))
        return StagedMessage(
            self._job.stage(iterator, task.partitionId(), task.attemptNumber(), task.taskAttemptId())
        )

    @shown_in_one_line
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Puts all rows into the store. Tasks without a message staged nothing that counts."""
        self._job.commit([message.part for message in messages if isinstance(message, StagedMessage)])

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Drops what was staged. Spark calls this after a failed commit too: what was committed stays."""
        try:
            self._job.abort()
        except OSError as error:
            warn(f"staged files could not be removed ({error}); the next write removes them")


def store_to_write(path: str, engine: str | None) -> Store:
    """The store at a path, or a new one: RocketMQ unless `engine` says otherwise."""
    from storage_core import open_store

    try:
        return open_store(path, engine)
    except StoreNotFoundError:
        if engine is not None:
            raise
        return open_store(path, "rocketmq")
