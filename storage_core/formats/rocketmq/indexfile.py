"""An index file, which finds the records that may have a key: its layout, its arithmetic, the hash of a key.

How many files there are, and what they prove, is up to the engine. Source of the rules: rocketmq.md 4.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from storage_core.formats.java_hash import java_hash, java_hashes
from storage_core.formats.layout import Bytes, struct

HEADER = struct(
    "index header",
    ("begin_ms", ">i8", "store time of the first indexed entry; of the file before while there is none"),
    ("end_ms", ">i8", "store time of the last indexed entry"),
    ("begin_offset", ">i8", "physical offset of the first indexed record"),
    ("end_offset", ">i8", "physical offset of the last indexed record"),
    ("slot_count", ">i4", "hashSlotCount: puts that found their slot empty; nothing reads it"),
    ("entry_count", ">i4", "indexCount: entries + 1; 0 in a file without entries"),
    size=40,
)

SLOT = struct(
    "index slot",
    ("entry", ">i4", "number of the newest entry of this slot, 0 for none"),
    size=4,
)

ENTRY = struct(
    "index entry",
    ("key_hash", ">i4", "hash of `topic#key`, without its sign; -2^31 becomes 0"),
    ("physical_offset", ">i8", "address of the record in the commit log"),
    ("seconds", ">i4", "whole seconds since begin_ms; in the first entry since the file before ended"),
    ("previous", ">i4", "number of the next older entry of the same slot, 0 for none"),
    size=20,
)

DEFAULT_SLOTS, DEFAULT_ENTRIES = 5_000_000, 20_000_000
NAME_LENGTH = 17


@dataclass(frozen=True)
class Geometry:
    """The numbers of slots and entries (maxIndexNum; one is never used) of a file. The file states neither."""

    slots: int = DEFAULT_SLOTS
    entries: int = DEFAULT_ENTRIES

    @property
    def file_size(self) -> int:
        """Length of the file in bytes."""
        return HEADER.size + SLOT.size * self.slots + ENTRY.size * self.entries

    @property
    def entries_position(self) -> int:
        """Position of entry 0, which is never used."""
        return HEADER.size + SLOT.size * self.slots

    def slot_positions(self, hashes: npt.NDArray[np.int32]) -> npt.NDArray[np.int64]:
        """Positions in the file of the slots of key hashes. Shape as `hashes`."""
        return HEADER.size + SLOT.size * (hashes.astype(np.int64) % self.slots)

    def entry_positions(self, numbers: npt.NDArray[np.integer[Any]]) -> npt.NDArray[np.int64]:
        """Positions in the file of entries. Shape as `numbers`."""
        return self.entries_position + ENTRY.size * numbers.astype(np.int64)


@dataclass(frozen=True)
class IndexHeader:
    """The header's numbers; `count` is the number of entries (not indexCount, which is one more)."""

    begin_ms: int
    end_ms: int
    begin_offset: int
    end_offset: int
    slot_count: int
    entry_count: int

    @property
    def count(self) -> int:
        """Entries in the file; the loader reads indexCount <= 0 as 1."""
        return max(self.entry_count, 1) - 1


def decode_header(data: Bytes | bytes) -> IndexHeader:
    """The header, decoded from a file's first 40 bytes."""
    return IndexHeader(*np.frombuffer(data, HEADER.dtype, 1)[0].item())


def key_hash(topic: str, key: str) -> int:
    """The hash under which a key of a topic is indexed: never negative."""
    value = abs(java_hash(f"{topic}#{key}"))
    return 0 if value == 1 << 31 else value


def key_hashes(topics: pa.StringArray | pa.DictionaryArray, keys: pa.StringArray) -> npt.NDArray[np.int32]:
    """`key_hash` of each (topic, key). Shape (n,)."""
    values = java_hashes(keys, hashes_before(topics.dictionary_encode()))
    return np.where(values == np.int32(-(1 << 31)), np.int32(0), np.abs(values))


def hashes_before(topics: pa.DictionaryArray) -> npt.NDArray[np.int32]:
    """The hash of the prefix of a key: its topic and `#`. Shape (n,)."""
    before: npt.NDArray[np.int32] = java_hashes(topics.dictionary) * np.int32(31) + np.int32(ord("#"))
    each: npt.NDArray[np.int32] = before[topics.indices.to_numpy()]
    return each
