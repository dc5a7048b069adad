"""Stores in which startup appends entries to a queue in front of stale ones: written by mqstore, then damaged."""

from __future__ import annotations

import shutil
import struct
from pathlib import Path

import pyarrow as pa

from storage_core import open_store
from tests.support.rocketmq_files import overwrite, records

ENTRY = 20
LOG_SIZE = 1_000
QUEUE_SIZE = 20 * ENTRY
ORDERS = 11
"""Messages 0 to 10 of the log are in `orders` 0; number 11, the last one, is in `audit` 0. Four fill a log file."""

KINDS = {
    "all of them": [0, 1, 8, 9, 10, 5, 6, 7, 8, 9, 10],
    "one has no size": [0, 1, 8, 9, 10, 5, 6, 7],
    "one has a negative address": [0, 1, 8, 9, 10, 5, 6],
    "one points after the end of the log": [0, 1, 8, 9, 10, 5, 6, 7, 8],
    "the first is empty": [0, 1, 8, 9, 10],
    "the log ends before the last": [0, 1, 8, 9, 4, 5, 6, 7, 8, 9],
    "no queue lists the last record": [0, 1, 8, 9, 10],
}
"""What the stale entries are like, and the numbers of the messages that a broker serves from `orders`."""


def stale_store(folder: Path, kind: str) -> Path:
    """Makes a crashed store whose checkpoint makes recovery scan only the last log file, from message 8 on. Entry 2 of
    `orders` is not valid.
    """
    store = folder / "store"
    rows = pa.table({
        "topic": ["orders"] * ORDERS + ["audit"],
        "queueId": pa.array([0] * (ORDERS + 1), pa.int32()),
        "body": [b"x" * 100] * (ORDERS + 1),
        "key": [f"k{number}" for number in range(ORDERS + 1)],
    })  # fmt: skip
    with open_store(str(store), "rocketmq") as opened:
        geometry = {"consumeQueueFileEntries": QUEUE_SIZE // ENTRY, "indexSlots": 50, "indexEntries": 100}
        opened.append(rows, commitLogFileSize=LOG_SIZE, **geometry)
    shutil.rmtree(store / ".mqstore")
    (store / "abort").touch()
    overwrite(store / "checkpoint", 0, struct.pack(">3q", *[1 << 60] * 3))
    orders, audit = (store / "consumequeue" / topic / "0" / f"{0:020}" for topic in ("orders", "audit"))
    overwrite(orders, 2 * ENTRY, struct.pack(">q", -1))
    if kind == "one has no size":
        overwrite(orders, 8 * ENTRY + 8, bytes(4))
    elif kind == "one has a negative address":
        overwrite(orders, 7 * ENTRY, struct.pack(">q", -5))
    elif kind == "one points after the end of the log":
        overwrite(orders, 9 * ENTRY, struct.pack(">q", 1 << 40))
    elif kind == "the first is empty":
        overwrite(orders, 5 * ENTRY, bytes(ENTRY))
    elif kind == "the log ends before the last":
        last = list(records(store))[ORDERS - 1]
        overwrite(last.path, last.position + 60, bytes(last.size - 60))
    elif kind == "no queue lists the last record":
        overwrite(audit, 0, bytes(ENTRY))
    return store
