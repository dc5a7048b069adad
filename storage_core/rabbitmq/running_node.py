"""Whether a RabbitMQ node works on a vhost directory at this moment: then nobody else may write there.

Source: DESIGN 6, "Write".
"""

from __future__ import annotations

import os

from storage_core.errors import StoreLockedError
from storage_core.files import system

_ADVICE = "stop the node first, or write to a copy"


def refuse_running_node(root: str) -> None:
    """StoreLockedError when the node that owns the vhost directory `root` runs."""
    node = os.path.dirname(os.path.dirname(os.path.dirname(system.real_path(root))))
    pid = _noted_pid(f"{node}.pid")
    if pid is not None and system.process_start(pid) is not None:
        raise StoreLockedError(f"StoreLockedError: {root} is locked by a running node (process {pid}); {_ADVICE}")
    found = system.holders_below(root)
    if found:
        raise StoreLockedError(f"StoreLockedError: {root} is locked: process {found[0]} has it open; {_ADVICE}")


def _noted_pid(path: str) -> int | None:
    try:
        descriptor = system.open_read(path)
    except OSError:
        return None
    try:
        text = system.pread(descriptor, 32, 0).strip()
    finally:
        system.close(descriptor)
    return int(text) if text.isdigit() else None
