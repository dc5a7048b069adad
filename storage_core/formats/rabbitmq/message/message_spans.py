"""Where the parts of many message terms lie in their buffer.

Source: rabbitmq.md 6.3 and 8. How they are found is `basic_message`'s, `container_shape`'s and `container_walk`'s.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from storage_core.arrays import as_array
from storage_core.formats.layout import Mask, Positions

UNDEFINED = -2
"""A time to live that takes an expiration away."""


@dataclass(frozen=True)
class MessageSpans:
    """Where the parts of n terms lie in their buffer: half-open spans, shape (n,).

    Only rows with `ok` are meant; the others are spelled in a way that only `decode` reads, or damaged. Of those that
    are `relisted`, never `ok` ones, all is known as well, but a node delivers another property list than the one there,
    or than the one that is `made`, where this is not null: the headers in the order of their names, with those of the
    table `added`, where it is not null, and no expiration where `ttl` is UNDEFINED. Routing keys are flat: `key_rows`
    ascend and say whose key it is. The 16 bytes of the id start at `id_starts`. `ttl`, in ms, `priority` and
    `deliveries` are what a broker noted in a container, -1 where it noted none.
    """

    ok: Mask
    exchange_starts: Positions
    exchange_stops: Positions
    key_rows: npt.NDArray[np.int64]
    key_starts: Positions
    key_stops: Positions
    property_starts: Positions
    property_stops: Positions
    body_starts: Positions
    body_stops: Positions
    id_starts: Positions
    persistent: Mask
    relisted: Mask
    made: pa.BinaryArray
    added: pa.BinaryArray
    ttl: npt.NDArray[np.int64]
    priority: npt.NDArray[np.int64]
    deliveries: npt.NDArray[np.int64]

    def some(self, mask: Mask) -> MessageSpans:
        """The spans of the rows of `mask`, numbered anew."""
        keys = mask[self.key_rows]
        columns = {name: getattr(self, name)[keys if name.startswith("key_") else mask] for name in _COLUMNS}
        key_rows = (np.cumsum(mask) - 1)[self.key_rows[keys]]
        kept = as_array(mask)
        return MessageSpans(**columns, key_rows=key_rows, made=self.made.filter(kept), added=self.added.filter(kept))


_COLUMNS = [name for name in MessageSpans.__dataclass_fields__ if name not in {"key_rows", "made", "added"}]
_Numbers = npt.NDArray[np.int64]
_Last = tuple[Mask, pa.BinaryArray, pa.BinaryArray, _Numbers, _Numbers, _Numbers]


def nothing_noted(count: int) -> _Last:
    """The last columns of terms that are no containers."""
    numbers, nothing = np.full((3, count), -1), pa.nulls(count, pa.binary())
    return np.zeros(count, bool), nothing, nothing, numbers[0], numbers[1], numbers[2]


Part = tuple[npt.NDArray[np.int64], MessageSpans]
"""Numbers of some rows, ascending, and their spans."""


def joined(parts: Sequence[Part]) -> MessageSpans:
    """Spans of several parts as one, each with the rows that its own are; together they are all rows."""
    order = np.argsort(np.concatenate([rows for rows, _ in parts]), kind="stable")
    key_rows = np.concatenate([rows[spans.key_rows] for rows, spans in parts])
    key_order = np.argsort(key_rows, kind="stable")
    columns = {"key_rows": key_rows[key_order]}
    for name in _COLUMNS:
        column = np.concatenate([getattr(spans, name) for _, spans in parts])
        columns[name] = column[key_order if name.startswith("key_") else order]
    made, added = (
        pa.concat_arrays([getattr(spans, name) for _, spans in parts]).take(as_array(order))
        for name in ("made", "added")
    )
    return MessageSpans(**columns, made=made, added=added)
