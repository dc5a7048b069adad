"""The entries that the dispatcher appends to queues that records name besides their own, above all light queues.

Which of these entries a queue accepts is decided by `dispatch`. Source of the rules: rocketmq.md 3.8.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from storage_core.arrays import as_array, as_mask, as_numbers, text_array
from storage_core.formats.byte_search import find_all
from storage_core.formats.layout import Mask, Positions
from storage_core.formats.rocketmq.message import Messages
from storage_core.formats.rocketmq.paths import LIGHT_QUEUE_PREFIX, LONGEST_FOLDER, SCHEDULE_TOPIC
from storage_core.formats.rocketmq.properties import MULTI_DISPATCH, MULTI_OFFSETS, PropertyColumn
from storage_core.formats.spans import offsets_of

SEPARATOR = ","
ALONE_IN_5X = ("%RETRY%", "rmq_sys_", SCHEDULE_TOPIC)
"""Prefixes of the topics whose records 5.x lists in their own queue alone."""
QUEUE_OFFSET, FOLDER = "^[0-9]{1,18}$", r"^[^/\x00]+$"
_NEEDLE = MULTI_OFFSETS.encode()


@dataclass(frozen=True)
class NamedQueues:
    """The queues that records name and the queue offsets there, in record order; `rows` are the numbers of the records.

    Arrays have shape (n,).
    """

    rows: npt.NDArray[np.intp]
    topics: pa.StringArray
    queue_ids: npt.NDArray[np.int32]
    queue_offsets: Positions


def queues_named_by(messages: Messages, listed: Mask, of_5x: bool) -> NamedQueues | None:
    """The queues that the `listed` records name besides their own; None if there are none.

    A record counts if it has as many queue offsets as names: the store adds the offsets when it lists the record there.
    """
    starts, sizes = messages.properties_start, messages.properties_size
    if not len(starts) or not len(find_all(messages.buffer[starts.min() : (starts + sizes).max()], _NEEDLE)):
        return None
    if of_5x:
        for start in ALONE_IN_5X:
            listed = listed & ~as_mask(pc.starts_with(messages.topics(), start))
    return named_queues(messages.property_column(), messages.column("queue_id"), listed)


def named_queues(properties: PropertyColumn, queue_ids: npt.NDArray[np.int32], listed: Mask) -> NamedQueues | None:
    """`queues_named_by` for records with these properties and queue ids, whatever their topics."""
    columns = [properties.values(name) for name in (MULTI_DISPATCH, MULTI_OFFSETS)]
    given = listed & as_mask(columns[0].is_valid()) & as_mask(columns[1].is_valid())
    # Java's split drops empty parts at the end.
    names, offsets = (
        pc.split_pattern(pc.utf8_rtrim(column.take(as_array(np.flatnonzero(given))), SEPARATOR), SEPARATOR)
        for column in columns
    )
    counts = as_numbers(pc.list_value_length(names))
    equal = counts == as_numbers(pc.list_value_length(offsets))
    rows = np.repeat(np.flatnonzero(given)[equal], counts[equal])
    topics, numbers = (lists.filter(as_array(equal)).flatten() for lists in (names, offsets))
    good = as_mask(pc.match_substring_regex(numbers, QUEUE_OFFSET)) & _are_folders(topics)
    if not good.any():
        return None
    rows, topics = rows[good], topics.filter(as_array(good))
    light = as_mask(pc.starts_with(topics, LIGHT_QUEUE_PREFIX))
    ids = np.where(light, 0, queue_ids[rows]).astype(np.int32)
    return NamedQueues(rows, topics, ids, as_numbers(numbers.filter(as_array(good)).cast(pa.int64())))


def _are_folders(topics: pa.StringArray) -> Mask:
    """Which topics can be the name of a queue's folder; a half-written record may name anything."""
    fits = as_mask(pc.match_substring_regex(topics, FOLDER)) & (np.diff(offsets_of(topics)) <= LONGEST_FOLDER)
    return fits & ~as_mask(pc.is_in(topics, text_array((".", ".."))))
