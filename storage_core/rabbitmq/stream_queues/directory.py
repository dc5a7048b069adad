"""Finds the streams in a node's folder: their directories, their names in the node's tables, and the node's release.

Source: docs/format/rabbitmq-streams.md 1, 6.1. Reading the files belongs to `stream_log`.
"""

from __future__ import annotations

import re
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
    """One stream's replica on this node. `folder` is its name below the store; `vhost` is None if no table names it.

    `has_log`: False if the tables name the stream and no segment or index of it is left, though no other node has it.
    """

    folder: str
    vhost: str | None
    queue: str
    declared: DeclaredQueue | None = None
    has_log: bool = True

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
    declared = node.queues_of_node(system.folder_above(root, 1))
    by_folder = {queue.directory: queue for queue in declared.values() if queue.directory is not None}
    found = []
    for entry in system.entries(root):
        stamped = _STAMPED.fullmatch(entry.name)
        if not entry.is_directory or not stamped or not _holds_log(f"{root}/{entry.name}"):
            continue
        queue = by_folder.pop(entry.name, None)
        if queue is None:
            found.append(StreamDirectory(entry.name, None, stamped[1]))
        else:
            found.append(StreamDirectory(entry.name, queue.vhost, queue.name, queue))
    found += [
        StreamDirectory(folder, queue.vhost, queue.name, queue, has_log=False)
        for folder, queue in by_folder.items() if queue.replicas == 1
    ]  # fmt: skip
    return sorted(found, key=lambda stream: (stream.vhost or "", stream.queue, stream.folder))


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
