"""The entries of a partition: in parts where it is planned, and packed for the transfer to a task. Neighbours are
alike, so they take a few bytes each.

`entries` defines an entry.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import zstandard

from storage_core.rabbitmq.index.entries import Entries, joined, new_entries

CHUNK_ROWS = 16384
"""This many entries stay in the cache from their first use to their last."""
FEW = 8
"""Steps are stored as runs if these are at least this many steps long on average."""
_LINE, _RUNS = 0, 9
_WIDTHS = (1, 2, 4, 8)
_WORD = 8

_Words = npt.NDArray[np.int64]


@dataclass(frozen=True)
class EntryParts:
    """The entries of all `parts` (at least one), one after another."""

    parts: tuple[Entries, ...]

    @cached_property
    def count(self) -> int:
        """Number of entries."""
        return sum(map(len, self.parts))

    @cached_property
    def record_bytes(self) -> int:
        """Total bytes of the records that the entries refer to."""
        return sum(int(part["length"].sum()) for part in self.parts)

    def chunks(self) -> Iterator[Entries]:
        """All entries, `CHUNK_ROWS` at a time; the last ones may be fewer."""
        pieces: list[Entries] = []
        room = CHUNK_ROWS
        for part in self.parts:
            start = 0
            while start < len(part):
                pieces.append(part[start : start + room])
                start += len(pieces[-1])
                room -= len(pieces[-1])
                if not room:
                    yield joined(pieces)
                    pieces, room = [], CHUNK_ROWS
        if pieces:
            yield joined(pieces)

    def as_one(self) -> Entries:
        """All entries."""
        return joined(self.parts)

    def packed(self) -> PackedEntries:
        """Encodes each column of each chunk as its first value and its steps: one step for all, runs of equal steps,
        or all steps in as few bytes as the largest needs.
        """
        fields = self.parts[0].fields
        columns = [piece for chunk in self.chunks() for name in fields for piece in _coded(chunk[name])]
        data = zstandard.ZstdCompressor(level=1).compress(b"".join(columns))
        return PackedEntries(data, fields, self.count, self.record_bytes)


@dataclass(frozen=True)
class PackedEntries:
    """`EntryParts` packed for transfer: `count` entries with these `fields`; their records have `record_bytes`."""

    data: bytes
    fields: Mapping[str, str]
    count: int
    record_bytes: int

    def chunks(self) -> Iterator[Entries]:
        """The chunks of the packed parts."""
        words, at = np.frombuffer(zstandard.ZstdDecompressor().decompress(self.data), np.int64), 0
        for start in range(0, self.count, CHUNK_ROWS):
            columns = {}
            for name, dtype in self.fields.items():
                columns[name], at = _decoded(words, at, min(CHUNK_ROWS, self.count - start), dtype)
            yield Entries(columns)

    def as_one(self) -> Entries:
        """All entries."""
        return joined(list(self.chunks()) or [new_entries(0, self.fields)])

    def packed(self) -> PackedEntries:
        """Returns itself."""
        return self


PartitionEntries = EntryParts | PackedEntries


def _words(*numbers: int) -> bytes:
    return np.array(numbers, np.int64).tobytes()


def _coded(column: npt.NDArray[Any]) -> list[bytes]:
    """Encodes a non-empty column: its kind, first value and one more number, then what steps of that kind need."""
    if (column == column[0]).all():
        return [_words(_LINE, int(column[:1].astype(np.int64)[0]), 0)]
    values = column.astype(np.int64)
    first, steps = int(values[0]), values[1:] - values[:-1]
    if (steps == steps[0]).all():
        return [_words(_LINE, first, int(steps[0]))]
    fresh = np.flatnonzero(steps[1:] != steps[:-1]) + 1
    if FEW * len(fresh) < len(steps):
        starts = np.concatenate(([0], fresh))
        lengths = np.diff(starts, append=len(steps))
        return [_words(_RUNS, first, len(starts)), steps[starts].tobytes(), lengths.tobytes()]
    largest = max(int(steps.max()), -1 - int(steps.min()))
    width = next(width for width in _WIDTHS if largest < 1 << (8 * width - 1))
    return [_words(width, first, 0), steps.astype(f"i{width}").tobytes(), bytes(-len(steps) * width % _WORD)]


def _decoded(words: _Words, at: int, count: int, dtype: str) -> tuple[npt.NDArray[Any], int]:
    """Decodes the `count` values of `dtype` of a column at `words[at]`; returns them and the position after it."""
    (kind, first, more), at = words[at : at + 3].tolist(), at + 3
    if kind == _LINE:
        values = np.arange(count, dtype=np.int64) * more + first if more else np.full(count, first)
        return values.astype(dtype, copy=False), at
    if kind == _RUNS:
        steps, at = np.repeat(words[at : at + more], words[at + more : at + 2 * more]), at + 2 * more
    else:
        size = -(-(count - 1) * kind // _WORD)
        steps, at = words[at : at + size].view(f"i{kind}")[: count - 1], at + size
    values = np.empty(count, np.int64)
    values[0] = 0
    np.cumsum(steps, out=values[1:])
    values += first
    return values.astype(dtype, copy=False), at
