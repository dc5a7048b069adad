"""Sums over queues: how many messages, how many bytes, from when to when. Reads units, and two records a queue."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from storage_core.files.window import OpenFiles, Window
from storage_core.formats.rocketmq.message import BORN_HOST_V6, HEADER
from storage_core.rocketmq.queue_scan import QueueScan
from storage_core.rocketmq.rows import Found
from storage_core.rocketmq.snapshot import RocketSnapshot
from storage_core.store import Mode, QueueKey, ScanRequest


@dataclass
class QueueTotal:
    """Readable messages of one queue; `first` and `last` are physical offsets."""

    messages: int = 0
    size: int = 0
    first: int = -1
    last: int = -1
    first_ms: int | None = None
    last_ms: int | None = None


def queue_totals(snapshot: RocketSnapshot, request: ScanRequest) -> dict[QueueKey, QueueTotal]:
    """Totals of the queues that a request selects; a queue without a readable message is absent."""
    units_only = ScanRequest(
        columns=("size",),
        topics=request.topics,
        topic_pattern=request.topic_pattern,
        assign=request.assign,
        mode=Mode.DROPMALFORMED,
    )
    totals: dict[QueueKey, QueueTotal] = {}
    with OpenFiles() as files:
        for partition in snapshot.plan(units_only):
            if isinstance(partition, QueueScan):
                for found in _pieces(partition, files):
                    _add(totals, partition, found.take(partition.readable(found.places, found.sizes)))
        window = Window(snapshot.listing.log, files)
        for total in totals.values():
            total.first_ms, total.last_ms = (_store_ms(window, place) for place in (total.first, total.last))
    return totals


def _pieces(scan: QueueScan, files: OpenFiles) -> Iterator[Found]:
    for part in scan.slices:
        for queue, start, stop in zip(part.queue.tolist(), part.start.tolist(), part.stop.tolist(), strict=True):
            yield scan.units(files, queue, start, stop)
    if scan.verdict and scan.wanted:
        for replay in scan.replays:
            for found in scan.replayed(files, replay, scan.verdict, scan.wanted):
                for queue in np.unique(found.queue).tolist():
                    yield found.take(found.queue == queue)


def _add(totals: dict[QueueKey, QueueTotal], scan: QueueScan, found: Found) -> None:
    """Adds units of one queue, in its order."""
    if not len(found):
        return
    queue = scan.queues[int(found.queue[0])]
    total = totals.setdefault((queue.topic, queue.queue_id), QueueTotal())
    if not total.messages:
        total.first = int(found.places[0])
    total.messages += len(found)
    total.size += int(found.sizes.sum())
    total.last = int(found.places[-1])


def _store_ms(window: Window, place: int) -> int | None:
    head = window.load(place, place + HEADER.size + 28).tobytes() if _whole(window, place) else b""
    if not head:
        return None
    at = 68 if int.from_bytes(head[36:40], "big") & BORN_HOST_V6 else 56
    return int.from_bytes(head[at : at + 8], "big", signed=True)


def _whole(window: Window, place: int) -> bool:
    file = window.chain.file_at(place)
    return file is not None and place + HEADER.size + 28 <= file.end
