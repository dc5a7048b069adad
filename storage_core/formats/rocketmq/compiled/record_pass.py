"""Reads many records in one pass: checks parts, compares with entries, copies bodies, computes CRCs, finds properties.

The rules are documented at the numpy twins: `message`, `consumequeue.Expected` and `properties`.

Functions that are called for each record are inlined, and the loop counts no references (it makes no array): a call
that passes arrays, and an atomic count, take longer than the work.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from numba import njit, types

from storage_core.compiled.calls import CRC32_ADDRESS, copy, crc32, differ, int32_at, int64_at
from storage_core.compiled.span_loops import (
    BYTES,
    NUMBERS,
    OUT_BYTES,
    OUT_NUMBERS,
    OUT_NUMBERS_OF_ALL,
    OUT_POSITIONS,
    OUT_POSITIONS_OF_ALL,
    POSITIONS,
    Numbers,
    positions,
)
from storage_core.formats.checksum import MASK
from storage_core.formats.layout import Bytes, Field, Mask, Positions
from storage_core.formats.rocketmq.compiled.property_loops import find_properties
from storage_core.formats.rocketmq.compiled.record_parts import (
    AROUND,
    FLAGS_AT,
    LENGTHS,
    NONE,
    TOO_SHORT,
    hosts_size,
    part_spans,
    port_bits,
    size_and_flaw,
)
from storage_core.formats.rocketmq.consumequeue import Difference, Expected
from storage_core.formats.rocketmq.hosts import LAST_PORT
from storage_core.formats.rocketmq.message import (
    COMPRESSED,
    HEADER,
    HOST_V4,
    MIN_SIZE,
    PHYSICAL_OFFSET_AT,
    QUEUE_OFFSET_AT,
    Wanted,
)

CRC_AT, QUEUE_ID_AT = (HEADER.field(name).offset for name in ("body_crc", "queue_id"))
PHYSICAL_OFFSET, QUEUE, QUEUE_OFFSET, SIZE = (int(difference) for difference in Difference if difference)
# Further notes on a record, in the bits above those of Difference.
DIFFERENCES, WRONG_BODY, IS_COMPRESSED, SIX, WRONG_PORT = 15, 16, 32, 64, 128
OUTSIDE = -1
PARTS = 6
VALUE_SIZE = 64
"""Average bytes of a property's values up to which the pass copies them; longer ones are copied on request."""

Texts = tuple[Bytes, Positions]
TEXTS = types.Tuple((BYTES, POSITIONS))
"""Texts one after another, and where each begins; one more element for the end of the last."""
POSITION_PAIR = types.Tuple((POSITIONS, POSITIONS))
Spans = tuple[Positions, Positions]
SPANS = types.Tuple((OUT_POSITIONS_OF_ALL, OUT_POSITIONS_OF_ALL))
Copies = tuple[Numbers, Bytes]
COPIES, COPIES_OF_ALL = types.Tuple((OUT_NUMBERS, OUT_BYTES)), types.Tuple((OUT_NUMBERS_OF_ALL, OUT_BYTES))
"""Where each row's copy begins, and the bytes; with several names, the same number of bytes for each."""


@dataclass(frozen=True)
class FoundRecords:
    """What `message.Messages` takes over. `begins` and `ends`: the properties, shape (names, n); `values`: copies of
    them, None if they are long; `parts`: shape (6, n).
    """

    flaws: npt.NDArray[np.uint8]
    differences: npt.NDArray[np.uint8]
    parts: Positions
    bodies: pa.BinaryArray | None
    wrong_bodies: Mask | None
    compressed: Mask
    wrong_ports: Mask
    begins: Positions
    ends: Positions
    values: list[pa.BinaryArray | None]
    sixes: Mask | None


