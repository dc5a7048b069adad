"""Narrows a read by its predicates before anything is read: queues, offsets, addresses, keys to look up.

Pure arithmetic; it may keep too much but never too little. `row_filter` decides which rows match.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from storage_core.formats.predicate_ops import holds
from storage_core.rocketmq.read.row_filter import offsets_of_ids
from storage_core.store import Predicate, QueueInfo, ScanRequest

LAST_OFFSET = (1 << 63) - 1
_QUEUE_COLUMNS = {"topic": pa.string(), "queueId": pa.int32()}


@dataclass(frozen=True)
class Terms:
    """What to look up in an index: words of KEYS or UNIQ_KEYs, and addresses. Every match has one of them."""

    keys: tuple[str, ...]
    physical_offsets: tuple[int, ...]


def may_hold(request: ScanRequest, queue: QueueInfo) -> bool:
    """Whether a queue can satisfy the predicates on topic and queue id."""
    values = {"topic": queue.topic, "queueId": queue.queue_id}
    return all(_may_be_true(predicate, values) for predicate in request.predicates)


def _may_be_true(predicate: Predicate, values: dict[str, Any]) -> bool:
    if predicate.op == "any of":
        return any(all(_may_be_true(inner, values) for inner in group) for group in predicate.value)
    kind = _QUEUE_COLUMNS.get(predicate.column)
    if kind is None:
        return True
    column = pa.array([values[predicate.column]], kind)
    return bool(holds(column, predicate.op, predicate.value)[0])


def bounds_of(predicates: Sequence[Predicate], column: str) -> tuple[int, int]:
    """The range [start, stop) that the predicates on an offset column allow."""
    start, stop = 0, LAST_OFFSET
    for predicate in predicates:
        if predicate.column != column:
            continue
        low, high = _bounds(predicate.op, predicate.value)
        start, stop = max(start, min(low, LAST_OFFSET)), min(stop, max(high, 0))
    return start, max(start, stop)


def _bounds(op: str, value: Any) -> tuple[int, int]:
    if op == "in":
        values = [number for number in value if number is not None]
        return (min(values), max(values) + 1) if values else (0, 0)
    if not isinstance(value, int):
        return 0, LAST_OFFSET
    return {
        "=": (value, value + 1),
        "<": (0, value),
        "<=": (0, value + 1),
        ">": (value + 1, LAST_OFFSET),
        ">=": (value, LAST_OFFSET),
    }.get(op, (0, LAST_OFFSET))


def terms_of(request: ScanRequest) -> Terms | None:
    """The terms whose lookup finds every matching message; None if an index cannot answer."""
    if request.keys is not None:
        return _words(request.keys)
    if request.message_ids is not None:
        return _ids(request.message_ids)
    return _first(_terms(predicate) for predicate in request.predicates)


def _terms(predicate: Predicate) -> Terms | None:
    if predicate.op == "any of":
        groups = [_first(_terms(inner) for inner in group) for group in predicate.value]
        known = [terms for terms in groups if terms is not None]
        if not groups or len(known) < len(groups):
            return None
        return Terms(
            tuple(dict.fromkeys(key for terms in known for key in terms.keys)),
            tuple(dict.fromkeys(offset for terms in known for offset in terms.physical_offsets)),
        )
    if predicate.column == "keys" and predicate.op == "contains":
        return _words([predicate.value])
    if predicate.column not in ("key", "msgId") or predicate.op not in ("=", "in"):
        return None
    values = [predicate.value] if predicate.op == "=" else [text for text in predicate.value if text is not None]
    return _ids(values) if predicate.column == "msgId" else _texts(values)


def _first(candidates: Iterable[Terms | None]) -> Terms | None:
    return next((terms for terms in candidates if terms is not None), None)


def _words(words: Sequence[str]) -> Terms:
    # No word of KEYS is empty or has a space, so such a key matches nothing.
    return Terms(tuple(dict.fromkeys(word for word in words if word and " " not in word)), ())


def _texts(texts: Sequence[str]) -> Terms | None:
    """A whole KEYS text is indexed under each of its words; one without words is not indexed."""
    firsts = [next((word for word in text.split(" ") if word), None) for text in texts]
    if any(first is None for first in firsts):
        return None
    return Terms(tuple(dict.fromkeys(first for first in firsts if first is not None)), ())


def _ids(ids: Sequence[str]) -> Terms:
    return Terms(tuple(dict.fromkeys(filter(None, ids))), tuple(offsets_of_ids(ids)))
