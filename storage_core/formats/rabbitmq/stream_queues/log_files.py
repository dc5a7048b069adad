"""The two files of a segment of a stream: heads, index records, chunk heads.

Source: docs/format/rabbitmq-streams.md 2, 3.

`chunk_entries` reads the contents of a chunk; the engine handles torn files as a node does.
"""

from __future__ import annotations

import re

from storage_core.errors import FormatError
from storage_core.formats.layout import struct

SEGMENT_HEAD, INDEX_HEAD = b"OSIL\0\0\0\1", b"OSII\0\0\0\1"
HEAD_SIZE = 8
SEGMENT_SUFFIX, INDEX_SUFFIX = ".segment", ".index"
FIRST_BYTE = 0x50
"""Magic 5, version 0."""
LARGEST_OFFSET = (1 << 63) - 1
USER, TRACKING_DELTA, TRACKING_SNAPSHOT = 0, 1, 2

INDEX_RECORD = struct(
    "index record",
    ("id", ">u8", "chunk id: offset of the first record"),
    ("time", ">i8", "timestamp of the chunk, ms"),
    ("epoch", ">u8", "epoch of the writer"),
    ("position", ">u4", "position of the chunk in the segment"),
    ("type", "u1", "type of the chunk"),
    size=29,
)
CHUNK = struct(
    "chunk head",
    ("first", "u1", "0x50: magic 5, version 0"),
    ("type", "u1", "0 user, 1 tracking delta, 2 tracking snapshot"),
    ("entries", ">u2", "number of entries"),
    ("records", ">u4", "number of records; a sub-batch has many"),
    ("time", ">i8", "the writer's clock when the chunk was made, ms"),
    ("epoch", ">u8", "epoch of the writer"),
    ("id", ">u8", "offset of the first record"),
    ("crc", ">u4", "crc32 of the entries"),
    ("data_size", ">u4", "length of the entries"),
    ("trailer_size", ">u4", "length of the trailer"),
    ("filter_size", "u1", "length of the filter (osiris 1.6 and later), else 0"),
    ("reserved", "V3", "zeros"),
    size=48,
)

_NAME = re.compile(r"(\d{20})\.(segment|index)")


def first_offset(name: str) -> int | None:
    """The first offset of a segment or index, from its file name; None for any other file name."""
    found = _NAME.fullmatch(name)
    return int(found[1]) if found and int(found[1]) <= LARGEST_OFFSET else None


def filter_sizes(of_head: int) -> tuple[int, ...]:
    """Possible lengths of the filter after a chunk's head: as stated there or, for releases without filters, none."""
    return (of_head, 0) if of_head else (0,)


def check_index_head(head: bytes) -> None:
    """Raises FormatError unless `head` begins an index of version 1."""
    _check(head, INDEX_HEAD, "an index begins with OSII")


def check_segment_head(head: bytes) -> None:
    """Raises FormatError unless `head` begins a segment of version 1."""
    _check(head, SEGMENT_HEAD, "a segment begins with OSIL")


def _check(head: bytes, wanted: bytes, what: str) -> None:
    if head[:4] != wanted[:4]:
        raise FormatError(0, f"{what} and a version")
    if head[:HEAD_SIZE] != wanted:
        raise FormatError(4, f"version {int.from_bytes(head[4:HEAD_SIZE], 'big')}; version 1 is read")
