"""`cat --follow`: looks at stores again and again, and reads what came to their queues since.

What is safe to read is for the engine's recovery to say: a snapshot ends before a message that is still being written.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import pyarrow as pa

from command_line.selection import Chosen
from storage_core.errors import OptionError
from storage_core.store import EARLIEST, LATEST, OffsetBound, QueueKey, Scan, Snapshot


def check_follow(chosen: Sequence[Chosen]) -> None:
    """OptionError for what cannot be followed."""
    for each in chosen:
        if each.named.holds_queues_only:
            raise OptionError("--follow", "", "is for RocketMQ: a RabbitMQ node removes messages as they are consumed")
        if each.request.scan is Scan.LOG:
            raise OptionError("--follow", "", "reads through the queues; leave out --scan log")
        if each.request.stop != OffsetBound(LATEST) or each.request.stop_ms is not None:
            raise OptionError("--follow", "", "has no end; leave out --stop and --to")


def followed(
    chosen: Sequence[Chosen], interval_s: float, pause: Callable[[float], None] = time.sleep
) -> Iterator[pa.RecordBatch]:
    """What comes to the selected queues after the snapshots of `chosen`, for ever. Before each look it pauses.

    Raises what planning and reading raise.
    """
    known = [_ends(each.snapshot) for each in chosen]
    while True:
        pause(interval_s)
        for number, each in enumerate(chosen):
            snapshot = each.named.store.snapshot()
            ends = _ends(snapshot)
            grown = any(stop > known[number].get(key, -1) for key, stop in ends.items())
            if grown:
                # A queue that is shorter than before was cut by a broker's start: what comes there now is new.
                starts = {key: min(known[number][key], stop) for key, stop in ends.items() if key in known[number]}
                request = replace(each.request, start=OffsetBound(EARLIEST, starts))
                for partition in snapshot.plan(request):
                    yield from partition.read()
            known[number] = dict(ends)


def _ends(snapshot: Snapshot) -> Mapping[QueueKey, int]:
    return {(info.topic, info.queue_id): info.stop for info in snapshot.queues()}
