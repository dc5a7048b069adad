"""A model RocketMQ store that writes one message at a time: the slow twin of everything that writes.

It is taken from the reference model of the format page, which was compared byte for byte with both real stores. It
keeps all files in memory; `save` writes them to disk as a broker leaves them after a clean stop.
"""

from __future__ import annotations

import ipaddress
import struct
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path


def java_hash(text: str) -> int:
    """`String.hashCode`: signed 32-bit, over UTF-16 code units."""
    value, entries = 0, text.encode("utf-16-be", "surrogatepass")
    for at in range(0, len(entries), 2):
        value = (31 * value + int.from_bytes(entries[at : at + 2])) & 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value


def hash_map_order(pairs: Iterable[tuple[str, str]], capacity: int = 16) -> list[tuple[str, str]]:
    """The pairs in the iteration order of a `java.util.HashMap` that they were put into."""
    size = 1
    while size < capacity:
        size *= 2
    values: dict[str, str] = {}
    for name, value in pairs:
        values[name] = value
        while len(values) > size * 3 // 4:
            size *= 2

    def bucket(name: str) -> int:
        spread = java_hash(name) & 0xFFFFFFFF
        return (spread ^ spread >> 16) & (size - 1)

    return sorted(values.items(), key=lambda pair: bucket(pair[0]))


def properties_bytes(pairs: Iterable[tuple[str, str]], trailing: bool, capacity: int = 16) -> bytes:
    """The stored property string: with `trailing` as 5.3.3 writes it, else as 4.9.3 does."""
    text = "".join(f"{name}\x01{value}\x02" for name, value in hash_map_order(pairs, capacity))
    return (text if trailing else text[:-1]).encode("utf-8")


def host_bytes(host: str) -> bytes:
    """`ip:port` as stored: 4 or 16 bytes of address and 4 of port."""
    address, _, port = host.rpartition(":")
    return ipaddress.ip_address(address.strip("[]")).packed + struct.pack(">i", int(port))


@dataclass
class Message:
    """A message as a producer hands it to the store."""

    topic: str
    queue_id: int
    body: bytes
    properties: bytes
    store_ms: int
    born_ms: int
    flag: int = 0
    sys_flag: int = 0
    reconsume_times: int = 0
    prepared_offset: int = 0
    born_host: str = "127.0.0.1:12345"
    store_host: str = "127.0.0.1:10911"


def encode(message: Message, queue_offset: int, physical_offset: int) -> bytes:
    """The record of a message at its place in the log."""
    born, stored, topic = host_bytes(message.born_host), host_bytes(message.store_host), message.topic.encode()
    flags = message.sys_flag | (0x10 if len(born) == 20 else 0) | (0x20 if len(stored) == 20 else 0)
    size = 75 + len(born) + len(stored) + len(message.body) + len(topic) + len(message.properties)
    head = struct.pack(
        ">iIiiiqqiq", size, 0xDAA320A7, zlib.crc32(message.body) & 0x7FFFFFFF, message.queue_id, message.flag,
        queue_offset, physical_offset, flags, message.born_ms,
    )  # fmt: skip
    middle = struct.pack(">iqi", message.reconsume_times, message.prepared_offset, len(message.body))
    tail = struct.pack(">b", len(topic)) + topic + struct.pack(">h", len(message.properties)) + message.properties
    return head + born + struct.pack(">q", message.store_ms) + stored + middle + message.body + tail


@dataclass
class ModelStore:
    """Commit log and consume queues of one store, initially empty."""

    log_file_size: int
    queue_file_size: int
    log: list[bytearray] = field(default_factory=list)
    position: int = 0
    queues: dict[tuple[str, int], list[bytes]] = field(default_factory=dict)

    def put(self, message: Message) -> tuple[int, int]:
        """Appends and dispatches a message; returns its physical offset and size."""
        queue = (message.topic, message.queue_id)
        queued = message.sys_flag & 12 in (0, 8)
        queue_offset = len(self.queues.get(queue, ())) if queued else 0
        size = len(encode(message, 0, 0))
        if not self.log or self.position + size + 8 > self.log_file_size:
            if self.log:
                struct.pack_into(">iI", self.log[-1], self.position, self.log_file_size - self.position, 0xCBD43194)
            self.log.append(bytearray(self.log_file_size))
            self.position = 0
        physical_offset = (len(self.log) - 1) * self.log_file_size + self.position
        self.log[-1][self.position : self.position + size] = encode(message, queue_offset, physical_offset)
        self.position += size
        if queued:
            tags = next((v for n, v in _pairs(message.properties) if n == "TAGS"), "")
            entry = struct.pack(">qiq", physical_offset, size, java_hash(tags))
            self.queues.setdefault(queue, []).append(entry)
        return physical_offset, size

    def files(self) -> dict[str, bytes]:
        """Relative path and content of every log and queue file."""
        found = {f"commitlog/{n * self.log_file_size:020d}": bytes(data) for n, data in enumerate(self.log)}
        per_file = self.queue_file_size // 20
        for (topic, queue_id), entries in self.queues.items():
            for start in range(0, len(entries), per_file):
                data = b"".join(entries[start : start + per_file]).ljust(self.queue_file_size, b"\0")
                found[f"consumequeue/{topic}/{queue_id}/{start * 20:020d}"] = data
        return found

    def save(self, directory: Path) -> Path:
        """Writes the store as a broker leaves it after a clean stop."""
        for name, data in {**self.files(), "lock": b"lock", "checkpoint": bytes(4096)}.items():
            path = directory / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        return directory


def _pairs(properties: bytes) -> list[tuple[str, str]]:
    return [(n, v) for n, _, v in (piece.partition("\x01") for piece in properties.decode().split("\x02")) if v]
