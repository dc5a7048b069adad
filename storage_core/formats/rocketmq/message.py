"""A commit-log record: its layout, and the decoding of many at once.

How records are found is decided by `record_walk`, how property bytes are read by `properties`, and which records are
served by the engine. Source of the rules: rocketmq.md 2.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from struct import Struct as PackedStruct
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from storage_core.compiled.loading import CompiledLoops
from storage_core.formats.checksum import body_crcs, span_crcs
from storage_core.formats.layout import Bytes, Mask, Positions, struct, values_at
from storage_core.formats.rocketmq.consumequeue import Expected
from storage_core.formats.rocketmq.hosts import LAST_PORT
from storage_core.formats.rocketmq.properties import PropertyColumn
from storage_core.formats.spans import FEW, gather, structs_at, text

MAGIC_V1 = 0xDAA320A7
MAGIC_V2 = 0xDAA320AB
MAGIC_BLANK = 0xCBD43194

COMPRESSED = 0x1
TRANSACTION_MASK = 0xC
COMMIT, ROLLBACK = 0x8, 0xC
BORN_HOST_V6 = 0x10
STORE_HOST_V6 = 0x20
COMPRESSION_SHIFT, COMPRESSION_MASK = 8, 0x7

HEADER = struct(
    "message header up to the born host",
    ("total_size", ">i4", "TOTALSIZE: length of the whole record"),
    ("magic", ">u4", "MAGICCODE: 0xDAA320A7, or 0xDAA320AB with a two-byte topic length"),
    ("body_crc", ">i4", "BODYCRC: CRC-32 of the stored body & 0x7FFFFFFF"),
    ("queue_id", ">i4", "QUEUEID"),
    ("flag", ">i4", "FLAG: the producer's, not interpreted"),
    ("queue_offset", ">i8", "QUEUEOFFSET: number of the message in its queue; 0 for prepared and rollback records"),
    ("physical_offset", ">i8", "PHYSICALOFFSET: address of this record's first byte"),
    ("sys_flag", ">i4", "SYSFLAG"),
    ("born_ms", ">i8", "BORNTIMESTAMP: the producer's clock"),
    size=48,
)

HEADER_V4 = struct(
    "message header with IPv4 hosts",
    *((f.name, f.disk, f.meaning) for f in HEADER.fields),
    ("born_address", ">u4", "BORNHOST: address"),
    ("born_port", ">i4", "BORNHOST: port"),
    ("store_ms", ">i8", "STORETIMESTAMP: the broker's clock inside the append lock"),
    ("store_address", ">u4", "STOREHOST: address"),
    ("store_port", ">i4", "STOREHOST: port"),
    ("reconsume_times", ">i4", "RECONSUMETIMES"),
    ("prepared_offset", ">i8", "PREPAREDTRANSACTIONOFFSET: address of the half message of a commit record"),
    ("body_length", ">i4", "BODYLENGTH: the body follows"),
    size=88,
)

AFTER_HOSTS = struct(
    "message header after the store host",
    ("reconsume_times", ">i4", "RECONSUMETIMES"),
    ("prepared_offset", ">i8", "PREPAREDTRANSACTIONOFFSET"),
    ("body_length", ">i4", "BODYLENGTH: the body follows"),
    size=16,
)

BLANK = struct(
    "blank record at the end of a full file",
    ("size", ">i4", "bytes from here to the end of the file"),
    ("magic", ">u4", "0xCBD43194"),
    size=8,
)

MIN_SIZE = 91
HOST_V4, HOST_V6 = 8, 20
QUEUE_OFFSET_AT, PHYSICAL_OFFSET_AT = (HEADER.field(name).offset for name in ("queue_offset", "physical_offset"))
STORE_MS_AT = HEADER_V4.field("store_ms").offset
STORE_MS_AT_V6 = STORE_MS_AT + HOST_V6 - HOST_V4
HEAD_SIZE = STORE_MS_AT_V6 + 8

_MEMORY = {field.name: field.memory for field in HEADER_V4.fields}
_HEAD = PackedStruct(">4xI12xqqi")
_loops = CompiledLoops("storage_core.formats.rocketmq.compiled.record_pass")


class Flaw(Enum):
    """Why a record is not valid."""

    NONE = "right"
    TOO_SHORT = "the record is too short"
    MAGIC = "the magic is that of no record"
    SIZE = "TOTALSIZE is larger than the size that its index gives"
    LENGTHS = "the lengths of body, topic and properties do not add up to TOTALSIZE"
    PRESERVED = "PHYSICALOFFSET is not the record's physical offset"
    CRC = "the body does not fit BODYCRC"
    QUEUE = "topic, queueId or QUEUEOFFSET are not those of the queue"
    BODY = "the body does not inflate"
    PORT = "the port of the born or store host is above 65535: no client decodes the message"
    OUTSIDE = "the record lies outside of the log"


FLAWS = tuple(Flaw)


@dataclass(frozen=True)
class Wanted:
    """What to find in records besides their parts; compiled loops find it in the same pass over the bytes.

    `expected`: what their queue entries state. `bodies`: the stored bodies. `crcs`: which of them do not match BODYCRC.
    `properties`: the values of these names.
    """

    expected: Expected | None = None
    bodies: bool = False
    crcs: bool = False
    properties: tuple[str, ...] = ()


NOTHING = Wanted()


@dataclass(frozen=True)
class RecordHead:
    """The fields that are read of a single record; `store_ms` follows a host of 8 or 20 bytes."""

    magic: int
    queue_offset: int
    physical_offset: int
    store_ms: int


def decode_head(data: bytes) -> RecordHead | None:
    """The head of a record, from its first HEAD_SIZE bytes; None if there are fewer. Checks nothing."""
    if len(data) < HEAD_SIZE:
        return None
    magic, queue_offset, physical_offset, flags = _HEAD.unpack_from(data)
    at = STORE_MS_AT_V6 if flags & BORN_HOST_V6 else STORE_MS_AT
    return RecordHead(magic, queue_offset, physical_offset, int.from_bytes(data[at : at + 8], "big", signed=True))


class Messages:
    """Many decoded records of one buffer, as columns. Built by `decode`.

    Every array has shape (n,). `flaws` indexes FLAWS. The fields of a record that `decode` found flawed hold zeros or
    what was read, and its spans are empty. `differences`: how a record differs from its queue entry, as bits of
    `Difference`; zeros if no entry was given.
    """

    def __init__(self, buffer: Bytes, starts: Positions, header: npt.NDArray[Any] | None = None) -> None:
        """`header`: one HEADER_V4 per record; without it, fields are read from the buffer when they are requested."""
        self.buffer = buffer
        self.starts = starts
        if header is not None:
            self._header = header
        self._replaced: dict[str, npt.NDArray[Any]] = {}
        self._bodies: pa.BinaryArray | None = None
        self._wrong_bodies: Mask | None = None
        self._compressed: Mask | None = None
        self._wrong_ports: Mask | None = None
        self.flaws = np.zeros(len(starts), np.uint8)
        self.differences = np.zeros(len(starts), np.uint8)
        self.body_start: Positions
        self.body_size: Positions
        self.topic_start: Positions
        self.topic_size: Positions
        self.properties_start: Positions
        self.properties_size: Positions

    def __len__(self) -> int:
        return len(self.starts)

    @cached_property
    def _header(self) -> npt.NDArray[Any]:
        """One HEADER_V4 at each start; one from elsewhere for a record that is too short. Shape (n,)."""
        buffer, starts = self.buffer, self.starts
        too_short = self.flaws == FLAWS.index(Flaw.TOO_SHORT)
        if too_short.any():
            starts = np.where(too_short, 0, starts)
            buffer = buffer if len(buffer) >= HEADER_V4.size else np.zeros(HEADER_V4.size, np.uint8)
        return structs_at(buffer, HEADER_V4.dtype, starts)

    def keep_header(self) -> None:
        """Copies the headers now, so that fields can still be read when the buffer holds something else."""
        _ = self._header

    def column(self, name: str) -> npt.NDArray[Any]:
        """A field of HEADER_V4 in native byte order; addresses are valid for IPv4 hosts only."""
        replaced = self._replaced.get(name)
        if replaced is not None:
            return replaced.copy()
        if "_header" not in self.__dict__ and len(self) > FEW and (loops := _loops.after()) is not None:
            field: npt.NDArray[Any] = loops.header_field(self.buffer, self.starts, HEADER_V4.field(name))
            return field
        return self._header[name].astype(_MEMORY[name])

    def replace(self, name: str, rows: Positions, values: npt.NDArray[Any]) -> None:
        """Replaces a field for rows whose header is not laid out as HEADER_V4."""
        column = self.column(name)
        column[rows] = values
        self._replaced[name] = column

    def take(self, rows: slice | Mask | Positions) -> Messages:
        """Some of the messages, with their flaws and differences; a slice copies only these two."""
        if isinstance(rows, np.ndarray) and rows.dtype == bool:
            rows = np.flatnonzero(rows)
        # Indexing structs takes ten times as long as `take`.
        header = self.__dict__.get("_header")
        if header is not None:
            header = header[rows] if isinstance(rows, slice) else header.take(rows)
        taken = Messages(self.buffer, self.starts[rows], header)
        taken._replaced = {name: values[rows] for name, values in self._replaced.items()}
        taken.flaws[:] = self.flaws[rows]
        taken.differences[:] = self.differences[rows]
        for name in _SPANS:
            setattr(taken, name, getattr(self, name)[rows])
        return taken

    def mark(self, wrong: Mask, flaw: Flaw) -> None:
        """Sets `flaw` for the rows `wrong` that have none so far."""
        self.flaws[wrong & (self.flaws == 0)] = FLAWS.index(flaw)

    def bodies(self) -> pa.BinaryArray:
        """Stored bodies (still compressed), copied out of the buffer."""
        if self._bodies is None:
            self._bodies = gather(self.buffer, self.body_start, self.body_start + self.body_size)
        return self._bodies

    def wrong_bodies(self) -> Mask:
        """Which stored bodies do not match BODYCRC; an empty one matches any (rocketmq.md 5.4)."""
        if self._wrong_bodies is None:
            copied = self._bodies is not None
            found = body_crcs(self.bodies()) if copied else span_crcs(self.buffer, self.body_start, self.body_size)
            self._wrong_bodies = (found != self.column("body_crc")) & (self.body_size > 0)
        return self._wrong_bodies

    def compressed(self) -> Mask:
        """Which records are flagged as having a compressed body."""
        if self._compressed is None:
            self._compressed = self.column("sys_flag") & COMPRESSED != 0
        return self._compressed

    def wrong_ports(self) -> Mask:
        """Which records have a host with an impossible port (rocketmq.md 2.1)."""
        if self._wrong_ports is None:
            both = self.column("born_port") | self.column("store_port")
            self._wrong_ports = both.view(np.uint32) > LAST_PORT
        return self._wrong_ports

    def topics(self) -> pa.StringArray:
        """The topic that each record states; gathered once."""
        return self._topics

    def properties(self) -> pa.BinaryArray:
        """Property bytes as stored."""
        return gather(self.buffer, self.properties_start, self.properties_start + self.properties_size)

    def property_column(self) -> PropertyColumn:
        """The properties, to be looked up by name; gathered once."""
        return self._property_column

    def hosts(self, which: str) -> pa.BinaryArray:
        """Packed `born` or `store` hosts: 4 or 16 address bytes and 4 bytes of port."""
        flags = self.column("sys_flag")
        born = _host_width(flags, BORN_HOST_V6)
        starts = self.starts + 48 if which == "born" else self.starts + 56 + born
        width = born if which == "born" else _host_width(flags, STORE_HOST_V6)
        right = self.flaws == 0
        starts, width = np.where(right, starts, 0), np.where(right, width, 0)
        return gather(self.buffer, starts, starts + width)

    @cached_property
    def _topics(self) -> pa.StringArray:
        return text(gather(self.buffer, self.topic_start, self.topic_start + self.topic_size))

    @cached_property
    def _property_column(self) -> PropertyColumn:
        return PropertyColumn(self.buffer, self.properties_start, self.properties_size)


_SPANS = tuple(f"{part}_{edge}" for part in ("body", "topic", "properties") for edge in ("start", "size"))


def decode(buffer: Bytes, starts: Positions, sizes: Positions, wanted: Wanted = NOTHING) -> Messages:
    """Decodes the records [start, start + size) of `buffer`, which must all be inside it.

    Checks magic, that TOTALSIZE is at most the given size (a client reads no further than TOTALSIZE), and that the
    lengths add up; flawed rows are marked, none is dropped. PHYSICALOFFSET and BODYCRC are left to the caller, who
    knows the base and may not need the body. With `wanted` NOTHING, the fields are copied out of the buffer.
    """
    out = Messages(buffer, starts)
    if len(starts) <= FEW or (loops := _loops.after()) is None:
        _place_parts(out, sizes)
        if wanted.expected is not None:
            out.differences = wanted.expected.differences(out, sizes)
    else:
        _read_at_once(out, sizes, wanted, loops)
    if wanted is NOTHING:
        out.keep_header()
    return out


def _read_at_once(out: Messages, sizes: Positions, wanted: Wanted, loops: Any) -> None:
    found = loops.read_records(out.buffer, out.starts, sizes, wanted)
    out.flaws, out.differences = found.flaws, found.differences
    for name, part in zip(_SPANS, found.parts, strict=True):
        setattr(out, name, part)
    out._bodies, out._wrong_bodies, out._compressed = found.bodies, found.wrong_bodies, found.compressed
    out._wrong_ports = found.wrong_ports
    if wanted.properties:
        out.property_column().know(wanted.properties, found.begins, found.ends, found.values)
    if found.sixes is not None:
        out.keep_header()
        _decode_v6(out, found.sixes, out.column("sys_flag"))


def _place_parts(out: Messages, sizes: Positions) -> None:
    """Checks magic and size, finds body, topic and properties of each record and checks that they fill it."""
    out.mark(sizes < MIN_SIZE, Flaw.TOO_SHORT)
    magic = out.column("magic")
    second = magic == MAGIC_V2
    out.mark((magic != MAGIC_V1) & ~second, Flaw.MAGIC)
    total = out.column("total_size")
    differs = total != sizes
    if differs.any():
        sizes = np.where((total >= MIN_SIZE) & (total < sizes), total, sizes)
        out.mark(total != sizes, Flaw.SIZE)
    _place_after_header(out, sizes, second if second.any() else None)


def _place_after_header(out: Messages, sizes: Positions, second: Mask | None) -> None:
    flags = out.column("sys_flag")
    hosts: Positions | int = 2 * HOST_V4
    sixes = (flags & (BORN_HOST_V6 | STORE_HOST_V6)) != 0
    if sixes.any():
        hosts = _host_width(flags, BORN_HOST_V6) + _host_width(flags, STORE_HOST_V6)
        _decode_v6(out, sixes & (out.flaws == 0) & (sizes >= hosts + (MIN_SIZE - 2 * HOST_V4)), flags)
    # A negative length counts as zero, as in brokers and clients.
    body_size = np.maximum(out.column("body_length").astype(np.int64), 0)
    room = sizes - hosts - (MIN_SIZE - 2 * HOST_V4)
    if second is not None:
        room = room - second
    out.mark(body_size > room, Flaw.LENGTHS)
    body_size = _zero_where_flawed(out, body_size)
    out.body_start = out.starts + hosts + 72
    out.body_size = body_size
    length_at = _zero_where_flawed(out, out.body_start + body_size)
    topic_size = out.buffer[length_at].view(np.int8).astype(np.int64)
    out.topic_start = length_at + 1
    if second is not None:
        wide = second & (out.flaws == 0)
        topic_size[wide] = values_at(out.buffer, ">i2", length_at[wide])
        out.topic_start = out.topic_start + wide
    room = room - body_size
    out.mark((topic_size < 0) | (topic_size > room), Flaw.LENGTHS)
    out.topic_size = _zero_where_flawed(out, topic_size)
    length_at = _zero_where_flawed(out, out.topic_start + out.topic_size)
    properties_size = (out.buffer[length_at].view(np.int8).astype(np.int64) << 8) | out.buffer[length_at + 1]
    np.maximum(properties_size, 0, out=properties_size)
    out.properties_start = length_at + 2
    out.mark(properties_size != room - out.topic_size, Flaw.LENGTHS)
    out.properties_size = properties_size
    _empty_flawed(out)


def _zero_where_flawed(out: Messages, numbers: Positions) -> Positions:
    return np.where(out.flaws == 0, numbers, 0) if out.flaws.any() else numbers


def _empty_flawed(out: Messages) -> None:
    wrong = out.flaws != 0
    if wrong.any():
        for part in ("body", "topic", "properties"):
            getattr(out, f"{part}_start")[wrong] = 0
            getattr(out, f"{part}_size")[wrong] = 0


def _decode_v6(out: Messages, rows: Mask, flags: npt.NDArray[np.int32]) -> None:
    at = np.flatnonzero(rows)
    starts = out.starts[at]
    born = _host_width(flags[at], BORN_HOST_V6)
    store = _host_width(flags[at], STORE_HOST_V6)
    out.replace("born_port", at, values_at(out.buffer, ">i4", starts + 44 + born))
    out.replace("store_ms", at, values_at(out.buffer, ">i8", starts + 48 + born))
    out.replace("store_port", at, values_at(out.buffer, ">i4", starts + 52 + born + store))
    tail = structs_at(out.buffer, AFTER_HOSTS.dtype, starts + 56 + born + store)
    for field in AFTER_HOSTS.fields:
        out.replace(field.name, at, tail[field.name])


def _host_width(flags: npt.NDArray[np.int32], bit: int) -> Positions:
    return np.where(flags & bit, HOST_V6, HOST_V4).astype(np.int64)
