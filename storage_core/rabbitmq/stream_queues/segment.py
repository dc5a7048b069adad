"""One segment of a stream: its index, and the table of its chunks, from the index or by walking from head to head.

A node's reader walks from head to head and never looks at the index in between: if the two differ, the heads are right.
Source: docs/format/rabbitmq-streams.md 2, 3, 8. Where the last segment ends is decided by `stream_log`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from storage_core.errors import DataLossError
from storage_core.files import system
from storage_core.formats.layout import Mask
from storage_core.formats.rabbitmq.stream_queues import log_files
from storage_core.formats.rabbitmq.stream_queues.log_files import CHUNK, HEAD_SIZE, INDEX_RECORD
from storage_core.rabbitmq.disk.span_reader import read_table

Records = npt.NDArray[np.void]
Table = npt.NDArray[np.void]
CHUNKS = np.dtype(
    [
        ("id", "i8"), ("stop_id", "i8"), ("time", "i8"), ("epoch", "i8"), ("position", "i8"), ("stop", "i8"),
        ("type", "u1"),
    ]
)  # fmt: skip
"""A chunk of a segment: offsets [id, stop_id), bytes [position, stop)."""
VANISHED = "the file vanished while the store was read; read again, or a copy"


@dataclass
class Segment:
    """One segment of a log: its first offset, its file below the store, its size in bytes, and its index once read."""

    root: str
    file: str
    first: int
    size: int
    index: Records | None = None
    is_last: bool = False
    end: int = 0
    """For the last segment: where its last valid chunk ends."""
    next_id: int = 0
    """The first offset after the segment."""
    count: int = -1
    """How many records of its index are valid; -1 for all."""
    is_walked: bool = False
    """Whether its chunks are found by walking from head to head, because its index is wrong."""
    table: Table | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles the segment without its index: a task reads the index again."""
        return Segment, (
            self.root, self.file, self.first, self.size, None, self.is_last, self.end, self.next_id,
            len(self.records()), self.is_walked,
        )  # fmt: skip

    @property
    def path(self) -> str:
        """The path of its file."""
        return f"{self.root}/{self.file}"

    @property
    def stop(self) -> int:
        """The position after its last chunk."""
        return self.end if self.is_last else self.size

    def records(self) -> Records:
        """The complete records of its index; for the last segment, as recovery leaves them. Raises DataLossError."""
        if self.index is None:
            found = read_index(f"{self.root}/{index_of(self.file)}")
            self.index = found if self.count < 0 else found[: self.count]
        return self.index

    def chunks(self) -> Table:
        """Its chunks, dtype CHUNKS. Raises DataLossError if a file vanished."""
        if self.table is None:
            self.table = _walked(self) if self.is_walked else _listed(self)
        return self.table

    def walk(self) -> Table:
        """Finds its chunks from head to head from now on, whatever the index says. Raises the same as `chunks`."""
        if not self.is_walked:
            self.is_walked, self.table = True, None
        return self.chunks()

    def proves(self, number: int) -> bool:
        """Whether the head of chunk `number` matches the table, so that its offsets can be trusted."""
        if self.is_walked:
            return True
        chunk = self.chunks()[number : number + 1]
        head = self._head_at(int(chunk["position"][0]))
        return head is not None and bool(fits(head, chunk)[0])

    def fits_file_name(self) -> bool:
        """Whether its first chunk is the one that its file name states."""
        head = self._head_at(HEAD_SIZE)
        return head is not None and int(head["id"][0]) == self.first

    def has_chunk_at(self, position: int) -> bool:
        """Whether there is a chunk head of this version at a position."""
        return self._head_at(position) is not None

    def _head_at(self, position: int) -> npt.NDArray[Any] | None:
        descriptor = _opened(self.path)
        try:
            return _head(descriptor, position)
        finally:
            system.close(descriptor)


def index_of(segment: str) -> str:
    """The index that belongs to a segment."""
    return segment.removesuffix(log_files.SEGMENT_SUFFIX) + log_files.INDEX_SUFFIX


def read_index(path: str) -> Records:
    """The complete records of an index, whatever precedes them. Raises DataLossError if the index is missing."""
    data = read_table(path)
    if not data and not system.exists(path):
        raise DataLossError(f"DataLossError: {path}: {VANISHED}")
    return INDEX_RECORD.all(np.frombuffer(data, np.uint8)[HEAD_SIZE:])


