"""Selects the queues of a request and the queue offsets of each, as half-open ranges.

`recovery` says what a queue serves, `time_search` finds the offset at a time. `key_search` decides which of the
selected messages are looked up by key. Source of the rules: interface.md 26.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from storage_core.errors import DataLossError, OffsetOutOfRangeError, OptionError, choices, listing
from storage_core.files.open_files import OpenFiles
from storage_core.formats.layout import Positions
from storage_core.formats.rocketmq.config_json import queue_counts
from storage_core.rocketmq.disk.batch_queue import BatchQueue
from storage_core.rocketmq.disk.config_files import committed_offsets, read_config, refuse_offsets_in_rocksdb
from storage_core.rocketmq.disk.consume_queue import ConsumeQueue
from storage_core.rocketmq.read.predicates import bounds_of, may_hold
from storage_core.rocketmq.read.ranges import NO_RANGES, QueueRanges
from storage_core.rocketmq.read.time_search import TimeSearch
from storage_core.rocketmq.recovery.queue_ranges import ServedQueues
from storage_core.rocketmq.recovery.recovery import first_after_crash
from storage_core.rocketmq.recovery.verdict import QueueVerdict
from storage_core.store import EARLIEST, LATEST, OffsetBound, QueueInfo, QueueKey, ScanRequest

UNBOUNDED = (0, (1 << 63) - 1)
FROM_THE_FIRST, TO_THE_LAST = OffsetBound(EARLIEST), OffsetBound(LATEST)
NOTHING_CHOSEN = (None,) * 5


@dataclass(frozen=True)
class BatchRange:
    """The selected queue offsets [start, stop) of a batch queue; those before `listed_stop` are in its own files."""

    info: QueueInfo
    queue: BatchQueue
    start: int
    stop: int
    listed_stop: int


@dataclass(frozen=True, eq=False)
class Selection:
    """The queues from which a request selects messages, and their selected queue offsets [start, stop): the first ones
    are in the queue's files, the rest in the log, except stale ones.

    One element per queue, in store order; queues are numbered in this order. `is_whole`: everything that the store
    serves is selected. `batched`: the same for batch queues.
    """

    infos: Sequence[QueueInfo]
    queues: tuple[ConsumeQueue, ...]
    bounds: Sequence[QueueVerdict]
    start: Positions
    stop: Positions
    is_whole: bool
    batched: tuple[BatchRange, ...] = ()

    @cached_property
    def starts(self) -> dict[QueueKey, int]:
        """The first selected queue offset of every queue."""
        own = dict(zip(self.numbers, self.start.tolist(), strict=True))
        return own | {(one.info.topic, one.info.queue_id): one.start for one in self.batched}

    @cached_property
    def numbers(self) -> Mapping[QueueKey, int]:
        """The number of each queue."""
        return {(info.topic, info.queue_id): number for number, info in enumerate(self.infos)}

    @cached_property
    def on_disk(self) -> QueueRanges:
        """The parts in the queues' files."""
        return QueueRanges(self._all, self.start, np.minimum(self.stop, self._disk_stop))

    @cached_property
    def in_log(self) -> QueueRanges:
        """The parts that only the log has; empty where start >= stop."""
        first = np.array([bounds.first for bounds in self.bounds], np.int64)
        return QueueRanges(self._all, np.maximum(np.maximum(self.start, self._disk_stop), first), self.stop)

    @cached_property
    def stale(self) -> QueueRanges:
        """The parts in the queues' last files that follow entries which only the log has; none is empty."""
        known = [(number, bounds.stale) for number, bounds in enumerate(self.bounds) if bounds.stale is not None]
        numbers = np.array([number for number, _ in known], np.int32)
        start = np.array([stale.start for _, stale in known], np.int64)
        stop = np.array([stale.stop for _, stale in known], np.int64)
        start = np.maximum(np.maximum(self.start, self._disk_stop)[numbers], start)
        return QueueRanges(numbers, start, np.minimum(self.stop[numbers], stop)).filled()

    @cached_property
    def has_unlisted(self) -> bool:
        """Whether a selected entry is in no queue file, or follows an entry that is in none."""
        return len(self.in_log.filled()) + len(self.stale) > 0

    @cached_property
    def last_physical_offsets(self) -> Positions:
        """For each queue an address after which its files list no record; -1 if unknown."""
        return np.array([bounds.last_physical_offset for bounds in self.bounds], np.int64)

    @cached_property
    def _all(self) -> npt.NDArray[np.int32]:
        return np.arange(len(self.infos), dtype=np.int32)

    @cached_property
    def _disk_stop(self) -> Positions:
        return np.array([bounds.disk_stop for bounds in self.bounds], np.int64)


