"""Selects the chunks of a stream for a request from the indexes; of segments, only heads of chunks are read.

Source: docs/format/rabbitmq-streams.md 9. What bounds mean belongs to `read.selection`, the cuts belong to `snapshot`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from storage_core.errors import DataLossError, OffsetOutOfRangeError
from storage_core.formats.rabbitmq.stream_queues import log_files
from storage_core.rabbitmq.read import selection
from storage_core.rabbitmq.stream_queues.stream_log import StreamLog
from storage_core.store import OffsetBound, QueueInfo, ScanRequest

_NO_END = 1 << 62


def check_request(request: ScanRequest) -> None:
    """Raises OptionError for options that streams do not support: the same as for other queues, except times."""
    selection.check_request(replace(request, start_ms=None, stop_ms=None))


def bounds(log: StreamLog, info: QueueInfo, request: ScanRequest) -> tuple[int, int]:
    """The offsets [first, end) that a request selects from one stream. Raises DataLossError for an offset below the
    first one, which retention has deleted, and OffsetOutOfRangeError for one after the end.
    """
    first, end = _number(log, "startingOffsets", info, request), _number(log, "endingOffsets", info, request)
    if request.start_ms is not None:
        first = max(first, at_time(log, request.start_ms))
    elif first > end:
        raise OffsetOutOfRangeError(
            f"queue {info.topic}: start offset {first} is greater than end offset {end}; "
            "give a start that is not after the end"
        )
    if request.stop_ms is not None:
        end = min(end, at_time(log, request.stop_ms))
    return first, max(first, end)


def _number(log: StreamLog, option: str, info: QueueInfo, request: ScanRequest) -> int:
    starts = option == "startingOffsets"
    bound: OffsetBound = request.start if starts else request.stop
    if bound.last is not None:
        return last_messages(log, bound.last)
    number = selection.resolved(option, bound, info, request.fail_on_data_loss)
    if number is None:
        return log.start if starts else log.stop
    if number < log.start and request.fail_on_data_loss:
        raise DataLossError(
            f"queue {info.topic}: {option} {number} is expired; the queue holds [{log.start}, {log.stop}); "
            "set failOnDataLoss=false to read what is left"
        )
    return max(number, log.start)


def at_time(log: StreamLog, ms: int) -> int:
    """The id of the first chunk with a timestamp of at least `ms`; segments that end before it are skipped."""
    for segment in log.segments:
        chunks = segment.chunks()
        if not len(chunks) or int(chunks["time"][-1]) < ms:
            continue
        at = int(np.argmax(chunks["time"] >= ms))
        if segment.proves(at):
            return int(chunks["id"][at])
        segment.walk()
        return at_time(log, ms)
    return log.stop


def last_messages(log: StreamLog, count: int) -> int:
    """The offset of the first of the last `count` messages; that of the first message if there are fewer."""
    left, first = count, log.stop
    if not count:
        return first
    for segment in reversed(log.segments):
        chunks = segment.chunks()
        users = np.flatnonzero(chunks["type"] == log_files.USER)[::-1]
        after = np.cumsum(chunks["stop_id"][users] - chunks["id"][users])
        at = int(np.searchsorted(after, left))
        if at < len(users):
            if not segment.proves(int(users[at])):
                segment.walk()
                return last_messages(log, count)
            return int(chunks["id"][users[at]]) + int(after[at]) - left
        left -= int(after[-1]) if len(after) else 0
        first = int(chunks["id"][0]) if len(chunks) else first
    return first


def chunk_span(chunks: npt.NDArray[Any], first: int, end: int) -> tuple[int, int]:
    """Numbers [start, stop) of the chunks of one segment that hold messages with offsets [first, end)."""
    if not len(chunks) or first >= end:
        return 0, 0
    start = max(0, int(np.searchsorted(chunks["id"], first, side="right")) - 1)
    stop = int(np.searchsorted(chunks["id"], end, side="left"))
    return start, max(start, stop)


def messages_in(chunks: npt.NDArray[Any], first: int = 0, end: int = _NO_END) -> npt.NDArray[np.int64]:
    """How many messages with offsets [first, end) each chunk holds; 0 for a chunk of tracking data."""
    counts = np.minimum(chunks["stop_id"], end) - np.maximum(chunks["id"], first)
    return np.where(chunks["type"] == log_files.USER, np.maximum(counts, 0), 0)
