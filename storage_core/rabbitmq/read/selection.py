"""Which queues, and which entries of each, a request selects. Pure arithmetic over names and sequence ids.

`snapshot` does the reading, `index_filter` applies the predicates. Source: interface.md 26, 47.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

import numpy as np
import numpy.typing as npt

from storage_core.errors import OffsetOutOfRangeError, OptionError, choices
from storage_core.formats.layout import Mask
from storage_core.store import EARLIEST, LATEST, OffsetBound, QueueInfo, QueueKey, Scan, ScanRequest

NO_TIME = "RabbitMQ keeps no store time, except in streams; read those alone with queueType=stream, or use"


def check_request(request: ScanRequest) -> None:
    """Raises OptionError for options that a RabbitMQ store does not support."""
    refused = {
        "scan": ("log" if request.scan is Scan.LOG else None, "RabbitMQ stores have no log; leave the option out"),
        "startingTimestamp": (request.start_ms, f"{NO_TIME} startingOffsets or where(timestamp)"),
        "endingTimestamp": (request.stop_ms, f"{NO_TIME} endingOffsets or where(timestamp)"),
        "key": (request.keys, "RabbitMQ stores have no key index; use where() on routingKeys or headers"),
        "msgId": (request.message_ids, "RabbitMQ stores have no id index; use where() on messageId or guid"),
        "tag": (request.tags, "RabbitMQ messages have no tags; leave the option out"),
    }
    for name, (value, why) in refused.items():
        if value is not None:
            raise OptionError(name, ", ".join(value) if isinstance(value, tuple) else str(value), why)
    for name, bound in (("startingOffsets", request.start), ("endingOffsets", request.stop)):
        if bound.group is not None:
            raise OptionError(name, f"group:{bound.group}", "RabbitMQ has no consumer groups; give sequence ids")


def queues_of(request: ScanRequest, names: Collection[str]) -> list[str]:
    """The selected names, sorted. Raises OptionError, which lists the existing names, for an unknown one."""
    selected = set(names)
    if request.topics is not None:
        _check_names("queue", request.topics, names)
        selected &= set(request.topics)
    if request.topic_pattern is not None:
        pattern = re.compile(request.topic_pattern)
        selected = {name for name in selected if pattern.fullmatch(name)}
    if request.assign is not None:
        _check_keys("assign", request.assign, names)
        selected &= {name for name, _ in request.assign}
    for option, bound in (("startingOffsets", request.start), ("endingOffsets", request.stop)):
        _check_keys(option, list(bound.offsets), names)
    return sorted(selected)


def refuse_repeated(request: ScanRequest, repeated: Collection[str]) -> None:
    """Raises OptionError for offsets of a name that several virtual hosts have: each queue counts its own."""
    for option, bound in (("startingOffsets", request.start), ("endingOffsets", request.stop)):
        for name, _ in bound.offsets:
            if name in repeated:
                raise OptionError(
                    option, name, "several queues have this name, and each counts its own offsets; choose one with the "
                    "option vhost, or use where(sequenceId >= ...)"
                )  # fmt: skip


def _check_keys(option: str, keys: Sequence[QueueKey], names: Collection[str]) -> None:
    _check_names(option, [name for name, _ in keys], names)
    for name, queue_id in keys:
        if queue_id != 0:
            raise OptionError(option, f"{name}/{queue_id}", "a RabbitMQ queue is one queue, with the id 0")


def _check_names(option: str, wanted: Sequence[str], names: Collection[str]) -> None:
    for name in wanted:
        if name not in names:
            raise OptionError(option, name, f"there is no such queue; {choices(name, set(names), 'queues')}")


def entries_between(request: ScanRequest, queue: QueueInfo, sequence_ids: npt.NDArray[np.int64], live: Mask) -> Mask:
    """Which entries of one queue are between startingOffsets and endingOffsets. Arrays have shape (n,).

    `sequence_ids` are in delivery order: ascending or, for a priority queue, ascending within each priority. `live`
    marks the entries that are not acknowledged; `last` counts only those. Ids have gaps wherever messages were
    acknowledged, so none is missing below the first one, and a start below it is not data loss.

    Raises OffsetOutOfRangeError for a bound after the end (with fail_on_data_loss false, the end is used instead), and
    for a start after the stop.
    """
    first, stop = (_index_of_last(bound, live) for bound in (request.start, request.stop))
    start_id = resolved("startingOffsets", request.start, queue, request.fail_on_data_loss)
    stop_id = resolved("endingOffsets", request.stop, queue, request.fail_on_data_loss)
    _check_order(queue, (start_id, first), (stop_id, stop), sequence_ids)
    mask: Mask = np.zeros(len(sequence_ids), bool)
    mask[first:stop] = True
    if start_id is not None:
        mask &= sequence_ids >= start_id
    if stop_id is not None:
        mask &= sequence_ids < stop_id
    return mask


def _index_of_last(bound: OffsetBound, live: Mask) -> int | None:
    """Index of the first of the last `bound.last` live entries; None when the bound does not count from the end."""
    if bound.last is None:
        return None
    indices = np.flatnonzero(live)
    return len(live) if bound.last == 0 or not len(indices) else int(indices[max(0, len(indices) - bound.last)])


def resolved(option: str, bound: OffsetBound, queue: QueueInfo, fail_on_data_loss: bool) -> int | None:
    """The bound as a sequence id; None when it excludes nothing, or counts from the end.

    Raises OffsetOutOfRangeError for a bound after the end; with `fail_on_data_loss` false, the end is used instead.
    """
    if bound.last is not None:
        return None
    starts = option == "startingOffsets"
    value = bound.offsets.get((queue.topic, queue.queue_id), bound.default)
    if value == EARLIEST:
        return None if starts else 0
    if value == LATEST:
        return queue.stop if starts else None
    if value > queue.stop and fail_on_data_loss:
        raise OffsetOutOfRangeError(
            f"queue {queue.topic}: {option} {value} is greater than the end of the queue, {queue.stop}; "
            "give an offset up to it, or failOnDataLoss=false"
        )
    return min(value, queue.stop)


def _check_order(
    queue: QueueInfo,
    start: tuple[int | None, int | None],
    stop: tuple[int | None, int | None],
    sequence_ids: npt.NDArray[np.int64],
) -> None:
    """Raises OffsetOutOfRangeError when the start, an id or an index, is after the stop."""
    numbers = [_id_at(*bound, queue, sequence_ids) for bound in (start, stop)]
    if (sequence_ids[1:] <= sequence_ids[:-1]).any() and (start[0] is None or stop[0] is None):
        # In a priority queue, an id says nothing about the order of delivery.
        numbers = [start[1], stop[1]]
    first, last = numbers
    if first is not None and last is not None and first > last:
        raise OffsetOutOfRangeError(
            f"queue {queue.topic}: start offset {first} is greater than end offset {last}; "
            "give a start that is not after the end"
        )


def _id_at(
    sequence_id: int | None, index: int | None, queue: QueueInfo, sequence_ids: npt.NDArray[np.int64]
) -> int | None:
    if index is None:
        return sequence_id
    return int(sequence_ids[index]) if index < len(sequence_ids) else queue.stop
