"""Property columns of many contents published over protocols other than AMQP 0-9-1, and the lists built from them.

`section_walk` and `mqtt_walk` fill the columns; `message_container` handles a single message.
Source: rabbitmq.md 8.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from storage_core.arrays import as_array
from storage_core.formats.columns import masked
from storage_core.formats.rabbitmq.amqp import properties
from storage_core.formats.rabbitmq.amqp.property_columns import encode_properties
from storage_core.formats.rabbitmq.binary_columns import digits, lengths, listed_parts, placed
from storage_core.formats.rabbitmq.erlang.binary_lists import NO_ITEMS
from storage_core.formats.rabbitmq.message.delivered_lists import Noted

Rows = npt.NDArray[np.int64]
MOST_PRIORITY = 255
"""The highest priority that fits a property list."""


class Converted:
    """For n contents, the spans of their bodies, shape (n,), the `pieces` of bodies stored in several, and the
    properties.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self.body_starts, self.body_stops = np.zeros((2, count), np.int64)
        self.pieces = NO_ITEMS
        self._headers: list[tuple[Rows, pa.BinaryArray]] = []
        self._parts: dict[str, list[tuple[Rows, pa.Array]]] = defaultdict(list)

    def add(self, name: str, rows: Rows, values: pa.Array) -> None:
        """Sets a property of some rows, replacing one set before: text, or a number where a list has one."""
        if len(rows):
            self._parts[name].append((rows, values))

    def add_headers(self, rows: Rows, items: pa.BinaryArray) -> None:
        """Adds items of tables, after those added before; `rows`, ascending, holds the row of each item."""
        if len(rows):
            self._headers.append((rows, items))

    def columns(self, rows: Rows) -> dict[str, pa.Array]:
        """The properties of some rows by name, headers as tables in their own order."""
        at = as_array(rows)
        columns = {name: placed(parts, self.count).take(at) for name, parts in self._parts.items()}
        if self._headers:
            tables = listed_parts(self._headers, self.count).take(at)
            columns["headers"] = masked(tables, lengths(tables) > 0)
        return columns

    def lists(self, rows: Rows, noted: Noted) -> pa.BinaryArray:
        """The property lists of some rows with what a broker recorded about them, headers in their own order."""
        columns = self.columns(rows)
        columns["timestamp"] = as_array(noted.seconds, noted.seconds < 0)
        times = masked(digits(noted.ttl), noted.ttl >= 0)
        stated = columns.get("expiration", pa.nulls(len(rows), pa.binary()))
        columns["expiration"] = pc.if_else(as_array(noted.ttl == -1), stated, times)
        if "priority" not in columns:
            columns["priority"] = as_array(noted.priority, noted.priority < 0)
        if "delivery_mode" not in columns:
            modes = np.full(len(rows), properties.PERSISTENT_MODE)
            columns["delivery_mode"] = as_array(modes, ~noted.persistent)
        return encode_properties(columns, len(rows))
