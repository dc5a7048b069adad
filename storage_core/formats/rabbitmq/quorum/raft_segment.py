"""A segment of one quorum queue's log: the index of its entries.

`log_entry` interprets the entries. Source: docs/format/rabbitmq-quorum.md 4.
"""

from __future__ import annotations

from struct import Struct as Packer

import numpy as np
import numpy.typing as npt

from storage_core.errors import FormatError
from storage_core.formats.layout import struct

MAGIC, HEADER_SIZE = b"RASG", 8
HEADER = struct(
    "raft segment header",
    ("magic", "S4", "`RASG`"),
    ("version", ">u2", "2; 1 has offsets of 4 bytes"),
    ("entry_count", ">u2", "the most entries, M; default 4096"),
    size=8,
)
INDEX = struct(
    "raft segment index record",
    ("index", ">u8", "raft index"),
    ("term", ">u8", "raft term"),
    ("position", ">u8", "position of the data in the file"),
    ("size", ">u4", "length of the data"),
    ("crc", ">u4", "CRC-32 of the data; 0 = not checked"),
    size=32,
)
_LARGEST = (1 << 63) - 1
_HEADER = Packer(">4sHH")

SEGMENT_ENTRY = np.dtype([("index", "i8"), ("term", "i8"), ("position", "i8"), ("size", "i8"), ("crc", "u4")])


def index_size(head: bytes) -> int:
    """Length of the index after the header. Raises FormatError for any other magic or version."""
    magic, version, count = _HEADER.unpack_from(head.ljust(HEADER_SIZE, b"\0"))
    if magic != MAGIC:
        raise FormatError(0, "a segment of a raft log begins with RASG")
    if version != 2:
        raise FormatError(4, f"a segment of version {version}; version 2 is read")
    return int(count) * INDEX.size


def entries(data: bytes) -> npt.NDArray[np.void]:
    """The records of an index up to its end, dtype SEGMENT_ENTRY, in write order; numbers are capped at 2^63 - 1."""
    table = INDEX.all(np.frombuffer(data, np.uint8))
    ends = np.flatnonzero((table["index"] == 0) & (table["term"] == 0) & (table["position"] == 0))
    table = table[: int(ends[0])] if len(ends) else table
    found = np.empty(len(table), SEGMENT_ENTRY)
    for name in SEGMENT_ENTRY.names or ():
        found[name] = np.minimum(table[name].astype(np.uint64), _LARGEST)
    return found
