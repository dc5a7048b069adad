"""A snapshot of the streams of a node: their messages, and partitions of them.

A stream's indexes are read on first use and cached. Source: docs/rabbitmq.md "Streams".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property, partial
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from storage_core.conditions import all_hold, condition
from storage_core.errors import CorruptionError
from storage_core.rabbitmq import schema
from storage_core.rabbitmq.disk.damage import Damage
from storage_core.rabbitmq.index.entries import new_entries
from storage_core.rabbitmq.read.batch_builder import LEAVE_OUT, RowContext
from storage_core.rabbitmq.read.selection import queues_of, refuse_repeated
from storage_core.rabbitmq.stream_queues import selection
from storage_core.rabbitmq.stream_queues.directory import StreamDirectory, list_streams, node_is_of_3_13
from storage_core.rabbitmq.stream_queues.partition import ChunkRange, StreamPartition
from storage_core.rabbitmq.stream_queues.rows import FIELDS, OWN_COLUMNS, StreamColumns
from storage_core.rabbitmq.stream_queues.stream_log import StreamLog, read_log
from storage_core.store import Mode, QueueInfo, QueueKey, ScanPartition, ScanRequest, Snapshot

QUEUE_COLUMNS = frozenset({"vhost", "queue", "store", schema.QUEUE_TYPE.name})


class StreamQueuesSnapshot(Snapshot):
    """The streams in the folder `root`, or only `streams` if given; only those of `vhost` if it is given."""

    def __init__(
        self, root: str, store: str, vhost: str | None = None, streams: list[StreamDirectory] | None = None
    ) -> None:
        self.root, self.store = root, store
        listed = list_streams(root) if streams is None else streams
        self.streams = [stream for stream in listed if vhost is None or stream.vhost == vhost]
        names = Counter(stream.queue for stream in self.streams)
        self.repeated_topics = frozenset(name for name, count in names.items() if count > 1)
        self._logs: dict[str, StreamLog] = {}
        self._warnings = [_unnamed(root, stream) for stream in self.streams if stream.vhost is None]

    @cached_property
    def of_3_13(self) -> bool:
        """Whether the node is known to be of 3.13 or later, so that its rules apply to all messages."""
        return node_is_of_3_13(self.root)

    def log(self, stream: StreamDirectory) -> StreamLog:
        """The log of one stream, read once and cached."""
        found = self._logs.get(stream.folder)
        if found is None:
            found = self._logs[stream.folder] = read_log(self.root, stream, self.of_3_13)
            self._warnings += [f"{self.root}/{note.file} at {note.position}: {note.reason}" for note in found.notes]
            if stream.replicas > 1:
                self._warnings.append(
                    f"{self.root}: stream {stream.queue} has {stream.replicas} replicas, and one disk cannot tell "
                    "which of its last messages are confirmed; all of them are rows"
                )
        return found

    def info(self, stream: StreamDirectory) -> QueueInfo:
        """The first offset, and the one that the next message would get."""
        log = self.log(stream)
        return QueueInfo(stream.queue, 0, log.start, log.stop)

    def queues(self) -> Sequence[QueueInfo]:
        """All streams with their readable ranges, sorted by name."""
        return sorted((self.info(stream) for stream in self.streams), key=lambda info: info.topic)

    def topics(self, wanted: Sequence[str] = ()) -> frozenset[str]:
        """Names of all streams; no log is read."""
        del wanted
        return frozenset(stream.queue for stream in self.streams)

    def schema(self, request: ScanRequest) -> pa.Schema:
        """Arrow schema of the rows of `request`. OptionError for an unknown column."""
        return schema.message_schema(request, OWN_COLUMNS)

    def warnings(self) -> Sequence[str]:
        """What was found so far that a user should know before trusting the rows."""
        return tuple(self._warnings)

    def chosen(self, request: ScanRequest) -> list[StreamDirectory]:
        """The streams that a request selects, also by its predicates on their names. OptionError."""
        selection.check_request(request)
        refuse_repeated(request, self.repeated_topics)
        names = set(queues_of(request, self.topics()))
        conditions = [condition(predicate) for predicate in request.predicates]
        of_queues = [one for one in conditions if one.columns <= QUEUE_COLUMNS]
        entry, store = new_entries(1, FIELDS), request.store_name or self.store

        def takes(stream: StreamDirectory) -> bool:
            columns = StreamColumns((stream.vhost,), store, (stream.queue,), ())
            return bool(all_hold(of_queues, partial(columns.values, entries=entry), 1)[0])

        return [stream for stream in self.streams if stream.queue in names and takes(stream)]

    def offsets_at(self, request: ScanRequest) -> dict[QueueKey, int]:
        """For each stream that a request selects, the offset of the first chunk that is not older than `start_ms`."""
        moment = request.start_ms if request.start_ms is not None else 0
        found = self.chosen(replace(request, predicates=()))
        return {(stream.queue, 0): selection.at_time(self.log(stream), moment) for stream in found}

    def plan(self, request: ScanRequest) -> list[ScanPartition]:
        """Partitions of contiguous ranges of streams, of equal bytes, cut between chunks; each message appears once.

        Raises OptionError, OffsetOutOfRangeError, and, with FAILFAST, CorruptionError for a damaged index.
        """
        chosen = self.chosen(request)
        ranges, damages = [], []
        for number, stream in enumerate(chosen):
            log = self.log(stream)
            self.refuse_damages(log, log.damages, request)
            damages += log.damages
            ranges += chunks_between(log, number, *selection.bounds(log, self.info(stream), request))
        return self.pieces(request, chosen, ranges, damages)

    def pieces(
        self, request: ScanRequest, chosen: list[StreamDirectory], ranges: list[ChunkRange], damages: list[Damage]
    ) -> list[ScanPartition]:
        """Partitions of ranges of the streams `chosen`, cut as the request requires."""
        files = tuple(dict.fromkeys(each.segment.file for each in ranges))
        queues, vhosts = tuple(one.queue for one in chosen), tuple(one.vhost for one in chosen)
        store = request.store_name or self.store
        context = RowContext(
            self.schema(request), request.mode, self.root, store, "", queues, files, request.predicates
        )
        return [replace(part, of_3_13=self.of_3_13) for part in _cut(context, vhosts, ranges, tuple(damages), request)]

    def refuse_damages(self, log: StreamLog, damages: list[Damage], request: ScanRequest) -> None:
        """Raises CorruptionError for the first damage, with FAILFAST."""
        if damages and request.mode is Mode.FAILFAST:
            error = damages[0].error(self.root)
            text = f"queue {log.stream.queue}: {error.reason}; {LEAVE_OUT} and reads the others"
            raise CorruptionError(error.path, error.position, text)


def _unnamed(root: str, stream: StreamDirectory) -> str:
    return (
        f"{root}: no table of the node names the stream in {stream.folder}; it is called {stream.queue} by its "
        "directory, and its virtual host is not known (give the node's data directory)"
    )


def chunks_between(log: StreamLog, queue: int, first: int, end: int) -> list[ChunkRange]:
    """The chunks of each segment that hold messages with offsets [first, end)."""
    found = []
    for segment in log.between(first, end):
        chunks = segment.chunks()
        start, stop = selection.chunk_span(chunks, first, end)
        if start < stop:
            found.append(_range(ChunkRange(segment, queue, start, stop, first, end, 0, 0), chunks))
    return found


def _range(chunk_range: ChunkRange, chunks: npt.NDArray[Any]) -> ChunkRange:
    """The same range with its bytes and messages counted."""
    part = chunks[chunk_range.start : chunk_range.stop]
    rows = int(selection.messages_in(part, chunk_range.first, chunk_range.end).sum())
    return replace(chunk_range, size=int((part["stop"] - part["position"]).sum()), rows=rows)


def _cut(
    context: RowContext, vhosts: tuple[str | None, ...], ranges: list[ChunkRange], damages: tuple[Damage, ...],
    request: ScanRequest,
) -> list[StreamPartition]:  # fmt: skip
    """Cuts into partitions of equal bytes between chunks, then by the message limit; the last one gets the damages."""
    if not ranges:
        nothing = StreamPartition(context, vhosts, (), damages, request.verify_crc)
        return [nothing] if damages else []
    total = sum(each.size for each in ranges)
    count = request.partition_count(total)
    shares = [total * share // count for share in range(1, count)]
    groups: list[list[ChunkRange]] = [[]]
    base = 0
    for each in ranges:
        pieces = _pieces(each, [share - base for share in shares if base < share <= base + each.size])
        for number, piece in enumerate(pieces):
            if number or base in shares:
                groups.append([])
            groups[-1] += [piece] if piece.start < piece.stop else []
        base += each.size
    if request.max_records_per_partition is not None:
        groups = [part for group in groups for part in _limited(group, request.max_records_per_partition)]
    groups = [group for group in groups if group]
    return [
        StreamPartition(context, vhosts, tuple(group), damages if group is groups[-1] else (), request.verify_crc)
        for group in groups
    ]


def _pieces(each: ChunkRange, shares: list[int]) -> list[ChunkRange]:
    """A range cut after the chunks that reach these byte counts; one more piece than there are cuts."""
    if not shares:
        return [each]
    chunks = each.segment.chunks()
    part = chunks[each.start : each.stop]
    ends = np.cumsum(part["stop"] - part["position"])
    cuts = np.searchsorted(ends, shares, side="right") + each.start
    numbers = [each.start, *cuts.tolist(), each.stop]
    inner = [max(each.first, int(chunks["id"][cut])) if cut < each.stop else each.end for cut in cuts.tolist()]
    pieces = []
    for (start, stop), (first, end) in zip(pairwise(numbers), pairwise([each.first, *inner, each.end]), strict=True):
        goes_on = each.goes_on or start > each.start
        pieces.append(_range(replace(each, start=start, stop=stop, first=first, end=end, goes_on=goes_on), chunks))
    return pieces


def _limited(group: list[ChunkRange], most: int) -> list[list[ChunkRange]]:
    """A group cut so that no part has more than `most` messages; cuts may be inside a chunk."""
    found: list[list[ChunkRange]] = [[]]
    left = most
    for each in group:
        chunks = each.segment.chunks()
        part = chunks[each.start : each.stop]
        counts = selection.messages_in(part, each.first, each.end)
        ends = np.cumsum(counts)
        done, start, first = 0, each.start, each.first
        if not each.rows:
            found[-1].append(each)
        while done < each.rows:
            take = min(left, each.rows - done)
            numbers = [int(np.searchsorted(ends, at, side="right")) for at in (done, done + take - 1)]
            begins = [
                max(each.first, int(part["id"][n])) + at - int(ends[n] - counts[n])
                for n, at in zip(numbers, (done, done + take - 1), strict=True)
            ]
            stop, end = each.start + numbers[1] + 1, begins[1] + 1
            if done + take == each.rows:
                stop, end = each.stop, each.end
            goes_on = each.goes_on or begins[0] > max(each.first, int(part["id"][numbers[0]]))
            # Chunks without messages are included, because the index may be wrong about them.
            start = min(start, each.start + numbers[0])
            piece = replace(each, start=start, stop=stop, first=first, end=end, goes_on=goes_on)
            found[-1].append(_range(piece, chunks))
            done, left, start, first = done + take, left - take, stop, end
            if not left:
                found.append([])
                left = most
    return found
