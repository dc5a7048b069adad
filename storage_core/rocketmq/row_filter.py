"""Which messages a request's keys, ids, tags and predicates leave, asked where it costs least: of the queues' units,
of the stored bytes, of header fields, of properties, of bodies last.

Where matching messages may lie is told by `lookup`; how rows are built by `row_builder`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from storage_core.formats.conditions import Mask, has_any, holds
from storage_core.formats.java_hash import java_hash
from storage_core.formats.layout import Bytes, Positions
from storage_core.formats.needles import SHORTEST, spans_with
from storage_core.formats.rocketmq.paths import SCHEDULE_TOPIC
from storage_core.rocketmq.schema import PROPERTY_COLUMNS, UNIT_COLUMNS
from storage_core.store import Mode, Predicate, ScanRequest

Columns = Callable[[str], pa.Array]

MOST_NEEDLES = 8
FEW = 16
LAST_EXT_CODE = -(1 << 31) - 1
_OFFSET_ID = re.compile(r"[0-9A-Fa-f]{32}(?:[0-9A-Fa-f]{24})?")
_SHOWN_LAST = frozenset({"body", "corruption"})


@dataclass(frozen=True)
class Condition:
    """One condition on rows: the columns it asks, and the rows for which it is true."""

    columns: frozenset[str]
    holds: Callable[[Columns], Mask]


@dataclass(frozen=True)
class Needles:
    """What the bytes of a matching record must hold, unless its address is one of `places`."""

    texts: list[bytes]
    places: Positions


class RowFilter:
    """The conditions of one request, by what they ask."""

    def __init__(self, request: ScanRequest) -> None:
        conditions = [*_of_options(request), *(condition(predicate) for predicate in request.predicates)]
        self.columns = frozenset().union(*(each.columns for each in conditions))
        self.units = [each for each in conditions if each.columns <= UNIT_COLUMNS]
        others = [each for each in conditions if not each.columns <= UNIT_COLUMNS]
        # What a damaged row shows is null, and that is known when its body has been looked at.
        last = [each for each in others if request.mode is Mode.PERMISSIVE or each.columns & _SHOWN_LAST]
        self.last = last
        self.properties = [each for each in others if each not in last and each.columns & PROPERTY_COLUMNS]
        self.header = [each for each in others if each not in last and not each.columns & PROPERTY_COLUMNS]
        self._needles = _needles(request)

    def matching_bytes(self, buffer: Bytes, starts: Positions, sizes: Positions, places: Positions) -> Mask | None:
        """Which records [start, start + size) of a buffer can match by their bytes; None when bytes do not tell."""
        if self._needles is None or len(starts) <= FEW:
            return None
        kept = spans_with(buffer, starts, starts + sizes, self._needles.texts)
        return kept | np.isin(places, self._needles.places) if len(self._needles.places) else kept


def all_hold(conditions: Iterable[Condition], columns: Columns, count: int) -> Mask:
    """The rows for which every condition is true. Shape (count,)."""
    kept = np.ones(count, bool)
    for each in conditions:
        kept &= each.holds(columns)
    return kept


def may_have_tag(tags: Sequence[str], topic: str, codes: npt.NDArray[np.int64]) -> Mask:
    """Which units of a topic's queue may have one of `tags`, by their tags codes.

    Codes of the schedule topic are delivery times, and those of at most -2^31 - 1 addresses in another file: there only
    the text decides.
    """
    if topic == SCHEDULE_TOPIC:
        return np.ones(len(codes), bool)
    return np.isin(codes, np.array([java_hash(tag) for tag in tags], np.int64)) | (codes <= LAST_EXT_CODE)


def condition(predicate: Predicate) -> Condition:
    """A predicate as a condition."""
    if predicate.op == "any of":
        return _any_of(predicate.value)
    return Condition(
        frozenset({predicate.column}),
        lambda columns: holds(columns(predicate.column), predicate.op, predicate.value),
    )


def offset_of_id(message_id: str) -> int | None:
    """The physical offset in a 32- or 56-digit offset id (rocketmq.md 2.10); None when it is none."""
    if not _OFFSET_ID.fullmatch(message_id):
        return None
    place = int(message_id[-16:], 16)
    return place if place < 1 << 63 else None


def _any_of(alternatives: Sequence[Sequence[Predicate]]) -> Condition:
    groups = [[condition(predicate) for predicate in group] for group in alternatives]

    def true(columns: Columns) -> Mask:
        kept: Mask | None = None
        for group in groups:
            mine: Mask | None = None
            for each in group:
                found = each.holds(columns)
                mine = found if mine is None else mine & found
            if mine is not None:
                kept = mine if kept is None else kept | mine
        return np.zeros(0, bool) if kept is None else kept

    return Condition(frozenset().union(*(each.columns for group in groups for each in group)), true)


def _of_options(request: ScanRequest) -> list[Condition]:
    found = []
    if request.keys is not None:
        keys = pa.array(request.keys, pa.string())
        found.append(Condition(frozenset({"keys"}), lambda columns: has_any(columns("keys"), keys)))
    if request.message_ids is not None:
        found.append(_with_id(request.message_ids))
    if request.tags is not None:
        found.append(condition(Predicate("tags", "in", request.tags)))
    return found


def _with_id(ids: Sequence[str]) -> Condition:
    """UNIQ_KEY is one of `ids`, or the record lies where an offset id says (interface.md 12)."""
    places = [place for place in map(offset_of_id, ids) if place is not None]
    # A message without UNIQ_KEY shows its offset id, which names its own place.
    return Condition(
        frozenset({"msgId", "physicalOffset"}),
        lambda columns: holds(columns("msgId"), "in", ids) | holds(columns("physicalOffset"), "in", places),
    )


def _needles(request: ScanRequest) -> Needles | None:
    """What the bytes of every matching record hold, out of the first condition that says so."""
    texts: Sequence[str] | None = None
    if request.keys is not None:
        texts = request.keys
    elif request.message_ids is not None:
        texts = request.message_ids
    else:
        for predicate in request.predicates:
            if predicate.column in ("key", "msgId", "tags") and predicate.op in ("=", "in"):
                values: Any = [predicate.value] if predicate.op == "=" else predicate.value
                texts = [value for value in values if value is not None]
                break
            if predicate.column == "keys" and predicate.op == "contains":
                texts = [predicate.value]
                break
    if texts is None or len(texts) > MOST_NEEDLES or any("�" in text for text in texts):
        return None
    encoded = [text.encode("utf-8", "surrogatepass") for text in texts]
    if any(len(each) < SHORTEST for each in encoded):
        return None
    places = [place for place in map(offset_of_id, texts) if place is not None]
    return Needles(encoded, np.array(places, np.int64))
