"""Finds the streams in a node's folder: their directories, and their names in the node's tables.

Source: docs/format/rabbitmq-streams.md 1. Reading the files belongs to `stream_log`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from storage_core.files import system
from storage_core.formats.rabbitmq.stream_queues import log_files
from storage_core.rabbitmq.disk import node
from storage_core.rabbitmq.disk.node import DeclaredQueue

_STAMPED = re.compile(r"(.*)_\d{16,20}")


@dataclass(frozen=True)
class StreamDirectory:
    """One stream's replica on this node. `folder` is its name below the store; `vhost` is None if no table names it."""

    folder: str
    vhost: str | None
    queue: str
    declared: DeclaredQueue | None = None

    @property
    def declared_ns(self) -> int:
        """When the stream was declared, according to the name of its directory."""
        return int(self.folder.rpartition("_")[2])

    @property
    def replicas(self) -> int:
        """How many nodes have the stream, as far as known."""
        return 1 if self.declared is None else self.declared.replicas


def list_streams(root: str) -> list[StreamDirectory]:
    """All streams below `root`, by virtual host and name; one that no node table names is named after its directory."""
    declared = node.queues_of_node(root.rsplit("/", 1)[0])
    by_folder = {queue.directory: queue for queue in declared.values() if queue.directory is not None}
    found = []
    for entry in system.entries(root):
        stamped = _STAMPED.fullmatch(entry.name)
        if not entry.is_directory or not stamped or not _holds_log(f"{root}/{entry.name}"):
            continue
        queue = by_folder.get(entry.name)
        if queue is None:
            found.append(StreamDirectory(entry.name, None, stamped[1]))
        else:
            found.append(StreamDirectory(entry.name, queue.vhost, queue.name, queue))
    return sorted(found, key=lambda stream: (stream.vhost or "", stream.queue, stream.folder))


def _holds_log(path: str) -> bool:
    return any(log_files.first_offset(name) is not None for name in system.names(path))
