"""Walks the commit log from record to record by their sizes, and finds the next one after damage.

Whether a record is valid is decided by `message` and the engine. Source of the rules: rocketmq.md 2; how 4.9's
dispatcher counts a record whose lengths do not add up to its TOTALSIZE: 5.5.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import Enum
from itertools import takewhile
from struct import Struct as PackedStruct

import numpy as np

from storage_core.compiled import loading
from storage_core.compiled.loading import CompiledLoops
from storage_core.formats.layout import Bytes, Positions, values_at
from storage_core.formats.rocketmq.message import (
    BLANK,
    BORN_HOST_V6,
    HEADER,
    HEADER_V4,
    HOST_V4,
    HOST_V6,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    MIN_SIZE,
    PHYSICAL_OFFSET_AT,
    STORE_HOST_V6,
)
from storage_core.formats.rocketmq.paths import SCHEDULE_TOPIC
from storage_core.formats.rocketmq.properties import delay_ms, property_of
from storage_core.formats.spans import structs_at


class Stop(Enum):
    """Why a walk ended."""

    END = "zeros"
    BLANK = "blank record"
    TORN = "a record that reaches beyond the bytes given"
    CORRUPT = "bytes that begin no record"


@dataclass(frozen=True)
class Walk:
    """Consecutive records: their positions and sizes, where the walk stopped and why."""

    starts: Positions
    sizes: Positions
    stop: int
    reason: Stop


Read = Callable[[int, int], bytes]
"""(position from the record's first byte, size) → bytes, fewer at the end of the file."""

_size, _head = PackedStruct(">i").unpack_from, PackedStruct(">iI").unpack_from
_loops = CompiledLoops("storage_core.formats.rocketmq.compiled.record_parts")


def walking(size: int) -> AbstractContextManager[None]:
    """A context in which about `size` bytes of log are walked and checked; announcing the size makes that faster."""
    return loading.process.foreseeing(size)


def is_guided() -> bool:
    """Whether guesses make a walk faster: compiled loops need none."""
    return not loading.process.wants(0)


def _steps(buffer: Bytes, position: int) -> Iterator[int]:
    """Positions reached by adding up TOTALSIZE, up to and including the first that cannot begin a record."""
    view = buffer.data
    last = len(view) - BLANK.size
    while position <= last:
        yield position
        (size,) = _size(view, position)
        if size < MIN_SIZE:
            return
        position += size


def _guided_steps(buffer: Bytes, start: int, guesses: Positions) -> Positions:
    """The positions that `_steps` reaches; guesses that are linked by their sizes are accepted as runs."""
    sizes = values_at(buffer, ">i4", guesses).astype(np.int64)
    following = guesses + sizes
    breaks = (sizes[:-1] < MIN_SIZE) | (following[:-1] != guesses[1:])
    firsts = np.flatnonzero(np.append(True, breaks)).tolist()
    parts: list[Positions] = []
    position = start
    for first, stop in zip(firsts, [*firsts[1:], len(guesses)], strict=True):
        steps = list(takewhile(int(guesses[first]).__gt__, _steps(buffer, position)))
        if steps:
            parts.append(np.array(steps, np.int64))
            (size,) = _size(buffer.data, steps[-1])
            position = steps[-1] + size
            if size < MIN_SIZE:
                return np.concatenate(parts)
        if position == guesses[first]:
            parts.append(guesses[first:stop])
            position = int(following[stop - 1])
            if sizes[stop - 1] < MIN_SIZE:
                return np.concatenate(parts)
    return np.concatenate((*parts, np.fromiter(_steps(buffer, position), np.int64)))


def walk(buffer: Bytes, start: int = 0, guesses: Positions | None = None) -> Walk:
    """Steps from record to record by TOTALSIZE; checks size and magic only.

    `guesses`: positions where records begin according to an index, ascending; they make the walk faster and never
    change its result. `stop` is the position of the first byte that is not part of a record. The reason is also TORN
    if fewer than 8 bytes are left.
    """
    if (loops := _loops.after()) is not None:
        starts, sizes, stop = loops.walk(buffer, start)
        return Walk(starts, sizes, stop, _reason_at(buffer, stop))
    # The loop only adds sizes; the positions are then checked all at once, and the first wrong one ends the walk.
    guesses = np.empty(0, np.int64) if guesses is None else guesses
    inside = guesses[(guesses >= start) & (guesses <= len(buffer) - BLANK.size)]
    starts = _guided_steps(buffer, start, inside) if len(inside) else np.fromiter(_steps(buffer, start), np.int64)
    if not len(starts):
        return Walk(starts, starts, start, Stop.TORN)
    heads = structs_at(buffer, BLANK.dtype, starts)
    sizes = heads["size"].astype(np.int64)
    magics = heads["magic"].astype(np.uint32)
    right = ((magics == MAGIC_V1) | (magics == MAGIC_V2)) & (sizes >= MIN_SIZE) & (starts + sizes <= len(buffer))
    if right.all():
        return Walk(starts, sizes, int(starts[-1] + sizes[-1]), Stop.TORN)
    wrong = int(right.argmin())
    return Walk(starts[:wrong], sizes[:wrong], int(starts[wrong]), _reason_at(buffer, int(starts[wrong])))


def _reason_at(buffer: Bytes, stop: int) -> Stop:
    if stop > len(buffer) - BLANK.size:
        return Stop.TORN
    size, magic = _head(buffer.data, stop)
    if magic == MAGIC_BLANK:
        return Stop.BLANK
    if magic in (MAGIC_V1, MAGIC_V2) and size >= MIN_SIZE:
        return Stop.TORN
    return Stop.CORRUPT if size or magic else Stop.END


def find_records(buffer: Bytes, base: int, start: int = 0) -> Positions:
    """Positions >= `start` where a record may begin: right magic, and PHYSICALOFFSET = base + position.

    For resuming after damage (interface.md 4); lengths are left to `decode`.
    """
    matches: list[Positions] = []
    for last in (0xA7, 0xAB):
        at = np.flatnonzero(buffer[start + 7 :] == last) + start
        for shift, byte in ((6, 0x20), (5, 0xA3), (4, 0xDA)):
            at = at[buffer[at + shift] == byte]
        at = at[at + HEADER.size <= len(buffer)]
        matches.append(at[values_at(buffer, ">i8", at + PHYSICAL_OFFSET_AT) == at + base] if len(at) else at)
    return np.sort(np.concatenate(matches), kind="stable")


def misread_sizes(read: Read) -> tuple[int, int] | None:
    """TOTALSIZE, by which the dispatcher counts, and the length of the fields, after which it continues to read.

    None if it does not continue that way: no record, fields that do not fit into the file, or a valid record.
    """
    head = read(0, HEADER.size)
    if len(head) < HEADER.size:
        return None
    size, flags = (_number(head, HEADER.field(name).offset, 4) for name in ("total_size", "sys_flag"))
    if _number(head, HEADER.field("magic").offset, 4) & 0xFFFFFFFF != MAGIC_V1 or size <= 0:
        return None
    born, stored = (HOST_V6 if flags & bit else HOST_V4 for bit in (BORN_HOST_V6, STORE_HOST_V6))
    at = HEADER_V4.size - 2 * HOST_V4 + born + stored
    body = _length(read, at - 4, 4)
    if body is None or max(born, stored) > size:
        return None
    at += max(body, 0)
    topic_size = _length(read, at, 1)
    if topic_size is None or not 0 <= topic_size <= size:
        return None
    topic = read(at + 1, topic_size)
    at += 1 + topic_size
    properties_size = _length(read, at, 2)
    if properties_size is None or len(topic) < topic_size:
        return None
    properties_size = max(properties_size, 0)
    properties = read(at + 2, properties_size)
    at += 2 + properties_size
    if len(properties) < properties_size or properties_size > size or at == size:
        return None
    if topic == SCHEDULE_TOPIC.encode() and delay_ms(property_of(properties, "DELAY")) is None:
        return None
    return size, at


def _length(read: Read, position: int, width: int) -> int | None:
    data = read(position, width)
    return _number(data, 0, width) if len(data) == width else None


def _number(data: bytes, position: int, width: int) -> int:
    return int.from_bytes(data[position : position + width], "big", signed=True)
