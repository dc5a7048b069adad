"""From commit-log record to record by their sizes, and on to the next one after damage.

Whether a record is right is for `message` and the engine to say. Source of the rules: rocketmq.md 2.
"""

from __future__ import annotations

from collections.abc import Iterator
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
    HEADER,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    MIN_SIZE,
    PHYSICAL_OFFSET_AT,
)
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


_size, _head = PackedStruct(">i").unpack_from, PackedStruct(">iI").unpack_from
_loops = CompiledLoops("storage_core.formats.rocketmq.compiled.record_parts")


def walking(size: int) -> AbstractContextManager[None]:
    """A block in which about so many bytes of log are walked and checked: to know it beforehand makes it faster."""
    return loading.process.foreseeing(size)


def is_guided() -> bool:
    """Whether guesses make a walk faster: compiled loops need none."""
    return not loading.process.wants(0)


def _steps(buffer: Bytes, position: int) -> Iterator[int]:
    """Positions reached by adding up TOTALSIZE, the first one that cannot begin a record included."""
    view = buffer.data
    last = len(view) - BLANK.size
    while position <= last:
        yield position
        (size,) = _size(view, position)
        if size < MIN_SIZE:
            return
        position += size


def _guided_steps(buffer: Bytes, start: int, guesses: Positions) -> Positions:
    """The positions that `_steps` reaches; guesses that follow each other by their sizes are taken together."""
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
    """Steps from record to record by TOTALSIZE; looks at size and magic only.

    `guesses`: positions where an index says that records begin, ascending; they make the walk faster and never change
    it. `stop` is the position of the first byte that is not part of a record. TORN also when fewer than 8 bytes are
    left.
    """
    if (loops := _loops.after()) is not None:
        starts, sizes, stop = loops.walk(buffer, start)
        return Walk(starts, sizes, stop, _reason_at(buffer, stop))
    # The loop only adds sizes; what it stepped on is checked for all at once, and the first wrong one ends the walk.
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

    For reading on after damage (interface.md 4); lengths are left to `decode`.
    """
    matches: list[Positions] = []
    for last in (0xA7, 0xAB):
        at = np.flatnonzero(buffer[start + 7 :] == last) + start
        for shift, byte in ((6, 0x20), (5, 0xA3), (4, 0xDA)):
            at = at[buffer[at + shift] == byte]
        at = at[at + HEADER.size <= len(buffer)]
        matches.append(at[values_at(buffer, ">i8", at + PHYSICAL_OFFSET_AT) == at + base] if len(at) else at)
    return np.sort(np.concatenate(matches), kind="stable")
