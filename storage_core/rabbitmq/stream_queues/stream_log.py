"""One stream's log as the restarted node would have it: which segments count, where it ends, and whether it starts.

Nothing is changed: what the node would cut at startup is only left out here. Source: docs/format/rabbitmq-streams.md 7.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np

from storage_core.errors import DataLossError, FormatError
from storage_core.files import system
from storage_core.files.small_file import read_start
from storage_core.formats.rabbitmq.stream_queues import log_files, tracking
from storage_core.formats.rabbitmq.stream_queues.log_files import CHUNK, HEAD_SIZE, INDEX_RECORD
from storage_core.rabbitmq.disk.damage import Damage
from storage_core.rabbitmq.stream_queues.directory import StreamDirectory
from storage_core.rabbitmq.stream_queues.segment import VANISHED, Segment, Table, index_of

HEAD_ONLY = "has nothing but its head"
_ZEROS = 1000
"""Zeros beyond this number would form whole tracking records, so they are not created."""


@dataclass
class StreamLog:
    """The log of one stream. `damages` are those that affect reads; `notes` state what a node drops at startup (not
    `served`), and what is wrong in places that no read looks at.
    """

    root: str
    stream: StreamDirectory
    segments: list[Segment]
    notes: list[Damage] = field(default_factory=list)
    damages: list[Damage] = field(default_factory=list)
    of_3_13: bool = False
    """Whether the node is known to be of 3.13 or later."""
    flaw: Damage | None = None
    """The damage at which a node's startup already fails while it looks for the end of the log."""

    @property
    def start(self) -> int:
        """The first offset of the log."""
        return self.segments[0].first if self.segments else 0

    @property
    def stop(self) -> int:
        """The offset that the next chunk would get."""
        return self.segments[-1].next_id if self.segments else 0

    def between(self, first: int, end: int) -> list[Segment]:
        """The segments that may hold offsets [first, end)."""
        return [segment for segment in self.segments if segment.first < end and segment.next_id > first]

    @property
    def chunks(self) -> list[Table]:
        """The chunks of each segment."""
        return [segment.chunks() for segment in self.segments]


def read_log(
    root: str, stream: StreamDirectory, of_3_13: bool = False, known: Mapping[str, Segment] = MappingProxyType({})
) -> StreamLog:
    """The log of one stream as the node would have it after startup. Raises DataLossError if a file vanished.

    `of_3_13`: the node is known to be of 3.13 or later. `known` are segments that were read before, by file: one that
    is not the last and has the same size is reused.
    """
    log = StreamLog(root, stream, [], of_3_13=of_3_13)
    if not stream.has_log:
        reason = "no segment of this stream is left; a node's start begins it anew, without messages"
        _note(log, stream.folder, 0, reason)
        return log
    names = set(system.names(f"{root}/{stream.folder}"))
    firsts = sorted(
        name.removesuffix(log_files.INDEX_SUFFIX) for name in names
        if name.endswith(log_files.INDEX_SUFFIX) and log_files.first_offset(name) is not None
    )  # fmt: skip
    _note_unlisted(log, names, firsts)
    while of_3_13 and firsts and f"{firsts[-1]}{log_files.SEGMENT_SUFFIX}" not in names:
        _drop_index(log, firsts.pop())
    for name in firsts:
        file = f"{stream.folder}/{name}{log_files.SEGMENT_SUFFIX}"
        try:
            size = system.stat(f"{root}/{file}").size
        except FileNotFoundError:
            effect = "; a node does not start the stream" if name == firsts[-1] else ""
            reason = f"the segment of an index is missing{effect}"
            log.damages.append(_damage(log, file, 0, "segment", reason))
            continue
        log.segments.append(Segment(root, file, int(name), size))
    _drop_empty(log)
    _take_known(log, known)
    _read_indexes(log)
    _link(log)
    return log


def _damage(log: StreamLog, file: str, position: int, kind: str, reason: str, length: int = 0) -> Damage:
    return Damage(file, position, length, kind, reason, log.stream.queue)


def _note(log: StreamLog, file: str, position: int, reason: str, length: int = 0, kind: str = "segment") -> None:
    log.notes.append(Damage(file, position, length, kind, reason, log.stream.queue, served=False))


def _note_unlisted(log: StreamLog, names: set[str], firsts: Sequence[str]) -> None:
    for name in sorted(names):
        first = name.removesuffix(log_files.SEGMENT_SUFFIX)
        if name.endswith(log_files.SEGMENT_SUFFIX) and log_files.first_offset(name) is not None and first not in firsts:
            reason = "the segment has no index; a node lists segments by their indexes and does not see it"
            _note(log, f"{log.stream.folder}/{name}", 0, reason)


