"""What a 3.10.8 node does with a stream's files, chunk by chunk: its startup, and a consumer from `first` on.

Slow and simple: it follows the rules of docs/format/rabbitmq-streams.md 7 and 8 as the node's own functions implement
them, not the way mqstore plans and reads. tests/real/rabbitmq/test_flipped_streams.py checks a real node.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass, field
from pathlib import Path

HEAD = struct.Struct(">BBHIqQQIIII")
RECORD = struct.Struct(">QqQIB")
FILE_HEAD = 8


class NotStartedError(Exception):
    """The stream's process crashes when it starts."""


@dataclass
class Served:
    """Entries by offset, as a consumer receives them, and whether it reaches the end of the log."""

    entries: dict[int, bytes] = field(default_factory=dict)
    whole: bool = True


def served(folder: Path) -> Served:
    """What a consumer receives from the first offset on after a node start. Changes no file. Raises NotStartedError."""
    indexes = sorted(folder.glob("*.index"))
    files = {path.stem: bytearray(path.read_bytes()) for path in folder.glob("*.segment")}
    while len(indexes) > 1 and len(files[indexes[-1].stem]) <= HEAD.size:
        del files[indexes.pop().stem]
    last = _last_chunk(indexes[-1].read_bytes(), files[indexes[-1].stem])
    if last is None:
        raise NotImplementedError("a last index without a record")
    first = files[indexes[0].stem]
    if len(first) <= FILE_HEAD or first[FILE_HEAD] != 0x50:
        raise NotStartedError("the first chunk")
    position, head = last
    segment = files[indexes[-1].stem]
    end = position + HEAD.size + head[8] + head[9]
    del segment[end:]
    zeros = end - len(segment)
    # Ten zeros are one tracking record, so a long run of zeros ends like a shorter one of the same length modulo 10.
    segment.extend(bytes(zeros if zeros < 1000 else 1000 + zeros % 10))
    _recover_tracking(bytes(segment), end)
    return _consumed(files, indexes[0].stem, head[6] + head[3])


def _last_chunk(index: bytes, segment: bytearray) -> tuple[int, tuple[int, ...]] | None:
    count = (len(index) - FILE_HEAD) // RECORD.size
    for number in range(count - 1, -1, -1):
        record = index[FILE_HEAD + number * RECORD.size :][: RECORD.size]
        position = RECORD.unpack(record)[3]
        data = segment[position : position + HEAD.size]
        if not any(record) or len(data) < HEAD.size or data[0] != 0x50:
            continue
        head = HEAD.unpack(data)
        if head[8] and position + HEAD.size == len(segment):
            raise NotStartedError("a head without data")
        body = segment[position + HEAD.size :][: head[8]]
        if zlib.crc32(body) == head[7]:
            return position, head
    return None


def _recover_tracking(segment: bytes, end: int) -> None:
    position = FILE_HEAD
    while position < end:
        data = segment[position : position + HEAD.size]
        if len(data) < HEAD.size or data[0] != 0x50:
            raise NotStartedError("a head")
        head = HEAD.unpack(data)
        begin = position + HEAD.size
        entries, trailer = segment[begin : begin + head[8]], segment[begin + head[8] :][: head[9]]
        if head[1] == 0:
            _parse(trailer, False)
        elif head[1] in (1, 2):
            if int.from_bytes(entries[:4]) != len(entries) - 4:
                raise NotStartedError("an entry")
            _parse(entries[4:], head[1] == 2)
        else:
            raise NotStartedError("a type")
        position = begin + head[8] + head[9]


def _parse(data: bytes, of_snapshot: bool) -> None:
    while data:
        size = 2 + data[1] + 8 * (1 + (of_snapshot and data[0] == 0)) if len(data) > 1 else 2
        if data[0] > 2 or len(data) < size:
            raise NotStartedError("a tracking record")
        data = data[size:]


def _consumed(files: dict[str, bytearray], name: str, stop: int) -> Served:
    found, number, position = Served(), int(name), FILE_HEAD
    while number < stop:
        segment = files[name]
        data = segment[position : position + HEAD.size]
        if not data:
            name, position = f"{number:020}", FILE_HEAD
            if name not in files:
                break
            continue
        if len(data) < HEAD.size or data[0] != 0x50:
            break
        head = HEAD.unpack(data)
        body = bytes(segment[position + HEAD.size :][: head[8]])
        if head[6] != number or zlib.crc32(body) != head[7]:
            break
        if head[1] == 0:
            offset = number
            while body:
                size = int.from_bytes(body[:4])
                found.entries[offset], body = body[4 : 4 + size], body[4 + size :]
                offset += 1
        number, position = number + head[3], position + HEAD.size + head[8] + head[9]
    found.whole = number == stop
    return found
