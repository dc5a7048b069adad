"""One queue directory as a node would see it after startup: its entries in order, each with its location.

Combines what `journal_reader`, `segment_reader` and `segment_v2_reader` find with the message store, as `verdict`
states that a node does. Source: rabbitmq.md 3.1, 4.2 to 4.4, 8.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cache, cached_property

import numpy as np
import numpy.typing as npt

from storage_core.errors import FormatError, UnsupportedFormatError
from storage_core.files import system
from storage_core.formats.layout import Mask
from storage_core.formats.rabbitmq import paths
from storage_core.formats.rabbitmq.classic import queue_v2
from storage_core.formats.rabbitmq.paths import QueueName
from storage_core.rabbitmq.disk.damage import Damage
from storage_core.rabbitmq.disk.recovery_terms import QueueTerms
from storage_core.rabbitmq.disk.span_reader import read_short_file
from storage_core.rabbitmq.disk.vhost_name import vhost_name
from storage_core.rabbitmq.index import journal_reader, segment_reader, segment_v2_reader
from storage_core.rabbitmq.index.entries import (
    ACKED,
    DIRTY,
    MISSING,
    PERSISTENT,
    REDELIVERED,
    SHARED,
    Entries,
    IndexFile,
    filtered,
    flagged,
    id_ends,
    joined,
    new_entries,
    nothing,
)
from storage_core.rabbitmq.index.verdict import (
    Disagreement,
    Verdict,
    crashes_at_start,
    disagreement,
    forgotten,
    next_sequence_id,
    unacked_ids,
    verdict_on,
)
from storage_core.rabbitmq.message_store.locations import MessageLocations


@dataclass(frozen=True)
class QueueDirectory:
    """A directory below `queues/`: its name, and the queue that its stub names, None unless that queue's hash is the
    directory's name.

    `sizes` are the lengths of its files by name.
    """

    directory: str
    name: QueueName | None
    sizes: dict[str, int]

    @property
    def stub(self) -> str:
        """Path of its stub below the store."""
        return f"{paths.QUEUES_FOLDER}/{self.directory}/{paths.STUB_FILE}"

    @property
    def misnamed(self) -> bool:
        """Whether it has a stub that names no queue or a different one."""
        return self.name is None and paths.STUB_FILE in self.sizes

    @property
    def version(self) -> int:
        """Version of the classic queue, by the files of its index, else by its stub."""
        if any(name.endswith(paths.INDEX2_SUFFIX) for name in self.sizes):
            return 2
        first = any(name == paths.JOURNAL_FILE or name.endswith(paths.SEGMENT_SUFFIX) for name in self.sizes)
        return 1 if first or self.name is None else self.name.version


@dataclass
class QueueFiles:
    """The persistent entries of one directory by sequence id, served or acknowledged, and what else was found.

    `files` are the paths below the store that the entries' file numbers refer to; `end_of_entries` is past every
    sequence id that the files mention. `forgotten` are sequence ids whose message is in no message file,
    `forgotten_from` the numbers of the files that list them. `ids` are the message ids of the entries if requested,
    shape (n,).
    """

    directory: QueueDirectory
    entries: Entries
    files: list[str]
    next_sequence_id: int
    verdict: Verdict
    transient_count: int = 0
    end_of_entries: int = 0
    damages: list[Damage] = field(default_factory=list)
    disagreements: list[Disagreement] = field(default_factory=list)
    forgotten: npt.NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    forgotten_from: npt.NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))
    ids: npt.NDArray[np.void] | None = None

    @property
    def absent(self) -> int | None:
        """The first listed sequence id whose message is not, or not yet, where it should be."""
        awaited = [damage.awaited for damage in self.damages if damage.awaited is not None]
        return min([*awaited, *self.forgotten[:1].tolist()], default=None)

    @property
    def unwritten(self) -> list[Damage]:
        """The damage that a killed node leaves where it was writing: its next start drops what is not there."""
        return [damage for damage in self.damages if damage.awaited is not None] if self.verdict.dirty else []

    @property
    def body_bytes(self) -> int:
        """Total body bytes of `served`, according to the index."""
        return int(self.served["size"].sum())

    @property
    def other_bytes(self) -> int | None:
        """The `body_bytes` that the last stop counted, if they differ and nothing else is wrong."""
        counted = self.verdict.expected_bytes
        return None if self.disagreements or counted == self.body_bytes else counted

    @cached_property
    def served(self) -> Entries:
        """The entries that are not acknowledged."""
        return filtered(self.entries, ~flagged(self.entries, ACKED))

    @cached_property
    def served_ids(self) -> npt.NDArray[np.void]:
        """The message ids of `served`; zeros if they were not requested."""
        if self.ids is None:
            return np.zeros(len(self.served), "V16")
        return filtered(self.ids, ~flagged(self.entries, ACKED))


def list_directories(root: str, unseen: frozenset[str] = frozenset()) -> list[QueueDirectory]:
    """All directories below `queues/` of the store `root`, by name; omits files whose paths are `unseen`, and
    directories that hold nothing else.
    """
    folder = f"{root}/{paths.QUEUES_FOLDER}"
    try:
        names = sorted(e.name for e in system.entries(folder) if e.is_directory)
    except (FileNotFoundError, NotADirectoryError):
        return []
    found = [list_directory(root, name, unseen) for name in names]
    hidden = {path.split("/")[1] for path in unseen if path.startswith(f"{paths.QUEUES_FOLDER}/")}
    return [directory for directory in found if directory.sizes or directory.directory not in hidden]


def check_versions(root: str, directories: Iterable[QueueDirectory]) -> None:
    """Raises UnsupportedFormatError if a queue has version 2: a store with one is not opened as a node opens it."""
    for directory in directories:
        if directory.version == 2:
            raise UnsupportedFormatError(
                f"{root}/{paths.QUEUES_FOLDER}/{directory.directory} is a queue of version 2; no queue of a store "
                "that has one is opened to publish and fetch: read it, or append rows to it by a write"
            )


def list_directory(root: str, directory: str, unseen: frozenset[str] = frozenset()) -> QueueDirectory:
    """One directory below `queues/` of the store `root`, without files whose paths are `unseen`."""
    folder = f"{root}/{paths.QUEUES_FOLDER}"
    try:
        name = _proven(root, directory, paths.parse_stub(read_short_file(f"{folder}/{directory}/{paths.STUB_FILE}")))
    except FormatError:
        name = None
    try:
        sizes = {e.name: e.size for e in system.entries(f"{folder}/{directory}") if not e.is_directory}
    except FileNotFoundError:
        sizes = {}
    prefix = f"{paths.QUEUES_FOLDER}/{directory}/"
    return QueueDirectory(directory, name, {file: size for file, size in sizes.items() if prefix + file not in unseen})


def _proven(root: str, directory: str, stated: QueueName) -> QueueName | None:
    """The queue that a stub names, if the directory is the hash of vhost and queue: for a node the directory belongs to
    the queue with that hash, and it rewrites the stub (rabbitmq.md 1.2, 1.3).
    """
    if paths.queue_directory(stated.vhost, stated.queue, stated.priority) == directory:
        return stated
    vhost = vhost_name(root)
    proven = paths.queue_directory(vhost, stated.queue, stated.priority) == directory
    return replace(stated, vhost=vhost) if proven else None


def read_queue(
    root: str,
    directory: QueueDirectory,
    entry_count: int,
    locations: MessageLocations,
    terms: QueueTerms | None,
    trust: bool,
    with_ids: bool = False,
) -> QueueFiles:
    """Reads one directory of the store `root`, with `entry_count` entries per segment; `trust` as in `verdict_on`.
    `with_ids` also keeps the message ids.
    """
    if terms is not None and terms.version != directory.version and directory.sizes:
        terms = None
    files, found = _read_files(root, directory, entry_count, with_ids)
    own = [file.entry_count for file in found if file.entry_count is not None]
    count = (own[-1] if own else queue_v2.SEGMENT_ENTRY_COUNT) if directory.version == 2 else entry_count
    verdict = verdict_on(terms, locations.clean, count, trust)
    damages = [damage for file in found for damage in file.damages]
    entries, ids, stored, transient = _combined(found, with_ids)
    by_terms = verdict
    if directory.version == 1 and crashes_at_start(by_terms, entries, stored, entry_count):
        verdict = verdict_on(None, locations.clean, count, trust)
    _locate(entries, ids, stored, locations, files)
    entries["flags"][verdict.redelivered(entries["sequence_id"])] |= np.uint8(REDELIVERED)
    if verdict.dirty:
        entries["flags"] |= np.uint8(DIRTY)
    queue = QueueFiles(directory, entries, files, 0, verdict, transient, _end(found), damages)
    queue.ids = ids if with_ids else None
    _apply(queue, by_terms)
    last = int(queue.served["sequence_id"][-1]) if len(queue.served) else None
    queue.next_sequence_id = next_sequence_id(verdict, last, count)
    return queue


def _read_files(
    root: str, directory: QueueDirectory, entry_count: int, with_ids: bool
) -> tuple[list[str], list[IndexFile]]:
    """The files of a directory, and the content of those of its index."""
    prefix = f"{paths.QUEUES_FOLDER}/{directory.directory}"
    folder = f"{root}/{prefix}"
    sizes = {f"{prefix}/{name}": directory.sizes[name] for name in _numbered(directory, paths.SEGMENT_SUFFIX)}
    files, found = list(sizes), [segment_reader.read_segments(root, sizes, entry_count, with_ids)]
    if paths.JOURNAL_FILE in directory.sizes:
        files.append(f"{prefix}/{paths.JOURNAL_FILE}")
        found.append(journal_reader.read_journal(folder, files[-1], len(files) - 1))

    @cache
    def others() -> int:
        return segment_v2_reader.entry_count_in(folder, sorted(directory.sizes)) or queue_v2.SEGMENT_ENTRY_COUNT

    for name in _numbered(directory, paths.INDEX2_SUFFIX):
        own = name.removesuffix(paths.INDEX2_SUFFIX) + paths.STORE2_SUFFIX
        files += [f"{prefix}/{name}", f"{prefix}/{own}"]
        index, store = len(files) - 2, len(files) - 1
        size = directory.sizes.get(own, 0)
        found.append(segment_v2_reader.read_segment(f"{folder}/{name}", files[index], index, store, size, others))
    return files, found


def _end(found: list[IndexFile]) -> int:
    mentioned = [file.publishes.entries["sequence_id"] for file in found] + [file.acked for file in found]
    return max((int(ids.max()) + 1 for ids in mentioned if len(ids)), default=0)


def _numbered(directory: QueueDirectory, suffix: str) -> list[str]:
    names = {paths.number_of(name, suffix): name for name in directory.sizes}
    return [names[number] for number in sorted(number for number in names if number is not None)]


def _combined(found: list[IndexFile], with_ids: bool) -> tuple[Entries, npt.NDArray[np.void], Mask, int]:
    """The persistent entries of all files by sequence id, with ids and `stored`, and the number of live transient ones.

    An entry is acknowledged if its segment has two marks for it or the journal has an ack. If a crash between a flush
    and the cut of the journal left two publishes of one sequence id, the segment's counts. Ids are those of stored
    entries, or of all `with_ids`.
    """
    publishes = [file.publishes for file in found if len(file.publishes.entries)] or [nothing()]
    entries = joined([part.entries for part in publishes])
    stored = joined([part.stored for part in publishes])
    ids = joined([part.ids for part in publishes]) if stored.any() or with_ids else np.zeros(len(entries), "V16")
    sequence_ids = np.ascontiguousarray(entries["sequence_id"])
    if not (sequence_ids[1:] > sequence_ids[:-1]).all():
        _, first = np.unique(sequence_ids, return_index=True)
        entries, ids, stored, sequence_ids = entries[first], ids[first], stored[first], sequence_ids[first]
    acked = joined([file.acked for file in found])
    dead = np.isin(sequence_ids, acked) if len(acked) else np.zeros(len(entries), bool)
    if len(acked):
        entries["flags"] |= np.where(dead, np.uint8(ACKED), np.uint8(0))
    persistent = flagged(entries, PERSISTENT)
    transient = int((~persistent & ~dead).sum())
    return filtered(entries, persistent), filtered(ids, persistent), filtered(stored, persistent), transient


def _locate(
    entries: Entries,
    ids: npt.NDArray[np.void],
    stored: Mask,
    locations: MessageLocations,
    files: list[str],
) -> None:
    """Sets the position of each entry whose message is in the shared store; the others keep theirs."""
    wanted = np.flatnonzero(stored)
    if not len(wanted):
        return
    rows = locations.find(ids[wanted])
    known = locations.rows[rows] if len(locations.rows) else np.zeros(len(rows), locations.rows.dtype)
    gone = (rows < 0) | ((known["references"] == 0) & ~flagged(entries, ACKED)[wanted])
    # The table of a clean stop may name a position that a file, truncated or lost since, does not have.
    named, which = np.unique(known["file"], return_inverse=True)
    sizes = np.array([locations.sizes.get(number, 0) for number in named.tolist()], np.int64)
    gone |= known["position"] + known["size"] > sizes[which]
    absent = wanted[gone]
    entries["flags"][absent] |= np.uint8(MISSING)
    wanted, known = wanted[~gone], known[~gone]
    numbers = np.unique(known["file"])
    first = len(files)
    files += [locations.files.get(number, f"{paths.PERSISTENT_FOLDER}/{number}.rdq") for number in numbers.tolist()]
    entries["file"][wanted] = first + np.searchsorted(numbers, known["file"])
    entries["position"][wanted], entries["length"][wanted] = known["position"], known["size"]
    entries["id_end"][wanted] = id_ends(known["id"])
    entries["kind"][wanted] = SHARED


def _apply(queue: QueueFiles, by_terms: Verdict) -> None:
    """Drops and reports what a node drops without treating it as damage. `by_terms`: the verdict by the terms alone."""
    entries = queue.entries
    missing = entries["flags"] & (MISSING | ACKED) == MISSING
    queue.forgotten, queue.forgotten_from = entries["sequence_id"][missing], entries["file"][missing]
    if queue.verdict.dirty and missing.any():
        queue.disagreements.append(forgotten(int(missing.sum())))
        queue.entries = entries = entries[~missing]
        queue.ids = None if queue.ids is None else filtered(queue.ids, ~missing)
    unacked = unacked_ids(entries)
    found = disagreement(by_terms, unacked, queue.directory.version)
    if found is not None:
        queue.disagreements.append(found)
    if by_terms.hidden and len(unacked):
        queue.entries = new_entries(0)
        queue.ids = None if queue.ids is None else queue.ids[:0]