_wholes: WeakKeyDictionary[ServedQueues, Selection] = WeakKeyDictionary()
"""The selection of everything that a store serves, kept while that is unchanged; lookups use it."""


def selected_queues(request: ScanRequest, served: ServedQueues, files: OpenFiles) -> Selection:
    """The queues from which a request selects messages, after all its options and predicates on queue and offset.

    Requests that narrow nothing share one selection object. Raises OptionError for a topic or queue that does not
    exist, DataLossError, OffsetOutOfRangeError.
    """
    if _narrows(request):
        return _narrowed(request, served, files)
    whole = _wholes.get(served)
    if whole is None:
        start = np.array([info.start for info in served.infos], np.int64)
        stop = np.array([info.stop for info in served.infos], np.int64)
        for number in np.flatnonzero(start > stop).tolist():
            bounded(served.infos[number], request, {}, {})
        whole = _wholes[served] = _selection(served, served.infos, start, stop, files)
    return whole


def _narrows(request: ScanRequest) -> bool:
    """Whether a request may exclude queues, or offsets of a queue, before keys are looked up."""
    chosen = (request.topics, request.topic_pattern, request.assign, request.start_ms, request.stop_ms)
    return (
        chosen != NOTHING_CHOSEN
        or bool(request.predicates)
        or (request.start, request.stop) != (FROM_THE_FIRST, TO_THE_LAST)
    )


def _narrowed(request: ScanRequest, served: ServedQueues, files: OpenFiles) -> Selection:
    infos = [info for info in named_queues(request, served.infos, served.listing.root) if may_hold(request, info)]
    starts = _group_offsets("startingOffsets", request.start, served.listing.root)
    stops = _group_offsets("endingOffsets", request.stop, served.listing.root)
    for committed in (starts, stops):
        if committed is not None:
            topics = {topic for topic, _ in committed}
            infos = [info for info in infos if info.topic in topics]
    ranges = [bounded(info, _counted(request, info, served, files), starts or {}, stops or {}) for info in infos]
    search = TimeSearch(served, files)
    if request.start_ms is not None:
        times = search.offsets_at(infos, request.start_ms)
        ranges = [(max(start, time), stop) for (start, stop), time in zip(ranges, times, strict=True)]
    if request.stop_ms is not None:
        times = search.offsets_at(infos, request.stop_ms)
        ranges = [(start, min(stop, time)) for (start, stop), time in zip(ranges, times, strict=True)]
    low, high = bounds_of(request.predicates, "queueOffset")
    start = np.array([max(start, low) for start, _ in ranges], np.int64)
    stop = np.array([min(stop, high) for _, stop in ranges], np.int64)
    return _selection(served, infos, start, np.maximum(start, stop), files)


def _selection(
    served: ServedQueues, infos: Sequence[QueueInfo], start: Positions, stop: Positions, files: OpenFiles
) -> Selection:
    spans = [(info.start, info.stop) for info in infos]
    is_whole = len(infos) == len(served.infos) and spans == list(zip(start.tolist(), stop.tolist(), strict=True))
    if not served.batched:
        return _of_queues(served, infos, start, stop, is_whole)
    batched = np.array([(info.topic, info.queue_id) in served.batched for info in infos], bool)
    apart = [(infos[row], int(start[row]), int(stop[row])) for row in np.flatnonzero(batched).tolist()]
    own = np.flatnonzero(~batched)
    return replace(
        _of_queues(served, [infos[row] for row in own.tolist()], start[own], stop[own], False),
        batched=tuple(_batch_range(served, *one, files) for one in apart),
    )


def _of_queues(
    served: ServedQueues, infos: Sequence[QueueInfo], start: Positions, stop: Positions, is_whole: bool
) -> Selection:
    keys = [(info.topic, info.queue_id) for info in infos]
    queues = tuple(served.files_of(key) for key in keys)
    return Selection(infos, queues, [served.verdict.queues[key] for key in keys], start, stop, is_whole)


def _batch_range(served: ServedQueues, info: QueueInfo, start: int, stop: int, files: OpenFiles) -> BatchRange:
    queue = served.batched[info.topic, info.queue_id]
    return BatchRange(info, queue, start, stop, queue.stop(files))


