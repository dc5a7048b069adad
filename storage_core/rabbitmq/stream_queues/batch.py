"""The messages of some chunks, read and located: their records, their parts, and what is wrong with which chunk.

Leaves to `columns` what rows show of them. Source: docs/format/rabbitmq-streams.md 3, 4, 6.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from storage_core.arrays import as_array, bytes_array
from storage_core.errors import FormatError
from storage_core.formats.layout import Bytes, Mask, Positions
from storage_core.formats.rabbitmq.stream_queues import chunk_entries, delivered, log_files
from storage_core.formats.rabbitmq.stream_queues.chunk_entries import Records
from storage_core.formats.rabbitmq.stream_queues.log_files import CHUNK
from storage_core.formats.rabbitmq.stream_queues.section_shapes import Matched, Shape, property_lists, shape_of
from storage_core.formats.spans import structs_at
from storage_core.rabbitmq.disk.span_reader import SpanReader
from storage_core.rabbitmq.index.entries import Entries, new_entries
from storage_core.rabbitmq.stream_queues.rows import FIELDS

_FEWEST_SHAPED, _NEW_SHAPES, _MOST_SHAPES = 8, 12, 32


@dataclass
class Chunks:
    """Chunks to be read, dtype CHUNKS, with the numbers of their files and queues. Arrays of shape (n,)."""

    table: npt.NDArray[Any]
    files: npt.NDArray[np.int64]
    queues: npt.NDArray[np.int64]


@dataclass
class StreamBatch:
    """Messages, one for each of `entries`, as spans of `buffer`. `reasons` says what is wrong with damaged rows: a row
    stands for a whole chunk then.
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
    """Where the parts of messages lie; (0, 0) for a part that a message does not have."""

    exchange: tuple[Positions, Positions]
    routing_key: tuple[Positions, Positions]
    keyed: Mask
    body: tuple[Positions, Positions]
    groups: list[tuple[npt.NDArray[np.int64], Callable[[], pa.BinaryArray]]] = field(default_factory=list)

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


def read_chunks(reader: SpanReader, chunks: Chunks, verify_crc: bool) -> tuple[Entries, Records]:
    """The messages of whole chunks, of which those with tracking data have none: entries, and where their records lie.
    A damaged chunk is one entry, and its reason
    in `Records.reasons` is by the number of that entry. Raises DataLossError.
    """
    table = chunks.table
    buffer, starts = reader.load(chunks.files, table["position"], table["stop"])
    stops = starts + (table["stop"] - table["position"])
    heads, begins, ends, reasons = _heads(buffer, starts, stops, table)
    sound = np.ones(len(table), bool)
    sound[list(reasons)] = False
    if verify_crc:
        for row in np.flatnonzero(sound).tolist():
            if zlib.crc32(buffer.data[begins[row] : ends[row]]) != int(heads["crc"][row]):
                reasons[row] = "the checksum of a chunk does not fit"
                sound[row] = False
    users = sound & (heads["type"] == log_files.USER)
    counts = np.where(users, heads["entries"].astype(np.int64), 0)
    records = np.where(users, heads["records"].astype(np.int64), 0)
    found = chunk_entries.locate(buffer, begins, np.where(users, ends, begins), counts, records)
    for row, reason in found.reasons.items():
        reasons.setdefault(row, reason)
    return _with_damaged(chunks, heads, found, starts, reasons)


def _heads(
    buffer: Bytes, starts: Positions, stops: Positions, table: npt.NDArray[Any]
) -> tuple[npt.NDArray[Any], Positions, Positions, dict[int, str]]:
    """Heads of chunks, their data, and those whose head is not the one that the index speaks of."""
    reasons: dict[int, str] = {}
    long = stops - starts >= CHUNK.size
    heads = np.zeros(len(table), CHUNK.dtype)
    heads[long] = structs_at(buffer, CHUNK.dtype, starts[long])
    begins = starts + CHUNK.size + heads["filter_size"].astype(np.int64)
    ends = begins + heads["data_size"].astype(np.int64)
    other = heads["first"] != log_files.FIRST_BYTE
    other |= (heads["id"].astype(np.int64) != table["id"]) | (heads["type"] != table["type"])
    for row in np.flatnonzero(long & other).tolist():
        reasons[row] = "the chunk is not the one that the index names here"
    for row in np.flatnonzero(~long | (ends > stops)).tolist():
        reasons.setdefault(row, "the chunk reaches beyond the next one, or the end of its segment")
    following = table["id"] + heads["records"].astype(np.int64)
    for row in np.flatnonzero(following != table["stop_id"]).tolist():
        reasons.setdefault(row, "the chunk holds another number of records than lie before the next one")
    bad = np.zeros(len(table), bool)
    bad[list(reasons)] = True
    return heads, np.where(bad, starts, begins), np.where(bad, starts, ends), reasons


