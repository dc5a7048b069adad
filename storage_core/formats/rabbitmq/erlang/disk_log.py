"""Erlang's disk_log files: the container of ETS dumps and of Mnesia's tables. Finds and encodes items.

What the terms inside mean belongs to the formats that use it. Source: rabbitmq.md 1.5.
"""

from __future__ import annotations

from hashlib import md5
from struct import Struct as Packer

import numpy as np

from storage_core.errors import FormatError
from storage_core.formats.layout import Positions, struct

HEAD = struct(
    "disk log head",
    ("magic", ">u4", "`01020304`"),
    ("state", ">u4", "`63584D0B` closed, `06070809` opened and not closed"),
    size=8,
)
ITEM = struct(
    "disk log item",
    ("size", ">u4", "length of the external term"),
    ("magic", ">u4", "`62574C41`"),
    size=8,
)
MAGIC, CLOSED, OPENED, ITEM_MAGIC = 0x01020304, 0x63584D0B, 0x06070809, 0x62574C41
LONG_ITEM_SIZE = 65528
"""From this length on 16 bytes, the MD5 of the four length bytes, stand before the term."""
MAGIC_BYTES = MAGIC.to_bytes(4, "big")

_ITEM = Packer(">II")


def items(data: bytes) -> tuple[Positions, Positions, int]:
    """Half-open spans of the terms and the position after the last whole item.

    An unfinished or malformed item ends the walk, as disk_log's own repair cuts there. FormatError when the head is
    not a disk log's.
    """
    if len(data) < HEAD.size:
        raise FormatError(0, f"a head of {HEAD.size} bytes wanted, the file holds {len(data)}")
    magic, state = _ITEM.unpack_from(data, 0)
    if magic != MAGIC or state not in {CLOSED, OPENED}:
        raise FormatError(0, f"head {magic:#010x} {state:#010x} is no disk log's")
    starts, stops = [], []
    position, end, item_at = HEAD.size, len(data), _ITEM.unpack_from
    while position + ITEM.size <= end:
        size, magic = item_at(data, position)
        start = position + (ITEM.size if size < LONG_ITEM_SIZE else ITEM.size + 16)
        if magic != ITEM_MAGIC or start + size > end:
            break
        starts.append(start)
        stops.append(start + size)
        position = start + size
    return np.array(starts, np.int64), np.array(stops, np.int64), position


def encode(terms: list[bytes]) -> bytes:
    """A closed disk log of already encoded terms."""
    parts = [_ITEM.pack(MAGIC, CLOSED)]
    for term in terms:
        size = _ITEM.pack(len(term), ITEM_MAGIC)
        parts.append(size)
        if len(term) >= LONG_ITEM_SIZE:
            parts.append(md5(size[:4], usedforsecurity=False).digest())
        parts.append(term)
    return b"".join(parts)
