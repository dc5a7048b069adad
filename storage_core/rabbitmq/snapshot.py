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
import pyarrow as pa

from storage_core.errors import FormatError, UnsupportedFormatError
from storage_core.formats.rabbitmq import paths
from storage_core.rabbitmq import message_store, node, queue_files, recovery_terms, selection, unfinished
from storage_core.rabbitmq.damage import Damage
from storage_core.rabbitmq.entries import ACKED, Entries, flagged, joined, kept, new_entries
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
        parts = []
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
            parts.append(_selected(joined(own), request, info))
        entries = joined(parts or [new_entries(0)])
        place = RowPlace(
            schema,
            request.mode,
            self.root,
            request.store_name or self.store,
            self.vhost,
            tuple(chosen),
            tuple(pool.files),
        )
        return _cut(place, entries, tuple(damages), request)

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


def _selected(entries: Entries, request: ScanRequest, info: QueueInfo) -> Entries:
    """The entries of one queue, in delivery order, that the request asks for."""
    chosen: Entries = kept(entries, selection.rows_of(request, info, entries["sequence_id"]))
    last = request.start.last
    if last is None:
        return chosen
    live = np.flatnonzero(~flagged(chosen, ACKED))
    first = len(chosen) if last == 0 or not len(live) else int(live[max(0, len(live) - last)])
    return chosen[first:]


class _FilePool:
    """One list of paths for the entries of many directories."""

    def __init__(self) -> None:
        self.files: list[str] = []
        self._numbers: dict[str, int] = {}

    def adopt(self, queue: QueueFiles, entries: Entries, number: int) -> Entries:
        """`entries` with file numbers of the pool and the queue's number; a copy unless they have them already."""
        for path in queue.files:
            if path not in self._numbers:
                self._numbers[path] = len(self.files)
                self.files.append(path)
        translated = np.array([self._numbers[path] for path in queue.files], np.int32)
        if number == 0 and (translated == np.arange(len(translated))).all():
            return entries
        entries = entries.copy()
        if len(entries):
            entries["file"] = translated[entries["file"]]
        entries["queue"] = number
        return entries


def _cut(place: RowPlace, entries: Entries, damages: tuple[Damage, ...], request: ScanRequest) -> list[ScanPartition]:
    """Cuts at equal bytes, then at the most records; damages go with the last partition."""
    if not len(entries) and not damages:
        return []
    ends = np.cumsum(entries["length"])
    total = int(ends[-1]) if len(ends) else 0
    count = max(request.min_partitions, -(-total // max(1, request.max_bytes_per_partition)), 1)
    cuts = np.searchsorted(ends, [total * share // count for share in range(1, count)], side="right").tolist()
    bounds = sorted({0, *cuts, len(entries)}) if len(entries) else [0, 0]
    most = request.max_records_per_partition
    if most is not None:
        bounds = sorted({*bounds, *(at for a, b in pairwise(bounds) for at in range(a, b, most))})
    ranges = list(pairwise(bounds))
    return [
        _piece(place, entries[start:stop], damages if stop == bounds[-1] else (), request.verify_crc)
        for start, stop in ranges
    ]


def _piece(place: RowPlace, entries: Entries, damages: tuple[Damage, ...], verify_crc: bool) -> QueuePartition:
    """A partition that carries only the names that its own entries use."""
    entries = entries.copy()
    names = {
        column: _renumbered(entries, column, table)
        for column, table in (("file", place.files), ("queue", place.queues))
    }
    return QueuePartition(replace(place, files=names["file"], queues=names["queue"]), entries, damages, verify_crc)


def _renumbered(entries: Entries, column: str, names: tuple[str, ...]) -> tuple[str, ...]:
    """Numbers `column` anew for the names that it uses; these names."""
    used = np.zeros(len(names), bool)
    used[entries[column]] = True
    entries[column] = (np.cumsum(used) - 1)[entries[column]]
    return tuple(name for name, taken in zip(names, used.tolist(), strict=True) if taken)
