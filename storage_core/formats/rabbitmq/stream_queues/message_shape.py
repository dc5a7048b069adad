"""The layout shared by similar messages of a stream, and which messages have it.

`section_shapes` maps values to properties. Source: docs/format/rabbitmq-streams.md 6.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow.compute as pc

from storage_core.arrays import as_mask
from storage_core.formats.layout import Bytes, Mask, Positions, values_at
from storage_core.formats.rabbitmq.amqp import section_values
from storage_core.formats.rabbitmq.erlang.term_layout import Stretch
from storage_core.formats.rabbitmq.message.converted.container_view import ESCAPE, REPLY_QUEUE
from storage_core.formats.spans import gather

_REPLY_QUEUE = int.from_bytes(REPLY_QUEUE, "big")


@dataclass(frozen=True)
class Value:
    """A value of a shape: its constructor and its place, which is `at` bytes into stretch `number` or, if `counted`,
    the counted bytes after that stretch.
    """

    code: int
    number: int
    at: int
    counted: bool


@dataclass(frozen=True)
class Size:
    """The length of a list or map, `width` bytes at `at` of stretch `number`; it ends at `end_at` of stretch `end`."""

    number: int
    at: int
    width: int
    end: int
    end_at: int


@dataclass
class Matched:
    """The rows of one shape: where its stretches begin and where the counted bytes after each of them end."""

    ok: Mask
    begins: list[Positions]
    ends: list[Positions]


@dataclass(frozen=True)
class Shape:
    """The layout of messages of one shape. `widths[i]`: bytes of the length after stretch i, 0 after the last.

    `fields` are the values of the property list in order (bytes: the same for all rows), `headers` those of the
    table, with their names. `replies_to_queue`: a reply_to is the address of a queue, without escapes.
    """

    stretches: tuple[Stretch, ...]
    widths: tuple[int, ...]
    sizes: tuple[Size, ...]
    exchange: Value | None
    routing_key: Value | None
    body: Value
    fields: tuple[tuple[str, Value | bytes], ...]
    headers: tuple[tuple[bytes, Value], ...]
    replies_to_queue: bool

    def matches(self, buffer: Bytes, starts: Positions, stops: Positions) -> Matched:
        """Which of the messages [start, stop) have this shape. Never raises; rows that are not ok are undefined."""
        ok: Mask = np.ones(len(starts), bool)
        begins, ends = [], []
        position = starts
        for part, width in zip(self.stretches, self.widths, strict=True):
            ok &= part.matches(buffer, position)
            begins.append(position)
            position = position + part.size
            if width:
                size = values_at(buffer, "u1" if width == 1 else ">u4", position).astype(np.int64)
                position = position + (size + width)
            ok &= position <= stops
            position = np.minimum(position, stops)
            ends.append(position)
        ok &= position == stops
        for each in self.sizes:
            begin = begins[each.number] + each.at
            stated = values_at(buffer, "u1" if each.width == 1 else ">u4", begin).astype(np.int64)
            ok &= stated + begin + each.width == begins[each.end] + each.end_at
        found = Matched(ok, begins, ends)
        ok &= ~self._alone(found, buffer)
        return found

    def span(self, value: Value, found: Matched) -> tuple[Positions, Positions]:
        """The span of a counted value in each row."""
        begin = found.begins[value.number] + (self.stretches[value.number].size + self.widths[value.number])
        return begin, found.ends[value.number]

    def _alone(self, found: Matched, buffer: Bytes) -> Mask:
        """The rows that only the decoder supports: those with a non-finite number or a reply_to of another kind."""
        alone: Mask = np.zeros(len(found.ok), bool)
        for _, value in self.headers:
            if not value.counted:
                alone |= section_values.are_endless(buffer, value.code, found.begins[value.number] + value.at)
        reply = dict(self.fields).get("reply_to")
        if not isinstance(reply, Value):
            return alone
        start, stop = self.span(reply, found)
        is_address = values_at(buffer, ">u8", start) == _REPLY_QUEUE
        if not self.replies_to_queue:
            alone |= is_address
            return alone
        alone |= ~is_address | (stop - start < len(REPLY_QUEUE))
        rows = np.flatnonzero(found.ok & ~alone)
        escaped = pc.match_substring(gather(buffer, start[rows], stop[rows]), ESCAPE)
        alone[rows[as_mask(escaped)]] = True
        return alone
