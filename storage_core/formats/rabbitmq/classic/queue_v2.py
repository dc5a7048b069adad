"""`<n>.qi` and `<n>.qs`: index and message store of one segment of a version-2 queue.

The engine decides which entries are served; `message_columns` encodes whole segments. Source: rabbitmq.md 8.
"""

from __future__ import annotations

from typing import TypeVar
from zlib import crc32

import numpy as np
import numpy.typing as npt

from storage_core.errors import FormatError
from storage_core.formats.layout import Bytes, Mask, struct

INDEX_MAGIC, STORE_MAGIC = 0x52435149, 0x52435153
VERSION = 2
SEGMENT_ENTRY_COUNT = 4096

HEADER = struct(
    "version 2 segment header",
    ("magic", ">u4", "`RCQI` of an index, `RCQS` of a store"),
    ("version", "u1", "2"),
    ("first", ">u8", "first sequence id of the segment"),
    ("next", ">u8", "first sequence id of the next segment"),
    ("reserved", "V43", "zeros"),
    size=64,
)
ENTRY = struct(
    "version 2 index entry",
    ("status", "u1", "1 = entry, 0 = none or acknowledged"),
    ("flags", "u1", "bit 0: persistent"),
    ("reserved", "u1", "0"),
    ("location", "u1", "0 = memory, 1 = shared store, 2 = the segment's own store"),
    ("address", "V16", "shared store: message id; own store: offset (8), size (4), zeros (4)"),
    ("size", ">u4", "size: length of the body"),
    ("expiry", ">u8", "expiry: µs since 1970, 0 = none"),
    size=32,
)
ADDRESS = struct(
    "version 2 address in the own store",
    ("position", ">u8", "position of the entry's head in the `.qs` file"),
    ("term_size", ">u4", "length of the term"),
    ("reserved", ">u4", "0"),
    size=16,
)
STORED = struct(
    "version 2 stored message",
    ("size", ">u4", "length of what follows this head"),
    ("flags", "u1", "bit 0: the checksum is set"),
    ("checksum", ">u2", "low 16 bits of the CRC-32 of the term"),
    ("reserved", "u1", "0"),
    size=8,
)
Row = TypeVar("Row", int, npt.NDArray[np.int64])
_MOST_ENTRIES, _NO_ID = 1 << 24, 1 << 62
LOCATION_MEMORY, LOCATION_SHARED, LOCATION_OWN = 0, 1, 2
STATUS_ENTRY, FLAG_PERSISTENT, FLAG_CHECKSUM = 1, 1, 1
CHECKSUM_MASK = 0xFFFF
NO_PLACE = "it names no place of a message"
"""The flaw that costs an entry its message."""


def decode_header(data: Bytes, magic: int, number: int, entry_count: int = SEGMENT_ENTRY_COUNT) -> tuple[int, int]:
    """The half-open range of sequence ids of segment `number`. Raises FormatError unless the header is of version 2.

    A range that does not match the segment is ignored: a node uses only the number and its own `entry_count`.
    """
    if len(data) < HEADER.size:
        raise FormatError(0, f"a header of {HEADER.size} bytes expected, the file holds {len(data)}")
    header = data[: HEADER.size].view(HEADER.dtype)[0]
    if int(header["magic"]) != magic:
        raise FormatError(0, f"magic {int(header['magic']):#010x}, expected {magic:#010x}")
    if int(header["version"]) != VERSION:
        raise FormatError(4, f"version {int(header['version'])}, this reader supports {VERSION}")
    count = entry_count_of(data[: HEADER.size].tobytes(), number) or entry_count
    first, following = number * count, (number + 1) * count
    if following >= _NO_ID:
        raise FormatError(5, f"sequence ids {first} to {following} are not a segment")
    return first, following


