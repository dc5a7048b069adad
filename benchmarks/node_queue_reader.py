"""Reads columns of a store in a process of its own: `node_queue_reader STORE COLUMNS` prints the row count, the CPU
seconds, and the bytes by which its memory grew. Empty COLUMNS means all of them.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pyarrow.compute  # noqa: F401 - part of an idle process

from storage_core import open_store
from storage_core.store import ScanRequest


def peak_size() -> int:
    """The peak memory of this process, in bytes."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024


def main(path: str, columns: str) -> None:
    """Reads every batch and keeps none."""
    before, start = peak_size(), time.process_time()
    with open_store(path) as store:
        plan = store.snapshot().plan(ScanRequest(columns=tuple(columns.split(",")) if columns else None))
        rows = sum(batch.num_rows for partition in plan for batch in partition.read())
    print(rows, time.process_time() - start, peak_size() - before)


if __name__ == "__main__":
    main(*sys.argv[1:])
