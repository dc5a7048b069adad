"""A snapshot of the quorum queues of a node: their messages, and partitions of them.

A queue's log is replayed on first use, and the result is cached. Source: docs/rabbitmq.md "Quorum queues".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import pairwise

import numpy as np
import pyarrow as pa

from storage_core.conditions import all_hold, condition
from storage_core.errors import CorruptionError, DataLossError
from storage_core.rabbitmq import schema
from storage_core.rabbitmq.disk.damage import Damage
from storage_core.rabbitmq.disk.raft_log import RaftLog, WalEntries, read_log, read_wals
from storage_core.rabbitmq.index.entries import Entries, filtered, joined, new_entries
from storage_core.rabbitmq.index.partition_entries import EntryParts
from storage_core.rabbitmq.quorum.directory import QueueDirectory, has_log, last_applied, list_queues
from storage_core.rabbitmq.quorum.partition import QuorumPartition
from storage_core.rabbitmq.quorum.replay import KEPT, Replay
from storage_core.rabbitmq.quorum.rows import FIELDS, QueueRows, QuorumColumns, rows_of
from storage_core.rabbitmq.read import selection
from storage_core.rabbitmq.read.batch_builder import LEAVE_OUT, READ_ALL, RowContext
from storage_core.store import Mode, Predicate, QueueInfo, ScanPartition, ScanRequest, Snapshot

OWN_COLUMNS = (schema.QUEUE_TYPE.name, *schema.QUORUM.names)
QUEUE_COLUMNS = frozenset({"vhost", "queue", "store", schema.QUEUE_TYPE.name})


@dataclass(frozen=True)
class Reading:
    """How to read logs: `applied` counts only entries known to be committed; `as_of_ms` leaves out expired messages."""

    applied: bool = False
    as_of_ms: int | None = None


@dataclass(frozen=True)
class QueueState:
    """One queue as read: its log, its rows, its damages, and the last index known to be committed (`certain`)."""

    log: RaftLog
    rows: QueueRows
    damages: tuple[Damage, ...]
    certain: int
    members: int
    machine_version: int

    @property
    def in_doubt(self) -> int:
        """Number of entries for which this disk cannot tell whether they are committed."""
        return max(0, self.log.last_index - self.certain)


class QuorumSnapshot(Snapshot):
    """The quorum queues in the folder `root`, only those of `vhost` if it is given."""

    def __init__(self, root: str, store: str, reading: Reading, vhost: str | None = None) -> None:
        self.root, self.store, self.reading = root, store, reading
        queues, self._nameless = list_queues(root)
        self.directories = [queue for queue in queues if vhost is None or queue.config.vhost == vhost]
        names = Counter(queue.name[1] for queue in self.directories)
        self.repeated_topics = frozenset(name for name, count in names.items() if count > 1)
        self._applied = last_applied(root)
        self._read: dict[tuple[str, bool], QueueState] = {}
        self._warnings: list[str] = []

    @cached_property
    def wals(self) -> WalEntries:
        """The locations of the entries in the write-ahead logs."""
        try:
            found = read_wals(self.root)
        except FileNotFoundError as error:
            text = "the file vanished while the store was read; read again, or a copy"
            raise DataLossError(f"DataLossError: {error.filename}: {text}") from None
        self._warnings += [f"{self.root}/{each.file} at {each.position}: {each.reason}" for each in found.torn]
        return found

    @cached_property
    def lost(self) -> list[Damage]:
        """The logs whose queues are unknown, as damages; a damaged write-ahead log may hold entries of each of them."""
        folders = [damage.file.partition("/")[0] for damage in self._nameless]
        return [
            damage
            for damage, folder in zip(self._nameless, folders, strict=True)
            if self.wals.damages or folder.encode() in self.wals.parts or has_log(f"{self.root}/{folder}")
        ]

    def state(self, queue: QueueDirectory, with_held: bool = False) -> QueueState:
        """The state of one queue, read once and cached."""
        found = self._read.get((queue.folder, with_held))
        if found is None:
            found = self._read[queue.folder, with_held] = self._state(queue, with_held)
        return found

    def _state(self, queue: QueueDirectory, with_held: bool) -> QueueState:
        log = read_log(self.root, queue.folder, self.wals)
        applied = max(self._applied.get(queue.uid, -1), log.snapshot_index)
        stop = applied if self.reading.applied else log.last_index
        replay = Replay(self.root, queue.name[1], log, stop, applied)
        members = len(replay.members or queue.config.members)
        certain = log.last_index if members == 1 else min(applied, log.last_index)
        rows = rows_of(replay, certain, self.reading.as_of_ms, with_held)
        damages = *queue.damages, *log.damages, *replay.damages
        state = QueueState(log, rows, damages, certain, members, replay.machine.state.version)
        self._warnings += log.notes
        if state.in_doubt and not self.reading.applied:
            self._warnings.append(
                f"{self.root}: queue {queue.name[1]} has {members} members, and this disk cannot tell whether its last "
                f"{state.in_doubt} log entries are committed; they are counted (option commit=applied leaves them out)"
            )
        return state

    def applied(self, queue: QueueDirectory) -> int | None:
        """The last index that the node recorded as applied; None if it recorded none."""
        return self._applied.get(queue.uid)

    def info(self, queue: QueueDirectory) -> QueueInfo:
        """The lowest raft index that is served, and the one that the next entry would get."""
        state = self.state(queue)
        stop = state.log.last_index + 1
        ids = state.rows.entries["sequence_id"]
        return QueueInfo(queue.name[1], 0, int(ids.min()) if len(ids) else stop, stop)

    def queues(self) -> Sequence[QueueInfo]:
        """All queues with their readable ranges, sorted by name."""
        return sorted((self.info(queue) for queue in self.directories), key=lambda info: info.topic)

    def topics(self, wanted: Sequence[str] = ()) -> frozenset[str]:
        """Names of all queues; no log is read."""
        del wanted
        return frozenset(queue.name[1] for queue in self.directories)

    def schema(self, request: ScanRequest) -> pa.Schema:
        """Arrow schema of the rows of `request`. OptionError for an unknown column."""
        return schema.message_schema(request, OWN_COLUMNS)

    def warnings(self) -> Sequence[str]:
        """What was found so far that a user should know before trusting the rows."""
        return tuple(self._warnings)

    def plan(self, request: ScanRequest) -> list[ScanPartition]:
        """Partitions of contiguous ranges of queues, of equal bytes; each message appears once, in delivery order.

        Raises OptionError, OffsetOutOfRangeError, UnsupportedFormatError for another machine version, and, with
        FAILFAST, CorruptionError for a log that cannot be read to its end.
        """
        selection.check_request(request)
        wanted, store = self.schema(request), request.store_name or self.store
        index_filter = _IndexFilter(request.predicates, store)
        selection.refuse_repeated(request, self.repeated_topics)
        names = set(selection.queues_of(request, self.topics()))
        chosen = [queue for queue in self.directories if queue.name[1] in names and index_filter.takes(queue)]
        vhosts, queues = tuple(q.name[0] for q in chosen), tuple(q.name[1] for q in chosen)
        pieces, damages, files = [], self._lost(request), dict[str, int]()
        noted: dict[tuple[int, int], bytes] = {}
        for number, queue in enumerate(chosen):
            state = self.state(queue, request.include_acked)
            damages += self._checked(queue, state, request)
            entries = index_filter.left(queue, state, self._between(queue, state, request))
            numbers = [files.setdefault(path, len(files)) for path in state.log.files] or [0]
            noted |= {(number, index): term for index, term in state.rows.annotations.items()}
            of_plan = np.array(numbers, np.int32)[entries["file"]]
            pieces.append(entries.replaced(file=of_plan, queue=np.full(len(entries), number, np.int32)))
        context = RowContext(wanted, request.mode, self.root, store, "", queues, tuple(files), request.predicates)
        return _cut(QuorumPartition(context, vhosts, EntryParts(()), tuple(damages), noted), pieces, request)

    def _between(self, queue: QueueDirectory, state: QueueState, request: ScanRequest) -> Entries:
        """The entries of a queue between the offsets of the request."""
        entries = state.rows.entries
        live = np.ones(len(entries), bool)
        return filtered(entries, selection.entries_between(request, self.info(queue), entries["sequence_id"], live))

    def _lost(self, request: ScanRequest) -> list[Damage]:
        """The logs of unknown queues that the request may select; none if it names its queues, which were all found."""
        if request.topics is not None or request.assign is not None:
            return []
        if self.lost and request.mode is Mode.FAILFAST:
            error = self.lost[0].error(self.root)
            raise CorruptionError(error.path, error.position, f"{error.reason}; {LEAVE_OUT} and reads the other queues")
        return list(self.lost)

    def _checked(self, queue: QueueDirectory, state: QueueState, request: ScanRequest) -> list[Damage]:
        damages = [replace(damage, queue=queue.name[1]) for damage in state.damages]
        if damages and request.mode is Mode.FAILFAST:
            error = state.damages[0].error(self.root)
            others = "the others" if damages[0].kind == KEPT else "what lies before"
            advice = READ_ALL if damages[0].harmless else f"{LEAVE_OUT} and reads {others}"
            text = f"queue {queue.name[1]}: {error.reason}; {advice}"
            raise CorruptionError(error.path, error.position, text)
        return damages


class _IndexFilter:
    """The predicates of a request that can be evaluated without reading messages."""

    def __init__(self, predicates: Sequence[Predicate], store: str) -> None:
        self._store = store
        conditions = [condition(predicate) for predicate in predicates]
        self._of_queues = [one for one in conditions if one.columns <= QUEUE_COLUMNS]
        self._of_entries = [one for one in conditions if one.columns <= QuorumColumns.names]

    def _columns(self, queue: QueueDirectory, files: Sequence[str]) -> QuorumColumns:
        return QuorumColumns(queue.name[:1], self._store, queue.name[1:], files)

    def takes(self, queue: QueueDirectory) -> bool:
        """Whether any message of the queue can match."""
        values = partial(self._columns(queue, ()).values, entries=new_entries(1, FIELDS))
        return bool(all_hold(self._of_queues, values, 1)[0])

    def left(self, queue: QueueDirectory, state: QueueState, entries: Entries) -> Entries:
        """The entries that can match."""
        if not self._of_entries:
            return entries
        values = partial(self._columns(queue, state.log.files).values, entries=entries)
        return filtered(entries, all_hold(self._of_entries, values, len(entries)))


def _cut(whole: QuorumPartition, pieces: list[Entries], request: ScanRequest) -> list[ScanPartition]:
    """Cuts into partitions of equal bytes, then by the record limit; the last partition gets the damages."""
    entries = joined(pieces or [new_entries(0, FIELDS)])
    if not len(entries):
        return [whole.of(entries)] if whole.damages else []
    ends = np.cumsum(entries["length"])
    total = int(ends[-1])
    count = request.partition_count(total)
    cuts = np.searchsorted(ends, [total * share // count for share in range(1, count)], side="right").tolist()
    bounds = sorted({0, *cuts, len(ends)})
    most = request.max_records_per_partition
    if most is not None:
        bounds = sorted({*bounds, *(at for a, b in pairwise(bounds) for at in range(a, b, most))})
    return [
        replace(whole.of(entries[start:stop]), damages=whole.damages if stop == bounds[-1] else ())
        for start, stop in pairwise(bounds)
    ]
