"""Terms that are spelled like one of them, checked as whole stretches of bytes instead of step by step.

The terms of one queue differ in what they carry, seldom in how they are spelled: the lengths of the names before the
property list. What a term looks like is `basic_message`'s. Source: rabbitmq.md 6.3.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from storage_core.formats.layout import Bytes, Positions
from storage_core.formats.rabbitmq.cursor import Mask, values_at

_WORD = 8
_LENGTH = 4


@dataclass(frozen=True)
class Stretch:
    """`size` bytes that every term of a shape has, as words that begin `lead` bytes before them; `mask` is 0 where
    bytes may be any.
    """

    size: int
    lead: int
    words: npt.NDArray[np.uint64]
    mask: npt.NDArray[np.uint64]

    def differing(self, buffer: Bytes, positions: Positions) -> Mask | None:
        """At which positions other bytes stand; None when nowhere. Positions outside of the buffer mean nothing."""
        found = values_at(buffer, f"V{_WORD * len(self.words)}", positions - self.lead if self.lead else positions)
        words = found.view(np.uint64).reshape(len(positions), -1)
        words ^= self.words
        words &= self.mask
        return np.asarray(words.any(axis=1), np.bool_) if words.any() else None


def stretch(sample: bytes, free: Sequence[slice] = (), full_at_front: bool = False) -> Stretch:
    """The bytes of `sample`, any in the slices `free`; words are filled up with what stands before or behind them."""
    size = len(sample)
    width = -(-size // _WORD) * _WORD
    lead = width - size if full_at_front else 0
    words, mask = np.zeros(width, np.uint8), np.zeros(width, np.uint8)
    words[lead : lead + size] = np.frombuffer(sample, np.uint8)
    mask[lead : lead + size] = 255
    for part in free:
        mask[lead : lead + size][part] = 0
    return Stretch(size, lead, words.view(np.uint64), mask.view(np.uint64))


@dataclass(frozen=True)
class Shape:
    """Three stretches: from the first byte to the length of the property list, from its end to the length of the
    body, and from the end of the body to the last byte.
    """

    before: Stretch
    between: Stretch
    behind: Stretch


@dataclass(frozen=True)
class ShapedTerms:
    """Terms of one shape: which of those asked, and where their property lists and bodies lie."""

    ok: Mask
    property_starts: Positions
    property_stops: Positions
    body_starts: Positions
    body_stops: Positions


def locate(buffer: Bytes, starts: Positions, stops: Positions, shape: Shape) -> ShapedTerms:
    """Which terms [start, stop) are of `shape`, and their parts. Never raises.

    Only rows with `ok` are meant.
    """
    head, middle, tail = (part.size for part in (shape.before, shape.between, shape.behind))
    ok: Mask = (starts >= 0) & (stops <= len(buffer)) & (stops - starts >= head + middle + tail + 2 * _LENGTH)
    last = np.maximum(stops - tail, 0)
    property_starts = starts + (head + _LENGTH)
    property_stops = property_starts + values_at(buffer, ">u4", property_starts - _LENGTH)
    body_starts = property_stops + (middle + _LENGTH)
    body_stops = body_starts + values_at(buffer, ">u4", body_starts - _LENGTH)
    ok &= body_stops == last
    for part, positions in ((shape.before, starts), (shape.between, property_stops), (shape.behind, last)):
        differing = part.differing(buffer, positions)
        if differing is not None:
            ok &= ~differing
    return ShapedTerms(ok, property_starts, property_stops, body_starts, body_stops)
