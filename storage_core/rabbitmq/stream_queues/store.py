"""The streams of a node as a store: the folder with their directories, and access to snapshots and views.

Reading messages belongs to `snapshot`, the tables about the store to `views`. Source: docs/rabbitmq.md "Streams".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from storage_core.errors import OptionError
from storage_core.finding import Finding
from storage_core.rabbitmq.disk.settings import Settings
from storage_core.rabbitmq.read.node_queues import NodeQueues
from storage_core.rabbitmq.stream_queues import views
from storage_core.rabbitmq.stream_queues.snapshot import StreamQueuesSnapshot
from storage_core.rabbitmq.stream_queues.tail import StreamsTail
from storage_core.stream.tail import FollowedStore

OF_OTHER_QUEUES = ("recovery", "commit", "asof", *(name.lower() for name in Settings.__dataclass_fields__))
"""Options for queues of other types only, which the options of a whole node may include."""


class StreamQueuesStore(NodeQueues, FollowedStore):
    """The streams in the folder `path`, which holds a directory for each. `options`: `vhost`. Raises OptionError."""

    queue_type, what = "stream", "streams"
    log_version = "stream log version 1"
    views = views.VIEWS

    def __init__(self, path: str, options: Mapping[str, Any] | None = None) -> None:
        super().__init__(path)
        given = {name.lower(): value for name, value in (options or {}).items()}
        self._vhost = given.pop("vhost", None)
        for name, value in given.items():
            if name not in OF_OTHER_QUEUES:
                raise OptionError(name, str(value), "a store of streams has no such option")

    @property
    def virtual_hosts(self) -> frozenset[str]:
        """Virtual hosts of the streams, as far as the node's tables name them."""
        return frozenset(stream.vhost for stream in self.snapshot().streams if stream.vhost is not None)

    def snapshot(self) -> StreamQueuesSnapshot:
        """What the restarted node would serve from the folder as it is now."""
        self.check_open()
        return StreamQueuesSnapshot(self.path, self.name, self._vhost)

    def follow(self, names: Sequence[str] = ()) -> StreamsTail:
        """The store as Structured Streaming sees it."""
        del names
        self.check_open()
        return StreamsTail(self.path, self.name, self._vhost)

    def verify(self) -> Iterator[Finding]:
        """Everything that is wrong in the logs; all chunks are read."""
        return views.findings(self.snapshot())
