"""The streams of a node as Structured Streaming reads them: positions, counts, bytes, seals, plans of ranges.

A position is an offset. Streams of the same name are distinguished by the time of their declaration. When to look again
is decided by `tail`. Source: docs/streaming.md "Streams of RabbitMQ".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from storage_core.rabbitmq.disk.damage import Damage
from storage_core.rabbitmq.read.selection import queues_of, refuse_repeated
from storage_core.rabbitmq.stream_queues import selection
from storage_core.rabbitmq.stream_queues.directory import StreamDirectory
from storage_core.rabbitmq.stream_queues.segment import CHUNKS
from storage_core.rabbitmq.stream_queues.snapshot import StreamQueuesSnapshot, chunks_between
from storage_core.rabbitmq.stream_queues.stream_log import StreamLog
from storage_core.store import QueueKey, ScanPartition, ScanRequest
from storage_core.stream.offsets import sealed_end
from storage_core.stream.tail import StreamSnapshot


class GrowingSnapshot(StreamQueuesSnapshot, StreamSnapshot):
    """The streams that may be read now, with the log of each."""

    def __init__(self, root: str, store: str, logs: list[StreamLog]) -> None:
        super().__init__(root, store, streams=[log.stream for log in logs])
        self._logs = {log.stream.folder: log for log in logs}

    @cached_property
    def _by_key(self) -> Mapping[QueueKey, StreamLog]:
        return {(stream.queue, stream.declared_ns): self._logs[stream.folder] for stream in self.streams}

    # -- positions

    @cached_property
    def positions(self) -> Mapping[QueueKey, tuple[int, int]]:
        """First offset and end of every stream. A damaged end counts as one more message, so that reads report it."""
        return {
            key: (log.start, log.stop + any(damage_offset(each) >= log.stop for each in log.damages))
            for key, log in self._by_key.items()
        }

    def starts(self, request: ScanRequest) -> dict[QueueKey, int]:
        """Where each selected stream starts, also by `startingTimestamp`; one that does not exist yet is left out."""
        selection.check_request(request)
        names = self.topics()
        topics = None if request.topics is None else tuple(name for name in request.topics if name in names)
        assign = None if request.assign is None else tuple(key for key in request.assign if key[0] in names)
        refuse_repeated(request, self.repeated_topics)
        selected = queues_of(replace(request, topics=topics, assign=assign), names)
        return {
            key: selection.bounds(log, self.info(log.stream), request)[0]
            for key, log in self._by_key.items()
            if log.stream.queue in selected
        }

    # -- between positions

    def _chunks(self, key: QueueKey, start: int, stop: int) -> npt.NDArray[Any]:
        """The chunks that hold messages with offsets [start, stop)."""
        found = [np.empty(0, CHUNKS)]
        for segment in self._by_key[key].between(start, stop):
            chunks = segment.chunks()
            found.append(chunks[slice(*selection.chunk_span(chunks, start, stop))])
        return np.concatenate(found)

    def count(self, key: QueueKey, start: int, stop: int) -> int:
        """Number of messages; offsets used by tracking data do not count."""
        return int(selection.messages_in(self._chunks(key, start, stop), start, stop).sum())

    def after(self, key: QueueKey, start: int, count: int) -> int:
        """The offset after the next `count` messages."""
        if not count:
            return start
        stop = self.positions[key][1]
        chunks = self._chunks(key, start, stop)
        counts = selection.messages_in(chunks, start, stop)
        ends = np.cumsum(counts)
        at = int(np.searchsorted(ends, count))
        if at == len(ends):
            return stop
        return max(start, int(chunks["id"][at])) + count - int(ends[at] - counts[at])

    def fitting(self, key: QueueKey, start: int, stop: int, size: int) -> tuple[int, int]:
        """Measures by the bytes of chunks; within a chunk all messages count the same."""
        chunks = self._chunks(key, start, stop)
        sizes = _sizes(chunks, start, stop)
        ends = np.cumsum(sizes)
        at = int(np.searchsorted(ends, size, side="right"))
        if at == len(ends):
            return max(start, stop), int(ends[-1]) if at else 0
        before = int(ends[at] - sizes[at])
        messages = int(selection.messages_in(chunks[at : at + 1], start, stop)[0])
        more = int((size - before) * messages // sizes[at])
        return max(start, int(chunks["id"][at])) + more, before + int(sizes[at]) * more // max(messages, 1)

    # -- seals and lost positions

    def seals(self, positions: Mapping[QueueKey, int]) -> dict[QueueKey, str]:
        """The offset before each position, and what identifies the chunk that has it; ``-1`` if there is none."""
        return {
            key: self._sealed(key, position - 1) or "-1" for key, position in positions.items() if key in self._by_key
        }

    def _sealed(self, key: QueueKey, number: int) -> str | None:
        chunks = self._chunks(key, number, number + 1)
        if not len(chunks):
            return None
        chunk = chunks[-1]
        return f"{number}:{chunk['id']}:{chunk['time']}:{chunk['epoch']}"

    def lost(self, key: QueueKey, position: int, seal: str | None) -> tuple[int, str]:
        """Also detects messages that a node cut and rewrote: another chunk has the offset that the seal names."""
        start, reason = super().lost(key, position, seal)
        if reason or seal is None or ":" not in seal:
            return start, reason
        number = int(seal.partition(":")[0])
        found = self._sealed(key, number)
        if found is None or found == seal:
            return start, reason
        log, epoch = self._by_key[key], sealed_end(seal, ":", self.root)
        newer = (segment.chunks() for segment in log.segments)
        later = [int(part["id"][np.argmax(part["epoch"] > epoch)]) for part in newer if (part["epoch"] > epoch).any()]
        return min([position, *later]), f"was cut by a node and rewritten before {position}, where the checkpoint is"

    # -- plans

    def plan_ranges(self, request: ScanRequest, ranges: Mapping[QueueKey, tuple[int, int]]) -> list[ScanPartition]:
        """Partitions with each message of the ranges, in offset order. Raises the same errors as `plan`."""
        keys = {self._by_key[key].stream.folder: key for key in ranges if key in self._by_key}
        chosen = [stream for stream in self._matching(request) if stream.folder in keys]
        found, damages = [], []
        for number, stream in enumerate(chosen):
            log, (start, stop) = self._logs[stream.folder], ranges[keys[stream.folder]]
            self.refuse_damages(log, _damages_between(log, start, stop, True), request)
            damages += _damages_between(log, start, stop, False)
            found += chunks_between(log, number, start, stop)
        return self.pieces(request, chosen, found, damages)

    def _matching(self, request: ScanRequest) -> list[StreamDirectory]:
        """The streams that match the predicates on names."""
        return self.chosen(ScanRequest(predicates=request.predicates, store_name=request.store_name))


def damage_offset(damage: Damage) -> int:
    """The first offset of the segment that a damage is in, according to the file name."""
    return int(damage.file.rsplit("/", 1)[1].partition(".")[0])


def _damages_between(log: StreamLog, start: int, stop: int, in_part: bool) -> list[Damage]:
    """Damages of segments that begin at offsets [start, stop); with `in_part`, also of those that begin before it."""
    firsts = sorted(segment.first for segment in log.segments)
    found = []
    for damage in log.damages:
        first = damage_offset(damage)
        end = next((each for each in firsts if each > first), first + 1)
        if first < stop and (first >= start or (in_part and end > start)):
            found.append(damage)
    return found


def _sizes(chunks: npt.NDArray[Any], start: int, stop: int) -> npt.NDArray[np.int64]:
    """The bytes of the part of each chunk with offsets [start, stop)."""
    every = np.maximum(chunks["stop_id"] - chunks["id"], 1)
    part = np.minimum(chunks["stop_id"], stop) - np.maximum(chunks["id"], start)
    sizes: npt.NDArray[np.int64] = (chunks["stop"] - chunks["position"]) * np.maximum(part, 0) // every
    return sizes
