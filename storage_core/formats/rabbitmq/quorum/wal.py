"""The write-ahead log that all quorum queues of a node share: the records of one window, read one head after another.

`log_entry` interprets the entries. Source: docs/format/rabbitmq-quorum.md 3.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from struct import Struct as Packer
from zlib import adler32

import numpy as np
import numpy.typing as npt

from storage_core.errors import FormatError
from storage_core.formats.layout import Positions, struct

MAGIC, VERSION, HEADER_SIZE = b"RAWA", 1, 5
RECORD = struct(
    "raft wal record",
    ("checksum", ">u4", "Adler-32 of index, term and data; 0 = not checked"),
    ("size", ">u4", "length of the data"),
    ("index", ">u8", "raft index"),
    ("term", ">u8", "raft term"),
    size=24,
)
TRUNCATE, KNOWN = 0x80, 0x40
LAST_RECORD_TAIL = 13
"""A record with a wrong checksum and fewer bytes than this after it, or only zeros, was still being written."""

_HEAD = Packer(">BH")
_LENGTH = Packer(">H")
_FIELDS = Packer(">IIQQ")
_KNOWN_RECORD = Packer(">BHIIQQ")
KNOWN_SIZE = _KNOWN_RECORD.size
"""Bytes before the data of a record whose writer was named by an earlier record."""

WAL_ENTRY = np.dtype(
    [("index", "i8"), ("term", "i8"), ("position", "i8"), ("size", "i8"), ("writer", "i4"), ("truncate", "?")]
)
"""One record: its entry's data are `size` bytes at `position` of the file."""


@dataclass
class WalWindow:
    """The whole records of a window: `entries` of WAL_ENTRY, shape (n,), and the position after the last one.

    `ended`: the log ends at `stop`, whatever else the file holds. `damaged`: at `stop` is a record with a wrong
    checksum, followed by more data.
    """

    entries: npt.NDArray[np.void]
    stop: int
    ended: bool
    damaged: bool = False


@dataclass
class Writers:
    """The uids by writer number, from the part of a file read so far."""

    uids: dict[int, bytes] = field(default_factory=dict)


def check_header(head: bytes) -> None:
    """Raises FormatError unless `head` begins a write-ahead log of version 1."""
    if len(head) < HEADER_SIZE or head[:4] != MAGIC:
        raise FormatError(0, "a write-ahead log begins with RAWA and a version")
    if head[4] != VERSION:
        raise FormatError(4, f"a write-ahead log of version {head[4]}; version {VERSION} is read")


def walk(data: bytes, base: int, is_last: bool, writers: Writers) -> WalWindow:
    """The records of `data`, the file's bytes from `base`, starting with a record. `is_last`: `data` ends the file."""
    records, starts, at, ended = _hop(data, writers)
    if not records:
        return WalWindow(np.empty(0, WAL_ENTRY), base + at, ended)
    table = np.array(records, "u8").reshape(-1, 6)
    entries = np.empty(len(records), WAL_ENTRY)
    positions = np.array(starts, np.int64)
    sizes = table[:, 3].astype(np.int64)
    entries["writer"] = ((table[:, 0] & 0x3F) << 16 | table[:, 1]).astype(np.int32)
    entries["truncate"] = table[:, 0] & TRUNCATE != 0
    entries["index"], entries["term"] = table[:, 4], table[:, 5]
    entries["position"], entries["size"] = positions + base, sizes
    right = _checked(data, positions, sizes, table[:, 2])
    if right == len(entries):
        return WalWindow(entries, base + at, ended)
    stop = int(positions[right] + sizes[right])
    rest = data[stop : stop + LAST_RECORD_TAIL]
    begin = int(positions[right - 1] + sizes[right - 1]) if right else 0
    if len(rest) == LAST_RECORD_TAIL and any(rest):
        return WalWindow(entries[:right], base + begin, True, True)
    if len(rest) < LAST_RECORD_TAIL and not is_last:
        # Only reading it together with the next window shows whether it is the file's last record.
        return WalWindow(entries[:right], base + begin, False)
    return WalWindow(entries[:right], base + begin, True)


def _hop(data: bytes, writers: Writers) -> tuple[list[tuple[int, ...]], list[int], int, bool]:
    """Heads of the whole records, positions of their data, the position after the last, and whether zeros follow."""
    records: list[tuple[int, ...]] = []
    starts: list[int] = []
    unpack, take, put = _KNOWN_RECORD.unpack_from, records.append, starts.append
    at, end, head_size = 0, len(data), _KNOWN_RECORD.size
    while at + head_size <= end:
        record = unpack(data, at)
        start = at + head_size
        if not record[0] & KNOWN:
            found = _first_of_writer(data, at)
            if found is None:
                return records, starts, at, not any(data[at : at + LAST_RECORD_TAIL])
            record, start, uid = found
            if start + record[3] <= end:
                writers.uids[(record[0] & 0x3F) << 16 | record[1]] = uid
        stop = start + record[3]
        if stop > end:
            break
        take(record)
        put(start)
        at = stop
    ended = end - at >= 5 and not any(data[at : at + LAST_RECORD_TAIL])
    return records, starts, at, ended


def _first_of_writer(data: bytes, at: int) -> tuple[tuple[int, ...], int, bytes] | None:
    """A record that names its writer: its fields, the start of its data, the uid; None if it is torn or all zero."""
    flags, low = _HEAD.unpack_from(data, at)
    size = _LENGTH.unpack_from(data, at + _HEAD.size)[0]
    begin = at + _HEAD.size + _LENGTH.size
    start = begin + size + _FIELDS.size
    if start > len(data):
        return None
    if not size:
        return None
    return (flags, low, *_FIELDS.unpack_from(data, begin + size)), start, data[begin : begin + size]


def _checked(data: bytes, starts: Positions, sizes: Positions, sums: npt.NDArray[np.uint64]) -> int:
    """Index of the first record whose checksum does not match; the number of records if all match."""
    view = memoryview(data)
    spans = map(view.__getitem__, map(slice, (starts - 16).tolist(), (starts + sizes).tolist()))
    found = np.fromiter(map(adler32, spans), np.uint64, len(starts))
    wrong = np.flatnonzero((found != sums) & (sums != 0))
    return int(wrong[0]) if len(wrong) else len(starts)