def _with_damaged(
    chunks: Chunks, heads: npt.NDArray[Any], found: Records, starts: Positions, reasons: dict[int, str]
) -> tuple[Entries, Records]:
    """Entries of the records, and one of each damaged chunk, in the order of the log."""
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
    told = {int(at[count + index]): reasons[int(chunk)] for index, chunk in enumerate(bad.tolist())}
    return entries[order], Records(found.buffer, owners[order], reasons=told, **joined)


class MessageReader:
    """Finds the parts of messages; remembers the shapes that it met."""

    def __init__(self) -> None:
        self._shapes: list[Shape] = []

    def batch(
        self, entries: Entries, buffer: Bytes, starts: Positions, stops: Positions, reasons: dict[int, str]
    ) -> StreamBatch:
        """The messages [start, stop) of `buffer`; rows with reasons are none. Adds reasons of those without a shape."""
        count = len(entries)
        parts = Parts(_nothing(count), _nothing(count), np.zeros(count, bool), _nothing(count))
        sound = np.ones(count, bool)
        sound[list(reasons)] = False
        rest = np.flatnonzero(sound)
        for shape in list(self._shapes):
            rest = self._take(parts, shape, buffer, rest, starts, stops)
        rest = self._learn(parts, buffer, rest, starts, stops)
        _decode_alone(parts, buffer, rest, starts, stops, reasons)
        nothing = np.zeros(count, bool)
        return StreamBatch(entries, buffer, starts, stops, reasons, nothing, nothing, parts)

    def _learn(
        self, parts: Parts, buffer: Bytes, rest: npt.NDArray[np.int64], starts: Positions, stops: Positions
    ) -> npt.NDArray[np.int64]:
        """Shapes of messages that have none yet, as long as several messages share one."""
        alone: list[npt.NDArray[np.int64]] = []
        for _ in range(_NEW_SHAPES):
            if len(rest) < _FEWEST_SHAPED:
                break
            row = int(rest[0])
            shape = shape_of(buffer[starts[row] : stops[row]].tobytes())
            if shape is None:
                alone.append(rest[:1])
                rest = rest[1:]
                continue
            before = len(rest)
            rest = self._take(parts, shape, buffer, rest, starts, stops)
            if before - len(rest) >= _FEWEST_SHAPED and len(self._shapes) < _MOST_SHAPES:
                self._shapes.append(shape)
        return np.sort(np.concatenate([*alone, rest]))

    def _take(
        self, parts: Parts, shape: Shape, buffer: Bytes, rest: npt.NDArray[np.int64], starts: Positions,
        stops: Positions,
    ) -> npt.NDArray[np.int64]:  # fmt: skip
        """Fills in the rows that have a shape; gives back the others."""
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


def _decode_alone(
    parts: Parts, buffer: Bytes, rows: npt.NDArray[np.int64], starts: Positions, stops: Positions,
    reasons: dict[int, str],
) -> None:  # fmt: skip
    """Messages without a shape, one after the other. Exchange and key are looked for in the message's bytes."""
    listed, good = [], []
    for row in rows.tolist():
        begin = int(starts[row])
        data = buffer[begin : stops[row]].tobytes()
        try:
            message = delivered.delivered(data)
        except FormatError as error:
            reasons[row] = f"the message cannot be decoded: {error.reason}"
            continue
        for target, value in ((parts.exchange, message.exchange), (parts.routing_key, message.routing_key)):
            if value is not None:
                target[0][row], target[1][row] = begin + value[0], begin + value[1]
        parts.keyed[row] = message.routing_key is not None
        parts.body[0][row], parts.body[1][row] = begin + message.body[0], begin + message.body[1]
        listed.append(message.properties)
        good.append(row)
    if good:
        array = bytes_array(listed)
        parts.groups.append((np.array(good, np.int64), lambda: array))