def _drop_index(log: StreamLog, name: str) -> None:
    """Drops the last index, which has no segment. A kill between the creation of both leaves nothing but its head."""
    index = f"{log.stream.folder}/{name}{log_files.INDEX_SUFFIX}"
    size = system.stat(f"{log.root}/{index}").size
    if size > HEAD_SIZE:
        reason = "the segment of the last index is missing; a node's start deletes the index"
        _note(log, index, 0, reason, size, "index")


def _drop_empty(log: StreamLog) -> None:
    """Drops last segments without a chunk, except the only segment: a node deletes them."""
    while len(log.segments) > 1 and log.segments[-1].size <= CHUNK.size:
        gone = log.segments.pop()
        if gone.size > HEAD_SIZE or system.stat(f"{log.root}/{index_of(gone.file)}").size > HEAD_SIZE:
            _note(log, gone.file, 0, "the last segment is too short for a chunk; a node's start deletes it", gone.size)


def _take_known(log: StreamLog, known: Mapping[str, Segment]) -> None:
    """Reuses known segments: a segment that is followed by another one never changes again."""
    for number, segment in enumerate(log.segments[:-1]):
        before = known.get(segment.file)
        if before is not None and not before.is_last and before.size == segment.size and before.index is not None:
            log.segments[number] = before


def _read_indexes(log: StreamLog) -> None:
    """Reads the indexes of all segments, the last one as recovery cuts it. Unreadable segments become damages."""
    for number, segment in enumerate(log.segments):
        if segment.index is not None:
            continue
        try:
            segment.is_last = number == len(log.segments) - 1
            damage = _read_index(log, segment)
        except FileNotFoundError as error:
            raise DataLossError(f"DataLossError: {error.filename}: {VANISHED}") from None
        if damage is not None:
            log.damages.append(damage)
            segment.index = np.empty(0, INDEX_RECORD.dtype)
            segment.end, segment.next_id = HEAD_SIZE, segment.first


def _read_index(log: StreamLog, segment: Segment) -> Damage | None:
    """Reads one index. Returns the damage of a segment of another format. If the first chunk is the right one, what is
    wrong with the index, or before that chunk, is only noted: a node looks at neither. Raises FileNotFoundError.
    """
    segment.records()
    flaws = []
    index = index_of(segment.file)
    # A node writes both heads again if the only segment has no room for a chunk.
    is_empty = len(log.segments) == 1 and segment.size <= HEAD_SIZE + CHUNK.size
    for file, check in ((segment.file, log_files.check_segment_head), (index, log_files.check_index_head)):
        if is_empty:
            break
        try:
            check(read_start(f"{log.root}/{file}", HEAD_SIZE))
        except FormatError as error:
            if not segment.fits_file_name():
                return _damage(log, file, error.position, "segment", error.reason)
            flaws.append(_damage(log, file, error.position, "head", error.reason))
    if segment.is_last:
        _recover_last(log, segment)
    position = _first_out_of_order(segment)
    if position is not None:
        segment.is_walked = True
        flaws.append(_damage(log, index, position, "index", "a record of the index does not follow the one before"))
    log.notes += flaws
    return None


def _first_out_of_order(segment: Segment) -> int | None:
    """The position of the first index record that cannot follow the one before; None if there is none."""
    records = segment.records()
    if not len(records):
        return None
    ids, positions = records["id"].astype(np.uint64), records["position"].astype(np.int64)
    wrong = np.zeros(len(records), bool)
    wrong[0] = int(ids[0]) != segment.first or int(positions[0]) != HEAD_SIZE
    wrong[1:] = (ids[1:] <= ids[:-1]) | (positions[1:] <= positions[:-1])
    wrong |= (ids > log_files.LARGEST_OFFSET) | (records["epoch"] > log_files.LARGEST_OFFSET)
    return HEAD_SIZE + int(np.argmax(wrong)) * INDEX_RECORD.size if wrong.any() else None


def _recover_last(log: StreamLog, segment: Segment) -> None:
    """Drops records from the end of the last index as long as the chunk of the last record is not intact."""
    records = segment.records()
    size = system.stat(f"{log.root}/{index_of(segment.file)}").size
    torn = max(0, size - HEAD_SIZE) % INDEX_RECORD.size
    if torn:
        _note(log, index_of(segment.file), size - torn, "half a record at the end; a node cuts it", torn, "index")
    segment.end, segment.next_id = HEAD_SIZE, segment.first
    # A node writes a chunk before its record, so by now the segment has every chunk that the index lists.
    segment.size = system.stat(f"{log.root}/{segment.file}").size
    descriptor = system.open_read(f"{log.root}/{segment.file}")
    try:
        count = len(records)
        while count:
            found = _whole_chunk(descriptor, segment.size, records[count - 1])
            if isinstance(found, str):
                position = int(records["position"][count - 1])
                fails = found == HEAD_ONLY and not log.of_3_13
                effect = "a node does not start the stream" if fails else "a node's start cuts it"
                reason = f"the last chunk that the index lists {found}; {effect}"
                _note(log, segment.file, position, reason, max(0, segment.size - position))
                log.flaw = log.notes[-1] if fails else log.flaw
                count -= 1
                continue
            segment.end, segment.next_id = found
            break
    finally:
        system.close(descriptor)
    segment.index = records[:count]
    if segment.end < segment.size:
        left = segment.size - segment.end
        reason = "bytes behind the last chunk that the index lists; a node's start cuts them"
        if not any(note.file == segment.file and note.position <= segment.end for note in log.notes):
            _note(log, segment.file, segment.end, reason, left)


