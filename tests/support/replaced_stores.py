"""Stores that replace another one under the same path, with files of the same names, sizes and times."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa

from storage_core import open_store
from tests.support.rocketmq_orders import orders


def crashed_store(store: Path, body_size: int, count: int) -> Path:
    """A store as a crashed broker leaves it. Its files have the same names, regardless of its messages."""
    rows = orders(range(count), queues=4)
    bodies = pa.array([b"x" * body_size] * count, pa.binary())
    with open_store(str(store), "rocketmq") as opened:
        rows = rows.set_column(rows.schema.get_field_index("body"), "body", bodies)
        opened.append(rows, commitLogFileSize=400_000, indexSlots=50, indexEntries=2_000)
    next((store / "index").iterdir()).rename(store / "index" / "20261122000000000")
    shutil.rmtree(store / ".mqstore")
    (store / "abort").touch()
    for path in store.rglob("*"):
        os.utime(path, ns=(1, 1))
    return store


def write_over(store: Path, other: Path) -> None:
    """Overwrites each file of a store with the content of another store's file: the files stay, as with a broker."""
    for path in sorted(other.rglob("*")):
        if path.is_file():
            with (store / path.relative_to(other)).open("r+b") as file:
                file.write(path.read_bytes())


def _renamed(store: Path, other: Path) -> None:
    store.rename(store.with_name("aside"))
    other.rename(store)


def _copied(store: Path, other: Path) -> None:
    shutil.rmtree(store)
    shutil.copytree(other, store)


REPLACED: dict[str, Callable[[Path, Path], None]] = {
    "renamed": _renamed,
    "copied": _copied,
    "written over": write_over,
}
