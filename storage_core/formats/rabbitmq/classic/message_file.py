"""`<n>.rdq`: records of the shared message store. Walks and encodes them; which one serves a message is the engine's.

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
"""A record takes `size` plus its own 8 bytes plus the marker after it."""
ID_SIZE = 16
CONTAINERS = (b"\x83h\x04w\x02mc", b"\x83h\x04d\x00\x02mc")
"""How the term of a message of 3.13 or later begins: a tuple of four, the atom `mc` in either spelling."""
_VERSION = 0x83

_SIZE = Packer(">Q")


@dataclass(frozen=True)
class MessageRecords:
    """Records of a stretch of a message file, in file order; a record whose marker is not 255 is in `unmarked`.

    `positions` count from the file's first byte; `sizes` are whole records. `stop` is where the walk ended, `reason`:
    `end` (of the file), `blank` (length 0), `torn` (longer than the file), `more` (beyond the bytes given).
    """

    positions: Positions
    sizes: Positions
    unmarked: Positions
    stop: int
    reason: str


def walk(data: Bytes, base: int, file_size: int) -> MessageRecords:
    """Walks the records that start in `data`, the file's bytes from position `base` on. Never raises.

    A record may reach beyond `data` only with reason `more`, and is then not among the positions.
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
    """Where, from the first byte of `data` on, lie what may be records, and their whole sizes, shape (n,) each. `data`
    are the bytes of the file of `file_size` from position `base` on.

    By their heads alone: an id and a term, not beyond the end of the file, and the term's first byte. Their end markers
    are not looked at. One in 256 bytes is looked at, so this is for stretches where no record follows another.
    """
    starts = np.flatnonzero(data[HEAD.size :] == _VERSION)
    lengths = values_at(data, ">u8", starts)
    fits = (lengths > ID_SIZE) & (lengths <= max(0, file_size - base - OVERHEAD))
    starts, sizes = starts[fits], lengths[fits].astype(np.int64) + OVERHEAD
    inside = base + starts + sizes <= file_size
    return starts[inside], sizes[inside]


def has_container(data: Bytes, starts: Positions) -> bool:
    """Whether a record that starts at one of `starts` in `data` holds a message as 3.13 and later write it."""
    terms = starts + HEAD.size
    return any(bool((values_at(data, f"S{len(head)}", terms) == head).any()) for head in CONTAINERS)


def encode(message_id: bytes, term: bytes) -> bytes:
    """One record."""
    return _SIZE.pack(ID_SIZE + len(term)) + message_id + term + bytes((MARKER,))
