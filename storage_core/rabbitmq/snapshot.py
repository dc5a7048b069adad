"""What a vhost's store serves: its queues, and partitions of their messages.

A queue's files are read at the first question about it and remembered. Leaves to `queue_files` what a directory
holds, to `selection` what is asked for. Source: DESIGN 6, interface.md 28 to 31.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from storage_core.errors import FormatError, UnsupportedFormatError
from storage_core.formats.rabbitmq import paths
from storage_core.rabbitmq import message_store, node, queue_files, recovery_terms, selection, unfinished
from storage_core.rabbitmq.damage import Damage
from storage_core.rabbitmq.entries import ACKED, Entries, copied, flagged, joined, kept, new_entries
from storage_core.rabbitmq.message_store import MessagePlaces
from storage_core.rabbitmq.partition import QueuePartition
from storage_core.rabbitmq.queue_files import QueueDirectory, QueueFiles
from storage_core.rabbitmq.recovery_terms import QueueTerms
from storage_core.rabbitmq.rows import RowPlace
from storage_core.rabbitmq.schema import message_schema
from storage_core.rabbitmq.span_reader import read_file
from storage_core.store import Mode, QueueInfo, ScanPartition, ScanRequest, Snapshot


@dataclass(frozen=True)
class NamedQueue:
    """One queue and its directories in delivery order: one, or those of a priority queue, the highest first."""

    name: str
    directories: tuple[QueueDirectory, ...]


class VhostSnapshot(Snapshot):
    """The queues of the store `root` of the vhost `vhost`. `trust_terms` as in `recovery.judge`."""

    def __init__(self, root: str, store: str, vhost: str, entry_count: int, trust_terms: bool) -> None:
        self.root, self.store, self.vhost, self.entry_count = root, store, vhost, entry_count
        self._trust_terms = trust_terms
        self._pending = unfinished.pending(root)
        self.directories = queue_files.list_directories(root, self._pending.files)
        self._read: dict[str, QueueFiles] = {}
        self._warnings: list[str] = []

    @cached_property
    def terms(self) -> dict[str, QueueTerms]:
        """What the queues wrote down at the last clean stop, by directory."""
        data = read_file(f"{self._pending.before or self.root}/{paths.RECOVERY_FILE}")
        if not data:
            return {}
        try:
            return recovery_terms.decode(data)
        except FormatError as error:
            text = f"cannot be read ({error.reason}); as for a node, the stop counts as unclean"
            self._warnings.append(f"{self.root}/{paths.RECOVERY_FILE} {text}")
            return {}

    @cached_property
    def places(self) -> MessagePlaces:
        """Where the message store keeps each message."""
        clients = [terms.client for terms in self.terms.values() if terms.client is not None]
        return message_store.read_places(self.root, clients, self._pending.before)

    def named(self, candidates: Sequence[str] = ()) -> dict[str, NamedQueue]:
        """All queues by name. A directory without a readable stub has one of the `candidates` whose hash it is, else
        its own name.
        """
        hashes = self._hashes(candidates)
        found: dict[str, list[tuple[int, QueueDirectory]]] = {}
        for directory in self.directories:
            if directory.name is not None:
                name, priority = directory.name.queue.decode("utf-8", "replace"), directory.name.priority
            else:
                name, priority = hashes.get(directory.directory, (directory.directory, None))
            found.setdefault(name, []).append((-1 if priority is None else priority, directory))
        return {
            name: NamedQueue(name, tuple(d for _, d in sorted(parts, key=lambda part: -part[0])))
            for name, parts in sorted(found.items())
        }

    def _hashes(self, candidates: Sequence[str]) -> dict[str, tuple[str, int | None]]:
        if all(directory.name is not None for directory in self.directories):
            return {}
        vhost = self.vhost.encode()
        found: dict[str, tuple[str, int | None]] = {}
        for name in candidates:
            for priority in (None, *range(paths.MAX_PRIORITY + 1)):
                found[paths.queue_directory(vhost, name.encode(), priority)] = (name, priority)
        return found

    def files(self, directory: QueueDirectory) -> QueueFiles:
        """What one directory holds, read once."""
        found = self._read.get(directory.directory)
        if found is None:
            terms = self.terms.get(directory.directory)
            found = queue_files.read_queue(
                self.root, directory, self.entry_count, self.places, terms, self._trust_terms
            )
            self._read[directory.directory] = found
            self._warnings += found.warnings
        return found

    def info(self, queue: NamedQueue) -> QueueInfo:
        """First sequence id that is served, and the one that the next message would get."""
        parts = [self.files(directory) for directory in queue.directories]
        served = [int(part.served["sequence_id"][0]) for part in parts if len(part.served)]
        stop = max(part.next_sequence_id for part in parts)
        return QueueInfo(queue.name, 0, min(served) if served else stop, stop)

    def queues(self) -> Sequence[QueueInfo]:
        """All queues with their readable ranges, sorted by name."""
        return [self.info(queue) for queue in self.named().values()]

    def topics(self, wanted: Sequence[str] = ()) -> frozenset[str]:
        """Names of all queues; a directory without a name is recognised when it is one of `wanted`."""
        named = frozenset(self.named(wanted))
        return named if named.issuperset(wanted) else named | {name for name in wanted if self._declared(name)}

    def _declared(self, name: str) -> node.DeclaredQueue | None:
        """What the node's tables say about a queue that has no directory here."""
        return node.declared_queues(self.root).get((self.vhost, name))

    def schema(self, request: ScanRequest) -> pa.Schema:
        """Arrow schema of the rows of `request`. OptionError for an unknown column."""
        return message_schema(request)

    def warnings(self) -> Sequence[str]:
        """What was found so far that a user should know before trusting the rows."""
        elsewhere = node.other_kinds(self.root, self.vhost)
        return (*self._warnings, *([elsewhere] if elsewhere else []))

    def plan(self, request: ScanRequest) -> list[ScanPartition]:
        """Partitions of whole stretches of queues, cut at equal bytes; each message once, in delivery order.

        Raises OptionError, OffsetOutOfRangeError, and CorruptionError for a damaged index file with FAILFAST.
        """
        selection.check_request(request)
        schema = message_schema(request)
        named = self.named(request.topics or ())
        request = self._without_empty(request, named)
        chosen = selection.queues_of(request, named)
        if selection.vhost_excluded(request, self.vhost):
            chosen = []
        pool = _FilePool()
        parts: list[_Part] = []
        damages: list[Damage] = []
        for number, name in enumerate(chosen):
            queue = named[name]
            info = self.info(queue)
            damages += self._damages(queue)
            if damages and request.mode is Mode.FAILFAST:
                raise damages[0].error(self.root)
            own = [
                pool.adopt(files, files.entries if request.include_acked else files.served, number)
                for files in map(self.files, queue.directories)
            ]
            parts += _selected(own, request, info)
        place = RowPlace(
            schema,
            request.mode,
            self.root,
            request.store_name or self.store,
            self.vhost,
            tuple(chosen),
            tuple(pool.files),
        )
        return _cut(place, parts, tuple(damages), request)

    def _without_empty(self, request: ScanRequest, named: Mapping[str, NamedQueue]) -> ScanRequest:
        """The request without topics that the node knows and that have no directory: they hold no message here.

        Raises UnsupportedFormatError when such a queue is of another kind, whose messages lie elsewhere.
        """
        topics = request.topics or ()
        absent = {name: found for name in topics if name not in named and (found := self._declared(name))}
        for name, found in absent.items():
            if found.kind != "classic":
                raise UnsupportedFormatError(node.elsewhere(self.root, name, found.kind))
        return replace(request, topics=tuple(name for name in topics if name not in absent)) if absent else request

    def _damages(self, queue: NamedQueue) -> list[Damage]:
        found = [damage for directory in queue.directories for damage in self.files(directory).damages]
        return [replace(damage, queue=queue.name) for damage in found if damage.served]


