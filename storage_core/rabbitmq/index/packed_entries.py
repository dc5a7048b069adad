"""Entries on their way to another process: neighbours are alike, so 46 bytes become a few.

What an entry is belongs to `entries`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import zstandard

from storage_core.rabbitmq.index.entries import ENTRY, Entries, NumberedEntries

CHUNK_ROWS = 16384
"""So many entries are looked at ten times, once for each column, while they are in the cache."""
FEW = 8
"""Runs are kept where each is at least so many steps long on average."""
_LINE, _RUNS = 0, 9
_WIDTHS = (1, 2, 4, 8)
_WORD = 8

_Words = npt.NDArray[np.int64]


def packed(parts: Sequence[NumberedEntries]) -> bytes:
    """How many parts there are, and how many entries each has; then each column of each chunk as its first value and
    its steps: one step for all, runs of equal ones, or all of them in as few bytes as the largest needs.
    """
    pieces = [_words(len(parts), *(len(part.entries) for part in parts))]
    for part in parts:
        for start, stop in _chunks(len(part.entries)):
            for name in ENTRY.names or ():
                pieces += _coded(part.column(name, start, stop).astype(np.int64))
    return zstandard.ZstdCompressor(level=1).compress(b"".join(pieces))


def unpacked(data: bytes) -> Entries:
    """The entries of all parts that `packed` was given, one after another."""
    words = np.frombuffer(zstandard.ZstdDecompressor().decompress(data), np.int64)
    counts, at = words[1 : 1 + int(words[0])].tolist(), 1 + int(words[0])
    entries, base = np.zeros(sum(counts), ENTRY), 0
    for count in counts:
        for start, stop in _chunks(count):
            chunk = entries[base + start : base + stop]
            for name in ENTRY.names or ():
                values, at = _decoded(words, at, len(chunk))
                if values.ndim or values:
                    chunk[name] = values.astype(ENTRY[name], copy=False)
        base += count
    return entries


def _chunks(count: int) -> Iterator[tuple[int, int]]:
    return ((start, min(start + CHUNK_ROWS, count)) for start in range(0, count, CHUNK_ROWS))


def _words(*numbers: int) -> bytes:
    return np.array(numbers, np.int64).tobytes()


def _coded(values: _Words) -> list[bytes]:
    """A column that is not empty: its kind, first value and a number more, and what steps of that kind need."""
    first, steps = int(values[0]), values[1:] - values[:-1]
    if not len(steps) or (steps == steps[0]).all():
        return [_words(_LINE, first, int(steps[0]) if len(steps) else 0)]
    fresh = np.flatnonzero(steps[1:] != steps[:-1]) + 1
    if FEW * len(fresh) < len(steps):
        starts = np.concatenate(([0], fresh))
        lengths = np.diff(starts, append=len(steps))
        return [_words(_RUNS, first, len(starts)), steps[starts].tobytes(), lengths.tobytes()]
    largest = max(int(steps.max()), -1 - int(steps.min()))
    width = next(width for width in _WIDTHS if largest < 1 << (8 * width - 1))
    return [_words(width, first, 0), steps.astype(f"i{width}").tobytes(), bytes(-len(steps) * width % _WORD)]


def _decoded(words: _Words, at: int, count: int) -> tuple[_Words, int]:
    """The values of a column at `words[at]`, shape (count,) or, where all are alike, (), and the position after it."""
    (kind, first, more), at = words[at : at + 3], at + 3
    if kind == _LINE:
        return (np.arange(count) * more + first if more else first), at
    if kind == _RUNS:
        runs = int(more)
        steps, at = np.repeat(words[at : at + runs], words[at + runs : at + 2 * runs]), at + 2 * runs
    else:
        size = -(-(count - 1) * int(kind) // _WORD)
        steps, at = words[at : at + size].view(f"i{kind}")[: count - 1], at + size
    values: _Words = np.empty(count, np.int64)
    values[0] = 0
    np.cumsum(steps, out=values[1:])
    values += first
    return values, at