def read_records(buffer: Bytes, starts: Positions, sizes: Positions, wanted: Wanted) -> FoundRecords:
    """`message.decode`. Raises ValueError if a record lies outside its buffer, or does not have exactly one entry."""
    starts, sizes, count = positions(starts), positions(sizes), len(starts)
    expected, queue, queue_ids, topics = _expected_arrays(wanted.expected, count)
    names = [name.encode() for name in wanted.properties]
    searched = np.frombuffer(b"".join(names), np.uint8), np.cumsum([0, *map(len, names)])
    packed = np.empty(int(sizes.sum()) if wanted.bodies else 0, np.uint8)
    offsets = np.zeros(count + 1 if wanted.bodies else 0, np.int32)
    flaws, notes = np.zeros(count, np.uint8), np.zeros(count, np.uint8)
    parts = np.empty((PARTS, count), np.int64)
    begins, ends = np.empty((len(names), count), np.int64), np.empty((len(names), count), np.int64)
    room = count * VALUE_SIZE
    value_offsets, values = np.zeros((len(names), count + 1), np.int32), np.empty(len(names) * room, np.uint8)
    all_notes = _read(
        buffer, starts, sizes, expected, queue, queue_ids, topics, searched, CRC32_ADDRESS if wanted.crcs else 0, flaws,
        notes, parts, (offsets, packed), (begins, ends), (value_offsets, values),
    )  # fmt: skip
    if all_notes == OUTSIDE:
        raise ValueError("a record lies outside of its buffer")
    bodies = _binary(offsets, packed) if wanted.bodies else None
    wrong_bodies = notes & WRONG_BODY != 0 if wanted.crcs else None
    compressed, sixes = notes & IS_COMPRESSED != 0, notes & SIX != 0 if all_notes & SIX else None
    differences = notes & np.uint8(DIFFERENCES)
    copied = [
        _binary(value_offsets[number], values[number * room :]) if value_offsets[number, -1] <= room else None
        for number in range(len(names))
    ]
    wrong_ports = notes & WRONG_PORT != 0
    return FoundRecords(
        flaws, differences, parts, bodies, wrong_bodies, compressed, wrong_ports, begins, ends, copied, sixes
    )  # fmt: skip


def _expected_arrays(expected: Expected | None, count: int) -> tuple[Spans, Numbers, Numbers, Texts]:
    """Addresses and queue offsets, queues, and their ids and topics; empty if nothing is expected."""
    if expected is None:
        none, nowhere = np.empty(0, np.int32), np.empty(0, np.int64)
        return (nowhere, nowhere), none, none, (np.empty(0, np.uint8), np.zeros(1, np.int64))
    offsets = positions(expected.physical_offsets), positions(expected.queue_offsets)
    queue, topics = np.ascontiguousarray(expected.queue), (expected.topics.packed, expected.topics.offsets)
    if not count == len(queue) == len(offsets[0]) == len(offsets[1]):
        raise ValueError("not one entry a record")
    return offsets, queue, expected.queue_ids, topics


def _binary(offsets: Numbers, packed: Bytes) -> pa.BinaryArray:
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(packed[: int(offsets[-1])])]
    return pa.BinaryArray.from_buffers(pa.binary(), len(offsets) - 1, buffers)


def header_field(buffer: Bytes, starts: Positions, field: Field) -> npt.NDArray[Any]:
    """`message.Messages.column`: one field of the header at each start; zero if it would extend beyond the buffer."""
    out = np.empty(len(starts), field.memory)
    if field.width == 4:
        _fields_of_4(buffer, positions(starts), field.offset, out.view(np.int32))
    else:
        _fields_of_8(buffer, positions(starts), field.offset, out.view(np.int64))
    return out


@njit(types.void(BYTES, POSITIONS, types.int64, OUT_NUMBERS), nogil=True, cache=True)
def _fields_of_4(buffer: Bytes, starts: Positions, offset: int, out: Numbers) -> None:
    for row in range(len(starts)):
        at = starts[row] + offset
        out[row] = int32_at(buffer, at) if 0 <= at <= len(buffer) - 4 else 0


@njit(types.void(BYTES, POSITIONS, types.int64, OUT_POSITIONS), nogil=True, cache=True)
def _fields_of_8(buffer: Bytes, starts: Positions, offset: int, out: Positions) -> None:
    for row in range(len(starts)):
        at = starts[row] + offset
        out[row] = int64_at(buffer, at) if 0 <= at <= len(buffer) - 8 else 0


@njit(inline="always")
def _header_differences(
    buffer: Bytes, start: int, size: int, physical_offset: int, queue_id: int, queue_offset: int
) -> int:
    found = 0
    if int64_at(buffer, start + PHYSICAL_OFFSET_AT) != physical_offset:
        found |= PHYSICAL_OFFSET
    if int32_at(buffer, start + QUEUE_ID_AT) != queue_id:
        found |= QUEUE
    if int64_at(buffer, start + QUEUE_OFFSET_AT) != queue_offset:
        found |= QUEUE_OFFSET
    if int32_at(buffer, start) != size:
        found |= SIZE
    return found


