"""`journal.jif`: the latest publishes, delivers and acks of a queue, with full sequence ids.

Walks and encodes the records; the engine combines them with the segments. Source: rabbitmq.md 2.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct as Packer

import numpy as np
import numpy.typing as npt

from storage_core.formats.layout import Positions, struct

PUBLISH_PERSISTENT, PUBLISH_TRANSIENT, DELIVER, ACK = 0, 1, 2, 3
KIND_SHIFT = 62
MAX_SEQUENCE_ID = (1 << KIND_SHIFT) - 1

PUBLISH = struct(
    "journal publish",
    ("head", ">u8", "2 bits kind (0 persistent, 1 transient publish), 62 bits sequence id"),
    ("id", "V16", "message id"),
    ("expiry", ">u8", "expiry: µs since 1970, 0 = none"),
    ("size", ">u4", "size: length of the body"),
    ("embedded_size", ">u4", "length of the embedded message term, 0 = message is in the shared store"),
    size=40,
)
MARK = struct(
    "journal mark",
    ("head", ">u8", "2 bits kind (2 deliver, 3 ack), 62 bits sequence id"),
    size=8,
)

_BLANK = bytes(PUBLISH.size)
_HEAD = Packer(">Q")
_EMBEDDED = Packer(">I")
_EMBEDDED_POSITION = PUBLISH.field("embedded_size").offset


@dataclass(frozen=True)
class JournalRecords:
    """The whole records of a journal in file order; arrays of shape (n,).

    `kinds` are PUBLISH_PERSISTENT, PUBLISH_TRANSIENT, DELIVER or ACK; `embedded_sizes` are 0 for marks.
    `stop` is the position after the last whole record, `reason` why the walk ended there: `end`, `blank`, `torn`.
    """

    kinds: npt.NDArray[np.uint8]
    sequence_ids: npt.NDArray[np.int64]
    positions: Positions
    embedded_sizes: npt.NDArray[np.int64]
    stop: int
    reason: str

    def first(self, count: int) -> JournalRecords:
        """The first `count` records; `count` must be less than the number of records."""
        return JournalRecords(
            self.kinds[:count],
            self.sequence_ids[:count],
            self.positions[:count],
            self.embedded_sizes[:count],
            int(self.positions[count]),
            "end",
        )


def walk(data: bytes | memoryview) -> JournalRecords:
    """All records up to the end, to 40 zero bytes at a record's start, or to an unfinished record. Never raises."""
    heads, positions, sizes = [], [], []
    position, stop, reason = 0, len(data), "end"
    head_at, embedded_at = _HEAD.unpack_from, _EMBEDDED.unpack_from
    while position < stop:
        if position + MARK.size > stop:
            reason = "torn"
            break
        head = head_at(data, position)[0]
        embedded, length = 0, MARK.size
        if head >> 63 == 0:
            if position + PUBLISH.size > stop:
                reason = "torn"
                break
            embedded = embedded_at(data, position + _EMBEDDED_POSITION)[0]
            length = PUBLISH.size + embedded
            if head == 0 and data[position : position + PUBLISH.size] == _BLANK:
                reason = "blank"
                break
            if position + length > stop:
                reason = "torn"
                break
        heads.append(head)
        positions.append(position)
        sizes.append(embedded)
        position += length
    raw = np.array(heads, np.uint64)
    return JournalRecords(
        (raw >> np.uint64(KIND_SHIFT)).astype(np.uint8),
        (raw & np.uint64(MAX_SEQUENCE_ID)).astype(np.int64),
        np.array(positions, np.int64),
        np.array(sizes, np.int64),
        position,
        reason,
    )


def encode_marks(kind: int, sequence_ids: npt.NDArray[np.int64]) -> bytes:
    """The deliver or ack records of `sequence_ids`, in that order."""
    return (sequence_ids.astype(np.uint64) | np.uint64(kind << KIND_SHIFT)).astype(">u8").tobytes()
