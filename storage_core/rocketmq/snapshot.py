"""What one RocketMQ store serves at one moment: its queues, and plans for reading them.

What a stock broker would serve is judged by `recovery`; how a read is cut is computed by `planning`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from storage_core.errors import UnsupportedFormatError
from storage_core.files import system
from storage_core.files.file_chain import FileChain
from storage_core.files.window import OpenFiles, Window
from storage_core.formats.rocketmq.consumequeue import UNIT
from storage_core.formats.rocketmq.message import HEADER, Stop
from storage_core.formats.rocketmq.paths import LIGHT_QUEUE_PREFIX
from storage_core.rocketmq.appended import first_appended_at
from storage_core.rocketmq.config import committed_offsets
from storage_core.rocketmq.consumequeue import ConsumeQueue
from storage_core.rocketmq.finding import Served, parts_to_read
from storage_core.rocketmq.listing import Listing
from storage_core.rocketmq.log_scan import LogScan
from storage_core.rocketmq.narrowing import bounds_of, may_hold
from storage_core.rocketmq.planning import (
    SLICE_SIZE,
    Bounds,
    grouped,
    log_spans,
    partition_count,
    sampled,
    sliced,
    whole_log,
)
from storage_core.rocketmq.queue_scan import QueueScan, Ranges
from storage_core.rocketmq.readable import ReadableQueues, readable_queues
from storage_core.rocketmq.recovery import QueueVerdict, Verdict
from storage_core.rocketmq.schema import message_schema
from storage_core.rocketmq.selection import Selection, bounded, named_offsets, selected_queues
from storage_core.rocketmq.time_search import TimeSearch
from storage_core.store import QueueInfo, QueueKey, Scan, ScanPartition, ScanRequest, Snapshot

MOST_QUEUES_TO_ALIGN = 1_000


class RocketSnapshot(Snapshot):
    """A listing and the verdict on it; `judged` walks the log, so it is asked only when a question needs it."""

    def __init__(
        self,
        listing: Listing,
        judged: Callable[[], tuple[Listing, Verdict]],
        store_name: str,
        queues_of: Callable[[Listing, Verdict], ReadableQueues] = readable_queues,
    ) -> None:
        self.listing = listing
        self._judged = judged
        self._store_name = store_name
        self._queues_of = queues_of

    @cached_property
    def verdict(self) -> Verdict:
        """Where the log and each queue end, as a stock broker would find."""
        self.listing, verdict = self._judged()
        return verdict

    def queues(self) -> Sequence[QueueInfo]:
        """All queues that hold a unit, with their readable ranges."""
        return self._readable.infos

    def schema(self, request: ScanRequest) -> pa.Schema:
        """Native columns in the request's order. OptionError for an unknown one."""
        return message_schema(request)

    def plan(self, request: ScanRequest) -> list[ScanPartition]:
        """Partitions that together hold each selected message once."""
        message_schema(request)
        if request.scan is Scan.LOG:
            return list(self._plan_log(request))
        if self.listing.rocksdb_queues:
            raise UnsupportedFormatError(
                f"UnsupportedFormatError: {self.listing.root}/consumequeue: the queues are in RocksDB, which mqstore "
                "does not read; option scan=log reads every message of the commit log without them"
            )
        with OpenFiles() as files:
            return list(self._plan_queues(request, files))

    def warnings(self) -> Sequence[str]:
        """What a read through the queues leaves out, in bytes, and queues of a kind that is not read."""
        lines = []
        left_out = self._bytes_behind_end()
        if left_out:
            lines.append(
                f"{self._store_name}: up to {left_out} bytes of the commit log from physical offset "
                f"{self.verdict.log_end} on are not served, as a broker would cut them; option scan=log reads what is "
                "right in them"
            )
        if self.listing.batch_queues:
            lines.append(
                f"{self._store_name}: {len(self.listing.batch_queues)} batch queues (BatchCQ) are not read through "
                "their queues; option scan=log reads their records"
            )
        return lines

    # -- queues

    @cached_property
    def _readable(self) -> ReadableQueues:
        verdict = self.verdict
        return self._queues_of(self.listing, verdict)

    def queue_files(self, key: QueueKey) -> ConsumeQueue:
        """The files of a queue; one without files when only the log knows of it."""
        found = self.listing.queues.get(key)
        return found if found is not None else ConsumeQueue(*key, FileChain((), 0))

    # -- reading through the queues

    def _plan_queues(self, request: ScanRequest, files: OpenFiles) -> Sequence[ScanPartition]:
        infos = self._readable.infos
        chosen = [info for info in selected_queues(request, infos) if may_hold(request, info)]
        low, high = bounds_of(request.predicates, "queueOffset")
        ranges = [
            (max(start, low), max(start, low, min(stop, high))) for start, stop in self._ranges(request, chosen, files)
        ]
        queues = [self.queue_files((info.topic, info.queue_id)) for info in chosen]
        verdicts = [self.verdict.queues[info.topic, info.queue_id] for info in chosen]
        disk = [
            Bounds(queue, start, min(stop, bounds.disk_stop), bounds.last_place)
            for queue, bounds, (start, stop) in zip(queues, verdicts, ranges, strict=True)
        ]
        narrow = len(chosen) < len(infos) or any(
            (info.start, info.stop) != pair for info, pair in zip(chosen, ranges, strict=True)
        )
        found = parts_to_read(request, self._served(), disk, files)
        parts, owners = (disk, np.arange(len(disk), dtype=np.int32)) if found is None else found
        narrow |= found is not None
        weights = sampled(parts, files) if narrow else whole_log(self.verdict.log_start, self.verdict.log_end)
        rows = sum(len(part) for part in parts)
        count = partition_count(
            weights.total,
            rows,
            request.min_partitions,
            request.max_bytes_per_partition,
            request.max_records_per_partition,
        )
        slices = -(-max(count, -(-weights.total // SLICE_SIZE)) // count) * count
        base = self._scan(request, queues, np.unique(owners), files)
        cut = [replace(part, queue=owners[part.queue]) for part in sliced(parts, weights.cuts(slices), files)]
        groups = grouped(cut, count, request.max_records_per_partition)
        share = weights.total // max(len(groups), 1)
        partitions: list[ScanPartition] = [narrowed(replace(base, slices=group, weight=share)) for group in groups]
        return partitions + self._replays(base, ranges, verdicts)

    def _served(self) -> Served:
        verdict, topics = self.verdict, self._readable.topics
        return Served(self.listing.root, self.listing.log, verdict.log_start, verdict.log_end, topics)

    def _scan(
        self, request: ScanRequest, queues: list[ConsumeQueue], used: npt.NDArray[np.int32], files: OpenFiles
    ) -> QueueScan:
        rebuilt = np.ones(len(queues), bool)
        rebuilt[used] = self._rebuilt([queues[index] for index in used.tolist()], files)
        return QueueScan(
            log=self.listing.log,
            log_start=self.verdict.log_start,
            log_end=self.verdict.log_end,
            queues=tuple(queues),
            rebuilt=rebuilt,
            request=request,
            store_name=request.store_name or self._store_name,
        )

    def _replays(
        self, base: QueueScan, ranges: list[tuple[int, int]], verdicts: list[QueueVerdict]
    ) -> list[ScanPartition]:
        """Partitions for units that are in no queue file, when the selection wants some of them."""
        wanted = [
            (max(start, bounds.disk_stop, bounds.first), stop)
            for (start, stop), bounds in zip(ranges, verdicts, strict=True)
        ]
        if not any(stop > start for start, stop in wanted):
            return []
        table = np.array(wanted, np.int64).reshape(-1, 2)
        selected = Ranges(np.arange(len(table), dtype=np.int32), table[:, 0], table[:, 1])
        return [
            replace(
                base,
                replays=(replay,),
                wanted=selected,
                verdict=replace(self.verdict, replays=()),
                rebuilt=np.ones(len(base.queues), bool),
                weight=replay.stop - replay.start,
            )
            for replay in self.verdict.replays
        ]

    def _ranges(self, request: ScanRequest, chosen: Sequence[QueueInfo], files: OpenFiles) -> list[tuple[int, int]]:
        groups = {bound.group for bound in (request.start, request.stop) if bound.group is not None}
        committed = committed_offsets(self.listing.root) if groups else {}
        offsets: Mapping[QueueKey, int] = {}
        for group in groups:
            offsets = {**offsets, **committed.get(group, {})}
        ranges = [bounded(info, request, offsets) for info in chosen]
        if request.start_ms is not None:
            times = self._at_time(chosen, request.start_ms, files)
            ranges = [(max(start, time), stop) for (start, stop), time in zip(ranges, times, strict=True)]
        if request.stop_ms is not None:
            times = self._at_time(chosen, request.stop_ms, files)
            ranges = [(start, min(stop, time)) for (start, stop), time in zip(ranges, times, strict=True)]
        return [(start, max(start, stop)) for start, stop in ranges]

    def _at_time(self, chosen: Sequence[QueueInfo], time_ms: int, files: OpenFiles) -> list[int]:
        """Per queue the ordinal that 5.3.3's search gives for a store time (interface.md 13)."""
        search = TimeSearch(self.listing.log, files)
        found = []
        behind: list[QueueKey] = []
        for info in chosen:
            key = (info.topic, info.queue_id)
            disk_stop = min(self.verdict.queues[key].disk_stop, info.stop)
            at = search.lower_bound(self.queue_files(key), info.start, disk_stop, time_ms)
            if at >= disk_stop and disk_stop < info.stop:
                behind.append(key)
            found.append(max(at, info.start))
        if behind:
            ordinals = first_appended_at(self.listing.log, self.verdict, set(behind), time_ms, files)
            for row, info in enumerate(chosen):
                key = (info.topic, info.queue_id)
                if key in behind:
                    found[row] = ordinals.get(key, info.stop)
        return found

    def _rebuilt(self, queues: Sequence[ConsumeQueue], files: OpenFiles) -> npt.NDArray[np.bool_]:
        """Queues whose last message has another QUEUEOFFSET than its ordinal: a gap was closed up (rocketmq.md 3.3)."""
        return np.array([self._is_rebuilt(queue, files) for queue in queues], bool)

    def _is_rebuilt(self, queue: ConsumeQueue, files: OpenFiles) -> bool:
        if queue.topic.startswith(LIGHT_QUEUE_PREFIX):
            return True
        bounds = self.verdict.queues[queue.topic, queue.queue_id]
        stop = bounds.disk_stop
        if stop <= queue.chain.start // UNIT.size:
            return False
        place = bounds.last_place if bounds.last_place >= 0 else int(queue.offsets(files, stop - 1, stop)[0])
        file = self.listing.log.file_at(place)
        if file is None:
            return True
        at = place - file.base_offset + HEADER.field("queue_offset").offset
        return system.pread(files.descriptor(file.path), 8, at) != (stop - 1).to_bytes(8, "big")

    # -- reading the log alone

    def _plan_log(self, request: ScanRequest) -> Sequence[ScanPartition]:
        log = self.listing.log
        total = sum(file.size for file in log.files)
        count = max(request.min_partitions, -(-total // request.max_bytes_per_partition))
        queues = list(self.listing.queues.values())
        with OpenFiles() as files:
            spans = log_spans(log, count, queues if len(queues) <= MOST_QUEUES_TO_ALIGN else [], files)
        per_partition = max(1, -(-len(spans) // count))
        selection = Selection(request, named_offsets(request))
        name = request.store_name or self._store_name
        return [
            LogScan(log, tuple(spans[at : at + per_partition]), selection, request, name)
            for at in range(0, len(spans), per_partition)
        ]

    def _bytes_behind_end(self) -> int:
        """Bytes of the log that a broker would cut: behind a record that is not right, and in later files."""
        log, end = self.listing.log, self.verdict.log_end
        if self.verdict.reason in (Stop.END, Stop.BLANK):
            return 0
        with OpenFiles() as files:
            window = Window(log, files)
            later = [f for f in log.files if f.base_offset >= end and f.size >= 8]
            filled = [f.size for f in later if window.load(f.base_offset, f.base_offset + 8).any()]
            here = log.file_at(end)
        return sum(filled) + (here.end - end if here else 0)


def narrowed(scan: QueueScan) -> QueueScan:
    """The same partition with only the queues that its slices touch, so that it travels light."""
    used = np.unique(np.concatenate([part.queue for part in scan.slices]))
    if len(used) == len(scan.queues):
        return scan
    number = np.zeros(len(scan.queues), np.int32)
    number[used] = np.arange(len(used))
    slices = tuple(Ranges(number[part.queue], part.start, part.stop) for part in scan.slices)
    return replace(scan, queues=tuple(scan.queues[index] for index in used), rebuilt=scan.rebuilt[used], slices=slices)
