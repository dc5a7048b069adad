"""Erlang's disk_log files: the container of ETS dumps and of Mnesia's tables. Finds and encodes items.

The formats that use it interpret the terms inside. Source: rabbitmq.md 1.5.
"""

from __future__ import annotations

from hashlib import md5
from struct import Struct as Packer

import numpy as np

from storage_core.errors import FormatError
from storage_core.formats.layout import Bytes, Positions, struct, values_at

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
"""From this length on, 16 bytes precede the term: the MD5 of the four length bytes."""
MAGIC_BYTES = MAGIC.to_bytes(4, "big")

_ITEM = Packer(">II")


def items(data: bytes) -> tuple[Positions, Positions, int]:
    """Half-open spans of the terms and the position after the last whole item.

    An unfinished or malformed item ends the walk, because disk_log's own repair truncates there. Raises FormatError if
    the head is not that of a disk log.
    """
    if len(data) < HEAD.size:
        raise FormatError(0, f"a head of {HEAD.size} bytes expected, the file holds {len(data)}")
    magic, state = _ITEM.unpack_from(data, 0)
    if magic != MAGIC or state not in {CLOSED, OPENED}:
        raise FormatError(0, f"head {magic:#010x} {state:#010x} is not a disk log's")
    first_starts, first_stops = _first_items(np.frombuffer(data, np.uint8))
    starts, stops = list[int](), list[int]()
    position, end, item_at = int(first_stops[-1]) if len(first_stops) else HEAD.size, len(data), _ITEM.unpack_from
    while position + ITEM.size <= end:
        size, magic = item_at(data, position)
        start = position + (ITEM.size if size < LONG_ITEM_SIZE else ITEM.size + 16)
        if magic != ITEM_MAGIC or start + size > end:
            break
        starts.append(start)
        stops.append(start + size)
        position = start + size
    rest_starts, rest_stops = np.array(starts, np.int64), np.array(stops, np.int64)
    return np.concatenate((first_starts, rest_starts)), np.concatenate((first_stops, rest_stops)), position


def _first_items(buffer: Bytes) -> tuple[Positions, Positions]:
    """Spans of the terms of the first items, as long as they follow one another and do not contain the magic."""
    magic = np.flatnonzero(buffer[HEAD.size + 4 :] == ITEM_MAGIC >> 24) + HEAD.size
    magic = magic[values_at(buffer, ">u4", magic + 4) == ITEM_MAGIC]
    sizes = values_at(buffer, ">u4", magic).astype(np.int64)
    starts = magic + np.where(sizes < LONG_ITEM_SIZE, ITEM.size, ITEM.size + 16)
    stops = starts + sizes
    follows = stops[:-1] == magic[1:]
    count = 0 if not len(magic) or magic[0] != HEAD.size else int(np.argmin(np.append(follows, False)))
    return starts[:count], stops[:count]


def encode(terms: list[bytes]) -> bytes:
    """A closed disk log of already encoded terms."""
    return _ITEM.pack(MAGIC, CLOSED) + encode_items(terms)


def encode_items(terms: list[bytes]) -> bytes:
    """The items that already encoded terms add to a disk log."""
    parts = []
    for term in terms:
        size = _ITEM.pack(len(term), ITEM_MAGIC)
        parts.append(size)
        if len(term) >= LONG_ITEM_SIZE:
            parts.append(md5(size[:4], usedforsecurity=False).digest())
        parts.append(term)
    return b"".join(parts)
