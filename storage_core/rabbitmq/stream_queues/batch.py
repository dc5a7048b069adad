"""Reads chunks and locates their messages: their records, their parts, and what is wrong with damaged chunks.

What rows show of them belongs to `columns`. Source: docs/format/rabbitmq-streams.md 3, 4, 6.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from storage_core.arrays import as_array, bytes_array
from storage_core.errors import FormatError
from storage_core.formats.layout import Bytes, Mask, Positions
from storage_core.formats.rabbitmq.stream_queues import chunk_entries, delivered, log_files, message_walk, tracking
from storage_core.formats.rabbitmq.stream_queues.chunk_entries import Records
from storage_core.formats.rabbitmq.stream_queues.log_files import CHUNK
from storage_core.formats.rabbitmq.stream_queues.message_shape import Matched, Shape
from storage_core.formats.rabbitmq.stream_queues.section_shapes import property_lists, shape_of
from storage_core.formats.spans import structs_at
from storage_core.rabbitmq.disk.span_reader import SpanReader
from storage_core.rabbitmq.index.entries import Entries, new_entries
from storage_core.rabbitmq.stream_queues.rows import FIELDS
from storage_core.rabbitmq.stream_queues.segment import fits

OTHER_TYPE = "the chunk's head calls it tracking data, which it is not"
_FEWEST_SHAPED, _NEW_SHAPES, _MOST_SHAPES = 8, 12, 32


@dataclass
class Chunks:
    """Chunks to read (dtype CHUNKS), with the numbers of their files and queues. Arrays of shape (n,)."""

    table: npt.NDArray[Any]
    files: npt.NDArray[np.int64]
    queues: npt.NDArray[np.int64]


@dataclass
class StreamBatch:
    """Messages, one for each of `entries`, as spans of `buffer`. `reasons` states what is wrong with damaged rows; such
    a row represents a whole chunk, or a message that cannot be decoded.
    """

    entries: Entries
    buffer: Bytes
    starts: Positions
    stops: Positions
    reasons: dict[int, str]
    dropped: Mask
    absent: Mask
    parts: Parts


@dataclass
class Parts:
    """The spans of the parts of messages; (0, 0) for a part that a message does not have. `copies` are further routing
    keys, by row.
    """

    exchange: tuple[Positions, Positions]
    routing_key: tuple[Positions, Positions]
    keyed: Mask
    body: tuple[Positions, Positions]
    groups: list[tuple[npt.NDArray[np.int64], Callable[[], pa.BinaryArray]]] = field(default_factory=list)
    copies: dict[int, tuple[bytes, ...]] = field(default_factory=dict)

    @cached_property
    def property_lists(self) -> pa.BinaryArray:
        """The property list of each message as a node delivers it; empty for damaged ones. Shape (n,)."""
        count = len(self.keyed)
        arrays = [make() for _, make in self.groups]
        rows = np.concatenate([rows for rows, _ in self.groups]) if self.groups else np.empty(0, np.int64)
        if len(arrays) == 1 and len(rows) == count:
            return arrays[0]
        place = np.full(count, len(rows), np.int64)
        place[rows] = np.arange(len(rows))
        arrays.append(bytes_array([b"\0\0"]))
        return pa.concat_arrays(arrays).take(as_array(place))


@dataclass
class LoadedChunks:
    """Chunks in memory: chunk i is [starts[i], starts[i] + stop - position) of `buffer`, its head `heads[i]`."""

    chunks: Chunks
    buffer: Bytes
    starts: Positions
    heads: npt.NDArray[Any]

    @property
    def fit(self) -> bool:
        """Whether all heads match the table."""
        return bool(fits(self.heads, self.chunks.table).all())

    @property
    def ends(self) -> Positions:
        """The positions where chunks end in their files, according to their heads. Shape (n,)."""
        sizes = sum(self.heads[name].astype(np.int64) for name in ("data_size", "trailer_size"))
        return self.chunks.table["position"] + CHUNK.size + _filter_sizes(self) + sizes

    def split(self, sizes: Positions) -> Iterator[LoadedChunks]:
        """The chunks in runs whose `sizes` are at most MOST_UNPACKED in total, or single chunks."""
        ends, start = np.cumsum(sizes), 0
        while start < len(ends):
            before = int(ends[start - 1]) if start else 0
            stop = max(start + 1, int(np.searchsorted(ends, before + chunk_entries.MOST_UNPACKED, side="right")))
            part = slice(start, stop)
            chunks = Chunks(self.chunks.table[part], self.chunks.files[part], self.chunks.queues[part])
            yield LoadedChunks(chunks, self.buffer, self.starts[part], self.heads[part])
            start = stop


def load_chunks(reader: SpanReader, chunks: Chunks) -> LoadedChunks:
    """Loads whole chunks, valid until the next call. Raises DataLossError."""
    table = chunks.table
    buffer, starts = reader.load(chunks.files, table["position"], table["stop"])
    long = table["stop"] - table["position"] >= CHUNK.size
    heads = np.zeros(len(table), CHUNK.dtype)
    heads[long] = structs_at(buffer, CHUNK.dtype, starts[long])
    return LoadedChunks(chunks, buffer, starts, heads)


def records_in_parts(loaded: LoadedChunks, verify_crc: bool) -> Iterator[tuple[LoadedChunks, tuple[Entries, Records]]]:
    """Chunks with their messages as in `records_of`; a few chunks at a time if their sub-batches unpack to much."""
    try:
        found = records_of(loaded, verify_crc)
    except chunk_entries.TooMuchToUnpackError as error:
        yield from ((part, records_of(part, verify_crc)) for part in loaded.split(error.sizes))
    else:
        yield loaded, found


def records_of(loaded: LoadedChunks, verify_crc: bool) -> tuple[Entries, Records]:
    """The messages of chunks, as entries and the locations of their records. Chunks of tracking data have none.

    A damaged chunk is one entry; `Records.reasons` has its reason by the number of that entry.

    Raises TooMuchToUnpackError.
    """
    heads, table, buffer = loaded.heads, loaded.chunks.table, loaded.buffer
    begins, ends, reasons = _data(loaded)
    if verify_crc:
        _check_sums(loaded, begins, ends, reasons)
    sound = np.ones(len(table), bool)
    sound[list(reasons)] = False
    for row in np.flatnonzero(sound & (heads["type"] != log_files.USER) & (table["type"] == log_files.USER)).tolist():
        if not _is_tracking(buffer[begins[row] : ends[row]].tobytes(), int(heads["type"][row])):
            reasons[row] = OTHER_TYPE
            sound[row] = False
    users = sound & (heads["type"] == log_files.USER)
    counts = np.where(users, heads["entries"].astype(np.int64), 0)
    records = np.where(users, table["stop_id"] - table["id"], 0)
    may_lack = verify_crc & (heads["records"] == records)
    found = chunk_entries.locate(buffer, begins, np.where(users, ends, begins), counts, records, may_lack)
    for row, reason in found.reasons.items():
        reasons.setdefault(row, reason)
    return _with_damaged(loaded.chunks, found, loaded.starts, reasons)


def _data(loaded: LoadedChunks) -> tuple[Positions, Positions, dict[int, str]]:
    """The spans of the chunks' data, and what is wrong with chunks whose heads do not match the table."""
    heads, table, starts = loaded.heads, loaded.chunks.table, loaded.starts
    stops = starts + (table["stop"] - table["position"])
    begins = starts + CHUNK.size + _filter_sizes(loaded)
    ends = begins + heads["data_size"].astype(np.int64)
    other = (heads["first"] != log_files.FIRST_BYTE) | (heads["id"].astype(np.int64) != table["id"])
    reasons = dict.fromkeys(np.flatnonzero(other).tolist(), "the chunk is not the one that the index names here")
    for row in np.flatnonzero(ends > stops).tolist():
        reasons.setdefault(row, "the chunk reaches beyond the next one, or the end of its segment")
    bad = np.zeros(len(table), bool)
    bad[list(reasons)] = True
    return np.where(bad, starts, begins), np.where(bad, starts, ends), reasons