def unlisted_of_compacted(
    selection: Selection, served: ServedQueues, files: OpenFiles
) -> tuple[Selection, QueueRanges]:
    """The selected messages of compacted queues that are in none of their files, as a broker start dispatches them; and
    which of these the consume queues list: after a crash, all from the log file at which recovery begins.
    """
    ranges = [one for one in selection.batched if one.queue.is_compacted and one.listed_stop < one.stop]
    start = np.array([max(one.start, one.listed_stop) for one in ranges], np.int64)
    stop = np.array([one.stop for one in ranges], np.int64)
    found = _of_queues(served, [one.info for one in ranges], start, stop, False)
    found = replace(found, bounds=[replace(bounds, stale=None) for bounds in found.bounds])
    if not ranges or not served.listing.abort:
        return found, NO_RANGES
    first = served.listing.log.files[first_after_crash(served.listing, files, served.verdict.rules)]
    # A queue whose files recovery removed has no entry before those that it appends, however large their offsets are.
    filed = [number for number, queue in enumerate(found.queues) if queue.chain.files]
    whole = found.on_disk
    on_disk = QueueRanges(whole.queue[filed], whole.start[filed], whole.stop[filed])
    return found, on_disk.cut(found.queues, np.array([first.base_offset]), files)[1]


def _counted(request: ScanRequest, info: QueueInfo, served: ServedQueues, files: OpenFiles) -> ScanRequest:
    """The request; for a compacted queue, whose offsets have holes, the last N messages are found by counting."""
    key = (info.topic, info.queue_id)
    queue = served.batched.get(key)
    if queue is None or not queue.is_compacted or request.start.last is request.stop.last is None:
        return request
    unlisted = info.stop - queue.stop(files)

    def of(bound: OffsetBound) -> OffsetBound:
        if bound.last is None:
            return bound
        before = bound.last - unlisted
        return OffsetBound(offsets={key: queue.last_from(files, before) if before > 0 else info.stop - bound.last})

    return replace(request, start=of(request.start), stop=of(request.stop))


def _group_offsets(option: str, bound: OffsetBound, root: str) -> Mapping[QueueKey, int] | None:
    """The committed offsets of a bound's consumer group; None without one. Raises OptionError for an unknown group,
    UnsupportedFormatError for offsets in RocksDB.
    """
    if bound.group is None:
        return None
    refuse_offsets_in_rocksdb(root, "does not read; give the group's offsets as JSON")
    committed = committed_offsets(root)
    if bound.group not in committed:
        known = choices(bound.group, set(committed), "groups with committed offsets")
        raise OptionError(option, f"group:{bound.group}", f"no such consumer group has committed an offset; {known}")
    return committed[bound.group]


def named_queues(request: ScanRequest, queues: Sequence[QueueInfo], root: str) -> list[QueueInfo]:
    """The queues that a request selects by name. Raises OptionError for an unknown name, listing the known ones.

    A queue without a file is known if `topics.json` has it: nothing was sent to it, or nothing is left.
    """
    on_disk = {(queue.topic, queue.queue_id) for queue in queues}
    topics = sorted({queue.topic for queue in queues})
    bounds = {"startingOffsets": request.start, "endingOffsets": request.stop}
    wanted = {"assign": request.assign or (), **{option: bound.offsets for option, bound in bounds.items()}}
    named = [key for keys in wanted.values() for key in keys]
    is_complete = on_disk.issuperset(named) and set(topics).issuperset(request.topics or ())
    configured = {} if is_complete else queue_counts(read_config(root, "topics.json"))
    for topic in request.topics or ():
        _check_topic("topic", topic, topic, topics, configured)
    for option, keys in wanted.items():
        for topic, queue_id in keys:
            value = f"{topic}/{queue_id}"
            _check_topic(option, value, topic, topics, configured)
            if (topic, queue_id) in on_disk:
                continue
            if not 0 <= queue_id < configured.get(topic, 0):
                known = _numbers([number for name, number in sorted(on_disk) if name == topic], configured.get(topic))
                raise OptionError(option, value, f"the topic has no such queue; its queues are {known}")
            if option in bounds:
                _resolve(option, QueueInfo(topic, queue_id, 0, 0), bounds[option], request, {}, 0)
    return [queue for queue in queues if takes(request, (queue.topic, queue.queue_id))]


def _check_topic(
    option: str, value: str, topic: str, topics: Sequence[str], configured: Mapping[str, int]
) -> None:  # fmt: skip
    if topic not in topics and topic not in configured:
        raise OptionError(option, value, f"there is no such topic; {choices(topic, topics, 'topics')}")


def _numbers(on_disk: Sequence[int], count: int | None) -> str:
    """The ids of a topic's queues: of those on disk, if these are not all among its configured number."""
    if count is None or count < 2 or max(on_disk, default=0) >= count:
        return listing([str(number) for number in on_disk])
    return f"0 to {count - 1}"


