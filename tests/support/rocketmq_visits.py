"""A broker that visits a store in the middle of a write, after the guard was removed, and appends its own records.

Here mqstore plays the broker: without `.mqstore` it sees no unfinished job, recovers the store as a broker does and
continues at the end that it finds. `tests/real` does the same with the real stores.
"""

from __future__ import annotations

import shutil
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

from storage_core import open_store
from storage_core.rocketmq.write.commit_point import GUARD
from tests.reference.rocketmq_record import Log, NotARecord
from tests.support.rocketmq_files import queue_files
from tests.support.rocketmq_writes import rows

FILLER_SIZE = 0x7FFFFFFF


@contextmanager
def as_a_broker(directory: Path) -> Iterator[None]:
    """Hides all traces of mqstore's write within the block: the guard and `.mqstore`."""
    guard, notes, aside = directory / "commitlog" / GUARD, directory / ".mqstore", directory.parent / "aside"
    guard.unlink(missing_ok=True)
    if notes.exists():
        notes.rename(aside)
    try:
        yield
    finally:
        shutil.rmtree(notes, ignore_errors=True)
        if aside.exists():
            aside.rename(notes)


def foreign_rows(count: int) -> pa.Table:
    """The rows that the visitor appends, to the same queues as the job."""
    return rows(count, 5000, ("orders", "audit", "fresh"))


def visit(directory: Path, count: int, **geometry: int) -> None:
    """The visitor appends rows, stops cleanly, and leaves."""
    with as_a_broker(directory):
        engine = {} if (directory / "commitlog").exists() else {"engine": "rocketmq"}
        with open_store(str(directory), **engine) as store:
            store.append(foreign_rows(count), **geometry)


def served(directory: Path) -> dict[tuple[str, int, int], tuple[int, bytes]]:
    """Address and body of the record that each unit of each queue points to, as a broker serves it, without any further
    comparison.
    """
    log, found = Log(directory / "commitlog"), {}
    for path in queue_files(directory):
        data = path.read_bytes()
        for position in range(0, len(data), 20):
            physical_offset, size = struct.unpack_from(">qi", data, position)
            if size and size != FILLER_SIZE:
                at = path.parent.parent.name, int(path.parent.name), (int(path.name) + position) // 20
                try:
                    found[at] = physical_offset, log.row(physical_offset)["body"]
                except NotARecord:
                    continue
    return found