def _filter_sizes(loaded: LoadedChunks) -> npt.NDArray[np.int64]:
    """The bytes between heads and data. Releases before filters do not use that byte of the head, so it is ignored if
    the chunk is complete without a filter.
    """
    heads, table = loaded.heads, loaded.chunks.table
    filters = heads["filter_size"].astype(np.int64)
    sizes = CHUNK.size + heads["data_size"].astype(np.int64) + heads["trailer_size"].astype(np.int64)
    filters[(filters > 0) & (table["position"] + sizes == table["stop"])] = 0
    return filters


def _check_sums(loaded: LoadedChunks, begins: Positions, ends: Positions, reasons: dict[int, str]) -> None:
    """Adds the chunks whose data does not match its checksum."""
    sums = loaded.heads["crc"].tolist()
    for row, (begin, end) in enumerate(zip(begins.tolist(), ends.tolist(), strict=True)):
        if row not in reasons and zlib.crc32(loaded.buffer.data[begin:end]) != sums[row]:
            reasons[row] = "the checksum of a chunk does not fit"


def _is_tracking(data: bytes, kind: int) -> bool:
    """Whether the data of a chunk is one entry of tracking data."""
    if kind not in (log_files.TRACKING_DELTA, log_files.TRACKING_SNAPSHOT):
        return False
    try:
        tracking.of_chunk(data, kind == log_files.TRACKING_SNAPSHOT)
    except FormatError:
        return False
    return True


