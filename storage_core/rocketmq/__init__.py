"""The RocketMQ engine: a store directory read as a broker would read it, written as a broker would write it.

What lies at a path is asked with `looks_like_store`; `open_store` opens one store.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from storage_core.rocketmq.disk.directory import looks_like_store

if TYPE_CHECKING:
    from storage_core.rocketmq.store import RocketStore

__all__ = ["looks_like_store", "open_store"]


def open_store(path: str, options: Mapping[str, Any]) -> RocketStore:
    """The RocketMQ store in a directory. Raises OptionError."""
    from storage_core.rocketmq.store import RocketStore

    return RocketStore(path, options)
