"""The queues of a vhost as a stream reads them: positions, counts, bytes, seals, plans of ranges.

A position is a sequence id; acknowledged messages leave gaps, which hold nothing. When to look again is decided by
`tail`. Source: docs/streaming.md "RabbitMQ".
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from storage_core.errors import DataLossError
from storage_core.files import system
from storage_core.files.stamp import Stamp
from storage_core.formats.rabbitmq import paths
from storage_core.rabbitmq.disk.damage import Damage
from storage_core.rabbitmq.index import queue_directory
from storage_core.rabbitmq.index.entries import Entries, filtered, joined
from storage_core.rabbitmq.index.queue_directory import QueueDirectory, QueueFiles
from storage_core.rabbitmq.message_store.locations import MessageLocations
from storage_core.rabbitmq.read import selection
from storage_core.rabbitmq.read.batch_builder import RowContext
from storage_core.rabbitmq.read.index_filter import IndexFilter
from storage_core.rabbitmq.read.partition import QueuePartition
from storage_core.rabbitmq.read.partitioning import PlannedEntries, partitions
from storage_core.rabbitmq.read.snapshot import NamedQueue, VhostSnapshot
from storage_core.rabbitmq.schema import message_schema
from storage_core.rabbitmq.stream.live_locations import LiveLocations
from storage_core.rabbitmq.stream.live_partition import LivePartition
from storage_core.store import LATEST, QueueInfo, QueueKey, ScanPartition, ScanRequest
from storage_core.stream.tail import StreamSnapshot

MOST_READS = 100
PAUSE_S = 0.005


@dataclass(frozen=True)
class VhostFacts:
    """What is known from opening the store: its path, the names used in rows, entries per segment, `recovery`."""

    root: str
    store: str
    vhost: str
    entry_count: int
    trust_terms: bool


@dataclass(frozen=True)
class Relocation:
    """Reads the directories of some queues again, in a task."""

    facts: VhostFacts
    candidates: tuple[str, ...] = ()

    def __call__(self, names: tuple[str, ...]) -> list[tuple[int, QueueFiles]]:
        """The directories of each of the queues, with its number in `names`."""
        snapshot = VhostStreamSnapshot(self.facts, LiveLocations(self.facts.root), self.candidates)
        named = snapshot.named(self.candidates)
        return [
            (number, snapshot.files(directory))
            for number, name in enumerate(names)
            if name in named
            for directory in named[name].directories
        ]


class VhostStreamSnapshot(VhostSnapshot, StreamSnapshot):
    """The queues that a stream may read now. `candidates` are names of queues whose directories have no stub; `known`
    are directories that did not change since they were read. `held` are positions at which a stream waits.
    """

    def __init__(
        self, facts: VhostFacts, live: LiveLocations, candidates: tuple[str, ...] = (),
        known: Mapping[str, QueueFiles] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(facts.root, facts.store, facts.vhost, facts.entry_count, facts.trust_terms)
        self._facts, self._live, self._candidates = facts, live, candidates
        self._read.update(known or {})
        self.held: Mapping[QueueKey, int] = {}

    def _located(self) -> MessageLocations:
        """The locations from the tables of a cleanly stopped store; otherwise those of a store being written."""
        return super()._located() if self.terms else self._live

    def files(self, directory: QueueDirectory) -> QueueFiles:
        """The contents of one directory at one moment; read again if a flush happened meanwhile."""
        found = self._read.get(directory.directory)
        for _ in range(MOST_READS):
            if found is not None:
                return found
            before = _segments(self.root, directory.directory)
            listed = queue_directory.list_directory(self.root, directory.directory, self._pending.files)
            terms = self.terms.get(directory.directory)
            read = queue_directory.read_queue(
                self.root, listed, self.entry_count, self.locations, terms, self._trust_terms, with_ids=True
            )
            if _segments(self.root, directory.directory) == before:
                found = self._read[directory.directory] = read
            else:
                time.sleep(PAUSE_S)
        raise DataLossError(
            f"{self.root}/{paths.QUEUES_FOLDER}/{directory.directory}: the index changes faster than it is read; "
            "read a copy of the store"
        )

    @property
    def read_directories(self) -> Mapping[str, QueueFiles]:
        """The files read so far, by directory."""
        return self._read

    # -- positions

    @cached_property
    def _queues(self) -> Mapping[QueueKey, QueueFiles]:
        return {
            (queue.name, _priority(directory)): self.files(directory)
            for queue in self.named(self._candidates).values()
            for directory in queue.directories
        }

    @cached_property
    def positions(self) -> Mapping[QueueKey, tuple[int, int]]:
        """For every queue, the first sequence id that is served and the one after the last that may be read now."""
        found = {}
        for key, queue in self._queues.items():
            stop = max(queue.end_of_entries, queue.verdict.next_sequence_id or 0)
            stop = min(stop, self.held.get(key, stop))
            first = int(queue.served["sequence_id"][0]) if len(queue.served) else stop
            found[key] = min(first, stop), stop
        return found

    def forgotten(self) -> Mapping[QueueKey, int]:
        """For each queue, the first message that is listed but is in no message file."""
        return {key: absent for key, queue in self._queues.items() if (absent := queue.absent) is not None}

    def _damages(self, queue: NamedQueue, directory: QueueDirectory) -> list[Damage]:
        """The damages, without those of messages that are still awaited."""
        held, found = self.held.get((queue.name, _priority(directory))), self.files(directory).damages
        return found if held is None else [each for each in found if each.awaited is None or each.awaited < held]

    def starts(self, request: ScanRequest) -> dict[QueueKey, int]:
        """Where each selected queue starts; one that does not exist yet is left out."""
        selection.check_request(request)
        named = self.named((*self._candidates, *(request.topics or ())))
        topics = None if request.topics is None else tuple(name for name in request.topics if name in named)
        assign = None if request.assign is None else tuple(key for key in request.assign if key[0] in named)
        names = selection.queues_of(replace(request, topics=topics, assign=assign), named)
        return {key: start for name in names for key, start in self._starts_of(named[name], request).items()}

    def _starts_of(self, queue: NamedQueue, request: ScanRequest) -> dict[QueueKey, int]:
        keys = [(queue.name, _priority(directory)) for directory in queue.directories]
        bound = request.start
        if bound.last is not None:
            return self._starts_of_last(keys, bound.last)
        found = {}
        for key in keys:
            first, stop = self.positions[key]
            value = bound.offsets.get((queue.name, 0), bound.default)
            info = QueueInfo(queue.name, 0, first, stop)
            start = stop if value == LATEST else selection.resolved(
                "startingOffsets", bound, info, request.fail_on_data_loss
            )  # fmt: skip
            found[key] = first if start is None else start
        return found

    def _starts_of_last(self, keys: list[QueueKey], last: int) -> dict[QueueKey, int]:
        """The starts for the last `last` messages in delivery order: in a priority queue, lowest priorities first."""
        found = {}
        for key in reversed(keys):
            ids = self._ids(key, 0, self.positions[key][1])
            count = min(last, len(ids))
            found[key] = int(ids[len(ids) - count]) if count else self.positions[key][1]
            last -= count
        return found

    # -- between positions

    def _between(self, key: QueueKey, start: int, stop: int) -> slice:
        ids = self._queues[key].served["sequence_id"]
        low, high = np.searchsorted(ids, [start, min(stop, self.positions[key][1])]).tolist()
        return slice(low, max(low, high))

    def _entries(self, key: QueueKey, start: int, stop: int) -> Entries:
        return self._queues[key].served[self._between(key, start, stop)]

    def _ids(self, key: QueueKey, start: int, stop: int) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
        return self._entries(key, start, stop)["sequence_id"]

    def count(self, key: QueueKey, start: int, stop: int) -> int:
        """Number of messages present now."""
        return len(self._entries(key, start, stop))

    def after(self, key: QueueKey, start: int, count: int) -> int:
        """The sequence id after the next `count` messages present now."""
        ids = self._ids(key, start, self.positions[key][1])
        return int(ids[min(count, len(ids)) - 1]) + 1 if count and len(ids) else start

    def fitting(self, key: QueueKey, start: int, stop: int, size: int) -> tuple[int, int]:
        """Measures by the lengths of the records that hold the messages."""
        entries = self._entries(key, start, stop)
        ends = np.cumsum(entries["length"])
        fit = int(np.searchsorted(ends, size, "right"))
        if fit == len(entries):
            return max(start, stop), int(ends[-1]) if fit else 0
        return (int(entries["sequence_id"][fit - 1]) + 1, int(ends[fit - 1])) if fit else (start, 0)

    # -- seals and lost positions

    def seals(self, positions: Mapping[QueueKey, int]) -> dict[QueueKey, str]:
        """The sequence id and message id of the last message before each position; ``-1`` if there is none."""
        found = {}
        for key, position in positions.items():
            if key in self._queues:
                last = self._between(key, 0, position).stop - 1
                queue = self._queues[key]
                number = int(queue.served["sequence_id"][last]) if last >= 0 else -1
                found[key] = f"{number}:{queue.served_ids[last].tobytes().hex()}" if last >= 0 else "-1"
        return found

    def holds(self, key: QueueKey, seal: str) -> bool | None:
        """Whether the message in a seal has its sequence id still; None if no message has that sequence id."""
        number, _, message = seal.partition(":")
        here = self._between(key, int(number), int(number) + 1)
        if not message or here.stop == here.start:
            return None
        return bool(self._queues[key].served_ids[here.start].tobytes().hex() == message)

    def lost(self, key: QueueKey, position: int, seal: str | None) -> tuple[int, str]:
        """Acknowledged messages are not lost. Another message in place of the sealed one, or one between that and the
        position, arrived later: the queue was renumbered, and is read from its first message.
        """
        first, stop = self.positions[key]
        terms = self._queues[key].verdict.next_sequence_id
        if terms is not None and terms < position:
            return first, f"ends at {stop} now, the checkpoint is at {position}"
        sealed = -1 if seal is None else int(seal.partition(":")[0])
        if seal is not None and (self.holds(key, seal) is False or self.count(key, sealed + 1, position)):
            return first, f"was renumbered, the checkpoint is at {position}"
        return position, ""

    # -- plans

    def plan_ranges(self, request: ScanRequest, ranges: Mapping[QueueKey, tuple[int, int]]) -> list[ScanPartition]:
        """Partitions with each message of the ranges that is present now, in delivery order."""
        schema, store = message_schema(request), request.store_name or self.store
        only = IndexFilter(request.predicates, self.vhost, store)
        named = self.named(self._candidates)
        names = sorted({name for name, _ in ranges if name in named and only.takes_queue(name)})
        pieces, ids = PlannedEntries(), [np.empty(0, "V16")]
        for number, name in enumerate(names):
            self._checked_damages(named[name], request)
            for directory in named[name].directories:
                key = name, _priority(directory)
                between = self._between(key, *ranges.get(key, (0, 0)))
                queue = self._queues[key]
                entries = queue.served[between]
                wanted = only.mask(name, entries, queue.files)
                pieces.add(number, queue.files, filtered(entries, wanted))
                ids.append(filtered(queue.served_ids[between], wanted))
        if not pieces.count:
            return []
        context = RowContext(
            schema, request.mode, self.root, store, self.vhost, tuple(names), pieces.files, request.predicates
        )
        return self._live_pieces(partitions(context, pieces, (), request), joined(ids))

    def _live_pieces(
        self, planned: list[ScanPartition], ids: np.ndarray[tuple[int, ...], np.dtype[np.void]]
    ) -> list[ScanPartition]:
        found: list[ScanPartition] = []
        base = 0
        for piece in planned:
            if isinstance(piece, QueuePartition):
                stop = base + piece.entries.count
                found.append(LivePartition(piece, ids[base:stop].tobytes(), Relocation(self._facts, self._candidates)))
                base = stop
        return found


def _priority(directory: QueueDirectory) -> int:
    return 0 if directory.name is None or directory.name.priority is None else directory.name.priority


def _segments(root: str, directory: str) -> list[tuple[str, Stamp | None]]:
    """The stamps of a directory's segments: a flush changes them before it cuts the journal. For version 2 only names:
    its files grow with each message, and what is not there yet of a message is awaited.
    """
    try:
        entries = list(system.entries(f"{root}/{paths.QUEUES_FOLDER}/{directory}"))
    except (FileNotFoundError, NotADirectoryError):
        return []
    grow = (paths.INDEX2_SUFFIX, paths.STORE2_SUFFIX)
    found = {entry.name: None if entry.name.endswith(grow) else entry.stamp for entry in entries}
    found.pop(paths.JOURNAL_FILE, None)
    return sorted(found.items(), key=lambda each: each[0])