def _with_damaged(
    chunks: Chunks, found: Records, starts: Positions, reasons: dict[int, str]
) -> tuple[Entries, Records]:
    """The entries of the records, and one for each damaged chunk, in log order."""
    table = chunks.table
    bad = np.array(sorted(reasons), np.int64)
    owners = np.concatenate([found.chunks, bad])
    entries = new_entries(len(owners), FIELDS)
    count = len(found.chunks)
    whole = slice(0, count)
    entries["sequence_id"][whole] = table["id"][found.chunks] + found.numbers
    entries["sequence_id"][count:] = table["id"][bad]
    shift = table["position"] - starts
    entries["position"][whole] = found.positions + shift[found.chunks]
    entries["position"][count:] = table["position"][bad]
    entries["length"][whole] = found.stops - found.starts
    for name, values in (
        ("chunk", table["id"]), ("time", table["time"]), ("epoch", table["epoch"]), ("file", chunks.files),
        ("queue", chunks.queues),
    ):  # fmt: skip
        entries[name] = values[owners]
    if not len(bad):
        return entries, found
    order = np.argsort(owners, kind="stable")
    at = np.empty(len(order), np.int64)
    at[order] = np.arange(len(order))
    zeros = np.zeros(len(bad), np.int64)
    joined = {
        name: np.concatenate([getattr(found, name), zeros])[order]
        for name in ("numbers", "positions", "starts", "stops")
    }
    reasons_by_row = {int(at[count + index]): reasons[int(chunk)] for index, chunk in enumerate(bad.tolist())}
    return entries[order], Records(found.buffer, owners[order], reasons=reasons_by_row, **joined)


class MessageReader:
    """Finds the parts of messages; remembers the shapes it has seen. `of_3_13`: see `delivered`."""

    def __init__(self, of_3_13: bool = False) -> None:
        self._shapes: list[Shape] = []
        self._of_3_13 = of_3_13

    def batch(
        self, entries: Entries, buffer: Bytes, starts: Positions, stops: Positions, reasons: dict[int, str]
    ) -> StreamBatch:
        """The messages [start, stop) of `buffer`; none for rows with reasons. Adds reasons of undecodable messages."""
        count = len(entries)
        parts = Parts(_nothing(count), _nothing(count), np.zeros(count, bool), _nothing(count))
        sound = np.ones(count, bool)
        sound[list(reasons)] = False
        rest = np.flatnonzero(sound)
        for shape in list(self._shapes):
            rest = self._take(parts, shape, buffer, rest, starts, stops)
        rest = self._learn(parts, buffer, rest, starts, stops)
        rest = _walk(parts, buffer, rest, starts, stops, self._of_3_13)
        buffer = _decode_alone(parts, buffer, rest, starts, stops, reasons, self._of_3_13)
        nothing = np.zeros(count, bool)
        return StreamBatch(entries, buffer, starts, stops, reasons, nothing, nothing, parts)

    def _learn(
        self, parts: Parts, buffer: Bytes, rest: npt.NDArray[np.int64], starts: Positions, stops: Positions
    ) -> npt.NDArray[np.int64]:
        """Learns the shapes of messages that have none yet, as long as several messages share one."""
        alone: list[npt.NDArray[np.int64]] = []
        for _ in range(_NEW_SHAPES):
            if len(rest) < _FEWEST_SHAPED:
                break
            row = int(rest[0])
            shape = shape_of(buffer[starts[row] : stops[row]].tobytes(), self._of_3_13)
            if shape is None:
                alone.append(rest[:1])
                rest = rest[1:]
                continue
            before = len(rest)
            rest = self._take(parts, shape, buffer, rest, starts, stops)
            if before == len(rest):
                alone.append(rest[:1])
                rest = rest[1:]
            if before - len(rest) >= _FEWEST_SHAPED and len(self._shapes) < _MOST_SHAPES:
                self._shapes.append(shape)
        return np.sort(np.concatenate([*alone, rest]))

    def _take(
        self, parts: Parts, shape: Shape, buffer: Bytes, rest: npt.NDArray[np.int64], starts: Positions,
        stops: Positions,
    ) -> npt.NDArray[np.int64]:  # fmt: skip
        """Fills in the rows that match a shape; returns the others."""
        if not len(rest):
            return rest
        found = shape.matches(buffer, starts[rest], stops[rest])
        if not found.ok.any():
            return rest
        rows = rest[found.ok]
        if not found.ok.all():
            kept = found.ok
            found = Matched(kept[kept], [each[kept] for each in found.begins], [each[kept] for each in found.ends])
            rest = rest[~kept]
        else:
            rest = rest[:0]
        for target, value in (
            (parts.exchange, shape.exchange), (parts.routing_key, shape.routing_key), (parts.body, shape.body),
        ):  # fmt: skip
            if value is not None:
                target[0][rows], target[1][rows] = shape.span(value, found)
        parts.keyed[rows] = shape.routing_key is not None
        parts.groups.append((rows, lambda: property_lists(shape, found, buffer)))
        return rest