def entry_count_of(data: bytes, number: int | None = None) -> int | None:
    """The entries of a segment that begins with this header; None if that is not one of segment `number`, by default of
    any segment of version 2.
    """
    if len(data) < HEADER.size:
        return None
    header = np.frombuffer(data[: HEADER.size], HEADER.dtype)[0]
    first, count = int(header["first"]), int(header["next"]) - int(header["first"])
    if int(header["magic"]) not in {INDEX_MAGIC, STORE_MAGIC} or int(header["version"]) != VERSION:
        return None
    fits = 0 < count <= _MOST_ENTRIES and first % count == 0
    return count if fits and number in {None, first // count} else None


def encode_header(magic: int, number: int, entry_count: int = SEGMENT_ENTRY_COUNT) -> bytes:
    """The header of segment `number` of a queue whose segments have `entry_count` entries."""
    header = np.zeros(1, HEADER.dtype)
    header["magic"], header["version"] = magic, VERSION
    header["first"], header["next"] = number * entry_count, (number + 1) * entry_count
    return header.tobytes()


def has_place(entries: npt.NDArray[np.void]) -> Mask:
    """Which entries name a place that may hold their message."""
    address = np.ascontiguousarray(entries["address"]).view(ADDRESS.dtype)
    own = (entries["location"] == LOCATION_OWN) & (address["reserved"] == 0)
    found: Mask = own | (entries["location"] == LOCATION_SHARED)
    return found


def is_flawed(entries: npt.NDArray[np.void]) -> Mask:
    """Which entries no node would write. A transient message without a place is not flawed: it was in memory."""
    nowhere = ~has_place(entries) & ((entries["flags"] != 0) | (entries["location"] != LOCATION_MEMORY))
    flawed: Mask = (entries["status"] > 1) | _has_unused_bits(entries) | ((entries["status"] == 1) & nowhere)
    return flawed


def flaw_of(entry: np.void) -> str:
    """What is wrong with a flawed entry."""
    if entry["status"] > 1:
        return f"its status is {int(entry['status'])}, neither 0 nor 1"
    if _has_unused_bits(entry):
        return "bits are set that no node sets"
    return NO_PLACE


def _has_unused_bits(entries: npt.NDArray[np.void] | np.void) -> Mask:
    flawed: Mask = ((entries["flags"] & ~np.uint8(FLAG_PERSISTENT)) | entries["reserved"]) != 0
    return flawed


def mended(body: bytes, own_size: int) -> bytes:
    """The repaired bytes after the header, without bits that no node sets and without entries that name no place, or
    one past the end of a `.qs` of `own_size` bytes. An incomplete entry is cut off.
    """
    entries = ENTRY.all(np.frombuffer(body, np.uint8)).copy()
    entries["flags"] &= FLAG_PERSISTENT
    entries["reserved"] = 0
    address = np.ascontiguousarray(entries["address"]).view(ADDRESS.dtype)
    past_end = (entries["location"] == LOCATION_OWN) & (end_in_store(address) > own_size)
    entries["status"] = (entries["status"] != 0) & has_place(entries) & ~past_end
    return entries.tobytes()


def end_in_store(address: npt.NDArray[np.void]) -> npt.NDArray[np.float64]:
    """End positions in a `.qs` file of the messages at these `ADDRESS` values."""
    end: npt.NDArray[np.float64] = address["position"].astype(np.float64) + address["term_size"] + STORED.size
    return end


def position_of(row: Row) -> Row:
    """File position of entry `row` of a segment, or of each of several rows."""
    return HEADER.size + ENTRY.size * row


def decode_entries(data: Bytes, count: int) -> npt.NDArray[np.void]:
    """The entries after the header, at most `count`; a torn last one is left out. Shape (n,), a view."""
    body = data[HEADER.size :]
    return ENTRY.all(body)[:count]


def checksum(term: bytes | memoryview) -> int:
    """Checksum of a stored term: the low 16 bits of its CRC-32."""
    return crc32(term) & CHECKSUM_MASK
