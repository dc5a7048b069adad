"""What a vhost's store serves: its queues, and partitions of their messages.

The files of a queue are read on first use and cached. `queue_directory` reads a directory, `selection` evaluates the
request. Source: docs/architecture.md "A RabbitMQ read", interface.md 28 to 31.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pyarrow as pa

from storage_core.errors import CorruptionError, FormatError, UnsupportedFormatError
from storage_core.files import system
from storage_core.files.threads import both
from storage_core.formats.rabbitmq import paths
from storage_core.formats.rabbitmq.erlang import dets
from storage_core.rabbitmq.disk import node, recovery_terms, unfinished
from storage_core.rabbitmq.disk.damage import Damage
from storage_core.rabbitmq.disk.effects import FORGETS_AT_START
from storage_core.rabbitmq.disk.recovery_terms import QueueTerms
from storage_core.rabbitmq.disk.span_reader import read_table
from storage_core.rabbitmq.index import queue_directory
from storage_core.rabbitmq.index.entries import ACKED, Entries, filtered, flagged, joined
from storage_core.rabbitmq.index.queue_directory import QueueDirectory, QueueFiles
from storage_core.rabbitmq.message_store.locations import MessageLocations, read_locations
from storage_core.rabbitmq.read import selection
from storage_core.rabbitmq.read.batch_builder import LEAVE_OUT, READ_ALL, RowContext
from storage_core.rabbitmq.read.index_filter import IndexFilter
from storage_core.rabbitmq.read.partitioning import PlannedEntries, partitions
from storage_core.rabbitmq.schema import message_schema
from storage_core.store import Mode, QueueInfo, ScanPartition, ScanRequest, Snapshot

LARGE_SIZE = 4 << 20
"""Size of a directory in bytes from which a second thread pays off: reading it takes some milliseconds."""


@dataclass(frozen=True)
class NamedQueue:
    """One queue and its directories in delivery order: one, or those of a priority queue, highest priority first."""

    name: str
    directories: tuple[QueueDirectory, ...]


class VhostSnapshot(Snapshot):
    """The queues of the store `root` of the vhost `vhost`. `trust_terms` as in `verdict_on`."""

    def __init__(self, root: str, store: str, vhost: str, entry_count: int, trust_terms: bool) -> None:
        self.root, self.store, self.vhost, self.entry_count = root, store, vhost, entry_count
        self._trust_terms = trust_terms
        self._pending = unfinished.pending(root)
        self.directories = queue_directory.list_directories(root, self._pending.files)
        self._read: dict[str, QueueFiles] = {}
        self._ahead: dict[str, QueueFiles] = {}
        self._warnings: list[str] = []

    @property
    def terms(self) -> dict[str, QueueTerms]:
        """The terms that the queues saved at the last clean stop, by directory."""
        return self._noted[0]

    @property
    def terms_flaw(self) -> str:
        """Why the terms cannot be read; empty if they can."""
        return self._noted[1]

    @cached_property
    def _noted(self) -> tuple[dict[str, QueueTerms], str]:
        try:
            data = read_table(f"{self._pending.before or self.root}/{paths.RECOVERY_FILE}", *dets.HEAD)
            return recovery_terms.decode(data) if data else {}, ""
        except FormatError as error:
            flaw = f"{paths.RECOVERY_FILE} cannot be read ({error.reason})"
            self._warnings.append(f"{self.root}/{flaw}; as for a node, the stop counts as unclean")
            return {}, flaw

    @cached_property
    def locations(self) -> MessageLocations:
        """Where the message store keeps each message."""
        return self._located()

    def _located(self) -> MessageLocations:
        clients = [terms.client for terms in self.terms.values() if terms.client is not None]
        return read_locations(self.root, clients, self._pending.before)

    def named(self, candidates: Sequence[str] = ()) -> dict[str, NamedQueue]:
        """All queues by name. A directory that no stub identifies is named by the one of `candidates` whose hash it
        has, or else by its own name.
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
        """The contents of one directory, read once and cached."""
        found = self._read.get(directory.directory)
        if found is None:
            found = self._ahead.pop(directory.directory, None) or self._found(directory)
            self._read[directory.directory] = found
            folder = f"{self.root}/{paths.QUEUES_FOLDER}/{directory.directory}"
            self._warnings += [f"{folder}: {each.text}" for each in found.disagreements]
            if found.unwritten:
                more = f", and {len(found.unwritten) - 1:,} more of this kind" if found.unwritten[1:] else ""
                self._warnings.append(f"{folder}: {found.unwritten[0].reason}{more}; a node {FORGETS_AT_START}")
        return found

    def _found(self, directory: QueueDirectory) -> QueueFiles:
        terms = self.terms.get(directory.directory)
        return queue_directory.read_queue(
            self.root, directory, self.entry_count, self.locations, terms, self._trust_terms
        )

    def _read_ahead(self, directories: Sequence[QueueDirectory]) -> None:
        """Reads large directories, two at a time: most of the time is spent in system calls, compiled loops and numpy.

        A directory that cannot be read is read again in its turn, when it is requested, and raises its error then.
        """
        sizes = {
            directory.directory: size
            for directory in directories
            if directory.directory not in self._read and (size := sum(directory.sizes.values())) >= LARGE_SIZE
        }
        large = [directory for directory in directories if directory.directory in sizes]
        if len(large) < 2 or not system.is_local(self.root):
            return
        _ = self.terms, self.locations
        shares = list[QueueDirectory](), list[QueueDirectory]()
        for directory in sorted(large, key=lambda directory: -sizes[directory.directory]):
            min(shares, key=lambda share: sum(sizes[each.directory] for each in share)).append(directory)

        def read(share: Sequence[QueueDirectory]) -> None:
            for directory in share:
                with suppress(Exception):
                    self._ahead[directory.directory] = self._found(directory)

        both(lambda: read(shares[0]), lambda: read(shares[1]))

    def info(self, queue: NamedQueue) -> QueueInfo:
        """The first sequence id that is served, and the id that the next message would get."""
        parts = [self.files(directory) for directory in queue.directories]
        served = [int(part.served["sequence_id"][0]) for part in parts if len(part.served)]
        stop = max(part.next_sequence_id for part in parts)
        return QueueInfo(queue.name, 0, min(served) if served else stop, stop)

    def queues(self) -> Sequence[QueueInfo]:
        """All queues with their readable ranges, sorted by name."""
        return [self.info(queue) for queue in self.named().values()]

    def topics(self, wanted: Sequence[str] = ()) -> frozenset[str]:
        """Names of all queues; a directory without a name is recognised if it belongs to one of `wanted`."""
        named = frozenset(self.named(wanted))
        if named.issuperset(wanted):
            return named
        declared = {name: self._declared(name) for name in wanted}
        return named | {name for name, queue in declared.items() if queue is not None and queue.kind == "classic"}

    def _declared(self, name: str) -> node.DeclaredQueue | None:
        """What the node's tables say about a queue that has no directory here."""
        return node.declared_queues(self.root).get((self.vhost, name))

    def schema(self, request: ScanRequest) -> pa.Schema:
        """Arrow schema of the rows of `request`. OptionError for an unknown column."""
        return message_schema(request)

    def warnings(self) -> Sequence[str]:
        """What was found so far that a user should know about before trusting the rows."""
        elsewhere = node.other_kinds(self.root, self.vhost)
        return (*self._misnamed(), *self._warnings, *([elsewhere] if elsewhere else []))

    def _misnamed(self) -> Iterator[str]:
        for directory in self.directories:
            if directory.misnamed:
                yield (
                    f"{self.root}/{directory.stub} does not name the queue of its folder; where it is not asked for by "
                    f"its name, the queue is called {directory.directory}"
                )

    def plan(self, request: ScanRequest) -> list[ScanPartition]:
        """Partitions of contiguous stretches of queues, cut into equal bytes; each message once, in delivery order.

        Raises OptionError, OffsetOutOfRangeError, and CorruptionError for a damaged index file with FAILFAST.
        """
        selection.check_request(request)
        schema, store = message_schema(request), request.store_name or self.store
        named = self.named(request.topics or ())
        request = self._without_empty(request, named)
        index_filter = IndexFilter(request.predicates, self.vhost, store)
        names = [name for name in selection.queues_of(request, named) if index_filter.takes_queue(name)]
        self._read_ahead([directory for name in names for directory in named[name].directories])
        pieces, damages = PlannedEntries(), []
        for number, name in enumerate(names):
            damages += self._checked_damages(named[name], request)
            for files, entries in self._selected(named[name], request):
                wanted = index_filter.mask(name, entries, files.files)
                pieces.add(number, files.files, filtered(entries, wanted))
        context = RowContext(
            schema, request.mode, self.root, store, self.vhost, tuple(names), pieces.files, request.predicates
        )
        return partitions(context, pieces, tuple(damages), request)

    def _selected(self, queue: NamedQueue, request: ScanRequest) -> list[tuple[QueueFiles, Entries]]:
        """The entries of each directory of a queue between the offsets of the request, in delivery order."""
        parts = [self.files(directory) for directory in queue.directories]
        listed = [part.entries if request.include_acked else part.served for part in parts]
        sequence_ids = joined([entries["sequence_id"] for entries in listed])
        live = ~joined([flagged(entries, ACKED) for entries in listed])
        between = selection.entries_between(request, self.info(queue), sequence_ids, live)
        stops = np.cumsum([len(entries) for entries in listed])
        return [
            (part, filtered(entries, between[stop - len(entries) : stop]))
            for part, entries, stop in zip(parts, listed, stops.tolist(), strict=True)
        ]

    def _without_empty(self, request: ScanRequest, named: Mapping[str, NamedQueue]) -> ScanRequest:
        """The request without topics that are declared on the node but have no directory: they hold no messages here.

        Raises UnsupportedFormatError when such a queue is of another kind, whose messages are stored elsewhere.
        """
        topics = request.topics or ()
        absent = {name: found for name in topics if name not in named and (found := self._declared(name))}
        for name, found in absent.items():
            if found.kind != "classic":
                raise UnsupportedFormatError(node.elsewhere(self.root, name, found.kind))
        return replace(request, topics=tuple(name for name in topics if name not in absent)) if absent else request

    def _damages(self, queue: NamedQueue, directory: QueueDirectory) -> list[Damage]:
        """The damage in one directory of a queue, without what a node leaves out when it starts after a kill."""
        del queue
        files = self.files(directory)
        dropped = set(files.unwritten)
        return [damage for damage in files.damages if damage not in dropped]

    def _checked_damages(self, queue: NamedQueue, request: ScanRequest) -> list[Damage]:
        """The damage in the index of a queue that affects served messages; with FAILFAST the first one is raised."""
        found = [damage for directory in queue.directories for damage in self._damages(queue, directory)]
        damages = [replace(damage, queue=queue.name) for damage in found if damage.served]
        if damages and request.mode is Mode.FAILFAST:
            error = damages[0].error(self.root)
            advice = READ_ALL if damages[0].harmless else LEAVE_OUT
            raise CorruptionError(error.path, error.position, f"{error.reason}; {advice}")
        return damages