def _nothing(count: int) -> tuple[Positions, Positions]:
    return np.zeros(count, np.int64), np.zeros(count, np.int64)


def _walk(
    parts: Parts, buffer: Bytes, rows: npt.NDArray[np.int64], starts: Positions, stops: Positions, of_3_13: bool
) -> npt.NDArray[np.int64]:
    """Fills in the rows whose parts are found step by step; returns the others."""
    if len(rows) < _FEWEST_SHAPED:
        return rows
    found = message_walk.walk(buffer, starts[rows], stops[rows], of_3_13)
    ok, content = found.ok, found.content
    good = rows[ok]
    for target, spans in (
        (parts.exchange, found.exchange), (parts.routing_key, found.routing_key),
        (parts.body, (content.body_starts, content.body_stops)),
    ):  # fmt: skip
        target[0][good], target[1][good] = spans[0][ok], spans[1][ok]
    parts.keyed[good] = found.keyed[ok]
    parts.groups.append((good, found.property_lists))
    return rows[~ok]


def _decode_alone(
    parts: Parts, buffer: Bytes, rows: npt.NDArray[np.int64], starts: Positions, stops: Positions,
    reasons: dict[int, str], of_3_13: bool,
) -> Bytes:  # fmt: skip
    """Decodes messages without a shape one by one. Finds exchange and routing key in the message's bytes. Returns the
    buffer, with bodies that are stored in several pieces appended.
    """
    listed, good = [], []
    joined, size = [buffer], len(buffer)
    for row in rows.tolist():
        begin = int(starts[row])
        data = buffer[begin : stops[row]].tobytes()
        try:
            message = delivered.delivered(data, of_3_13)
        except FormatError as error:
            reasons[row] = f"the message cannot be decoded: {error.reason}"
            continue
        for target, value in ((parts.exchange, message.exchange), (parts.routing_key, message.routing_key)):
            if value is not None:
                target[0][row], target[1][row] = begin + value[0], begin + value[1]
        parts.keyed[row] = message.routing_key is not None
        if message.copies:
            parts.copies[row] = message.copies
        pieces = [buffer[begin + start : begin + stop] for start, stop in message.body]
        place = size if len(pieces) > 1 else begin + message.body[0][0]
        if len(pieces) > 1:
            joined += pieces
            size += sum(len(piece) for piece in pieces)
        parts.body[0][row], parts.body[1][row] = place, place + sum(len(piece) for piece in pieces)
        listed.append(message.properties)
        good.append(row)
    if good:
        array = bytes_array(listed)
        parts.groups.append((np.array(good, np.int64), lambda: array))
    return np.concatenate(joined) if len(joined) > 1 else buffer
