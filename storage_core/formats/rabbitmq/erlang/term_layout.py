"""Finds terms with the same layout as a sample by comparing whole stretches of bytes instead of walking step by step.

The terms of one queue differ in content but seldom in layout, that is, in the lengths of the names before the property
list. `basic_message` defines the terms. Source: rabbitmq.md 6.3.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from storage_core.compiled.loading import CompiledLoops
from storage_core.formats.layout import Bytes, Mask, Positions, values_at

LENGTH_SIZE = 4
"""Bytes of the length of a property list or body."""
_loops = CompiledLoops("storage_core.formats.rabbitmq.compiled.term_loops")


@dataclass(frozen=True)
class Stretch:
    """`size` bytes of every term of a shape; `pieces` and their offsets are the parts that do not vary."""

    size: int
    pieces: tuple[tuple[int, bytes], ...]

    def matches(self, buffer: Bytes, positions: Positions) -> Mask:
        """At which positions the pieces match. The result for positions outside the buffer is undefined."""
        same: Mask = np.ones(len(positions), bool)
        for offset, piece in self.pieces:
            same &= values_at(buffer, f"S{len(piece)}", positions + offset if offset else positions) == piece
        return same


def stretch(sample: bytes, free: Sequence[tuple[int, int]] = ()) -> Stretch:
    """The bytes of `sample`; those in the ascending half-open spans `free` may have any value."""
    pieces, begin = [], 0
    for start, stop in [*(span for span in free if span[0] < span[1]), (len(sample), len(sample))]:
        if begin < start:
            pieces.append((begin, sample[begin:start]))
        begin = stop
    return Stretch(len(sample), tuple(pieces))


@dataclass(frozen=True)
class Shape:
    """Three stretches: from the first byte to the length of the property list, from its end to the length of the
    body, and from the end of the body to the last byte.
    """

    before: Stretch
    between: Stretch
    after: Stretch


@dataclass(frozen=True)
class ShapedTerms:
    """Which terms have a shape, and the spans of their property lists and bodies."""

    ok: Mask
    property_starts: Positions
    property_stops: Positions
    body_starts: Positions
    body_stops: Positions


def locate(buffer: Bytes, starts: Positions, stops: Positions, shape: Shape) -> ShapedTerms:
    """Which terms [start, stop) have this `shape`, and their parts. Never raises.

    Only rows that are `ok` are valid.
    """
    if (loops := _loops.after()) is not None:
        located: ShapedTerms = loops.locate(buffer, starts, stops, shape)
        return located
    head, middle, tail = (part.size for part in (shape.before, shape.between, shape.after))
    ok: Mask = (starts >= 0) & (starts <= stops) & (stops <= len(buffer))
    ok &= stops - starts >= head + middle + tail + 2 * LENGTH_SIZE
    last = np.maximum(stops - tail, 0)
    property_starts = starts + (head + LENGTH_SIZE)
    property_stops = property_starts + values_at(buffer, ">u4", property_starts - LENGTH_SIZE)
    body_starts = property_stops + (middle + LENGTH_SIZE)
    body_stops = body_starts + values_at(buffer, ">u4", body_starts - LENGTH_SIZE)
    ok &= body_stops == last
    for part, positions in ((shape.before, starts), (shape.between, property_stops), (shape.after, last)):
        ok &= part.matches(buffer, positions)
    return ShapedTerms(ok, property_starts, property_stops, body_starts, body_stops)
