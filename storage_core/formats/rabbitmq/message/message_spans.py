"""Where the parts of many message terms lie in their buffer.

Source: rabbitmq.md 6.3 and 8. How they are found is `basic_message`'s and `container_shape`'s.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from storage_core.formats.layout import Mask, Positions


@dataclass(frozen=True)
class MessageSpans:
    """Where the parts of n terms lie in their buffer: half-open spans, shape (n,).

    Only rows with `ok` are meant; the others are spelled in a way that only `decode` reads, or damaged. Of those that
    are `unsorted`, never `ok` ones, all is known as well, but a node delivers the headers of the property list in the
    order of their names. Routing keys are flat: `key_rows` ascend and say whose key it is. The 16 bytes of the id start
    at `id_starts`. `ttl`, in ms, and `priority` are what a broker noted in a container, -1 where it noted none.
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
    unsorted: Mask
    ttl: npt.NDArray[np.int64]
    priority: npt.NDArray[np.int64]

    def some(self, mask: Mask) -> MessageSpans:
        """The spans of the rows of `mask`, numbered anew."""
        keys = mask[self.key_rows]
        columns = {
            name: getattr(self, name)[keys if name.startswith("key_") else mask]
            for name in MessageSpans.__dataclass_fields__
        }
        columns["key_rows"] = (np.cumsum(mask) - 1)[columns["key_rows"]]
        return MessageSpans(**columns)


def nothing_noted(count: int) -> tuple[Mask, npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The last columns of terms that are no containers."""
    return np.zeros(count, bool), np.full(count, -1), np.full(count, -1)


Part = tuple[npt.NDArray[np.int64], MessageSpans]
"""Numbers of some rows, ascending, and their spans."""


def joined(parts: Sequence[Part]) -> MessageSpans:
    """Spans of several parts as one, each with the rows that its own are; together they are all rows."""
    order = np.argsort(np.concatenate([rows for rows, _ in parts]), kind="stable")
    key_rows = np.concatenate([rows[spans.key_rows] for rows, spans in parts])
    key_order = np.argsort(key_rows, kind="stable")
    columns = {"key_rows": key_rows[key_order]}
    for name in MessageSpans.__dataclass_fields__:
        if name != "key_rows":
            column = np.concatenate([getattr(spans, name) for _, spans in parts])
            columns[name] = column[key_order if name.startswith("key_") else order]
    return MessageSpans(**columns)
