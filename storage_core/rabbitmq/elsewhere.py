"""What else a node keeps on its disk: quorum queues and streams, which are no classic queues and are not read.

Only recognises them, for an error that says so. Source: the data directory of a real 3.10.8 node with both.
"""

from __future__ import annotations

from storage_core.files import system

RAFT_LOG, STREAM_INDEX = b"RAWA", b"OSII"
QUORUM_CONFIG = b"friendly_name"
LEVELS, HEAD_BYTES = 2, 4096


def other_kind(path: str, levels: int = LEVELS) -> str | None:
    """`quorum queue` or `stream` when the directory, or one in it, is that of such queues; None for anything else."""
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
    """What a file's name and first bytes say."""
    if file.endswith(".index") and _head(file).startswith(STREAM_INDEX):
        return "stream"
    if file.endswith(".wal") and _head(file).startswith(RAFT_LOG):
        return "quorum queue"
    if file.endswith("/config") and QUORUM_CONFIG in _head(file):
        return "quorum queue"
    return None


def _head(file: str) -> bytes:
    try:
        descriptor = system.open_read(file)
    except OSError:
        return b""
    try:
        return system.pread(descriptor, HEAD_BYTES, 0)
    finally:
        system.close(descriptor)
