"""Property lists as a node delivers them whose headers a publisher sent in an order of its own: those of many messages.

Publishers seldom sort their headers; a node that holds messages as containers does. One list alone is
`message_container`'s. Source: rabbitmq.md 8.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from storage_core.arrays import as_numbers
from storage_core.formats.layout import Bytes, Positions
from storage_core.formats.rabbitmq.message import headers, properties
from storage_core.formats.rabbitmq.message.headers import HeaderSpans
from storage_core.formats.rabbitmq.message.message_spans import MessageSpans
from storage_core.formats.spans import data_of, gather, offsets_of

_LENGTH_SIZE = 4


def sorted_headers(buffer: Bytes, spans: MessageSpans) -> tuple[Bytes, MessageSpans]:
    """The messages with those that are `unsorted` made `ok`: their property lists as a node delivers them follow the
    bytes of `buffer` in the buffer that is given back.
    """
    rows = np.flatnonzero(spans.unsorted)
    if not len(rows):
        return buffer, spans
    starts, stops = spans.property_starts.copy(), spans.property_stops.copy()
    buffer, starts[rows], stops[rows] = _rewritten(buffer, starts[rows], stops[rows])
    ok, unsorted = spans.ok | spans.unsorted, np.zeros(len(spans.ok), bool)
    return buffer, replace(spans, ok=ok, unsorted=unsorted, property_starts=starts, property_stops=stops)


def _rewritten(buffer: Bytes, starts: Positions, stops: Positions) -> tuple[Bytes, Positions, Positions]:
    """The lists [start, stop), each with a table of headers, behind the bytes of `buffer`."""
    table = properties.locate(buffer, starts, stops).fields["headers"]
    items = headers.locate(buffer, table.starts, table.stops)
    order = _order(buffer, items)
    # What comes before the headers, each of them, and what comes after.
    bounds = np.concatenate(([0], np.cumsum(np.bincount(items.rows[order], minlength=len(starts)) + 2)))
    first, last = bounds[:-1], bounds[1:] - 1
    begins, ends = np.empty((2, bounds[-1]), np.int64)
    begins[first], ends[first] = starts, table.starts
    begins[last], ends[last] = table.stops, stops
    inner = np.ones(len(begins), bool)
    inner[first] = inner[last] = False
    begins[inner], ends[inner] = items.name_starts[order] - 1, items.stops[order]
    made = gather(buffer, begins, ends)
    offsets = offsets_of(made).astype(np.int64)
    whole = np.concatenate([buffer, data_of(made)[: offsets[-1]]])
    offsets += len(buffer)
    sizes = offsets[last] - offsets[first + 1]
    for place in range(_LENGTH_SIZE):
        whole[offsets[first + 1] - _LENGTH_SIZE + place] = (sizes >> 8 * (_LENGTH_SIZE - 1 - place)) & 0xFF
    return whole, offsets[bounds[:-1]], offsets[bounds[1:]]


def _order(buffer: Bytes, items: HeaderSpans) -> npt.NDArray[np.intp]:
    """The items by table and name, of several of one name the first."""
    encoded = gather(buffer, items.name_starts, items.name_stops).dictionary_encode()
    names = encoded.dictionary.to_pylist()
    ranks = np.empty(len(names), np.int64)
    ranks[sorted(range(len(names)), key=names.__getitem__)] = np.arange(len(names))
    keys = items.rows * len(names) + ranks[as_numbers(encoded.indices)]
    order = np.argsort(keys, kind="stable")
    fresh = np.ones(len(order), bool)
    fresh[1:] = keys[order][1:] != keys[order][:-1]
    return order[fresh]
