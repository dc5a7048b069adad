"""The spans of the parts of many message terms in their buffer.

Source: rabbitmq.md 6.3 and 8. `basic_message`, `container_shape` and `container_walk` find them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from storage_core.arrays import as_array, as_mask
from storage_core.formats.layout import Bytes, Mask, Positions
from storage_core.formats.rabbitmq.erlang import binary_lists
from storage_core.formats.rabbitmq.erlang.binary_lists import NO_ITEMS, ItemSpans
from storage_core.formats.spans import data_of, gather, offsets_of

UNDEFINED = -2
"""A time to live that removes an expiration."""


@dataclass(frozen=True)
class MessageSpans:
    """The half-open spans of the parts of n terms in their buffer, shape (n,).

    Only rows that are `known` are valid; the others are damaged, or encoded in a way that only `decode` reads. In rows
    that are `ok`, every part is in the buffer as a node delivers it. In the other known rows, something must first be
    rewritten by `delivered_lists.relist` and `whole_bodies`:

    * the property list: a node delivers the one in `made` if it is not null. For rows that are `relisted` it delivers
      that one, or else the stored one, with the headers sorted by name, with those of the table `added` if it is not
      null, and without an expiration if `ttl` is UNDEFINED;
    * the body: if there are `pieces`, the body is these, in order, and its own span only has their total length.

    The 16 bytes of the id start at `id_starts`. `ttl`, in ms, `priority` and `deliveries` are what a broker recorded in
    a container, -1 if it recorded none; before 3.13 it may have decoded the expiration, which is then in `ttl`.
    """

    known: Mask
    exchange_starts: Positions
    exchange_stops: Positions
    keys: ItemSpans
    property_starts: Positions
    property_stops: Positions
    body_starts: Positions
    body_stops: Positions
    id_starts: Positions
    persistent: Mask
    pieces: ItemSpans
    relisted: Mask
    made: pa.BinaryArray
    added: pa.BinaryArray
    ttl: npt.NDArray[np.int64]
    priority: npt.NDArray[np.int64]
    deliveries: npt.NDArray[np.int64]

    @cached_property
    def ok(self) -> Mask:
        """The rows in which nothing must be rewritten."""
        found: Mask = self.known & ~self.relisted
        if self.made.null_count < len(self.made):
            found &= ~as_mask(self.made.is_valid())
        found[self.pieces.rows] = False
        return found

    def some(self, mask: Mask) -> MessageSpans:
        """The spans of the rows in `mask`, renumbered."""
        columns = {name: getattr(self, name)[mask] for name in _COLUMNS}
        keys, pieces = self.keys.some(mask), self.pieces.some(mask)
        made, added = (array.filter(as_array(mask)) for array in (self.made, self.added))
        return MessageSpans(**columns, keys=keys, pieces=pieces, made=made, added=added)


_ITEMS, _ARRAYS = ("keys", "pieces"), ("made", "added")
_COLUMNS = [name for name in MessageSpans.__dataclass_fields__ if name not in {*_ITEMS, *_ARRAYS}]
_Numbers = npt.NDArray[np.int64]
_Last = tuple[Mask, pa.BinaryArray, pa.BinaryArray, _Numbers, _Numbers, _Numbers]


def nothing_noted(count: int) -> _Last:
    """The last columns for terms that are not containers."""
    numbers, nothing = np.full((3, count), -1), pa.nulls(count, pa.binary())
    return np.zeros(count, bool), nothing, nothing, numbers[0], numbers[1], numbers[2]


Part = tuple[npt.NDArray[np.int64], MessageSpans]
"""Numbers of some rows, ascending, and their spans."""


def joined(parts: Sequence[Part]) -> MessageSpans:
    """Merges the spans of several parts, each with its row numbers in the result; together the parts are all rows."""
    order = np.argsort(np.concatenate([rows for rows, _ in parts]), kind="stable")
    columns = {name: np.concatenate([getattr(spans, name) for _, spans in parts])[order] for name in _COLUMNS}
    keys, pieces = (binary_lists.joined([(rows, getattr(spans, name)) for rows, spans in parts]) for name in _ITEMS)
    made, added = (
        pa.concat_arrays([getattr(spans, name) for _, spans in parts]).take(as_array(order)) for name in _ARRAYS
    )
    return MessageSpans(**columns, keys=keys, pieces=pieces, made=made, added=added)


def whole_bodies(buffer: Bytes, spans: MessageSpans) -> tuple[Bytes, MessageSpans]:
    """The messages without pieces: bodies that were stored in several follow the bytes of `buffer` in the returned
    buffer.
    """
    pieces = spans.pieces
    if not len(pieces.rows):
        return buffer, spans
    bodies = gather(buffer, pieces.starts, pieces.stops)
    rows, firsts = np.unique(pieces.rows, return_index=True)
    bounds = len(buffer) + offsets_of(bodies).astype(np.int64)
    starts, stops = spans.body_starts.copy(), spans.body_stops.copy()
    starts[rows], stops[rows] = bounds[firsts], bounds[np.append(firsts[1:], len(pieces.rows))]
    made = data_of(bodies)[: offsets_of(bodies)[-1]]
    return np.concatenate([buffer, made]), replace(spans, body_starts=starts, body_stops=stops, pieces=NO_ITEMS)
