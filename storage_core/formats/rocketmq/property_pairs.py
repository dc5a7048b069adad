"""Properties to be stored: the pairs of many messages as columns, and what is stored of them: their bytes, the hashes
of their keys for the index, the tags codes.

Which names and values are allowed is up to the engine; `properties` reads them. Source of the rules: rocketmq.md
2.4 and 4.2, interface.md 15 and 49.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from storage_core.arrays import as_array, as_mask, as_scalar, text_array
from storage_core.compiled.loading import CompiledLoops
from storage_core.formats.columns import words
from storage_core.formats.java_hash import java_hashes
from storage_core.formats.layout import Positions
from storage_core.formats.rocketmq.indexfile import hashes_before, key_hashes
from storage_core.formats.rocketmq.message import ROLLBACK, TRANSACTION_MASK
from storage_core.formats.rocketmq.properties import KEYS, TAGS, UNIQ_KEY
from storage_core.formats.spans import holds_any, joined, offsets_of

NAME_END, PAIR_END = "\x01", "\x02"

_loops = CompiledLoops("storage_core.formats.rocketmq.compiled.pair_loops")


@dataclass(frozen=True)
class PairColumn:
    """All pairs of n messages: pairs [bounds[i], bounds[i + 1]) are those of message i. No name or value is null."""

    names: pa.StringArray
    values: pa.StringArray
    bounds: npt.NDArray[np.int32]

    @property
    def rows(self) -> npt.NDArray[np.int32]:
        """The number of each pair's message."""
        return np.repeat(np.arange(len(self.bounds) - 1, dtype=np.int32), np.diff(self.bounds))

    def named(self, name: str) -> npt.NDArray[np.bool_]:
        """Which pairs have this name. Shape (pairs,)."""
        return as_mask(pc.equal(self.names, name))

    @property
    def nbytes(self) -> int:
        """Bytes of all names and values."""
        return sum(int(offsets_of(texts)[-1]) - int(offsets_of(texts)[0]) for texts in (self.names, self.values))

    def look(self, known: Sequence[str]) -> tuple[bool, list[bool]]:
        """Whether all names and values can be stored unchanged; and for each of `known` whether it is a pair's name.

        Texts that are empty or contain a separator cannot be stored.
        """
        if (loops := _loops.after(self.nbytes)) is not None:
            found: tuple[bool, list[bool]] = loops.look(self.names, self.values, known)
            return found
        separators = ord(NAME_END), ord(PAIR_END)
        plain = all(
            (np.diff(offsets_of(texts)) > 0).all() and not holds_any(texts, separators)
            for texts in (self.names, self.values)
        )
        return plain, [bool(self.named(name).any()) for name in known]

    def value_of(self, name: str) -> pa.StringArray:
        """The property of each message as a parser returns it: the last of a repeated name; null if there is none."""
        at = np.flatnonzero(self.named(name))
        if not len(at):
            return pa.nulls(len(self.bounds) - 1, pa.string())
        physical_offset = np.full(len(self.bounds) - 1, -1, np.int64)
        physical_offset[self.rows[at]] = at
        return self.values.take(as_array(physical_offset, mask=physical_offset < 0))

    def keep(self, wanted: npt.NDArray[np.bool_]) -> PairColumn:
        """The pairs for which `wanted` is true."""
        before = np.zeros(len(wanted) + 1, np.int32)
        np.cumsum(wanted, out=before[1:])
        chosen = as_array(wanted)
        return PairColumn(self.names.filter(chosen), self.values.filter(chosen), before[self.bounds])

    def replaced(self, name: str, texts: pa.StringArray) -> PairColumn:
        """The same pairs, but those of this name have their message's text as the value if that is not null."""
        ours = self.named(name)
        if not ours.any():
            return self
        texts = texts.take(as_array(self.rows))
        values = pc.if_else(pc.and_(as_array(ours), texts.is_valid()), texts, self.values)
        return PairColumn(self.names, values, self.bounds)


@dataclass(frozen=True)
class Stored:
    """What a store keeps of the properties of n messages: their bytes, the number of indexed keys of each message, the
    hashes of all these keys, and the tags codes. Counts and codes have shape (n,).
    """

    properties: pa.BinaryArray
    key_counts: Positions
    hashes: npt.NDArray[np.int32]
    tags_codes: Positions


