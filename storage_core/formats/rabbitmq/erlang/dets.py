"""`recovery.dets`: a DETS table of format version 9. Decodes its objects, and encodes a table that DETS will repair.

What the objects mean belongs to the engine. Source: rabbitmq.md 1.4.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from storage_core.errors import FormatError
from storage_core.formats.layout import struct
from storage_core.formats.rabbitmq.erlang import external_term

HEADER = struct(
    "dets header",
    ("free_list", ">u4", "free-list pointer"),
    ("cookie", ">u4", "`00ABCDEF`"),
    ("closed_properly", ">u4", "1 = closed properly"),
    ("type", ">u4", "1 = set"),
    ("version", ">u4", "9"),
    ("m", ">u4", "m of linear hashing"),
    ("next", ">u4", "next slot to be split"),
    ("key_position", ">u4", "key position, 1 = first element"),
    ("object_count", ">u4", "number of objects"),
    ("key_count", ">u4", "number of keys"),
    ("min_slots", ">u4", "min slots"),
    ("max_slots", ">u4", "max slots"),
    ("hash_method", ">u4", "1 = phash2"),
    ("n", ">u4", "n of linear hashing"),
    ("counters", "V112", "counters of the buddy system"),
    ("md5", "V16", "MD5 over bytes 12 to 55 and the counters"),
    ("buddy_base", ">u4", "base of the buddy system"),
    ("reserved", "V124", "zeros"),
    size=312,
)
COLLECTION = struct(
    "dets collection",
    ("size", ">u4", "length with this head"),
    ("status", ">u4", "`12345678` = active"),
    size=8,
)
COOKIE, VERSION, ACTIVE = 0x00ABCDEF, 9, 0x12345678
HEAD = (COOKIE.to_bytes(4, "big"), HEADER.field("cookie").offset)
"""What a table has, and at which position."""
PARTS_POSITION, PART_COUNT, PART_SIZE, SLOT_COUNT = 312, 256, 512, 256
OBJECTS_POSITION, ALIGNMENT = 1336, 16


def decode(data: bytes) -> list[Any]:
    """All objects of a table, of one that was not closed properly by looking for collections as DETS' repair does.

    FormatError when it is no table of version 9 (a node deletes such a file and starts with an empty one).
    """
    if len(data) < OBJECTS_POSITION:
        raise FormatError(0, f"a header of {OBJECTS_POSITION} bytes wanted, the file holds {len(data)}")
    header = np.frombuffer(data, HEADER.dtype, 1)[0]
    if int(header["cookie"]) != COOKIE or int(header["version"]) != VERSION:
        raise FormatError(
            4, f"cookie {int(header['cookie']):#010x}, version {int(header['version'])}: no table of version 9"
        )
    if int(header["closed_properly"]) == 1:
        return [term for position in _linked(data) for term in _objects(data, position)]
    return _repaired(data)


def _words(data: bytes, position: int, count: int) -> list[int]:
    if position < 0 or position + 4 * count > len(data):
        raise FormatError(position, f"{4 * count} bytes wanted, the file holds {len(data)}")
    words: list[int] = np.frombuffer(data, ">u4", count, position).tolist()
    return words


def _linked(data: bytes) -> list[int]:
    """Positions of the collections that the hash slots point at."""
    found: list[int] = []
    for part in filter(None, _words(data, PARTS_POSITION, PART_COUNT)):
        for segment in filter(None, _words(data, part, PART_SIZE)):
            pairs = _words(data, segment, 2 * SLOT_COUNT)
            found.extend(pointer for pointer in pairs[1::2] if pointer)
    return found


def _objects(data: bytes, position: int) -> list[Any]:
    """The objects of the collection at `position`. FormatError."""
    size, status = _words(data, position, 2)
    stop = position + size
    if status != ACTIVE or size < COLLECTION.size or stop > len(data):
        raise FormatError(position, f"no active collection: size {size}, status {status:#010x}")
    found = []
    at = position + COLLECTION.size
    while at < stop:
        length = _words(data, at, 1)[0]
        if length < 4 or at + length > stop:
            raise FormatError(at, f"an object of {length} bytes in a collection that ends at {stop}")
        try:
            found.append(external_term.decode(data[at + 4 : at + length]))
        except FormatError as error:
            raise FormatError(at + 4 + error.position, error.reason) from None
        at += length
    return found


def _repaired(data: bytes) -> list[Any]:
    found = []
    position = OBJECTS_POSITION
    while position + COLLECTION.size <= len(data):
        size, status = _words(data, position, 2)
        step = ALIGNMENT
        if status == ACTIVE:
            try:
                found += _objects(data, position)
                step = _padded(size)
            except FormatError:
                step = ALIGNMENT  # DETS' repair, too, goes on after what it cannot read
        position += step
    return found


def _padded(size: int) -> int:
    return 1 << max(size - 1, ALIGNMENT - 1).bit_length()


def encode(objects: list[Any]) -> bytes:
    """A table that says it was not closed properly: DETS repairs it when it opens it, and hashes the objects itself."""
    header = np.zeros(1, HEADER.dtype)
    values = {
        "cookie": COOKIE,
        "type": 1,
        "version": VERSION,
        "m": 256,
        "next": 256,
        "key_position": 1,
        "min_slots": 256,
    }
    values |= {"max_slots": 1 << 25, "hash_method": 1, "object_count": len(objects), "key_count": len(objects)}
    values |= {"buddy_base": OBJECTS_POSITION}
    for name, value in values.items():
        header[name] = value
    parts = [header.tobytes(), bytes(4 * PART_COUNT)]
    for item in objects:
        term = external_term.encode(item)
        size = COLLECTION.size + 4 + len(term)
        words = np.array([size, ACTIVE, 4 + len(term)], ">u4").tobytes()
        parts.append((words + term).ljust(_padded(size), b"\0"))
    body = b"".join(parts)
    return body + (len(body) + 4 - OBJECTS_POSITION).to_bytes(4, "big")
