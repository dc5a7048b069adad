"""Finds terms of one shape, and the fields of property lists, each in one pass over the rows of a batch.

The numpy twins, `erlang.term_layout` and `amqp.properties`, document the rules.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numba import njit, types

from storage_core.compiled.calls import differ, int16_at, int32_at
from storage_core.compiled.span_loops import (
    BYTES,
    OUT_POSITIONS,
    OUT_POSITIONS_OF_ALL,
    POSITIONS,
    positions,
)
from storage_core.formats.layout import Bytes, Mask, Positions
from storage_core.formats.rabbitmq.amqp.properties import FLAGS_SIZE, SPARE_BITS
from storage_core.formats.rabbitmq.erlang.term_layout import LENGTH_SIZE, Shape, ShapedTerms, Stretch

OUT_MASK = types.boolean[::1]
Texts = tuple[Bytes, Positions, Positions]
TEXTS = types.Tuple((BYTES, POSITIONS, POSITIONS))
"""The concatenated pieces of a stretch, where each begins (plus one entry for the end), and its offset in a term."""
UNSIGNED = 0xFFFFFFFF


def locate(buffer: Bytes, starts: Positions, stops: Positions, shape: Shape) -> ShapedTerms:
    """Compiled form of `term_layout.locate`; the parts of rows that are not `ok` are all zero."""
    count = len(starts)
    ok, parts = np.empty(count, bool), np.zeros((4, count), np.int64)
    sizes = np.array([part.size for part in (shape.before, shape.between, shape.after)], np.int64)
    texts = _texts(shape.before), _texts(shape.between), _texts(shape.after)
    _locate(buffer, positions(starts), positions(stops), sizes, *texts, ok, parts)
    return ShapedTerms(ok, *parts)


def _texts(part: Stretch) -> Texts:
    pieces = [piece for _, piece in part.pieces]
    bounds = np.cumsum([0, *map(len, pieces)])
    return np.frombuffer(b"".join(pieces), np.uint8), bounds, np.array([at for at, _ in part.pieces], np.int64)


@njit(inline="always")
def _stand(buffer: Bytes, position: int, texts: Bytes, bounds: Positions, offsets: Positions) -> bool:
    """Whether all pieces match at `position`; the whole stretch must be inside the buffer."""
    for piece in range(len(offsets)):
        size = bounds[piece + 1] - bounds[piece]
        if differ(buffer, position + offsets[piece], texts, bounds[piece], size) != 0:
            return False
    return True


@njit(types.void(BYTES, POSITIONS, POSITIONS, POSITIONS, TEXTS, TEXTS, TEXTS, OUT_MASK, OUT_POSITIONS_OF_ALL),
      nogil=True, cache=True, _nrt=False)  # fmt: skip
def _locate(
    buffer: Bytes, starts: Positions, stops: Positions, sizes: Positions, before: Texts, between: Texts, after: Texts,
    ok: Mask, parts: Positions,
) -> None:  # fmt: skip
    (texts, bounds, offsets), (texts_2, bounds_2, offsets_2), (texts_3, bounds_3, offsets_3) = before, between, after
    head, middle, tail = sizes[0], sizes[1], sizes[2]
    for row in range(len(starts)):
        start, stop = starts[row], stops[row]
        ok[row] = False
        if not 0 <= start <= stop <= len(buffer) or stop - start < head + middle + tail + 2 * LENGTH_SIZE:
            continue
        last = stop - tail
        listed = start + head + LENGTH_SIZE
        listed_stop = listed + (int32_at(buffer, listed - LENGTH_SIZE) & UNSIGNED)
        body = listed_stop + middle + LENGTH_SIZE
        if body > last or body + (int32_at(buffer, body - LENGTH_SIZE) & UNSIGNED) != last:
            continue
        if not (
            _stand(buffer, start, texts, bounds, offsets)
            and _stand(buffer, listed_stop, texts_2, bounds_2, offsets_2)
            and _stand(buffer, last, texts_3, bounds_3, offsets_3)
        ):
            continue
        ok[row] = True
        parts[0, row], parts[1, row], parts[2, row], parts[3, row] = listed, listed_stop, body, last


def flags(buffer: Bytes, starts: Positions, stops: Positions) -> tuple[Positions, Mask]:
    """The flags of each property list, zero if it cannot be one, and which can be one."""
    found, ok = np.zeros(len(starts), np.int64), np.zeros(len(starts), bool)
    _flags(buffer, positions(starts), positions(stops), found, ok)
    return found, ok


@njit(types.void(BYTES, POSITIONS, POSITIONS, OUT_POSITIONS, OUT_MASK), nogil=True, cache=True)
def _flags(buffer: Bytes, starts: Positions, stops: Positions, found: Positions, ok: Mask) -> None:
    for row in range(len(starts)):
        start, stop = starts[row], stops[row]
        if 0 <= start <= stop <= len(buffer) and stop - start >= FLAGS_SIZE:
            bits = int16_at(buffer, start) & 0xFFFF
            if bits & SPARE_BITS == 0:
                found[row], ok[row] = bits, True


def fields(
    buffer: Bytes, starts: Positions, stops: Positions, found: Positions, ok: Mask, kinds: Sequence[Sequence[int]]
) -> tuple[Positions, Positions, Mask]:
    """Where the fields of `kinds` begin and end in the lists that have them, shape (kinds, n), and which are whole.

    A kind is (flag, bytes of a length, bytes of a value without one). `found` and `ok` are the results of `flags`.
    """
    begins, ends = np.zeros((2, len(kinds), len(starts)), np.int64)
    table = np.array(kinds, np.int64).reshape(-1, 3)
    whole = ok.copy()
    bits, lengths, sizes = (np.ascontiguousarray(table[:, column]) for column in range(3))
    _fields(buffer, positions(starts), positions(stops), found, bits, lengths, sizes, begins, ends, whole)
    return begins, ends, whole


@njit(types.void(BYTES, POSITIONS, POSITIONS, POSITIONS, POSITIONS, POSITIONS, POSITIONS, OUT_POSITIONS_OF_ALL,
                 OUT_POSITIONS_OF_ALL, OUT_MASK), nogil=True, cache=True, _nrt=False)  # fmt: skip
def _fields(
    buffer: Bytes, starts: Positions, stops: Positions, found: Positions, bits: Positions, lengths: Positions,
    sizes: Positions, begins: Positions, ends: Positions, whole: Mask,
) -> None:  # fmt: skip
    for row in range(len(starts)):
        at, stop = starts[row] + FLAGS_SIZE, stops[row]
        for field in range(len(bits)):
            if not found[row] & bits[field]:
                continue
            begin = at + lengths[field]
            size = sizes[field]
            if lengths[field] == 1 and begin <= stop:
                size = np.int64(buffer[at])
            elif lengths[field] and begin <= stop:
                size = int32_at(buffer, at) & UNSIGNED
            end = begin + size
            if end > stop:
                whole[row] = False
                end = stop
                begin = min(begin, end)
            begins[field, row], ends[field, row] = begin, end
            at = end
