"""Copies of a store's log made with `preserve`, and the bytes of stores for comparison."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

from storage_core import open_store
from storage_core.store import Scan, ScanRequest
from tests.reference.rocketmq_record import _read_without_tail_hole


def write_options(settings: dict[str, Any]) -> dict[str, Any]:
    """The options of a new store with a broker's settings."""
    found = {
        "commitLogFileSize": settings.get("mappedFileSizeCommitLog"),
        # A broker rounds the size of its queue files up to whole units.
        "consumeQueueFileEntries": -(-settings["mappedFileSizeConsumeQueue"] // 20)
        if "mappedFileSizeConsumeQueue" in settings
        else None,
        "indexSlots": settings.get("maxHashSlotNum"),
        "indexEntries": settings.get("maxIndexNum"),
    }
    return {name: value for name, value in found.items() if value is not None}


def read_log(directory: Path, partitions: int = 1) -> list[pa.Table]:
    """All rows of the log as they are stored, one table for each partition."""
    request = ScanRequest(scan=Scan.LOG, decompress=False, min_partitions=partitions)
    with open_store(str(directory)) as store:
        schema = store.snapshot().schema(request)
        return [pa.Table.from_batches(list(p.read()), schema) for p in store.snapshot().plan(request)]


def copy_log(source: Path, target: Path, options: dict[str, Any], partitions: int = 1) -> int:
    with open_store(str(target), "rocketmq", **options) as store:
        job = store.begin_job(preserve="true")
        tables = read_log(source, partitions)
        parts = [job.stage(iter(table.to_batches()), number) for number, table in enumerate(tables)]
        return job.commit(parts[::-1])


def contents(directory: Path, kind: str) -> list[tuple[str, bytes]]:
    """Files of one kind by name, up to their last nonzero byte; index files, which are named by time, by their rank."""
    paths = sorted(path for path in (directory / kind).rglob("*") if path.is_file() and path.name.isdigit())
    names = [str(n) if kind == "index" else str(path.relative_to(directory)) for n, path in enumerate(paths)]
    return [(f"{name} {path.stat().st_size}", used_bytes(path)) for name, path in zip(names, paths, strict=True)]


def used_bytes(path: Path) -> bytes:
    """The bytes of a file without trailing zeros and, for a full log file, without what follows the blank record."""
    return _read_without_tail_hole(path).rstrip(b"\0")


def drop_unused(files: list[tuple[str, bytes]]) -> list[tuple[str, bytes]]:
    """The files without those that were preallocated and never used."""
    return [(name, data) for name, data in files if data]