def stored(
    topics: pa.DictionaryArray, pairs: PairColumn, key: pa.StringArray, tags: pa.StringArray, ids: pa.StringArray
) -> Stored:
    """What is stored of messages with these pairs and texts.

    A `key` or `tags` that is not null takes precedence over the pair of its name; a UNIQ_KEY pair takes precedence over
    `ids`. All hashed text is valid UTF-8.
    """
    if (loops := _loops.after(pairs.nbytes)) is not None:
        made = loops.stored(pairs.names, pairs.values, pairs.bounds, (key, tags, ids), hashes_before(topics))
        if made is not None:
            return Stored(*made)
    extra = [(KEYS, key), (TAGS, tags), (UNIQ_KEY, ids)]
    for name, texts in extra[:2]:
        pairs = pairs.replaced(name, texts)
    properties = encode_pairs(pairs, extra)
    if len(pairs.names):
        key, tags = (pc.coalesce(texts, pairs.value_of(name)) for name, texts in extra[:2])
    counts, hashes = index_keys(topics, pc.coalesce(pairs.value_of(UNIQ_KEY), ids), key)
    return Stored(properties, counts, hashes, java_hashes(tags).astype(np.int64))


def index_keys(
    topics: pa.DictionaryArray, unique: pa.StringArray, keys: pa.StringArray, sys_flag: Any = 0
) -> tuple[Positions, npt.NDArray[np.int32]]:
    """Number of index keys of each record, and their hashes: UNIQ_KEY, then the words of KEYS (rocketmq.md 4.2)."""
    count = len(topics)
    kind = np.broadcast_to(np.asarray(sys_flag) & TRANSACTION_MASK, count)
    indexed = kind != ROLLBACK
    has_unique = (as_mask(unique.is_valid()) & indexed).astype(np.int64)
    listed = words(keys)
    word_counts = np.where(indexed, listed.value_lengths().fill_null(0).to_numpy(zero_copy_only=False), 0)
    counts = has_unique + word_counts
    flat = listed.flatten() if indexed.all() else listed.filter(as_array(indexed)).flatten()
    if (counts == 1).all() and not has_unique.any():
        return counts, key_hashes(topics, flat)
    rows = np.repeat(np.arange(count), counts)
    first = np.cumsum(counts) - counts
    is_unique = np.zeros(len(rows), bool)
    is_unique[first[has_unique == 1]] = True
    hashes = np.empty(len(rows), np.int32)
    for chosen, texts in ((is_unique, unique.filter(as_array(has_unique == 1))), (~is_unique, flat)):
        hashes[chosen] = key_hashes(topics.take(as_array(rows[chosen])), texts)
    return counts, hashes


def no_pairs(count: int) -> PairColumn:
    """The pairs of messages that have none."""
    none = text_array([])
    return PairColumn(none, none, np.zeros(count + 1, np.int32))


def encode_pairs(pairs: PairColumn, extra: list[tuple[str, pa.StringArray]]) -> pa.BinaryArray:
    """The stored bytes of each message: its pairs, then each `extra` that is neither among them nor null.

    There is no separator at the end, as in 4.9.3.
    """
    count = len(pairs.bounds) - 1
    parts: list[pa.BinaryArray | pa.StringArray | str] = []
    before = np.zeros(count, bool)
    if len(pairs.names):
        written = joined([pairs.names, as_scalar(NAME_END), pairs.values], len(pairs.names))
        counts = np.diff(pairs.bounds)
        if not (counts == 1).all():
            lists = pa.ListArray.from_arrays(as_array(pairs.bounds), written)
            written = pc.binary_join(lists, as_scalar(PAIR_END.encode()))
        parts.append(written)
        before |= counts > 0
    for name, texts in extra:
        wanted = as_mask(texts.is_valid())
        if len(pairs.names):
            wanted[pairs.rows[pairs.named(name)]] = False
        if not wanted.any():
            continue
        parts += [_where(wanted & before, PAIR_END), _where(wanted, name + NAME_END)]
        parts.append(texts if wanted.all() else pc.if_else(as_array(wanted), texts, ""))
        before |= wanted
    if not parts:
        return pa.repeat(as_scalar(b""), count)
    return joined([as_scalar(part) if isinstance(part, str) else part for part in _merged(parts)], count)


def _merged(
    parts: list[pa.BinaryArray | pa.StringArray | str],
) -> Iterator[pa.BinaryArray | pa.StringArray | str]:
    """The same parts, with consecutive lone texts joined and empty ones dropped."""
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
    """The text where it is wanted, else an empty one; a lone text if that is the same for all."""
    if wanted.all():
        return text
    return pc.if_else(as_array(wanted), text, "") if wanted.any() else ""
