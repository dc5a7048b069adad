"""A model of RocketMQ's index files, one key at a time: the slow twin of what writes and reads them.

From the reference model of the format page, which was compared byte for byte with both real stores.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field

from tests.reference.rocketmq_model import java_hash

HEADER_SIZE, SLOT_SIZE, ENTRY_SIZE = 40, 4, 20


def key_hash(topic: str, key: str) -> int:
    """The hash of `topic#key` as an index holds it."""
    value = java_hash(f"{topic}#{key}")
    return 0 if value == -(1 << 31) else abs(value)


@dataclass
class IndexFile:
    """One index file in memory; `before` is the full file that it follows."""

    slots: int
    entries: int
    before: IndexFile | None = None

    def __post_init__(self) -> None:
        self.data = bytearray(HEADER_SIZE + SLOT_SIZE * self.slots + ENTRY_SIZE * self.entries)
        self.count, self.slot_count, self.count_on_disk = 1, 0, 0
        before = self.before
        self.begin_ms = self.end_ms = before.end_ms if before and before.end_ms > 0 else 0
        self.begin_offset = self.end_offset = before.end_offset if before and before.end_offset > 0 else 0

    @property
    def full(self) -> bool:
        return self.count >= self.entries

    def put(self, topic: str, key: str, physical_offset: int, store_ms: int) -> None:
        value = key_hash(topic, key)
        at = HEADER_SIZE + SLOT_SIZE * (value % self.slots)
        previous = struct.unpack_from(">i", self.data, at)[0]
        if not 0 < previous <= self.count:
            previous = 0
        seconds = 0
        if self.begin_ms > 0 and store_ms >= self.begin_ms:
            seconds = min((store_ms - self.begin_ms) // 1000, 0x7FFFFFFF)
        place = HEADER_SIZE + SLOT_SIZE * self.slots + ENTRY_SIZE * self.count
        struct.pack_into(">iqii", self.data, place, value, physical_offset, seconds, previous)
        struct.pack_into(">i", self.data, at, self.count)
        if self.count <= 1:
            self.begin_offset, self.begin_ms = physical_offset, store_ms
        self.slot_count += previous == 0
        self.count += 1
        self.count_on_disk, self.end_offset, self.end_ms = self.count, physical_offset, store_ms

    def content(self) -> bytes:
        numbers = (self.begin_ms, self.end_ms, self.begin_offset, self.end_offset, self.slot_count, self.count_on_disk)
        struct.pack_into(">qqqqii", self.data, 0, *numbers)
        return bytes(self.data)


@dataclass
class ModelIndex:
    """All index files of a store."""

    slots: int
    entries: int
    files: list[IndexFile] = field(default_factory=list)

    def dispatch(
        self, topic: str, physical_offset: int, store_ms: int, sys_flag: int, properties: Mapping[str, str]
    ) -> None:
        """Indexes the keys of one record, as the store's dispatcher does."""
        if physical_offset < self._last().end_offset or sys_flag & 12 == 12:
            return
        keys = [properties["UNIQ_KEY"]] if "UNIQ_KEY" in properties else []
        for key in [*keys, *(word for word in properties.get("KEYS", "").split(" ") if word)]:
            self._last().put(topic, key, physical_offset, store_ms)

    def contents(self, first_name: int = 20231114221320000) -> dict[str, bytes]:
        """Relative path and content of every file; names a broker would choose at some later time."""
        return {f"index/{first_name + number}": file.content() for number, file in enumerate(self.files)}

    def _last(self) -> IndexFile:
        if not self.files or self.files[-1].full:
            self.files.append(IndexFile(self.slots, self.entries, self.files[-1] if self.files else None))
        return self.files[-1]
