"""Where vhosts' stores lie: what looks like one, and those below a folder. Opens nothing and loads little.

Every opening of a store asks this, whatever its engine. Source: rabbitmq.md 1, interface.md 28.
"""

from __future__ import annotations

from storage_core.errors import StoreNotFoundError
from storage_core.files import system
from storage_core.formats.rabbitmq import paths


def looks_like_store(path: str) -> bool:
    """Whether `path` is a vhost's directory, under any name: a message store, or queues beside a vhost's own files."""
    names = names_in(path)
    if paths.PERSISTENT_FOLDER in names:
        return system.stat(f"{path}/{paths.PERSISTENT_FOLDER}").is_directory
    own = {paths.VHOST_FILE, paths.CONFIG_FILE, paths.RECOVERY_FILE}
    return paths.QUEUES_FOLDER in names and bool(names & own)


def stores_below(path: str) -> list[str]:
    """The vhost directories of a `vhosts` folder, of a `msg_stores` folder, or of a node's data directory, sorted."""
    for folder in (path, f"{path}/vhosts", f"{path}/msg_stores/vhosts"):
        found = [f"{folder}/{name}" for name in sorted(names_in(folder)) if looks_like_store(f"{folder}/{name}")]
        if found:
            return found
    return []


def names_in(path: str) -> frozenset[str]:
    """The names in a folder; none when it is not there. StoreNotFoundError when it may not be read."""
    try:
        return frozenset(system.names(path))
    except (FileNotFoundError, NotADirectoryError):
        return frozenset()
    except PermissionError:
        raise StoreNotFoundError(f"StoreNotFoundError: {path} may not be read; check its permissions") from None
