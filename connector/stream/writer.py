"""Writes the micro-batches of a streaming query, each as one atomic job, and once however often Spark replays it.

Staging and committing belong to the engines, options to `option_table`, the form of errors to `errors`. Source of the
rules: interface.md 48.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from connector.batch_writer import store_to_write
from connector.errors import shown_in_one_line, warn
from connector.spark_worker import prepare_worker
from storage_core.errors import MqStoreError, OptionError, UnsupportedFormatError

if TYPE_CHECKING:
    import pyarrow as pa

    from storage_core.option_table import WriteOptions
    from storage_core.store import StagedPart
    from storage_core.stream.streamed_job import StreamedJob

NO_COMPLETE = (
    "outputMode('complete') is refused: a message store only grows; use outputMode('append'), or write the result of "
    "each batch with foreachBatch"
)
NOT_FOR_STREAMS = {
    "publish": "makes a new store of each write; leave it out",
    "txnappid": "is the query's own id in a stream; leave it out",
    "txnversion": "is the number of the micro-batch in a stream; leave it out",
}
CHECKPOINT = "checkpointlocation"
SPARKS_OWN = frozenset({CHECKPOINT, "queryname", "outputmode", "triggerinterval"})
QUERY_ID = "sql.streaming.queryId"
COMMITTING = "pyspark.sql.worker.python_streaming_sink_runner"
"""The module run by the Spark process that commits micro-batches."""


@dataclass
class StagedBatch(WriterCommitMessage):
    """A task's message to the process that commits, whose writer has no job: the job, the part that was staged, and
    the id of the query, which is the same after a restart.
    """

    job: StreamedJob
    part: StagedPart
    query: str


class MqStoreStreamWriter(DataSourceStreamArrowWriter):
    """Created twice for each micro-batch: where the write is planned, which begins the job, and in the process that
    commits, which receives the job from its tasks.
    """

    @shown_in_one_line
    def __init__(self, options: Mapping[str, str], path: str, schema: StructType, overwrite: bool) -> None:
        from storage_core.option_table import write_options

        if overwrite:
            raise MqStoreError(NO_COMPLETE)
        own = {name: text for name, text in options.items() if name.lower() not in SPARKS_OWN}
        for name, text in own.items():
            why = NOT_FOR_STREAMS.get(name.lower())
            if why is not None and (name.lower(), text.strip().lower()) != ("publish", "append"):
                raise OptionError(name, text, why)
        self._job: StreamedJob | None = None
        self._path, self._options = path, write_options(own)
        self._checkpoint = next((text for name, text in options.items() if name.lower() == CHECKPOINT), "")
        if COMMITTING not in sys.modules:
            self._job = _begin_job(path, self._options, schema.fieldNames(), self._checkpoint)

    @shown_in_one_line
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stages the rows of one task."""
        from pyspark import TaskContext

        prepare_worker()
        task = TaskContext.get()
        if task is None or self._job is None:
            raise MqStoreError("a stream is written by the tasks of a streaming query alone")
        query = task.getLocalProperty(QUERY_ID)
        if not query:
            raise MqStoreError(f"Spark does not tell the id of the query ({QUERY_ID}); this version is not supported")
        part = self._job.stage(iterator, task.partitionId(), task.attemptNumber(), task.taskAttemptId())
        return StagedBatch(self._job, part, query)

    @shown_in_one_line
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Commits the rows of a micro-batch to the store; drops them if it was committed before."""
        staged = [message for message in messages if isinstance(message, StagedBatch)]
        if not staged:
            return
        prepare_worker()
        job = staged[0].job.of_query(staged[0].query, batchId)
        job.commit([message.part for message in staged])
        for line in job.warnings:
            warn(line)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Drops the staged rows. Spark also calls this after a failed commit; committed rows stay. If no task has
        reported the job, it is identified by the query's checkpoint.
        """
        jobs = [message.job for message in messages if isinstance(message, StagedBatch)]
        try:
            if jobs:
                jobs[0].abort()
            elif self._checkpoint:
                with store_to_write(self._path, self._options) as store:
                    store.drop_staged_by(self._checkpoint)
        except OSError as error:
            warn(f"staged files could not be removed ({error}); the next write removes them")


def _begin_job(path: str, options: WriteOptions, columns: list[str], checkpoint: str) -> StreamedJob:
    from storage_core.stream.streamed_job import StreamedJob

    with store_to_write(path, options) as store:
        job = store.begin_job(columns, checkpoint, **options.job)
    if not isinstance(job, StreamedJob):
        job.abort()
        raise UnsupportedFormatError(f"{path}: a {store.engine} store takes no stream; write batches with df.write")
    return job
