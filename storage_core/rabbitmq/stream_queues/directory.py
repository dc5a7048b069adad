"""Finds the streams in a node's folder: their directories, their names in the node's tables, and the node's release.

Source: docs/format/rabbitmq-streams.md 1, 6.1. Reading the files belongs to `stream_log`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from storage_core.errors import FormatError, StoreNotFoundError
from storage_core.files import system
from storage_core.formats.rabbitmq.stream_queues import log_files
from storage_core.rabbitmq.disk import khepri, node
from storage_core.rabbitmq.disk.detect import COORDINATION, WAL_SUFFIX, names_in
from storage_core.rabbitmq.disk.node import DeclaredQueue
from storage_core.rabbitmq.disk.span_reader import read_short_file

_STAMPED = re.compile(r"(.*)_\d{16,20}")
_FLAGS_SUFFIX, _CONTAINERS = "-feature_flags", b"message_containers"
_WAL_DIGITS = 16
"""In the names of write-ahead logs since 4.1; before, 8."""


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
    by_folder = _declared_by_folder(root)
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
    return in_order(found)


def in_order(streams: Iterable[StreamDirectory]) -> list[StreamDirectory]:
    """The streams by virtual host and name."""
    return sorted(streams, key=lambda stream: (stream.vhost or "", stream.queue, stream.folder))


def streams_without_log(root: str) -> list[StreamDirectory]:
    """The streams that the node's tables name, of which no log is left here although no other node has a replica."""
    return [
        StreamDirectory(folder, queue.vhost, queue.name, queue)
        for folder, queue in _declared_by_folder(root).items()
        if queue.replicas == 1 and not (system.exists(f"{root}/{folder}") and _holds_log(f"{root}/{folder}"))
    ]


def _declared_by_folder(root: str) -> dict[str, DeclaredQueue]:
    declared = node.queues_of_node(system.folder_above(root, 1))
    return {queue.directory: queue for queue in declared.values() if queue.directory is not None}


def node_is_of_3_13(root: str) -> bool:
    """Whether the streams below `root` are known to be of a node of 3.13 or later: from the names of its write-ahead
    logs, its metadata in Khepri, or its feature flags, which are in a file beside the node's data directory.
    """
    folder = system.folder_above(root, 1)
    systems = f"{folder}/{COORDINATION}"
    names = [name for system_name in names_in(systems) for name in names_in(f"{systems}/{system_name}")]
    if any(name.endswith(WAL_SUFFIX) and len(name) == _WAL_DIGITS + len(WAL_SUFFIX) for name in names):
        return True
    if khepri.servers(folder):
        return True
    try:
        # What lies beside a store at a URI is not looked for.
        return system.is_local(root) and _CONTAINERS in read_short_file(folder + _FLAGS_SUFFIX)
    except (FormatError, StoreNotFoundError, OSError):
        return False


def _holds_log(path: str) -> bool:
    return any(log_files.first_offset(name) is not None for name in system.names(path))
