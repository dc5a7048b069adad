"""Which queues and which of their ordinals a request selects. Pure arithmetic on half-open ranges.

Where a queue begins and ends, and where a time or a group stands in it, is told by the caller.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from storage_core.errors import DataLossError, OffsetOutOfRangeError, OptionError, closest
from storage_core.store import EARLIEST, LATEST, OffsetBound, QueueInfo, QueueKey, ScanRequest

UNBOUNDED = (0, (1 << 63) - 1)


@dataclass(frozen=True)
class Selection:
    """The queues that a request names, and the ordinals it names for some of them; for records of the log alone."""

    request: ScanRequest
    named: Mapping[QueueKey, tuple[int, int]] = field(default_factory=dict)

    @property
    def takes_everything(self) -> bool:
        """Whether no record is left out by topic, queue or offset."""
        request = self.request
        chosen = request.topics is not None or request.topic_pattern is not None or request.assign is not None
        return not chosen and not self.named

    def bounds(self, key: QueueKey) -> tuple[int, int]:
        """Selected ordinals [start, stop) of a queue; (0, 0) when it is not selected."""
        return self.named.get(key, UNBOUNDED) if takes(self.request, key) else (0, 0)


def takes(request: ScanRequest, key: QueueKey) -> bool:
    """Whether a request selects a queue by topic, pattern or assignment."""
    if request.assign is not None:
        return key in request.assign
    if request.topics is not None:
        return key[0] in request.topics
    if request.topic_pattern is not None:
        return re.fullmatch(request.topic_pattern, key[0]) is not None
    return True


def named_offsets(request: ScanRequest) -> dict[QueueKey, tuple[int, int]]:
    """Absolute ordinals that a request names, for records of the log alone (EARLIEST and LATEST are open ends)."""
    named: dict[QueueKey, tuple[int, int]] = {}
    for key in {*request.start.offsets, *request.stop.offsets}:
        start, stop = request.start.offsets.get(key, EARLIEST), request.stop.offsets.get(key, LATEST)
        named[key] = (max(start, 0), UNBOUNDED[1] if stop < 0 else stop)
    return named


def selected_queues(request: ScanRequest, queues: Sequence[QueueInfo]) -> list[QueueInfo]:
    """The queues that a request selects. OptionError for a topic or queue that is not there, with those that are."""
    topics = sorted({queue.topic for queue in queues})
    for topic in request.topics or ():
        if topic not in topics:
            raise OptionError("topic", topic, f"there is no such topic in the store; {_there(topic, topics)}")
    known = {(queue.topic, queue.queue_id) for queue in queues}
    for key in request.assign or ():
        if key[0] not in topics:
            raise OptionError("assign", key[0], f"there is no such topic in the store; {_there(key[0], topics)}")
        if key not in known:
            ids = sorted(queue_id for topic, queue_id in known if topic == key[0])
            raise OptionError("assign", f"{key[0]}/{key[1]}", f"the topic has no such queue; its queues are {ids}")
    return [queue for queue in queues if takes(request, (queue.topic, queue.queue_id))]


def _there(topic: str, topics: list[str]) -> str:
    near = closest(topic, topics)
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    shown = ", ".join(topics[:20]) + (f" and {len(topics) - 20} more" if len(topics) > 20 else "")
    return f"{hint}The topics are {shown}" if topics else "it has no topics"


def bounded(queue: QueueInfo, request: ScanRequest, group_offsets: Mapping[QueueKey, int]) -> tuple[int, int]:
    """Ordinals [start, stop) of a queue after `startingOffsets` and `endingOffsets` (interface.md 26).

    Raises DataLossError for offsets below the first readable one (unless fail_on_data_loss is false) and
    OffsetOutOfRangeError for offsets behind the end, or a start behind its stop.
    """
    start = _resolve("startingOffsets", queue, request.start, request, group_offsets, queue.start)
    stop = _resolve("endingOffsets", queue, request.stop, request, group_offsets, queue.stop)
    if start > stop:
        raise OffsetOutOfRangeError(
            f"OffsetOutOfRangeError: {queue.topic}/{queue.queue_id}: startingOffsets {start} lies behind endingOffsets "
            f"{stop}; give a start that is not larger than the end"
        )
    return start, stop


def _resolve(
    option: str,
    queue: QueueInfo,
    bound: OffsetBound,
    request: ScanRequest,
    group_offsets: Mapping[QueueKey, int],
    unnamed: int,
) -> int:
    key = (queue.topic, queue.queue_id)
    if bound.group is not None:
        committed = group_offsets.get(key, queue.start)
        return min(max(committed, queue.start), queue.stop)
    if bound.last is not None:
        return max(queue.start, queue.stop - bound.last)
    if key not in bound.offsets:
        return unnamed if bound.offsets else {EARLIEST: queue.start, LATEST: queue.stop}[bound.default]
    offset = bound.offsets[key]
    if offset == EARLIEST:
        return queue.start
    if offset == LATEST:
        return queue.stop
    if offset > queue.stop:
        if not request.fail_on_data_loss:
            return queue.stop
        raise OffsetOutOfRangeError(
            f"OffsetOutOfRangeError: {queue.topic}/{queue.queue_id}: {option} {offset} lies behind the end; the queue "
            f"holds [{queue.start}, {queue.stop}); give an offset of this range, or failOnDataLoss=false"
        )
    if offset < queue.start:
        if not request.fail_on_data_loss:
            return queue.start
        raise DataLossError(
            f"DataLossError: {queue.topic}/{queue.queue_id}: {option} {offset} is expired; the queue holds "
            f"[{queue.start}, {queue.stop}); set failOnDataLoss=false to read what is left"
        )
    return offset
