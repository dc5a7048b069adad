"""Which queues, and which sequence ids of each, a request asks for. Pure arithmetic over names and entries.

Leaves to `snapshot` the reading. Source: DESIGN 7.1, interface.md 26, 47.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from storage_core.errors import OffsetOutOfRangeError, OptionError, closest
from storage_core.store import EARLIEST, LATEST, OffsetBound, Predicate, QueueInfo, Scan, ScanRequest

_MAX = np.iinfo(np.int64).max


def check_request(request: ScanRequest) -> None:
    """OptionError for what a RabbitMQ store has no answer to."""
    refused = {
        "scan": ("log" if request.scan is Scan.LOG else None, "RabbitMQ stores have no log; leave the option out"),
        "startingTimestamp": (
            request.start_ms,
            "RabbitMQ keeps no store time; use startingOffsets, or where(timestamp)",
        ),
        "endingTimestamp": (request.stop_ms, "RabbitMQ keeps no store time; use endingOffsets, or where(timestamp)"),
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
    """The names that the request selects, sorted. OptionError for one that is not there, with the names that are."""
    chosen = set(names)
    if request.topics is not None:
        chosen &= set(_known("queue", request.topics, names))
    if request.topic_pattern is not None:
        pattern = re.compile(request.topic_pattern)
        chosen = {name for name in chosen if pattern.fullmatch(name)}
    if request.assign is not None:
        for name, queue_id in request.assign:
            if queue_id != 0:
                raise OptionError("assign", f"{name}: {queue_id}", "a RabbitMQ queue is one queue, with the id 0")
        chosen &= set(_known("assign", [name for name, _ in request.assign], names))
    for name, bound in (("startingOffsets", request.start), ("endingOffsets", request.stop)):
        _known(name, [queue for queue, _ in bound.offsets], names)
    for predicate in request.predicates:
        if predicate.column in {"queue", "topic"}:
            chosen = {name for name in chosen if _may_match(predicate, name)}
    return sorted(chosen)


def _known(option: str, wanted: Sequence[str], names: Collection[str]) -> Sequence[str]:
    for name in wanted:
        if name not in names:
            near = closest(name, sorted(names))
            hint = f"did you mean {' or '.join(near)}? " if near else ""
            listed = ", ".join(sorted(names)[:20]) or "none"
            more = f" and {len(names) - 20} more" if len(names) > 20 else ""
            raise OptionError(option, name, f"there is no such queue; {hint}The queues are {listed}{more}")
    return wanted


def _may_match(predicate: Predicate, value: Any) -> bool:
    """Whether the predicate can be true of `value`; True for what this page does not judge."""
    if predicate.op == "=":
        return bool(value == predicate.value)
    if predicate.op == "in":
        return value in predicate.value
    if predicate.op == "starts with":
        return str(value).startswith(predicate.value)
    return True


def vhost_excluded(request: ScanRequest, vhost: str) -> bool:
    """Whether a filter on the vhost leaves nothing of this store."""
    return any(p.column == "vhost" and not _may_match(p, vhost) for p in request.predicates)


def rows_of(request: ScanRequest, queue: QueueInfo, sequence_ids: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Which rows of one queue the offsets and the filters on sequenceId leave (`last` counts them afterwards).

    Sequence ids have gaps wherever messages were acknowledged, so none is missing below the first one: a start below
    it is no data loss. Raises OffsetOutOfRangeError for a bound behind the end, or a start behind the stop.
    """
    keep = np.ones(len(sequence_ids), bool)
    start, stop = _bound(request.start, queue, True), _bound(request.stop, queue, False)
    if start is not None and stop is not None and start > stop:
        raise OffsetOutOfRangeError(
            f"OffsetOutOfRangeError: queue {queue.topic}: startingOffsets {start} lie behind endingOffsets {stop}"
        )
    if start is not None:
        keep &= sequence_ids >= start
    if stop is not None:
        keep &= sequence_ids < stop
    for predicate in request.predicates:
        if predicate.column == "sequenceId":
            keep &= _compared(predicate, sequence_ids)
    return keep


def _bound(bound: OffsetBound, queue: QueueInfo, starts: bool) -> int | None:
    """A sequence id, or None when the bound takes everything."""
    value = bound.offsets.get((queue.topic, queue.queue_id), bound.default)
    if value == EARLIEST:
        return None if starts else 0
    if value == LATEST:
        return queue.stop if starts else None
    if value > queue.stop:
        name = "startingOffsets" if starts else "endingOffsets"
        raise OffsetOutOfRangeError(
            f"OffsetOutOfRangeError: queue {queue.topic}: {name} {value} lies behind the end, {queue.stop}"
        )
    return value


def _compared(predicate: Predicate, values: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    everything = np.ones(len(values), bool)
    wanted = predicate.value
    if predicate.op == "in":
        return np.isin(values, [value for value in wanted if isinstance(value, int) and abs(value) <= _MAX])
    if not isinstance(wanted, int) or abs(wanted) > _MAX:
        return everything
    compare = {"=": np.equal, "<": np.less, "<=": np.less_equal, ">": np.greater, ">=": np.greater_equal}
    operation = compare.get(predicate.op)
    return everything if operation is None else np.asarray(operation(values, wanted), bool)
