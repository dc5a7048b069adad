"""Writes one DataFrame as one atomic job: tasks stage rows, the driver commits or aborts.

Checking rows, staging and committing belong to the engines, options to `option_table`, the form of errors to `errors`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from connector.errors import shown_in_one_line, warn
from connector.spark_worker import prepare_worker
from storage_core.errors import MqStoreError, OptionError, StoreNotFoundError

if TYPE_CHECKING:
    import pyarrow as pa

    from storage_core.option_table import WriteOptions
    from storage_core.store import StagedPart, Store

NO_OVERWRITE = (
    "mode('overwrite') is refused: a message store only grows; use mode('append'), "
    "or delete the directory yourself and then append"
)
DEFAULT_VHOST = "/"


@dataclass
class StagedMessage(WriterCommitMessage):
    """A task's message to the driver: the part that it staged."""

    part: StagedPart


class MqStoreBatchWriter(DataSourceArrowWriter):
    """Created once on the driver, before any task runs, and pickled to tasks and to the process that commits."""

    @shown_in_one_line
    def __init__(self, options: Mapping[str, str], path: str, schema: StructType, overwrite: bool) -> None:
        from storage_core.option_table import write_options

        if overwrite:
            raise MqStoreError(NO_OVERWRITE)
        parsed = write_options(options)
        with store_to_write(path, parsed) as store:
            self._job = store.begin_job(schema.fieldNames(), **parsed.job)

    @shown_in_one_line
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stages the rows of one task."""
        from pyspark import TaskContext

        prepare_worker()
        task = TaskContext.get()
        if task is None:
            return StagedMessage(self._job.stage(iterator))
        return StagedMessage(self._job.stage(iterator, task.partitionId(), task.attemptNumber(), task.taskAttemptId()))

    @shown_in_one_line
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Commits all staged rows to the store. Tasks without a message staged nothing that counts."""
        prepare_worker()
        self._job.commit([message.part for message in messages if isinstance(message, StagedMessage)])
        for line in self._job.warnings:
            warn(line)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Drops the staged rows. Spark also calls this after a failed commit; committed rows stay."""
        try:
            self._job.abort()
        except OSError as error:
            warn(f"staged files could not be removed ({error}); the next write removes them")


def store_to_write(path: str, options: WriteOptions) -> Store:
    """The store at a path, or a new one: RocketMQ unless the option `engine` names another.

    In the data directory of a RabbitMQ node it is the store of the option `vhost`. Raises OptionError for an option
    that the store's engine does not support.
    """
    from storage_core import open_store
    from storage_core.options.read import check_engine

    log = {name: text for name, text in options.store.items() if name == "commitLogPath"}
    try:
        plain = open_store(path, options.engine, **log)
    except StoreNotFoundError:
        if (nested := _store_of_node(path, options)) is not None:
            return nested
        if options.engine is not None:
            raise
        for engine, name, text in options.of_one_engine:
            if engine == "rabbitmq":
                raise OptionError(
                    name, text, f"belongs to RabbitMQ stores; give option engine=rabbitmq for a new one at {path}"
                ) from None
        return open_store(path, "rocketmq", **log)
    check_engine(options.of_one_engine, plain.engine, path)
    if not options.store:
        return plain
    with plain:
        return open_store(path, plain.engine, **options.store)


def writes_rabbitmq(path: str, engine: str) -> bool:
    """Whether a write to `path` with the option `engine` goes to a RabbitMQ store."""
    from storage_core import open_store

    try:
        return open_store(path, engine if engine in ("rocketmq", "rabbitmq") else None).engine == "rabbitmq"
    except MqStoreError:
        return False


def _store_of_node(path: str, options: WriteOptions) -> Store | None:
    """The store of one virtual host of the node with the data directory `path`; None if `path` is no such directory."""
    from storage_core import find_stores, open_store

    if options.engine == "rocketmq":
        return None
    try:
        directories = find_stores(path, "rabbitmq")
    except MqStoreError:
        return None
    settings = {name: text for name, text in options.store.items() if name != "vhost"}
    stores = {store.virtual_host: store for store in (open_store(each, **settings) for each in directories)}
    wanted = options.store.get("vhost", DEFAULT_VHOST)
    if wanted not in stores:
        known = ", ".join(sorted(name for name in stores if name is not None))
        there = f"there are {known}" if known else "there is none with classic queues, and only these are written"
        raise OptionError("vhost", wanted, f"there is no such virtual host below {path}; {there}")
    return stores[wanted]