@njit(inline="always")
def _topic_difference(buffer: Bytes, topic: int, size: int, texts: Bytes, bounds: Positions, queue: int) -> int:
    text, text_size = bounds[queue], bounds[queue + 1] - bounds[queue]
    return 0 if text_size == size and differ(buffer, topic, texts, text, size) == 0 else QUEUE


@njit(inline="always")
def _record(buffer: Bytes, start: int, size: int) -> Any:
    """Flaw, notes, and start and size of body, topic and properties of a record that lies in its buffer."""
    size, flaw = size_and_flaw(buffer, start, size)
    flags = int32_at(buffer, start + FLAGS_AT)
    hosts = hosts_size(flags)
    note = IS_COMPRESSED if flags & COMPRESSED else 0
    if hosts > 2 * HOST_V4 and flaw == NONE and size >= hosts + AROUND:
        note |= SIX
    if flaw != NONE:
        return flaw, note, 0, 0, 0, 0, 0, 0
    body, body_size, topic, topic_size, properties, properties_size, right = part_spans(buffer, start, size, hosts)
    if right and port_bits(buffer, start, flags, hosts) > LAST_PORT:
        note |= WRONG_PORT
    return NONE if right else LENGTHS, note, body, body_size, topic, topic_size, properties, properties_size


@njit(inline="always")
def _copy_values(buffer: Bytes, begins: Positions, ends: Positions, row: int, offsets: Numbers, values: Bytes) -> None:
    """Each name has the same room in `values`; once its values no longer fit, its offsets exceed that room."""
    room = len(values) // len(begins)
    for number in range(len(begins)):
        begin, filled = begins[number, row], np.int64(offsets[number, row])
        size = ends[number, row] - begin
        if filled + size <= room:
            copy(values, number * room + filled, buffer, begin, size)
            offsets[number, row + 1] = filled + size
        else:
            offsets[number, row + 1] = room + 1


@njit(types.int64(BYTES, POSITIONS, POSITIONS, POSITION_PAIR, NUMBERS, NUMBERS, TEXTS, TEXTS, types.int64,
                  OUT_BYTES, OUT_BYTES, OUT_POSITIONS_OF_ALL, COPIES, SPANS, COPIES_OF_ALL),
      nogil=True, cache=True, _nrt=False)  # fmt: skip
def _read(
    buffer: Bytes,
    starts: Positions,
    sizes: Positions,
    expected: Spans,
    queues: Numbers,
    queue_ids: Numbers,
    topics: Texts,
    names: Texts,
    crc_address: int,
    flaws: Bytes,
    notes: Bytes,
    parts: Positions,
    bodies: Copies,
    spans: Spans,
    values: Copies,
) -> int:
    """Returns all notes combined by OR, or OUTSIDE."""
    all_notes, filled, (topic_texts, topic_bounds), (texts, bounds), (begins, ends) = 0, 0, topics, names, spans
    (physical_offsets, queue_offsets), (offsets, packed), (value_offsets, packed_values) = expected, bodies, values
    for row in range(len(starts)):
        start, size, note = starts[row], sizes[row], 0
        body, body_size, topic, topic_size, properties, properties_size = 0, 0, 0, 0, 0, 0
        flaws[row] = TOO_SHORT
        if size >= MIN_SIZE:
            if start < 0 or start + size > len(buffer) or (len(queues) and not 0 <= queues[row] < len(queue_ids)):
                return OUTSIDE
            flaws[row], note, body, body_size, topic, topic_size, properties, properties_size = _record(
                buffer, start, size
            )
            if len(queues):
                stated_id, stated_offset = queue_ids[queues[row]], queue_offsets[row]
                note |= _header_differences(buffer, start, size, physical_offsets[row], stated_id, stated_offset)
                note |= _topic_difference(buffer, topic, topic_size, topic_texts, topic_bounds, queues[row])
        parts[0, row], parts[1, row], parts[2, row] = body, body_size, topic
        parts[3, row], parts[4, row], parts[5, row] = topic_size, properties, properties_size
        if len(begins):
            find_properties(buffer, properties, properties + properties_size, texts, bounds, row, begins, ends)
            _copy_values(buffer, begins, ends, row, value_offsets, packed_values)
        if len(offsets):
            if filled + body_size > len(packed):
                return OUTSIDE
            copy(packed, filled, buffer, body, body_size)
            offsets[row + 1] = filled = filled + body_size
        if crc_address and body_size:
            found = np.int64(crc32(crc_address, buffer, body, body_size)) & MASK
            note |= WRONG_BODY if found != int32_at(buffer, start + CRC_AT) else 0
        notes[row] = note
        all_notes |= note
    return all_notes
