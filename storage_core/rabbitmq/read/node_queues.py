"""The common part of the stores of a node's quorum queues and of its streams, which only a running node writes.

Each subclass determines which queues it has, and how they are read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import pyarrow as pa

from storage_core.errors import StoreClosedError, UnsupportedFormatError
from storage_core.rabbitmq.disk.running_node import is_running
from storage_core.rabbitmq.read.view_table import ViewTable
from storage_core.store import ScanRequest, Store, StoreState, WriteJob


class NodeQueues(Store):
    """A folder with queues of one type, called `what` in messages, whose logs have the version `log_version`."""

    engine = "rabbitmq"
    what: ClassVar[str]
    log_version: ClassVar[str]
    views: ClassVar[ViewTable[Any]]

    def __init__(self, path: str) -> None:
        self.path = path.rstrip("/") or "/"
        self._closed = False

    def check_open(self) -> None:
        """Raises StoreClosedError after `close`."""
        if self._closed:
            raise StoreClosedError(f"{self.path}: the store was closed; open it again")

    def state(self) -> StoreState:
        """Whether a node is running here. The files do not show how it stopped."""
        return StoreState(version=self.log_version, running=is_running(self.path), clean=False)

    def view_schema(self, name: str) -> pa.Schema:
        """Schema of a view. Raises OptionError, which lists the views, if there is none called `name`."""
        return self.views.schema_of(name)

    def view(self, name: str, request: ScanRequest | None = None) -> Iterator[pa.RecordBatch]:
        """The rows of a view."""
        self.view_schema(name)
        return self.views.rows_of(name, self.snapshot(), self.name, request or ScanRequest())

    def begin_job(self, columns: Sequence[str] | None = None, application: str = "", **options: Any) -> WriteJob:
        """Raises UnsupportedFormatError: only a running node writes these queues."""
        del columns, application, options
        raise UnsupportedFormatError(
            f"UnsupportedFormatError: {self.path}: {self.what} are not written; write classic queues (a vhost's "
            "directory), or publish to the running node that `rabbitmqctl start_app` brings up"
        )

    def close(self) -> None:
        """Marks the store as closed: later calls raise StoreClosedError. Nothing is held open."""
        self._closed = True
