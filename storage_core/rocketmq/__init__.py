"""The RocketMQ engine: reads and writes a store directory as a broker would.

`looks_like_store` detects a store at a path; `open_store` opens one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from storage_core.rocketmq.disk.directory import looks_like_store

if TYPE_CHECKING:
    from storage_core.rocketmq.store import RocketStore

__all__ = ["looks_like_store", "open_store"]


def open_store(path: str, options: Mapping[str, Any]) -> RocketStore:
    """Opens the RocketMQ store in a directory. Raises OptionError."""
    from storage_core.rocketmq.store import RocketStore

    return RocketStore(path, options)
