"""Properties on their way to disk: many messages' pairs as columns, and the bytes that are stored of them.

Which names and values are allowed belongs to the engine; reading is `properties`. Source of the rules: rocketmq.md
2.4, interface.md 15 and 49.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from storage_core.formats.columns import mask
from storage_core.formats.spans import joined

NAME_END, PAIR_END = "\x01", "\x02"


@dataclass(frozen=True)
class PairColumn:
    """All pairs of n messages: pairs [bounds[i], bounds[i + 1]) are those of message i. No name or value is null."""

    names: pa.StringArray
    values: pa.StringArray
    bounds: npt.NDArray[np.int32]

    @property
    def rows(self) -> npt.NDArray[np.int32]:
        """Message of each pair."""
        return np.repeat(np.arange(len(self.bounds) - 1, dtype=np.int32), np.diff(self.bounds))

    def named(self, name: str) -> npt.NDArray[np.bool_]:
        """Which pairs have this name. Shape (pairs,)."""
        return mask(pc.equal(self.names, name))

    def value_of(self, name: str) -> pa.StringArray:
        """The property of each message as a parser gives it: of a repeated name the last; null where there is none."""
        at = np.flatnonzero(self.named(name))
        if not len(at):
            return pa.nulls(len(self.bounds) - 1, pa.string())
        physical_offset = np.full(len(self.bounds) - 1, -1, np.int64)
        physical_offset[self.rows[at]] = at
        return self.values.take(pa.array(physical_offset, mask=physical_offset < 0))

    def keep(self, wanted: npt.NDArray[np.bool_]) -> PairColumn:
        """The pairs for which `wanted` is true."""
        before = np.zeros(len(wanted) + 1, np.int32)
        np.cumsum(wanted, out=before[1:])
        chosen = pa.array(wanted)
        return PairColumn(self.names.filter(chosen), self.values.filter(chosen), before[self.bounds])

    def replaced(self, name: str, texts: pa.StringArray) -> PairColumn:
        """The same pairs, those of this name with the message's text where that is not null."""
        ours = self.named(name)
        if not ours.any():
            return self
        texts = texts.take(pa.array(self.rows))
        values = pc.if_else(pc.and_(pa.array(ours), texts.is_valid()), texts, self.values)
        return PairColumn(self.names, values, self.bounds)


def no_pairs(count: int) -> PairColumn:
    """The pairs of messages that have none."""
    none = pa.array([], pa.string())
    return PairColumn(none, none, np.zeros(count + 1, np.int32))


def encode_pairs(pairs: PairColumn, extra: list[tuple[str, pa.StringArray]]) -> pa.BinaryArray:
    """The stored bytes of each message: its pairs, then each `extra` name that is not among them and not null.

    No separator at the end, as 4.9.3 writes it.
    """
    count = len(pairs.bounds) - 1
    parts: list[pa.BinaryArray | pa.StringArray | str] = []
    before = np.zeros(count, bool)
    if len(pairs.names):
        written = joined([pairs.names, pa.scalar(NAME_END), pairs.values], len(pairs.names))
        counts = np.diff(pairs.bounds)
        if not (counts == 1).all():
            lists = pa.ListArray.from_arrays(pa.array(pairs.bounds), written)
            written = pc.binary_join(lists, pa.scalar(PAIR_END, pa.binary()))
        parts.append(written)
        before |= counts > 0
    for name, texts in extra:
        wanted = mask(texts.is_valid())
        if len(pairs.names):
            wanted[pairs.rows[pairs.named(name)]] = False
        if not wanted.any():
            continue
        parts += [_where(wanted & before, PAIR_END), _where(wanted, name + NAME_END)]
        parts.append(texts if wanted.all() else pc.if_else(pa.array(wanted), texts, ""))
        before |= wanted
    if not parts:
        return pa.repeat(pa.scalar(b"", pa.binary()), count)
    return joined([pa.scalar(part) if isinstance(part, str) else part for part in _merged(parts)], count)


def _merged(
    parts: list[pa.BinaryArray | pa.StringArray | str],
) -> Iterator[pa.BinaryArray | pa.StringArray | str]:
    """The same parts, lone texts that follow each other as one, without empty ones."""
    text = ""
    for part in parts:
        if isinstance(part, str):
            text += part
            continue
        if text:
            yield text
        text = ""
        yield part
    if text:
        yield text


def _where(wanted: npt.NDArray[np.bool_], text: str) -> pa.StringArray | str:
    """The text where it is wanted, else the empty one; a lone text where that is the same for all."""
    if wanted.all():
        return text
    return pc.if_else(pa.array(wanted), text, "") if wanted.any() else ""
