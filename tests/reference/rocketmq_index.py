"""The slow twin of the index writer: one key at a time. Taken from the reference model of the format page."""

from __future__ import annotations

import struct

from tests.reference.rocketmq_model import java_hash


def key_hash(topic: str, key: str) -> int:
    """The hash of an index entry; a Java hash of -2^31 becomes 0."""
    value = java_hash(f"{topic}#{key}")
    return 0 if value == -(1 << 31) else abs(value)


class Index:
    """One index file; `before` is the full file before it, or None."""

    def __init__(self, slots: int, entries: int, before: Index | None = None) -> None:
        self.slots, self.entries, self.data = slots, entries, bytearray(40 + 4 * slots + 20 * entries)
        self.count, self.slot_count, self.count_on_disk = 1, 0, 0
        self.begin_ms = self.end_ms = before.end_ms if before and before.end_ms > 0 else 0
        self.begin_physical_offset = self.end_physical_offset = (
            before.end_physical_offset if before and before.end_physical_offset > 0 else 0
        )

    @property
    def full(self) -> bool:
        """Whether the next key needs a new file."""
        return self.count >= self.entries

    def put(self, topic: str, key: str, physical_offset: int, store_ms: int) -> None:
        """Adds one key of the record at `physical_offset`."""
        found = key_hash(topic, key)
        at = 40 + 4 * (found % self.slots)
        (previous,) = struct.unpack_from(">i", self.data, at)
        if previous <= 0 or previous > self.count:
            previous = 0
        early = self.begin_ms <= 0 or store_ms < self.begin_ms
        seconds = 0 if early else min((store_ms - self.begin_ms) // 1000, 0x7FFFFFFF)
        entry = 40 + 4 * self.slots + 20 * self.count
        struct.pack_into(">iqii", self.data, entry, found, physical_offset, seconds, previous)
        struct.pack_into(">i", self.data, at, self.count)
        if self.count <= 1:
            self.begin_physical_offset, self.begin_ms = physical_offset, store_ms
        self.slot_count += previous == 0
        self.count += 1
        self.count_on_disk, self.end_physical_offset, self.end_ms = self.count, physical_offset, store_ms

    def content(self) -> bytes:
        """The content of the file as stored on disk."""
        times = (self.begin_ms, self.end_ms, self.begin_physical_offset, self.end_physical_offset)
        struct.pack_into(">qqqqii", self.data, 0, *times, self.slot_count, self.count_on_disk)
        return bytes(self.data)


def dispatch(
    files: list[Index], slots: int, entries: int, topic: str, physical_offset: int, store_ms: int, sys_flag: int,
    properties: dict[str, str],
) -> None:  # fmt: skip
    """The part of a broker's dispatch of one record that updates the index."""

    def last() -> Index:
        if not files or files[-1].full:
            files.append(Index(slots, entries, files[-1] if files else None))
        return files[-1]

    if physical_offset < last().end_physical_offset or sys_flag & 12 == 12:
        return
    unique = [properties["UNIQ_KEY"]] if "UNIQ_KEY" in properties else []
    for key in unique + [word for word in properties.get("KEYS", "").split(" ") if word]:
        last().put(topic, key, physical_offset, store_ms)