def takes(request: ScanRequest, key: QueueKey) -> bool:
    """Whether a request selects a queue by topic, pattern or assignment."""
    if request.assign is not None:
        return key in request.assign
    if request.topics is not None:
        return key[0] in request.topics
    if request.topic_pattern is not None:
        return re.fullmatch(request.topic_pattern, key[0]) is not None
    return True


def bounded(
    queue: QueueInfo, request: ScanRequest, starts: Mapping[QueueKey, int], stops: Mapping[QueueKey, int]
) -> tuple[int, int]:
    """Queue offsets [start, stop) of a queue after `startingOffsets` and `endingOffsets` (interface.md 26).

    `starts` and `stops` are the committed offsets of the consumer groups that these options may name. Raises
    DataLossError for offsets below the first readable one and OffsetOutOfRangeError for offsets after the end (with
    fail_on_data_loss false, both are moved into the range), and OffsetOutOfRangeError for a start after its stop.
    """
    start = _resolve("startingOffsets", queue, request.start, request, starts, queue.start)
    stop = _resolve("endingOffsets", queue, request.stop, request, stops, queue.stop)
    if start > stop:
        raise OffsetOutOfRangeError(
            f"{queue.topic}/{queue.queue_id}: start offset {start} is greater than end offset {stop}"
        )
    return start, stop


def _resolve(
    option: str,
    queue: QueueInfo,
    bound: OffsetBound,
    request: ScanRequest,
    group_offsets: Mapping[QueueKey, int],
    unnamed: int,
) -> int:
    key = (queue.topic, queue.queue_id)
    if bound.group is not None:
        committed = group_offsets.get(key, queue.start)
        return min(max(committed, queue.start), queue.stop)
    if bound.last is not None:
        return max(queue.start, queue.stop - bound.last)
    if key not in bound.offsets:
        return unnamed if bound.offsets else {EARLIEST: queue.start, LATEST: queue.stop}[bound.default]
    offset = bound.offsets[key]
    if offset == EARLIEST:
        return queue.start
    if offset == LATEST:
        return queue.stop
    if offset > queue.stop:
        if not request.fail_on_data_loss:
            return queue.stop
        raise OffsetOutOfRangeError(
            f"{queue.topic}/{queue.queue_id}: {option} {offset} is after the end; the queue holds "
            f"[{queue.start}, {queue.stop}); give an offset of this range, or failOnDataLoss=false"
        )
    if offset < queue.start:
        if not request.fail_on_data_loss:
            return queue.start
        raise DataLossError(
            f"{queue.topic}/{queue.queue_id}: {option} {offset} is expired; the queue holds "
            f"[{queue.start}, {queue.stop}); set failOnDataLoss=false to read what is left"
        )
    return offset


@dataclass(frozen=True)
class LogSelection:
    """The selection in a scan of the log alone (scan=log), whose records name their queue and offset themselves.

    `named` holds the offsets that the request sets for some queues.
    """

    request: ScanRequest
    named: Mapping[QueueKey, tuple[int, int]] = field(default_factory=dict)

    @property
    def selects_everything(self) -> bool:
        """Whether no record is left out by topic, queue or offset."""
        request = self.request
        chosen = request.topics is not None or request.topic_pattern is not None or request.assign is not None
        return not chosen and not self.named

    def bounds(self, key: QueueKey) -> tuple[int, int]:
        """Selected queue offsets [start, stop) of a queue; (0, 0) when it is not selected."""
        return self.named.get(key, UNBOUNDED) if takes(self.request, key) else (0, 0)


def log_selection(request: ScanRequest) -> LogSelection:
    """What a request selects from the log; EARLIEST and LATEST are open ends. Raises OptionError for a bound that only
    the queues have.
    """
    for option, bound in (("startingOffsets", request.start), ("endingOffsets", request.stop)):
        if bound.last is not None or bound.group is not None:
            text = f"group:{bound.group}" if bound.last is None else f"last:{bound.last}"
            raise OptionError(option, text, "is found in the queues, and scan=log reads none; give offsets as JSON")
    named: dict[QueueKey, tuple[int, int]] = {}
    for key in {*request.start.offsets, *request.stop.offsets}:
        start, stop = request.start.offsets.get(key, EARLIEST), request.stop.offsets.get(key, LATEST)
        named[key] = (max(start, 0), UNBOUNDED[1] if stop < 0 else stop)
    return LogSelection(request, named)
