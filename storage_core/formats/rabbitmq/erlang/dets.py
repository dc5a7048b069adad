"""`recovery.dets`: a DETS table of format version 9. Decodes its objects, and encodes a table that DETS will repair.

The engine interprets the objects. Source: rabbitmq.md 1.4.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
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
CLOSED, NOT_CLOSED = 1, 0
HEAD = (COOKIE.to_bytes(4, "big"), HEADER.field("cookie").offset)
"""The bytes that identify a table, and their position."""
NO_MD5 = bytes(16)
SUMMED = slice(HEADER.field("type").offset, HEADER.field("md5").offset)
PARTS_POSITION, PART_COUNT, PART_SIZE, SLOT_COUNT = 312, 256, 512, 256
OBJECTS_POSITION, ALIGNMENT = 1336, 16
FIRST_SEGMENT_POSITION = OBJECTS_POSITION + 4 * PART_SIZE


def decode(data: bytes) -> list[Any]:
    """All objects of a table. If it was not closed properly, scans it for collections as DETS' repair does.

    Raises FormatError if it is not a table of version 9, or has changed since its header was written (a node deletes
    such a file and starts with an empty one), or if a collection cannot be read (DETS then answers no more requests).
    """
    if len(data) < OBJECTS_POSITION:
        raise FormatError(0, f"a header of {OBJECTS_POSITION} bytes expected, the file holds {len(data)}")
    header = np.frombuffer(data, HEADER.dtype, 1)[0]
    if int(header["cookie"]) != COOKIE or int(header["version"]) != VERSION:
        raise FormatError(
            4, f"cookie {int(header['cookie']):#010x}, version {int(header['version'])}: not a table of version 9"
        )
    if header["md5"].tobytes() not in {NO_MD5, hashlib.md5(data[SUMMED], usedforsecurity=False).digest()}:
        raise FormatError(HEADER.field("md5").offset, "the header has another MD5")
    closed = int(header["closed_properly"])
    if closed not in {CLOSED, NOT_CLOSED}:
        raise FormatError(HEADER.field("closed_properly").offset, f"{closed} is not a known way of closing a table")
    return _linked(data, int(header["object_count"])) if closed == CLOSED else _repaired(data)


def _words(data: bytes, position: int, count: int) -> list[int]:
    if position < 0 or position + 4 * count > len(data):
        raise FormatError(position, f"{4 * count} bytes expected, the file holds {len(data)}")
    words: list[int] = np.frombuffer(data, ">u4", count, position).tolist()
    return words


def _linked(data: bytes, count: int) -> list[Any]:
    """The objects of the collections that the hash slots point at.

    A slot without an object is never accessed, so FormatError is raised only if some of `count` objects are missing.
    """
    found: list[Any] = []
    flaw = None
    for size, position in sorted(set(_slots(data))):
        try:
            found += _objects(data, position, size)
        except FormatError as error:
            flaw = flaw or error
    if flaw is not None and len(found) != count:
        raise flaw
    return found


def _slots(data: bytes) -> Iterator[tuple[int, int]]:
    """Size and position of the collection of each slot that has one. Raises FormatError if the first part and its first
    segment are not at their fixed positions: slots would have other numbers.
    """
    parts = _words(data, PARTS_POSITION, PART_COUNT)
    first = _words(data, OBJECTS_POSITION, 1)[0]
    if (parts[0], first) != (OBJECTS_POSITION, FIRST_SEGMENT_POSITION):
        raise FormatError(PARTS_POSITION, f"the first part lies at {parts[0]}, its first segment at {first}")
    for part in filter(None, parts):
        for segment in filter(None, _readable(data, part, PART_SIZE)):
            pairs = _readable(data, segment, 2 * SLOT_COUNT)
            yield from ((size, position) for size, position in zip(pairs[::2], pairs[1::2], strict=True) if position)


def _readable(data: bytes, position: int, count: int) -> list[int]:
    """`count` words at `position`; none if the file is too short."""
    return _words(data, position, count) if position + 4 * count <= len(data) else []


def _objects(data: bytes, position: int, wanted_size: int | None = None) -> list[Any]:
    """The objects of the collection at `position`. Raises FormatError, also if its size is not the one in its slot."""
    size, status = _words(data, position, 2)
    stop = position + size
    if status != ACTIVE or size < COLLECTION.size or stop > len(data) or wanted_size not in {None, size}:
        raise FormatError(position, f"no active collection: size {size}, status {status:#010x}")
    found = []
    at = position + COLLECTION.size
    while at < stop:
        length = _words(data, at, 1)[0]
        if length < 4 or at + length > stop:
            raise FormatError(at, f"an object of {length} bytes in a collection that ends at {stop}")
        try:
            # DETS checks neither what follows a term nor whether the term ends with its object.
            item, _ = external_term.decode_prefix(data[at + 4 : stop])
        except FormatError as error:
            raise FormatError(at + 4 + error.position, error.reason) from None
        if not isinstance(item, tuple) or not item:
            raise FormatError(at + 4, "an object without a key")
        found.append(item)
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
                step = ALIGNMENT  # DETS' repair also continues past what it cannot read
        position += step
    return found


def _padded(size: int) -> int:
    return 1 << max(size - 1, ALIGNMENT - 1).bit_length()


def encode(objects: list[Any]) -> bytes:
    """A table marked as not closed properly: DETS repairs it on opening and hashes the objects itself."""
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
