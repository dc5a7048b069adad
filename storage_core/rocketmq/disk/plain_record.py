"""Reads and decodes single records of the most common form: for a few records, arrays cost more than the records.

Decoding every other kind of record, and finding every flaw, belongs to `record_reader`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from struct import Struct as PackedStruct

from storage_core.files import system
from storage_core.files.file_chain import FileChain
from storage_core.files.open_files import OpenFiles
from storage_core.formats.rocketmq.hosts import LAST_PORT
from storage_core.formats.rocketmq.message import BORN_HOST_V6, HEADER_V4, MAGIC_V1, MIN_SIZE, STORE_HOST_V6
from storage_core.formats.rocketmq.properties import KEYS, UNIQ_KEY, parse
from storage_core.store import QueueKey

GUESSED_SIZE = 4096

_NAMES = tuple(field.name for field in HEADER_V4.fields)
_head = PackedStruct(">" + "".join({">i4": "i", ">u4": "I", ">i8": "q"}[field.disk] for field in HEADER_V4.fields))
_BORN_HOST, _STORE_HOST = HEADER_V4.field("born_address").offset, HEADER_V4.field("store_address").offset


@dataclass(frozen=True)
class PlainRecord:
    """A record with the V1 magic and IPv4 hosts, whose ports are possible and whose lengths add up. `head` has the
    fields of HEADER_V4, `hosts` the packed hosts of its producer and of the store, `properties` the bytes as stored,
    `pairs` the parsed properties.
    """

    head: Mapping[str, int]
    hosts: tuple[bytes, bytes]
    body: bytes
    topic: str
    properties: bytes
    pairs: Mapping[str, str]

    @property
    def queue(self) -> QueueKey:
        """The queue that the record names."""
        return self.topic, self.head["queue_id"]

    def index_keys(self) -> Iterator[str]:
        """The keys under which the record is indexed: its UNIQ_KEY, and the words of its KEYS."""
        if UNIQ_KEY in self.pairs:
            yield self.pairs[UNIQ_KEY]
        yield from self.words()

    def words(self) -> list[str]:
        """The words of the record's KEYS."""
        return [word for word in self.pairs.get(KEYS, "").split(" ") if word]


def plain_record(log: FileChain, files: OpenFiles, physical_offset: int, log_end: int) -> PlainRecord | None:
    """The record at an address; None if there is no plain record there below the address `log_end`."""
    file = log.file_at(physical_offset)
    if file is None:
        return None
    room, position = min(file.end, log_end) - physical_offset, physical_offset - file.base_offset
    descriptor = files.descriptor(file.path)
    data = system.pread(descriptor, min(GUESSED_SIZE, room), position) if room >= MIN_SIZE else b""
    size = int.from_bytes(data[:4], "big", signed=True)
    if not MIN_SIZE <= size <= room:
        return None
    if size > len(data):
        data += system.pread(descriptor, size - len(data), position + len(data))
    record = _decoded(data[:size], size)
    return record if record is not None and record.head["physical_offset"] == physical_offset else None


def _decoded(data: bytes, size: int) -> PlainRecord | None:
    if len(data) < size:
        return None
    head = dict(zip(_NAMES, _head.unpack_from(data), strict=True))
    if head["magic"] != MAGIC_V1 or head["sys_flag"] & (BORN_HOST_V6 | STORE_HOST_V6):
        return None
    if not 0 <= head["born_port"] | head["store_port"] <= LAST_PORT:
        return None
    body = HEADER_V4.size
    topic = body + head["body_length"] + 1
    if not body < topic <= size - 2 or data[topic - 1] > 127:
        return None
    properties = topic + data[topic - 1] + 2
    stated = int.from_bytes(data[properties - 2 : properties], "big", signed=True)
    if stated < 0 or properties + stated != size:
        return None
    stored = data[properties:size]
    hosts = data[_BORN_HOST : _BORN_HOST + 8], data[_STORE_HOST : _STORE_HOST + 8]
    name = data[topic : properties - 2].decode("utf-8", "replace")
    return PlainRecord(head, hosts, data[body : topic - 1], name, stored, parse(stored))
