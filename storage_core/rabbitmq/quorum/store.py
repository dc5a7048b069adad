"""The quorum queues of a node as a store: the folder with its write-ahead logs, and the way to snapshots and views.

Leaves to `snapshot` what it serves, to `views` the tables about it. Source: docs/rabbitmq.md "Quorum queues".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from storage_core.errors import OptionError, StoreClosedError, UnsupportedFormatError
from storage_core.finding import Finding
from storage_core.rabbitmq.disk.running_node import is_running
from storage_core.rabbitmq.disk.settings import Settings
from storage_core.rabbitmq.quorum import views
from storage_core.rabbitmq.quorum.snapshot import QuorumSnapshot, Reading
from storage_core.store import ScanRequest, Store, StoreState, WriteJob

COMMITS = ("end", "applied")


class QuorumStore(Store):
    """The quorum queues in the folder `path`, which holds write-ahead logs and a folder for each queue.

    `options`: `commit` (`end`: every entry of the log counts, as for a node that wins its election; `applied`: only
    what is committed for sure), `asOf` (ms since 1970: leave out what had expired by then), `vhost`. Raises
    OptionError.
    """

    engine = "rabbitmq"
    queue_type = "quorum"

    def __init__(self, path: str, options: Mapping[str, Any] | None = None) -> None:
        self.path = path.rstrip("/") or "/"
        given = {name.lower(): value for name, value in (options or {}).items()}
        commit = str(given.pop("commit", "end")).lower()
        if commit not in COMMITS:
            raise OptionError("commit", commit, f"it is one of {', '.join(COMMITS)}")
        self._vhost = given.pop("vhost", None)
        for name in ("recovery", *Settings.__dataclass_fields__):
            # What concerns classic queues alone may stand in the options of a whole node.
            given.pop(name.lower(), None)
        self._reading = Reading(commit == "applied", _moment(given.pop("asof", None)))
        for name, value in given.items():
            raise OptionError(name, str(value), "a store of quorum queues has no such option; it has commit and asOf")
        self._closed = False

    @property
    def virtual_hosts(self) -> frozenset[str]:
        """Virtual hosts of the queues."""
        return frozenset(queue.config.vhost for queue in self.snapshot().directories)

    def snapshot(self) -> QuorumSnapshot:
        """What the restarted node would serve from the folder as it is now."""
        if self._closed:
            raise StoreClosedError(f"{self.path}: the store was closed; open it again")
        return QuorumSnapshot(self.path, self.name, self._reading, self._vhost)

    def state(self) -> StoreState:
        """Whether a node runs here. A write-ahead log does not tell how its node stopped."""
        return StoreState(version="raft machine version 2", running=is_running(self.path), clean=False)

    def view_schema(self, name: str) -> pa.Schema:
        """Schema of a view; OptionError with the names of the views when there is none called `name`."""
        return views.schema_of(name)

    def view(self, name: str, request: ScanRequest | None = None) -> Iterator[pa.RecordBatch]:
        """The rows of a view: `queues`, `segments`, `raft` or `damage`."""
        self.view_schema(name)
        return views.rows_of(name, self.snapshot(), request or ScanRequest())

    def verify(self) -> Iterator[Finding]:
        """Everything that is wrong in the logs."""
        return views.findings(self.snapshot())

    def begin_job(self, columns: Sequence[str] | None = None, application: str = "", **options: Any) -> WriteJob:
        """UnsupportedFormatError: only a running node writes quorum queues."""
        del columns, application, options
        raise UnsupportedFormatError(
            f"UnsupportedFormatError: {self.path}: quorum queues are not written; write classic queues (a vhost's "
            "directory), or publish to the running node that `rabbitmqctl start_app` brings up"
        )

    def close(self) -> None:
        """Nothing is held open; StoreClosedError afterwards."""
        self._closed = True


def _moment(value: Any) -> int | None:
    if value is None:
        return None
    try:
        return int(value)
    except (TypeError, ValueError):
        raise OptionError("asOf", str(value), "it is a moment in milliseconds since 1970") from None
