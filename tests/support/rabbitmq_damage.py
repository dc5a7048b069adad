"""Finds and changes bytes of a RabbitMQ store."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from storage_core.formats.rabbitmq import paths
from tests.rabbitmq import golden


def queue_file(store: Path, queue: str, name: str) -> Path:
    return store / "queues" / paths.queue_directory(b"/", queue.encode()) / name


def edit(path: Path, change: Callable[[bytearray], None]) -> None:
    data = bytearray(path.read_bytes())
    change(data)
    path.write_bytes(bytes(data))


def first_record(store: Path, queue: str) -> tuple[Path, int]:
    """File and position of the first message of `queue` that is in the message store."""
    rows = golden.by_queue(golden.table(store, columns=("queue", "location", "file", "position")))[queue]
    row = next(row for row in rows if row["location"] == "store")
    return store / row["file"], row["position"]
