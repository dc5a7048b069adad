r"""A record's property bytes: one property of many messages, all pairs of many messages, and a slow parser for one.

Text is `\x02`-separated `name \x01 value` pairs. Source of the rules: rocketmq.md 2.4 (4.9.1 and later): a piece
counts if it has at least 3 characters, its first 0x01 is not at its start and something follows it; of repeated
names the last wins and keeps the place of the first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from storage_core.arrays import as_array, as_mask, text_array
from storage_core.compiled.loading import CompiledLoops
from storage_core.formats.java_numbers import whole_of
from storage_core.formats.layout import Bytes, Positions
from storage_core.formats.spans import FEW, data_of, gather, is_text, offsets_of, text

NAME_END, PAIR_END = 0x01, 0x02
WORD = 8
MOST_NAMES = 64

KEYS = "KEYS"
TAGS = "TAGS"
UNIQ_KEY = "UNIQ_KEY"
MULTI_DISPATCH, MULTI_OFFSETS = "INNER_MULTI_DISPATCH", "INNER_MULTI_QUEUE_OFFSET"
INNER_NUM, INNER_BASE = "INNER_NUM", "INNER_BASE"

_LEVELS_S = (1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)

_loops = CompiledLoops("storage_core.formats.rocketmq.compiled.property_loops")


def parse(data: bytes) -> dict[str, str]:
    """The pairs of one message, in stored order; the straightforward implementation."""
    pairs: dict[str, str] = {}
    for piece in data.decode("utf-8", "replace").split("\x02"):
        name, separator, value = piece.partition("\x01")
        if name and separator and value:
            pairs[name] = value
    return pairs


def property_of(data: bytes, name: str) -> str | None:
    """One property of one message; None if it has none."""
    return parse(data).get(name)


@dataclass(frozen=True)
class Pairs:
    """The positions of the pairs of many messages in one buffer.

    `starts`, `middles` (the 0x01) and `stops` have one element per pair; pairs of message i are
    [offsets[i], offsets[i + 1]).
    """

    starts: Positions
    middles: Positions
    stops: Positions
    offsets: npt.NDArray[np.int32]


@dataclass(frozen=True)
class SameNames:
    """The names that each of many messages has, in the same order, and the positions of their values.

    `starts` and `stops` have shape (n, len(names)).
    """

    names: tuple[bytes, ...]
    starts: Positions
    stops: Positions

    def without(self, name: bytes | None) -> SameNames:
        """The same without one name."""
        kept = [at for at, own in enumerate(self.names) if own != name]
        names = tuple(self.names[at] for at in kept)
        return SameNames(names, self.starts[:, kept], self.stops[:, kept])

    def offsets(self) -> npt.NDArray[np.int32]:
        """The number of the first pair of each message, and of all pairs. Shape (n + 1,)."""
        return np.arange(len(self.starts) + 1, dtype=np.int32) * np.int32(len(self.names))

    def column(self) -> pa.StringArray:
        """The names of all messages one after another."""
        count, once = len(self.starts), b"".join(self.names)
        offsets = np.zeros(count * len(self.names) + 1, np.int32)
        begins = np.arange(count, dtype=np.int32)[:, None] * np.int32(len(once))
        ends = np.cumsum([len(name) for name in self.names], dtype=np.int32)
        np.add(begins, ends, out=offsets[1:].reshape(count, -1))
        return pa.StringArray.from_buffers(len(offsets) - 1, pa.py_buffer(offsets), pa.py_buffer(once * count))


class PropertyColumn:
    """The property bytes of many messages, each preceded by a 0x02, so that every pair begins with one.

    Built once for a batch, and shared by all lookups of its properties.
    """

    def __init__(self, buffer: Bytes, starts: Positions, sizes: Positions) -> None:
        """`starts` and `sizes`: property bytes in `buffer`, shape (n,); never at position 0 unless empty."""
        self._buffer, self._starts, self._sizes = buffer, starts, sizes
        self._expected: tuple[str, ...] = ()
        self._spans: dict[str, tuple[Positions, Positions]] = {}
        self._copied: dict[str, pa.BinaryArray] = {}

    @cached_property
    def _bytes(self) -> pa.BinaryArray:
        buffer, starts, sizes = self._buffer, self._starts, self._sizes
        filled = sizes > 0
        stops = np.where(filled, starts + sizes, 0)
        stops -= filled & (buffer[stops - 1] == PAIR_END)
        packed = gather(buffer, np.where(filled, starts - 1, 0), stops)
        # In this fresh copy, the byte before the properties (the low byte of their length) may be overwritten.
        data_of(packed)[offsets_of(packed)[:-1][filled]] = PAIR_END
        return packed

    @cached_property
    def _offsets(self) -> npt.NDArray[np.int32]:
        return offsets_of(self._bytes)

    @cached_property
    def _data(self) -> Bytes:
        return data_of(self._bytes)

    def __len__(self) -> int:
        return len(self._starts)

    def row(self, index: int) -> dict[str, str]:
        """The pairs of one message."""
        return parse(self._data[self._offsets[index] : self._offsets[index + 1]].tobytes())

    def expect(self, names: Iterable[str]) -> None:
        """Announces the names whose values will be requested, so that one search finds them all."""
        self._expected = tuple(dict.fromkeys(names))

    def know(
        self, names: Sequence[str], starts: Positions, stops: Positions, copied: Sequence[pa.BinaryArray | None] = ()
    ) -> None:
        """Sets the positions of the values of some names in the buffer, [0, 0) if a message has none, shape
        (len(names), n); `copied`: the values as bytes, if they are already copied.
        """
        self._spans |= zip(names, zip(starts, stops, strict=True), strict=True)
        self._copied |= ((name, values) for name, values in zip(names, copied, strict=False) if values is not None)

    def values(self, name: str) -> pa.StringArray:
        """One property of every message; null if a message has none.

        A longer piece that begins with the name and 0x01 is that property, so only separators are searched for.
        """
        if len(self) <= FEW:
            return text_array(pairs.get(name) for pairs in self._rows)
        same = self.__dict__.get("_same_names")  # for one property alone it costs more than it saves
        if same is not None and name.encode() in same.names:
            at = same.names.index(name.encode())
            return text(gather(self._data, same.starts[:, at], same.stops[:, at]))
        if name not in self._spans and (loops := _loops.after()) is not None:
            wanted = self._expected if name in self._expected else (name,)
            self.know(wanted, *loops.property_spans(self._buffer, self._starts, self._sizes, wanted))
        if name in self._spans:
            starts, stops = self._spans[name]
            values = text(self._copied[name] if name in self._copied else gather(self._buffer, starts, stops))
            return values if stops.all() else with_nulls(values, stops > 0)
        starts, stops = self._pieces_with(np.frombuffer(name.encode() + b"\x01", np.uint8))
        if self._one_in_each(starts):
            return text(gather(self._data, starts, stops))
        row = np.searchsorted(self._offsets, starts, "right") - 1
        start, stop = np.zeros(len(self), np.int64), np.zeros(len(self), np.int64)
        # For a repeated name the last assignment remains: the last wins.
        start[row], stop[row] = starts, stops
        return with_nulls(text(gather(self._data, start, stop)), stop > 0)

    def _pieces_with(self, wanted: Bytes) -> tuple[Positions, Positions]:
        """What follows `wanted` in the pieces that begin with it and are longer: starts and stops."""
        at = np.flatnonzero(self._first_bytes == wanted[0])
        starts, stops = self._separators[at] + (1 + len(wanted)), self._piece_stops[at]
        if not (starts < stops).all():
            starts, stops = starts[starts < stops], stops[starts < stops]
        right = np.ones(len(starts), bool)
        for back, byte in enumerate(wanted[:0:-1].tolist(), 1):
            right &= self._data[starts - back] == byte
        return (starts, stops) if right.all() else (starts[right], stops[right])

    def _one_in_each(self, physical_offsets: Positions) -> bool:
        """Whether position i is in message i, for all messages."""
        offsets = self._offsets
        return len(physical_offsets) == len(self) and bool(
            (physical_offsets > offsets[:-1]).all() and (physical_offsets < offsets[1:]).all()
        )

    def pairs(self, hidden: str | None = None) -> pa.MapArray:
        """All pairs of every message, except those of the name `hidden`, as map<string, string>; empty, never null,
        if there are none.
        """
        if len(self) <= FEW:
            return _as_map(self._rows, hidden)
        if (loops := _loops.after()) is not None:
            found = loops.property_pairs(self._buffer, self._starts, self._sizes, hidden)
            if found is not None and is_text(found[0]) and is_text(found[1]):
                names, values, offsets = found
                return pa.MapArray.from_arrays(as_array(offsets), names.view(pa.string()), values.view(pa.string()))
        if (same := self._same_names) is not None:
            same = same.without(hidden.encode() if hidden is not None else None)
            values = gather(self._data, same.starts.ravel(), same.stops.ravel())
            values = values.view(pa.string()) if is_text(self._bytes) else text(values)
            return pa.MapArray.from_arrays(as_array(same.offsets()), same.column(), values)
        # Names with different malformed bytes may be the same text, and then count as repeated.
        if not is_text(self._bytes) or self._repeats():
            return _as_map([self.row(index) for index in range(len(self))], hidden)
        spans = self._pairs
        # Pieces of valid text between separators are valid text.
        names = gather(self._data, spans.starts, spans.middles).view(pa.string())
        values = gather(self._data, spans.middles + 1, spans.stops).view(pa.string())
        offsets = spans.offsets
        if hidden is not None:
            shown = pc.not_equal(names, hidden)
            names, values = names.filter(shown), values.filter(shown)
            offsets = np.append(0, np.cumsum(as_mask(shown), dtype=np.int32))[offsets].astype(np.int32)
        return pa.MapArray.from_arrays(as_array(offsets), names, values)

    @cached_property
    def _rows(self) -> list[dict[str, str]]:
        """The pairs of each of a few messages: parsing them one by one costs less than one vectorised lookup."""
        return [self.row(index) for index in range(len(self))]

    @cached_property
    def _same_names(self) -> SameNames | None:
        """The names of the first message, if every message has exactly these, in this order."""
        data, separators, offsets = self._data, self._separators, self._offsets
        count = len(separators) // len(self)
        # The words compared below may extend 7 bytes beyond any message except the last.
        if not 0 < count <= MOST_NAMES or count * len(self) != len(separators) or offsets[-1] - offsets[-2] < WORD:
            return None
        pieces = separators.reshape(-1, count)
        names = _names(data[: offsets[1]].tobytes())
        if len(names) != count or not (pieces[:, 0] == offsets[:-1]).all():
            return None
        starts = pieces + np.array([len(name) + 2 for name in names], np.int64)
        stops = self._piece_stops.reshape(-1, count)
        if _names(data[offsets[-2] :].tobytes()) != names or not (starts < stops).all():
            return None
        words = np.ndarray((len(data) - WORD + 1,), "<u8", data, strides=(1,))
        same = all(_begin_with(words, pieces[:-1, at] + 1, name + b"\x01") for at, name in enumerate(names))
        return SameNames(names, starts, stops) if same else None

    @cached_property
    def _marks(self) -> npt.NDArray[np.int32]:
        """First byte and length of each name: a cheap test before names are compared."""
        found = self._pairs
        return _mark(self._data[found.starts], found.middles - found.starts)

    @cached_property
    def _separators(self) -> Positions:
        return np.flatnonzero(self._data == PAIR_END)

    @cached_property
    def _piece_stops(self) -> Positions:
        return np.append(self._separators[1:], len(self._data))

    @cached_property
    def _first_bytes(self) -> Bytes:
        """The first byte of each piece; for an empty last piece, a separator, which begins no name."""
        if not len(self._data):
            return self._data
        return np.take(self._data, self._separators + 1, mode="clip")

    @cached_property
    def _pairs(self) -> Pairs:
        data, separators, stops = self._data, self._separators, self._piece_stops
        middles = np.flatnonzero(data == NAME_END)
        starts = separators + 1
        before = self._first_pieces(separators)
        if len(middles) != len(starts) or (middles <= starts).any() or (middles + 1 >= stops).any():
            middles = np.append(middles, len(data))
            middles = middles[np.searchsorted(middles, starts)]
            right = (middles > starts) & (middles + 1 < stops)
            before = np.concatenate(([0], np.cumsum(right)))[before]
            starts, middles, stops = starts[right], middles[right], stops[right]
        return Pairs(starts, middles, stops, before.astype(np.int32))

    def _first_pieces(self, separators: Positions) -> Positions:
        """Number of the first piece of each message, and of all pieces. Shape (n + 1,)."""
        if not (self._offsets[1:] > self._offsets[:-1]).all():
            return np.searchsorted(separators, self._offsets)
        # Every message begins with a separator, so it is enough to find those, in a third of the time of a search.
        begins = np.zeros(len(self._data) + 1, bool)
        begins[self._offsets] = True
        return np.append(np.flatnonzero(begins[separators]), len(separators))

    def _repeats(self) -> bool:
        """Whether some message has two pairs with the same name."""
        offsets = self._pairs.offsets
        most = int(np.diff(offsets).max(initial=0))
        rows = np.repeat(np.arange(len(self), dtype=np.int32), np.diff(offsets))
        for distance in range(1, most):
            same = (self._marks[distance:] == self._marks[:-distance]) & (rows[distance:] == rows[:-distance])
            at = np.flatnonzero(same)
            if len(at) and pc.any(pc.equal(self._names(at), self._names(at + distance))).as_py():
                return True
        return False

    def _names(self, at: npt.NDArray[np.intp]) -> pa.BinaryArray:
        return gather(self._data, self._pairs.starts[at], self._pairs.middles[at])


def _names(first: bytes) -> tuple[bytes, ...]:
    """The names of a message whose pieces all count and have distinct names of valid text; otherwise none."""
    pieces = [piece.partition(b"\x01") for piece in first.split(b"\x02")[1:]]
    names = tuple(name for name, _, _ in pieces)
    valid = all(name and separator and value for name, separator, value in pieces)
    if not valid or len(set(names)) < len(names) or "\ufffd" in b"".join(names).decode("utf-8", "replace"):
        return ()
    return names


def _as_map(rows: Sequence[dict[str, str]], hidden: str | None) -> pa.MapArray:
    shown = [[(name, value) for name, value in pairs.items() if name != hidden] for pairs in rows]
    offsets = np.cumsum([0, *map(len, shown)], dtype=np.int32)
    names, values = (text_array(pair[part] for pairs in shown for pair in pairs) for part in (0, 1))
    return pa.MapArray.from_arrays(as_array(offsets), names, values)


def _begin_with(words: npt.NDArray[np.uint64], starts: Positions, wanted: bytes) -> bool:
    """Whether `wanted` is found at every start; `words` are the eight bytes at each position."""
    for at in range(0, len(wanted), WORD):
        part = wanted[at : at + WORD]
        word = np.uint64(int.from_bytes(part, "little"))
        if len(part) == WORD:
            right = words[starts + at] == word
        else:
            right = words[starts + at] & np.uint64((1 << 8 * len(part)) - 1) == word
        if not right.all():
            return False
    return True


def _mark(first: npt.ArrayLike, length: npt.ArrayLike) -> npt.NDArray[np.int32]:
    marks: npt.NDArray[np.int32] = np.asarray(first).astype(np.int32) | (np.asarray(length).astype(np.int32) << 8)
    return marks


def with_nulls(values: pa.StringArray, valid: npt.NDArray[np.bool_]) -> pa.StringArray:
    """The same values, null where `valid` is false."""
    if valid.all():
        return values
    bitmap = pa.py_buffer(np.packbits(valid, bitorder="little"))
    return pa.Array.from_buffers(values.type, len(values), [bitmap, *values.buffers()[1:]])


def delay_ms(level: str | None) -> int | None:
    """The delay of a DELAY property in milliseconds (rocketmq.md 3.2).

    0 without the property or for a level below 1; None if the level is not a number.
    """
    if level is None:
        return 0
    number = whole_of(level, 32)
    if number is None:
        return None
    return 0 if number <= 0 else _LEVELS_S[min(number, len(_LEVELS_S)) - 1] * 1000