@dataclass(frozen=True)
class _Part:
    """Entries of one directory, not to be changed: `files` says which file of the plan each of their file numbers is,
    `queue` which queue of the plan they belong to.
    """

    entries: Entries
    files: npt.NDArray[np.int64]
    queue: int

    def slice(self, start: int, stop: int) -> _Part:
        """Its entries [start, stop), which may reach beyond both ends."""
        return replace(self, entries=self.entries[max(start, 0) : max(stop, 0)])


def _selected(parts: list[_Part], request: ScanRequest, info: QueueInfo) -> list[_Part]:
    """What the request asks for of the parts of one queue, which are in delivery order."""
    chosen = [
        replace(part, entries=kept(part.entries, selection.rows_of(request, info, part.entries["sequence_id"])))
        for part in parts
    ]
    last = request.start.last
    if last is None:
        return chosen
    live = np.flatnonzero(~joined([flagged(part.entries, ACKED) for part in chosen]))
    stop = sum(len(part.entries) for part in chosen)
    first = stop if last == 0 or not len(live) else int(live[max(0, len(live) - last)])
    return _between(chosen, first, stop)


def _between(parts: list[_Part], start: int, stop: int) -> list[_Part]:
    """The parts of the entries [start, stop), counted through all parts."""
    found, base = [], 0
    for part in parts:
        piece = part.slice(start - base, stop - base)
        if len(piece.entries):
            found.append(piece)
        base += len(part.entries)
    return found


