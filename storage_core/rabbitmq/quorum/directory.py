"""Finds the quorum queues in a node's folder: their directories, their files, and the node's tables about them.

Source: docs/format/rabbitmq-quorum.md 1 and 2. Reading the log files belongs to `raft_log`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from storage_core.errors import FormatError
from storage_core.files import system
from storage_core.formats.rabbitmq.erlang import dets
from storage_core.formats.rabbitmq.quorum import server_config
from storage_core.formats.rabbitmq.quorum.server_config import ServerConfig
from storage_core.rabbitmq.disk.damage import Damage
from storage_core.rabbitmq.disk.raft_log import SEGMENT, SNAPSHOTS, files_named
from storage_core.rabbitmq.disk.span_reader import read_short_file, read_table

CONFIG, META = "config", "meta.dets"


@dataclass(frozen=True)
class QueueDirectory:
    """One quorum queue's member on this node. `folder` is its name below the store and its uid; `damages` are those of
    its config, because of which a node does not serve it.
    """

    folder: str
    config: ServerConfig
    damages: tuple[Damage, ...] = ()

    @property
    def uid(self) -> bytes:
        """Its identifier in write-ahead logs and tables."""
        return self.folder.encode()

    @property
    def name(self) -> tuple[str, str]:
        """Virtual host and queue."""
        return self.config.vhost, self.config.queue

    @property
    def is_single(self) -> bool:
        """Whether the queue was declared with one member."""
        return len(self.config.members) == 1


def list_queues(root: str) -> tuple[list[QueueDirectory], list[Damage]]:
    """All quorum queues below `root`, by virtual host and name, and a damage for each folder whose queue is unknown
    because its config is missing, empty or damaged, by name of the folder.
    """
    found, lost = [], []
    for entry in sorted(system.entries(root), key=lambda entry: entry.name):
        if not entry.is_directory:
            continue
        path = f"{entry.name}/{CONFIG}"
        try:
            data = read_short_file(f"{root}/{path}")
            if not data:
                lost.append(
                    Damage(path, 0, 0, "config", "the config is gone or empty: whose log this is nothing tells")
                )
                continue
            config = server_config.parse(data)
        except FormatError as error:
            lost.append(Damage(path, error.position, 0, "config", f"the config cannot be read: {error.reason}"))
            continue
        if config is not None:
            found.append(QueueDirectory(entry.name, config, _damages(path, entry.name, config)))
    return sorted(found, key=lambda queue: (queue.name, queue.folder)), lost


def _damages(path: str, folder: str, config: ServerConfig) -> tuple[Damage, ...]:
    flaw = config.flaw
    if config.uid != folder.encode():
        flaw = f"the config is of the server {config.uid.decode('utf-8', 'replace')}, and its folder is another one's"
    return (Damage(path, 0, 0, "config", flaw, harmless=True),) if flaw else ()


def has_log(folder: str) -> bool:
    """Whether a queue's folder has segments or snapshots. Without them its entries, if any, are in write-ahead logs."""
    return bool(files_named(folder, SEGMENT) or files_named(f"{folder}/{SNAPSHOTS}", ""))


def last_applied(root: str) -> Mapping[bytes, int]:
    """The last applied index by uid, as last recorded by the node; empty if its table is missing or cannot be read."""
    try:
        rows = dets.decode(read_table(f"{root}/{META}", *dets.HEAD))
    except FormatError:
        return {}
    return {
        row[0]: row[3]
        for row in rows
        if isinstance(row, tuple) and len(row) == 4 and isinstance(row[0], bytes) and isinstance(row[3], int)
    }
