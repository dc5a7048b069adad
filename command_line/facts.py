"""A store at a glance: how it was left, its messages and times, lag and files, as `info --json` prints it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress

from command_line.stores import NamedStore
from command_line.views import Row, group_rows, store_rows
from command_line.wording import error_text, in_switches
from storage_core.errors import UnsupportedFormatError
from storage_core.store import Store

BLOCK = 512
"""Bytes per block in which the system counts the disk space of a file."""


def store_info(named: NamedStore) -> Row:
    """The facts of one store. Raises the errors of its views."""
    store = named.store
    state = store.state()
    return {
        "store": named.name, "path": store.path, "engine": store.engine, "version": state.version,
        "vhost": store.virtual_host, "running": state.running, "clean": state.clean,
        "unfinishedWrite": state.unfinished_write, "cutBytes": state.cut_bytes, "cutOffset": state.cut_offset,
        "repairable": state.repairable and not state.running, "replicated": state.replicated,
        **_messages(named), **_groups(named), **_files(store),
        "notes": [in_switches(text) for text in store.snapshot().warnings()],
    }  # fmt: skip


def _messages(named: NamedStore) -> Row:
    """Sums over the queues; the reason if they cannot be read."""
    try:
        queues = store_rows(named, "queues")
    except UnsupportedFormatError as error:
        return {"unreadable": error_text(error)}
    sums = {name: sum(row.get(name) or 0 for row in queues) for name in ("messages", "bytes", "unacknowledged")}
    first = [row["firstStoreTimestamp"] for row in queues if row.get("firstStoreTimestamp")]
    last = [row["lastStoreTimestamp"] for row in queues if row.get("lastStoreTimestamp")]
    return {
        "queues": len(queues), "topics": len({row["topic"] for row in queues}) if not named.holds_queues_only else None,
        **sums, "firstStoreTimestamp": min(first, default=None), "lastStoreTimestamp": max(last, default=None),
    }  # fmt: skip


def _groups(named: NamedStore) -> Row:
    if (rows := group_rows(named)) is None:
        return {"groups": None, "lag": None}
    return {"groups": len({row["group"] for row in rows}), "lag": sum(row["lag"] for row in rows)}


def _files(store: Store) -> Row:
    """The number of files, their total length, and their disk space, which is less if files are sparse."""
    sizes = store.object_sizes()
    if sizes is not None:
        return {"files": len(sizes), "fileBytes": sum(sizes), "diskBytes": sum(sizes)}
    found = list(_stats(store.path))
    return {
        "files": len(found),
        "fileBytes": sum(each.st_size for each in found),
        "diskBytes": sum(each.st_blocks for each in found) * BLOCK,
    }


def _stats(path: str) -> Iterator[os.stat_result]:
    """The status of each file below a path; files that a broker removes meanwhile are left out."""
    for folder, _, names in os.walk(path):
        for name in names:
            with suppress(OSError):
                yield os.stat(os.path.join(folder, name))
