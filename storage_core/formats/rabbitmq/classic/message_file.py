"""`<n>.rdq`: records of the shared message store. Walks and encodes them; the engine chooses which one to serve.

Source: rabbitmq.md 6.1.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct as Packer

import numpy as np

from storage_core.formats.layout import Bytes, Positions, struct, values_at

HEAD = struct(
    "message file record",
    ("size", ">u8", "16 + length of the term that follows the id"),
    ("id", "V16", "message id"),
    size=24,
)
MARKER = 0xFF
OVERHEAD = 9
"""Bytes of a record beyond its `size`: the 8 bytes of the size field and the marker at the end."""
ID_SIZE = 16
CONTAINERS = (b"\x83h\x04w\x02mc", b"\x83h\x04d\x00\x02mc")
"""First bytes of the term of a message of 3.13 or later: a tuple of four, then the atom `mc` in either encoding."""
_VERSION = 0x83

_SIZE = Packer(">Q")


@dataclass(frozen=True)
class MessageRecords:
    """Records of a part of a message file, in file order; those whose marker is not 255, or that are too short for an
    id, are in `unmarked` instead of `positions`.

    Positions count from the file's first byte; `sizes` are those of whole records. `stop` is where the walk ended,
    `reason` why: `end` (of the file), `blank` (length 0), `torn` (beyond the end of the file), `more` (beyond `data`).
    """

    positions: Positions
    sizes: Positions
    unmarked: Positions
    stop: int
    reason: str


def walk(data: Bytes, base: int, file_size: int) -> MessageRecords:
    """Walks the records that start in `data`, the file's bytes from position `base` on. Never raises.

    Only with reason `more` may a record extend beyond `data`; it is then not among the positions.
    """
    raw = data.data
    positions, sizes, unmarked = [], [], []
    at, stop, reason = 0, len(raw), "more"
    size_at = _SIZE.unpack_from
    while True:
        if base + at >= file_size:
            reason = "end"
            break
        if base + at + _SIZE.size > file_size:
            reason = "torn"
            break
        if at + _SIZE.size > stop:
            break
        length = size_at(raw, at)[0]
        if length == 0:
            reason = "blank"
            break
        if base + at + length + OVERHEAD > file_size:
            reason = "torn"
            break
        if at + length + OVERHEAD > stop:
            break
        if length >= ID_SIZE and raw[at + length + OVERHEAD - 1] == MARKER:
            positions.append(base + at)
            sizes.append(length + OVERHEAD)
        else:
            unmarked.append(base + at)
        at += length + OVERHEAD
    return MessageRecords(
        np.array(positions, np.int64), np.array(sizes, np.int64), np.array(unmarked, np.int64), base + at, reason
    )


def framed(data: Bytes, base: int, file_size: int) -> tuple[Positions, Positions]:
    """Offsets in `data` of possible records, and their whole sizes, shape (n,) each. `data` holds the bytes from
    position `base` of a file of `file_size` bytes.

    Checks the heads alone: room for an id and a term within the file, and the term's first byte. End markers are not
    checked. One byte in 256 is examined, so this is meant for stretches where records do not follow one another.
    """
    starts = np.flatnonzero(data[HEAD.size :] == _VERSION)
    lengths = values_at(data, ">u8", starts)
    fits = (lengths > ID_SIZE) & (lengths <= max(0, file_size - base - OVERHEAD))
    starts, sizes = starts[fits], lengths[fits].astype(np.int64) + OVERHEAD
    inside = base + starts + sizes <= file_size
    return starts[inside], sizes[inside]


def has_container(data: Bytes, starts: Positions) -> bool:
    """Whether a record that starts at one of `starts` in `data` holds a message as written by 3.13 and later."""
    terms = starts + HEAD.size
    return any(bool((values_at(data, f"S{len(head)}", terms) == head).any()) for head in CONTAINERS)


def encode(message_id: bytes, term: bytes) -> bytes:
    """Encodes one record."""
    return _SIZE.pack(ID_SIZE + len(term)) + message_id + term + bytes((MARKER,))
