"""ROOM 3a: the RocketMQ engine. Its door: what looks like a store, and opening one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from storage_core.rocketmq.listing import looks_like_store
from storage_core.store import Store

__all__ = ["looks_like_store", "open_store"]


def open_store(path: str, options: Mapping[str, Any]) -> Store:
    """Opens the RocketMQ store in a directory."""
    from storage_core.rocketmq.store import RocketStore

    return RocketStore(path, options)
