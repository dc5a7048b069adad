"""The RabbitMQ engine: reads and writes a vhost directory as a node would, and reads quorum queues and streams.

`looks_like_store` and `stores_below` detect what a path holds; `open_store` opens one store.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from storage_core.rabbitmq.disk.detect import (
    looks_like_quorum,
    looks_like_store,
    looks_like_streams,
    other_kind,
    stores_below,
)

if TYPE_CHECKING:
    from storage_core.store import Store

__all__ = ["looks_like_store", "open_store", "other_kind", "stores_below"]


def open_store(path: str, options: Mapping[str, Any] | None = None) -> Store:
    """The store in the directory `path`. Raises StoreNotFoundError, OptionError, CorruptionError."""
    # Imported late: this package is also queried when a store of the other engine is opened, which must not wait.
    if looks_like_quorum(path.rstrip("/")):
        from storage_core.rabbitmq.quorum.store import QuorumStore

        return QuorumStore(path, options)
    if looks_like_streams(path.rstrip("/")):
        from storage_core.rabbitmq.stream_queues.store import StreamQueuesStore

        return StreamQueuesStore(path, options)
    from storage_core.rabbitmq.store import VhostStore

    return VhostStore(path, options)