def _whole_chunk(descriptor: int, size: int, record: Any) -> tuple[int, int] | str:
    """The end of a chunk and the offset after it, or what is wrong with it. A cut trailer is fine: zeros replace it.

    The id of the record is not compared, because no node compares it.
    """
    position = int(record["position"])
    if not record.tobytes().strip(b"\0"):
        return "is a record of zeros"
    data = system.pread(descriptor, CHUNK.size, position)
    if len(data) < CHUNK.size:
        return "lies behind the end of the segment"
    head = np.frombuffer(data, CHUNK.dtype)
    if head["first"][0] != log_files.FIRST_BYTE:
        return "has a wrong head"
    begin, length = position + CHUNK.size, int(head["data_size"][0])
    reason = HEAD_ONLY if length and begin == size else "is cut"
    for filter_size in log_files.filter_sizes(int(head["filter_size"][0])):
        if begin + filter_size + length > size:
            continue
        body = system.pread(descriptor, length, begin + filter_size)
        if len(body) == length and zlib.crc32(body) == int(head["crc"][0]):
            end = begin + filter_size + length + int(head["trailer_size"][0])
            return end, int(head["id"][0]) + int(head["records"][0])
        reason = "fails its checksum"
    return reason


def _link(log: StreamLog) -> None:
    """Sets where each segment ends: at the next one."""
    for segment, following in zip(log.segments, log.segments[1:], strict=False):
        segment.next_id = following.first


def start_flaw(log: StreamLog) -> Damage | None:
    """The damage at which a node fails to start the stream. At startup it reads the head of the first chunk, the data
    of the last one, and the tracking data of all chunks of the last segment.
    """
    if log.flaw is not None:
        return log.flaw
    for segment in log.segments[:1]:
        if len(segment.chunks()) and not segment.has_chunk_at(HEAD_SIZE):
            return Damage(segment.file, HEAD_SIZE, 0, "chunk", "no chunk begins here", log.stream.queue)
    for segment in log.segments[-1:]:
        descriptor = system.open_read(segment.path)
        try:
            return _tracking_flaw(log, segment, descriptor)
        finally:
            system.close(descriptor)
    return None


def _tracking_flaw(log: StreamLog, segment: Segment, descriptor: int) -> Damage | None:
    """The first chunk of the last segment that startup cannot get past. Bytes missing at the file's end are zeros."""

    def read(start: int, size: int) -> bytes:
        size = max(0, min(size, segment.end - start))
        data = system.pread(descriptor, min(size, max(0, segment.size - start)), start)
        missing = size - len(data)
        return data + bytes(missing if missing < _ZEROS else _ZEROS + missing % tracking.LEAST_SIZE)

    position = HEAD_SIZE
    while position < segment.end:
        try:
            position = _after_tracked(position, segment.end, read)
        except FormatError as error:
            return Damage(segment.file, position, 0, "chunk", error.reason, log.stream.queue)
    return None


def _after_tracked(position: int, stop: int, read: Callable[[int, int], bytes]) -> int:
    """Where the chunk at a position ends. Raises FormatError if startup cannot read its tracking data."""
    data = read(position, CHUNK.size)
    if len(data) < CHUNK.size or data[0] != log_files.FIRST_BYTE:
        raise FormatError(position, "no chunk begins here")
    head = np.frombuffer(data, CHUNK.dtype)
    kind, size, trailer = (int(head[name][0]) for name in ("type", "data_size", "trailer_size"))
    for filter_size in log_files.filter_sizes(int(head["filter_size"][0])):
        begin = position + CHUNK.size + filter_size
        end = begin + size + trailer
        if end == stop or read(end, 1) == bytes([log_files.FIRST_BYTE]):
            break
    if kind == log_files.USER:
        list(tracking.records(read(begin + size, trailer)))
    elif kind in (log_files.TRACKING_DELTA, log_files.TRACKING_SNAPSHOT):
        tracking.of_chunk(read(begin, size), kind == log_files.TRACKING_SNAPSHOT)
    else:
        raise FormatError(position, f"a chunk of the unknown type {kind}")
    return end