def fits(heads: npt.NDArray[Any], table: Table) -> Mask:
    """Which heads of chunks match the table. Shape (n,)."""
    same: Mask = (heads["first"] == log_files.FIRST_BYTE) & (heads["id"].astype(np.int64) == table["id"])
    same &= (heads["type"] == table["type"]) & (table["id"] + heads["records"].astype(np.int64) == table["stop_id"])
    same &= table["position"] + CHUNK.size + heads["data_size"].astype(np.int64) <= table["stop"]
    return same


def _listed(segment: Segment) -> Table:
    """The chunks that the index lists."""
    records = segment.records()
    found = np.zeros(len(records), CHUNKS)
    for name in ("id", "time", "epoch", "position", "type"):
        found[name] = records[name].astype(found[name].dtype)
    if len(found):
        found["stop_id"] = np.append(found["id"][1:], segment.next_id)
        stops = np.append(found["position"][1:], segment.stop)
        # A record that points anywhere else gets a chunk of no bytes, which counts as damaged.
        found["position"] = np.clip(found["position"], 0, segment.size)
        found["stop"] = np.clip(stops, found["position"], segment.size)
    return found


def _opened(path: str) -> int:
    try:
        return system.open_read(path)
    except FileNotFoundError:
        raise DataLossError(f"DataLossError: {path}: {VANISHED}") from None


def _head(descriptor: int, position: int) -> npt.NDArray[Any] | None:
    """The head at a position, of shape (1,); None if no chunk of this version begins there."""
    data = system.pread(descriptor, CHUNK.size, position)
    if len(data) < CHUNK.size or data[0] != log_files.FIRST_BYTE:
        return None
    return np.frombuffer(data, CHUNK.dtype)


def _walked(segment: Segment) -> Table:
    """The chunks from head to head. A break in the chain is one damaged chunk, up to the next that the index proves."""
    descriptor = _opened(segment.path)
    try:
        return np.array(list(_Walk(segment, descriptor).rows()), CHUNKS)
    finally:
        system.close(descriptor)


class _Walk:
    """One walk through a segment, whose index states where to continue after a damaged head."""

    def __init__(self, segment: Segment, descriptor: int) -> None:
        self._stop, self._last_id, self._descriptor = segment.stop, segment.next_id, descriptor
        self._first, self._size = segment.first, segment.size
        records = segment.records()
        records = records[np.argsort(records["position"], kind="stable")]
        self._positions, self._ids, types = (records[name].tolist() for name in ("position", "id", "type"))
        self._types = dict(zip(self._positions, types, strict=True))
        self._listed = dict(zip(self._positions, self._ids, strict=True))
        self._last_head: tuple[int, npt.NDArray[Any] | None] = (-1, None)

    def rows(self) -> Iterator[tuple[int, ...]]:
        """The chunks, as tuples in the order of the fields of CHUNKS."""
        position, number = HEAD_SIZE, self._first
        while position < self._stop and number < self._last_id:
            head = self._chained(position, number)
            end, next_id = self._next(position, number, head)
            time, epoch, kind = 0, 0, log_files.USER
            if head is not None:
                time, epoch = int(head["time"][0]), min(int(head["epoch"][0]), log_files.LARGEST_OFFSET)
                # A chunk that the head or the index marks as one of messages is read as such.
                kind = log_files.USER if self._types.get(position) == log_files.USER else int(head["type"][0])
            yield number, next_id, time, epoch, position, min(end, self._size), kind
            position, number = end, next_id

    def _chained(self, position: int, number: int) -> npt.NDArray[Any] | None:
        """The head at a position if it is that of the chunk with this id."""
        if self._last_head[0] != position:
            self._last_head = position, _head(self._descriptor, position)
        head = self._last_head[1]
        return head if head is not None and int(head["id"][0]) == number else None

    def _next(self, position: int, number: int, head: npt.NDArray[Any] | None) -> tuple[int, int]:
        """Where the next chunk begins, and its id: according to the head if a chunk is there or the index agrees, else
        according to the index, for a chunk that is there.
        """
        if head is not None:
            following = number + int(head["records"][0])
            size = CHUNK.size + int(head["data_size"][0]) + int(head["trailer_size"][0])
            for filter_size in log_files.filter_sizes(int(head["filter_size"][0])):
                end = position + size + filter_size
                if end == self._stop:
                    return end, self._last_id
                if end < self._stop and (
                    self._chained(end, following) is not None or self._listed.get(end) == following
                ):
                    return end, following
        for at in range(bisect_right(self._positions, position), len(self._positions)):
            place, found = self._positions[at], self._ids[at]
            if place < self._stop and number < found < self._last_id and self._chained(place, found) is not None:
                return place, found
        return self._stop, self._last_id
