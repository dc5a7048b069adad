"""The quorum queues of a node as a store: the folder with its write-ahead logs, and access to snapshots and views.

Reading messages belongs to `snapshot`, the tables about the store to `views`. Source: docs/rabbitmq.md "Quorum queues".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from storage_core.errors import OptionError
from storage_core.finding import Finding
from storage_core.rabbitmq.disk.settings import Settings
from storage_core.rabbitmq.quorum import views
from storage_core.rabbitmq.quorum.snapshot import QuorumSnapshot, Reading
from storage_core.rabbitmq.read.node_queues import NodeQueues

COMMITS = ("end", "applied")


class QuorumStore(NodeQueues):
    """The quorum queues in the folder `path`, which holds write-ahead logs and a folder for each queue.

    `options`: `commit` (`end`: every entry of the log counts, as for a node that wins its election; `applied`: only
    entries known to be committed), `asOf` (ms since 1970: leave out messages that had expired by then), `vhost`. Raises
    OptionError.
    """

    queue_type, what = "quorum", "quorum queues"
    log_version = "raft log"
    views = views.VIEWS

    def __init__(self, path: str, options: Mapping[str, Any] | None = None) -> None:
        super().__init__(path)
        given = {name.lower(): value for name, value in (options or {}).items()}
        commit = str(given.pop("commit", "end")).lower()
        if commit not in COMMITS:
            raise OptionError("commit", commit, f"it is one of {', '.join(COMMITS)}")
        self._vhost = given.pop("vhost", None)
        for name in ("recovery", *Settings.__dataclass_fields__):
            # The options of a whole node may include some for classic queues only.
            given.pop(name.lower(), None)
        self._reading = Reading(commit == "applied", _moment(given.pop("asof", None)))
        for name, value in given.items():
            raise OptionError(name, str(value), "a store of quorum queues has no such option; it has commit and asOf")

    @property
    def virtual_hosts(self) -> frozenset[str]:
        """Virtual hosts of the queues."""
        return frozenset(queue.config.vhost for queue in self.snapshot().directories)

    def snapshot(self) -> QuorumSnapshot:
        """What the restarted node would serve from the folder as it is now."""
        self.check_open()
        return QuorumSnapshot(self.path, self.name, self._reading, self._vhost)

    def verify(self) -> Iterator[Finding]:
        """Everything that is wrong in the logs."""
        return views.findings(self.snapshot())


def _moment(value: Any) -> int | None:
    if value is None:
        return None
    try:
        return int(value)
    except (TypeError, ValueError):
        raise OptionError("asOf", str(value), "it is a moment in milliseconds since 1970") from None
