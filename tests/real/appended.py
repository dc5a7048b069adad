"""A random table, written in several tasks."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from storage_core import open_store
from storage_core.store import Scan
from tests.real.written_rows import TOPICS, table
from tests.reference.served import AS_BROKER, Row, in_partitions, read


def append(
    directory: Path, r: random.Random, file_size: int, topics: tuple[str, ...] = TOPICS, **options: Any
) -> list[dict[str, Any]]:
    """Writes a random table in several tasks; returns its rows."""
    there = (directory / "commitlog").exists()
    engine = {} if there else {"engine": "rocketmq"}
    end = (
        max((row["physicalOffset"] + row["size"] for row in log_physical_offsets(directory)), default=0) if there else 0
    )
    with open_store(str(directory), **engine) as store:
        job = store.begin_job(**options)
        parts, rows = [], []
        for partition in range(r.choice((1, 1, 3))):
            data, made, end = table(r, file_size, r.choice((0, 1, 30, 200)), end, topics)
            parts.append(job.stage(iter(data.to_batches(max_chunksize=r.choice((7, 1000)))), partition))
            rows += made
        assert job.commit(parts) == len(rows)
    return rows


def log_physical_offsets(directory: Path) -> list[Row]:
    """Address and size of every record in the log."""
    return read(directory, in_partitions(1, scan=Scan.LOG, columns=("physicalOffset", "size"), **AS_BROKER))
