"""A stream that reads a live broker's directory: `python -m tests.real.live_reader STORE SIZE`.

It checks every row as it arrives: the next number of its queue, and the complete body. It accepts the commands `on`,
`off` and `end` on stdin, and prints the number of rows read from each queue after each trigger that found none.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter
from pathlib import Path
from select import select

import pyarrow as pa

from tests.support.stream_query import Query

INTERVAL_S = 0.1


def check(table: pa.Table, size: int, read: Counter[int]) -> None:
    """Adds the rows of a table to `read`. Raises AssertionError for a row that is missing, duplicated or torn."""
    table = table.sort_by([("queueId", "ascending"), ("queueOffset", "ascending")])
    queues, offsets, bodies = (table[name].to_pylist() for name in ("queueId", "queueOffset", "body"))
    for queue, offset, body in zip(queues, offsets, bodies, strict=True):
        number = read[queue]
        assert offset == number, f"queue {queue}: offset {offset} after {number} rows"
        assert body == f"{queue} {number} ".encode().ljust(size, b"x"), f"queue {queue}: {number} is {body[:20]!r}"
        read[queue] = number + 1


def main(store: Path, size: int) -> None:
    """Reads until `end` arrives on stdin."""
    query = Query(store, {"topic": "load", "columns": "queueId,queueOffset,body"})
    query.start()
    read: Counter[int] = Counter()
    on, triggers, slowest = True, 0, 0.0
    while True:
        started = time.monotonic()
        found = on and query.trigger()
        if found:
            check(query.tables.pop(), size, read)
            triggers, slowest = triggers + 1, max(slowest, time.monotonic() - started)
        elif on:
            print(json.dumps({"read": read, "triggers": triggers, "slowest": slowest}), flush=True)
        if select([0], [], [], max(0.0, started + INTERVAL_S - time.monotonic()))[0]:
            commands = os.read(0, 4096).decode().split()
            if not commands or "end" in commands:
                return
            on = commands[-1] == "on"


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