class _FilePool:
    """One list of paths for the entries of many directories."""

    def __init__(self) -> None:
        self.files: list[str] = []
        self._numbers: dict[str, int] = {}

    def adopt(self, queue: QueueFiles, entries: Entries, number: int) -> _Part:
        """`entries` of queue `number` with the pool's numbers for their files."""
        for path in queue.files:
            if path not in self._numbers:
                self._numbers[path] = len(self.files)
                self.files.append(path)
        return _Part(entries, np.array([self._numbers[path] for path in queue.files], np.int64), number)


def _cut(place: RowPlace, parts: list[_Part], damages: tuple[Damage, ...], request: ScanRequest) -> list[ScanPartition]:
    """Cuts at equal bytes, then at the most records; damages go with the last partition."""
    ends = np.cumsum(joined([part.entries["length"] for part in parts] or [np.empty(0, np.int64)]))
    if not len(ends) and not damages:
        return []
    total = int(ends[-1]) if len(ends) else 0
    count = max(request.min_partitions, -(-total // max(1, request.max_bytes_per_partition)), 1)
    cuts = np.searchsorted(ends, [total * share // count for share in range(1, count)], side="right").tolist()
    bounds = sorted({0, *cuts, len(ends)}) if len(ends) else [0, 0]
    most = request.max_records_per_partition
    if most is not None:
        bounds = sorted({*bounds, *(at for a, b in pairwise(bounds) for at in range(a, b, most))})
    ranges = list(pairwise(bounds))
    return [
        _piece(place, _between(parts, start, stop), damages if stop == bounds[-1] else (), request.verify_crc)
        for start, stop in ranges
    ]


def _piece(place: RowPlace, parts: list[_Part], damages: tuple[Damage, ...], verify_crc: bool) -> QueuePartition:
    """A partition that carries only the names that its own entries use."""
    used = np.zeros(len(place.files), bool)
    for part in parts:
        own = np.zeros(len(part.files), bool)
        own[part.entries["file"]] = True
        used[part.files[own]] = True
    numbers = np.cumsum(used) - 1
    queues = sorted({part.queue for part in parts})
    entries = copied([part.entries for part in parts] or [new_entries(0)])
    base = 0
    for part in parts:
        target = entries[base : base + len(part.entries)]
        target["file"] = numbers[part.files][part.entries["file"]]
        target["queue"] = queues.index(part.queue)
        base += len(target)
    files = tuple(path for path, taken in zip(place.files, used.tolist(), strict=True) if taken)
    names = tuple(place.queues[number] for number in queues)
    return QueuePartition(replace(place, files=files, queues=names), entries, damages, verify_crc)
