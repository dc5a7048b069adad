"""A snapshot of one quorum queue's state machine: its position in the log, and the state as a term.

Source: docs/format/rabbitmq-quorum.md 5. The engine interprets the state.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct as Packer
from typing import Any
from zlib import crc32

from storage_core.errors import FormatError
from storage_core.formats.layout import struct
from storage_core.formats.rabbitmq.erlang import external_term as et

HEADER = struct(
    "raft snapshot header",
    ("magic", "S4", "`RASN`"),
    ("version", "u1", "1"),
    ("crc", ">u4", "CRC-32 of all that follows"),
    ("meta_size", ">u4", "length of the meta term"),
    size=13,
)
MAGIC = b"RASN"
_HEADER = Packer(">4sBII")
_CHECKED_FROM = 9


@dataclass(frozen=True)
class SnapshotFile:
    """`index` and `term` of the last entry included, the members at that time, and the machine's version and state."""

    index: int
    term: int
    machine_version: int
    members: tuple[Any, ...]
    state: Any


def decode(data: bytes) -> SnapshotFile:
    """Decodes a snapshot file.

    Raises FormatError for a file that a node would skip: torn, of another version, or with a wrong checksum.
    """
    if len(data) < HEADER.size:
        raise FormatError(len(data), "the snapshot is cut")
    magic, version, crc, size = _HEADER.unpack_from(data)
    if magic != MAGIC or version != 1:
        raise FormatError(0, "a snapshot begins with RASN and version 1")
    if crc32(memoryview(data)[_CHECKED_FROM:]) != crc:
        raise FormatError(5, "the snapshot fails its checksum")
    meta = et.decode(data[HEADER.size : HEADER.size + size])
    if not isinstance(meta, dict) or not all(isinstance(meta.get(name), int) for name in ("index", "term")):
        raise FormatError(HEADER.size, "the snapshot does not say its index and term")
    members = meta.get("cluster")
    return SnapshotFile(
        meta["index"],
        meta["term"],
        int(meta.get("machine_version", 0)),
        tuple(members) if isinstance(members, list | dict) else (),
        et.decode(data[HEADER.size + size :]),
    )
