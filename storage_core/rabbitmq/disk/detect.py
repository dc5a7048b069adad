"""Detects what a directory holds: a vhost's store, stores below it, or queues of a kind that is not read.

Imports little, as every opening of a store calls it, whatever the engine. Source: rabbitmq.md 1, interface.md 28; for
quorum queues and streams the data directory of a real 3.10.8 node with both.
"""

from __future__ import annotations

import re

from storage_core.errors import StoreNotFoundError
from storage_core.files import system
from storage_core.files.small_file import read_start
from storage_core.formats.rabbitmq import paths

RAFT_LOG, STREAM_INDEX = b"RAWA", b"OSII"
QUORUM_CONFIG = b"friendly_name"
LEVELS, HEAD_BYTES = 2, 4096
COORDINATION, QUORUM_FOLDER, STREAM_FOLDER, WAL_SUFFIX = "coordination", "quorum", "stream", ".wal"
RAFT_TABLES = frozenset({"names.dets", "meta.dets"})
_STREAM_NAME, _STREAM_FILE = re.compile(r".*_\d{16,20}"), re.compile(r"\d{20}\.(segment|index)")


def looks_like_store(path: str) -> bool:
    """Whether `path` is a store of any kind of queues."""
    return looks_like_vhost(path) or looks_like_quorum(path) or looks_like_streams(path)


def looks_like_streams(path: str) -> bool:
    """Whether `path` holds a node's streams: a directory for each, with its segments and indexes. In a node's data
    directory also if these are lost and only the directories are left.
    """
    folders = [name for name in sorted(names_in(path)) if _STREAM_NAME.fullmatch(name)]
    parent, _, name = path.rpartition("/")
    return any(any(map(_STREAM_FILE.fullmatch, names_in(f"{path}/{each}"))) for each in folders) or (
        bool(folders) and name == STREAM_FOLDER and COORDINATION in names_in(parent)
    )


def looks_like_quorum(path: str) -> bool:
    """Whether `path` holds a node's quorum queues: its write-ahead logs, which the stream coordinator has too."""
    if path.rsplit("/", 2)[-2:-1] == [COORDINATION]:
        return False
    names = names_in(path)
    return names >= RAFT_TABLES or any(name.endswith(WAL_SUFFIX) for name in names)


def looks_like_vhost(path: str) -> bool:
    """Whether `path` is a vhost's directory, under any name: a message store, or queues beside a vhost's own files."""
    names = names_in(path)
    if paths.PERSISTENT_FOLDER in names:
        return system.stat(f"{path}/{paths.PERSISTENT_FOLDER}").is_directory
    own = {paths.VHOST_FILE, paths.CONFIG_FILE, paths.RECOVERY_FILE}
    return paths.QUEUES_FOLDER in names and bool(names & own)


def stores_below(path: str) -> list[str]:
    """The stores in a node's data directory: those of vhosts, quorum queues and streams; in a folder between, only
    those of vhosts.
    """
    folder = f"{path}/{QUORUM_FOLDER}"
    quorum = [f"{folder}/{name}" for name in sorted(names_in(folder)) if looks_like_quorum(f"{folder}/{name}")]
    streams = f"{path}/{STREAM_FOLDER}"
    return vhosts_below(path) + quorum + ([streams] if looks_like_streams(streams) else [])


def node_directory(root: str) -> str:
    """The data directory of the node that the store `root` belongs to, if the store is in its place there: a vhost in
    `msg_stores/vhosts`, quorum queues in a folder of `quorum`, streams in `stream`.
    """
    above = root.split("/")
    return system.folder_above(root, 1 if above[-1] == STREAM_FOLDER else 2 if above[-2:-1] == [QUORUM_FOLDER] else 3)


def is_read_elsewhere(root: str, kind: str) -> bool:
    """Whether the node's data directory has another store beside the vhost's store `root` with queues of this kind."""
    looks_like = {"quorum": looks_like_quorum, "stream": looks_like_streams}.get(kind)
    return looks_like is not None and any(looks_like(path) for path in stores_below(node_directory(root)))


def vhosts_below(path: str) -> list[str]:
    """The vhost directories of a `vhosts` folder, of a `msg_stores` folder, or of a node's data directory, sorted."""
    for folder in (path, f"{path}/vhosts", f"{path}/msg_stores/vhosts"):
        found = [f"{folder}/{name}" for name in sorted(names_in(folder)) if looks_like_vhost(f"{folder}/{name}")]
        if found:
            return found
    return []


def names_in(path: str) -> frozenset[str]:
    """The names in a folder; empty if it does not exist. Raises StoreNotFoundError if it may not be read."""
    try:
        return frozenset(system.names(path))
    except (FileNotFoundError, NotADirectoryError):
        return frozenset()
    except PermissionError:
        raise StoreNotFoundError(f"StoreNotFoundError: {path} may not be read; check its permissions") from None


def other_kind(path: str, levels: int = LEVELS) -> str | None:
    """`quorum queue` or `stream` if the directory, or one in it, holds such queues; None for anything else."""
    try:
        found = sorted(system.entries(path), key=lambda entry: entry.name)
    except OSError:
        return None
    for entry in found:
        if not entry.is_directory and (kind := _kind_of(f"{path}/{entry.name}")):
            return kind
    for entry in found:
        if levels and entry.is_directory and (kind := other_kind(f"{path}/{entry.name}", levels - 1)):
            return kind
    return None


def _kind_of(file: str) -> str | None:
    """The kind of queue that a file's name and first bytes indicate."""
    if file.endswith(".index") and _head(file).startswith(STREAM_INDEX):
        return "stream"
    if file.endswith(".wal") and _head(file).startswith(RAFT_LOG):
        return "quorum queue"
    if file.endswith("/config") and QUORUM_CONFIG in _head(file):
        return "quorum queue"
    return None


def _head(file: str) -> bytes:
    try:
        return read_start(file, HEAD_BYTES)
    except OSError:
        return b""
