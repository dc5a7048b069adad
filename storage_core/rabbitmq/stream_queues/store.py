"""The streams of a node as a store: the folder with their directories, and the way to snapshots and views.

Leaves to `snapshot` what it serves, to `views` the tables about it. Source: docs/rabbitmq.md "Streams".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from storage_core.errors import OptionError, StoreClosedError, UnsupportedFormatError
from storage_core.finding import Finding
from storage_core.rabbitmq.disk.running_node import is_running
from storage_core.rabbitmq.disk.settings import Settings
from storage_core.rabbitmq.stream_queues import views
from storage_core.rabbitmq.stream_queues.snapshot import StreamQueuesSnapshot
from storage_core.rabbitmq.stream_queues.tail import StreamsTail
from storage_core.store import ScanRequest, StoreState, WriteJob
from storage_core.stream.tail import FollowedStore

OF_OTHER_QUEUES = ("recovery", "commit", "asof", *(name.lower() for name in Settings.__dataclass_fields__))
"""What concerns queues of other types alone may stand in the options of a whole node."""


class StreamQueuesStore(FollowedStore):
    """The streams in the folder `path`, which holds a directory for each. `options`: `vhost`. Raises OptionError."""

    engine = "rabbitmq"
    queue_type = "stream"

    def __init__(self, path: str, options: Mapping[str, Any] | None = None) -> None:
        self.path = path.rstrip("/") or "/"
        given = {name.lower(): value for name, value in (options or {}).items()}
        self._vhost = given.pop("vhost", None)
        for name, value in given.items():
            if name not in OF_OTHER_QUEUES:
                raise OptionError(name, str(value), "a store of streams has no such option")
        self._closed = False

    @property
    def virtual_hosts(self) -> frozenset[str]:
        """Virtual hosts of the streams, as far as the node's tables name them."""
        return frozenset(stream.vhost for stream in self.snapshot().streams if stream.vhost is not None)

    def snapshot(self) -> StreamQueuesSnapshot:
        """What the restarted node would serve from the folder as it is now."""
        self._check_open()
        return StreamQueuesSnapshot(self.path, self.name, self._vhost)

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosedError(f"{self.path}: the store was closed; open it again")

    def follow(self, names: Sequence[str] = ()) -> StreamsTail:
        """The store as Structured Streaming sees it."""
        del names
        self._check_open()
        return StreamsTail(self.path, self.name, self._vhost)

    def state(self) -> StoreState:
        """Whether a node runs here. The files of a stream do not tell how the node stopped."""
        return StoreState(version="stream log version 1", running=is_running(self.path), clean=False)

    def view_schema(self, name: str) -> pa.Schema:
        """Schema of a view; OptionError with the names of the views when there is none called `name`."""
        return views.schema_of(name)

    def view(self, name: str, request: ScanRequest | None = None) -> Iterator[pa.RecordBatch]:
        """The rows of a view: `queues`, `segments`, `offsets` or `damage`."""
        self.view_schema(name)
        return views.rows_of(name, self.snapshot(), request or ScanRequest())

    def verify(self) -> Iterator[Finding]:
        """Everything that is wrong in the logs: all chunks are read."""
        return views.findings(self.snapshot())

    def begin_job(self, columns: Sequence[str] | None = None, application: str = "", **options: Any) -> WriteJob:
        """UnsupportedFormatError: only a running node writes streams."""
        del columns, application, options
        raise UnsupportedFormatError(
            f"UnsupportedFormatError: {self.path}: streams are not written; write classic queues (a vhost's "
            "directory), or publish to the running node that `rabbitmqctl start_app` brings up"
        )

    def close(self) -> None:
        """Nothing is held open; StoreClosedError afterwards."""
        self._closed = True
