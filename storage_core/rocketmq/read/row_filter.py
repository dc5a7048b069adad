"""Filters messages by a request's keys, ids, tags and predicates, each checked where it costs least: on queue entries,
stored bytes, header fields, properties, and last on bodies.

`key_search` finds where matching messages may be; `batch_builder` makes the rows.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from storage_core.arrays import text_array
from storage_core.conditions import Condition, columns_of, condition
from storage_core.formats.byte_search import SHORTEST, spans_with
from storage_core.formats.java_hash import java_hash
from storage_core.formats.layout import Bytes, Mask, Positions
from storage_core.formats.predicate_ops import has_any, holds
from storage_core.formats.rocketmq.paths import SCHEDULE_TOPIC
from storage_core.rocketmq.schema import ENTRY_COLUMNS, PROPERTY_COLUMNS
from storage_core.store import Mode, Predicate, ScanRequest

MOST_NEEDLES = 8
FEW = 16
LAST_EXT_CODE = -(1 << 31) - 1
_OFFSET_ID = re.compile(r"[0-9A-Fa-f]{32}(?:[0-9A-Fa-f]{24})?")
_SHOWN_LAST = frozenset({"body", "corruption"})


@dataclass(frozen=True)
class Needles:
    """What the bytes of a matching record must contain, unless its address is one of `physical_offsets`."""

    texts: list[bytes]
    physical_offsets: Positions


class RowFilter:
    """The conditions of one request, grouped by the data they need."""

    def __init__(self, request: ScanRequest) -> None:
        conditions = [*_of_options(request), *(condition(predicate) for predicate in request.predicates)]
        self.columns = columns_of(conditions)
        self.entries: list[Condition] = []
        self.header: list[Condition] = []
        self.properties: list[Condition] = []
        self.last: list[Condition] = []
        for one in conditions:
            if one.columns <= ENTRY_COLUMNS:
                self.entries.append(one)
            # A damaged row shows nulls, and whether it is damaged is known only once its body has been checked.
            elif request.mode is Mode.PERMISSIVE or one.columns & _SHOWN_LAST:
                self.last.append(one)
            else:
                (self.properties if one.columns & PROPERTY_COLUMNS else self.header).append(one)
        self._needles = _needles(request)

    def matching_bytes(
        self, buffer: Bytes, starts: Positions, sizes: Positions, physical_offsets: Positions
    ) -> Mask | None:
        """Which records [start, start + size) of a buffer can match by their bytes; None if the bytes cannot tell."""
        if self._needles is None or len(starts) <= FEW:
            return None
        matching = spans_with(buffer, starts, starts + sizes, self._needles.texts)
        if len(self._needles.physical_offsets):
            matching |= np.isin(physical_offsets, self._needles.physical_offsets)
        return matching


def may_have_tag(tags: Sequence[str], topic: str, codes: npt.NDArray[np.int64]) -> Mask:
    """Which entries of a topic's queue may have one of `tags`, by their tags codes.

    Codes of the schedule topic are delivery times, and codes of at most -2^31 - 1 are addresses in another file: in
    both cases only the text decides.
    """
    if topic == SCHEDULE_TOPIC:
        return np.ones(len(codes), bool)
    return np.isin(codes, np.array([java_hash(tag) for tag in tags], np.int64)) | (codes <= LAST_EXT_CODE)


def offset_of_id(message_id: str) -> int | None:
    """The physical offset in a 32- or 56-digit offset id (rocketmq.md 2.10); None if it is not one."""
    if not _OFFSET_ID.fullmatch(message_id):
        return None
    physical_offset = int(message_id[-16:], 16)
    return physical_offset if physical_offset < 1 << 63 else None


def offsets_of_ids(message_ids: Iterable[str]) -> list[int]:
    """The physical offsets of the ids that are offset ids."""
    return [offset for offset in map(offset_of_id, message_ids) if offset is not None]


def _of_options(request: ScanRequest) -> list[Condition]:
    conditions = []
    if request.keys is not None:
        keys = text_array(request.keys)
        conditions.append(Condition(frozenset({"keys"}), lambda columns: has_any(columns("keys"), keys)))
    if request.message_ids is not None:
        conditions.append(_with_id(request.message_ids))
    if request.tags is not None:
        conditions.append(condition(Predicate("tags", "in", request.tags)))
    return conditions


def _with_id(ids: Sequence[str]) -> Condition:
    """The condition that UNIQ_KEY is one of `ids`, or the record is where an offset id says (interface.md 12)."""
    physical_offsets = offsets_of_ids(ids)
    # A message without UNIQ_KEY shows its offset id, which states its own address.
    return Condition(
        frozenset({"msgId", "physicalOffset"}),
        lambda columns: holds(columns("msgId"), "in", ids) | holds(columns("physicalOffset"), "in", physical_offsets),
    )


def _needles(request: ScanRequest) -> Needles | None:
    """What the bytes of every matching record must contain, from the first condition that determines it."""
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
    if any(len(needle) < SHORTEST for needle in encoded):
        return None
    return Needles(encoded, np.array(offsets_of_ids(texts), np.int64))
