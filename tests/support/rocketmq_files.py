"""The files of a small RocketMQ store, for editing: nothing here uses mqstore's own code."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple


class RecordPlace(NamedTuple):
    """A record in its file: positions and sizes of the record and its body, and its physical offset in the log."""

    path: Path
    position: int
    size: int
    body_position: int
    body_size: int
    physical_offset: int


def log_files(store: Path) -> list[Path]:
    """The commit-log files, in order."""
    folder = store / "commitlog"
    return sorted(path for path in folder.iterdir() if path.name.isdigit()) if folder.is_dir() else []


def queue_files(store: Path) -> list[Path]:
    """The consume-queue files, sorted by topic, queue and base offset."""
    return sorted(path for path in (store / "consumequeue").glob("*/*/*") if path.name.isdigit())


def records(store: Path) -> Iterator[RecordPlace]:
    """Every record, in order; each file is read up to the first bytes that are not a record."""
    for path in log_files(store):
        data, at = path.read_bytes(), 0
        while at + 91 <= len(data):
            size, magic = struct.unpack_from(">iI", data, at)
            if magic not in (0xDAA320A7, 0xDAA320AB) or size <= 0:
                break
            flags = struct.unpack_from(">i", data, at + 36)[0]
            body = at + 72 + (20 if flags & 0x10 else 8) + (20 if flags & 0x20 else 8)
            yield RecordPlace(path, at, size, body, struct.unpack_from(">i", data, body - 4)[0], int(path.name) + at)
            at += size


def used_entries(path: Path) -> int:
    """The number of units of a queue file up to the last that is not zero."""
    data = path.read_bytes()
    return next((at // 20 + 1 for at in range((len(data) // 20 - 1) * 20, -1, -20) if any(data[at : at + 20])), 0)


def entry(store: Path, topic: str, queue_id: int, queue_offset: int) -> tuple[int, int] | None:
    """Physical offset and size of one unit, or None if no file contains it."""
    files = sorted((store / "consumequeue" / topic / str(queue_id)).glob("*"))
    for path in files:
        position = queue_offset * 20 - int(path.name)
        if 0 <= position <= path.stat().st_size - 20:
            with path.open("rb") as file:
                file.seek(position)
                physical_offset, size = struct.unpack(">qi", file.read(12))
                return physical_offset, size
    return None


def overwrite(path: Path, position: int, data: bytes) -> None:
    """Writes into a file, keeping its times."""
    before = path.stat()
    with path.open("r+b") as file:
        file.seek(position)
        file.write(data)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def flip_bit(path: Path, position: int, bit: int) -> None:
    """Flips one bit of the byte at a position, keeping the file's times."""
    with path.open("rb") as file:
        file.seek(position)
        (old,) = file.read(1)
    overwrite(path, position, bytes([old ^ 1 << bit]))
