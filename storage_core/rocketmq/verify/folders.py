"""Files that are unexpected, missing or of a wrong length: what a listing alone shows.

What a broker does with them when it loads the store: rocketmq.md 1.6.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from storage_core.files import system
from storage_core.files.file_chain import FileChain, is_address
from storage_core.files.stamp import FileStat
from storage_core.finding import Finding
from storage_core.formats.rocketmq import paths
from storage_core.formats.rocketmq.checkpoint import FILE_SIZE
from storage_core.formats.rocketmq.consumequeue import QUEUE_ENTRY
from storage_core.job import JobFolder, pending_intent
from storage_core.rocketmq.disk.config_files import config_problem
from storage_core.rocketmq.verify.kinds import IGNORES, REFUSES, REMOVES, Kind, Subject
from storage_core.store import QueueKey

GUARD = "mqstore-unfinished-write"
CONFIG_FILES = (
    "topics.json", paths.GROUP_OFFSETS, paths.LIGHT_GROUP_OFFSETS, "subscriptionGroup.json", "delayOffset.json",
)  # fmt: skip


def wrong_files(subject: Subject) -> Iterator[Finding]:
    """Findings about the files that a store has."""
    listing = subject.listing
    yield from _unfinished(subject, listing.log_folders)
    for folder in listing.log_folders:
        yield from _in_chain_folder(subject, folder, listing.log.file_size)
    yield from _log_holes(subject)
    queue_size = usual_size(queue.chain for queue in listing.queues.values())
    yield from _in_queue_root(subject)
    for key, queue in listing.queues.items():
        folder = os.path.join(listing.root, paths.CONSUME_QUEUE, key[0], str(key[1]))
        yield from _in_chain_folder(subject, folder, queue_size, key)
        yield from _queue_holes(subject, key, queue.chain)
    batch_size = usual_size(listing.batch_queues.values())
    for key in () if subject.is_4_9 else listing.batch_queues:
        folder = os.path.join(listing.root, paths.BATCH_CONSUME_QUEUE, key[0], str(key[1]))
        yield from _in_chain_folder(subject, folder, batch_size, key)
    yield from _in_index_folder(subject)


def usual_size(chains: Iterable[FileChain]) -> int:
    """The length that most of the files of some queues have; 0 if there are none."""
    sizes = Counter(chain.file_size for chain in chains for _ in chain.files)
    return sizes.most_common(1)[0][0] if sizes else 0


def strays_in(subject: Subject, folder: str, queue: QueueKey) -> Iterator[Finding]:
    """Findings about the files in a folder of a compacted queue whose name is no address."""
    for entry in _entries(folder):
        if not entry.is_directory and not is_address(entry.name):
            path, reason = os.path.join(folder, entry.name), "its name is no address at which a file begins"
            yield subject.finding(Kind.ODD, path, 0, entry.size, reason, None, queue)


def _unfinished(subject: Subject, folders: Sequence[str]) -> Iterator[Finding]:
    root = subject.listing.root
    guards = [path for folder in folders if system.exists(path := os.path.join(folder, GUARD))]
    intent = pending_intent(root)
    if intent is not None:
        path, state = JobFolder(root).intent, "is committed and not finished; the next write finishes it"
        if not system.exists(path):
            path, state = JobFolder(root).draft, "was stopped before it was committed; the next write takes it back"
        reason = f"the write {intent['job']} of mqstore {state}"
        effect = None if guards else "serves the part of the write that is there, and appends after it"
        yield subject.finding(Kind.UNFINISHED, path, 0, system.stat(path).size, reason, effect)
    elif guards:
        reason = "a write of mqstore was stopped before it was committed; nothing of it is in the store"
        yield subject.finding(Kind.UNFINISHED, guards[0], 0, system.stat(guards[0]).size, reason)


def _in_chain_folder(subject: Subject, folder: str, file_size: int, queue: QueueKey | None = None) -> Iterator[Finding]:
    """Checks the files of the log or of a queue: a name is 20 digits, a multiple of the length that all files have."""
    found = _entries(folder)
    for entry in found:
        path, last = os.path.join(folder, entry.name), entry is found[-1]
        is_number = is_address(entry.name)
        if entry.name == GUARD:
            continue
        if entry.is_directory:
            effect = REFUSES if subject.is_4_9 else IGNORES
            yield subject.finding(Kind.ODD, path, 0, 0, "a folder between files of messages", effect, queue)
        elif entry.size == 0:
            effect = REMOVES if last and not subject.is_4_9 else REFUSES
            yield subject.finding(Kind.EMPTY, path, 0, 0, "the file was made and never sized", effect, queue)
        elif entry.size != file_size:
            kind = Kind.LENGTH if is_number else Kind.ODD
            reason = f"it has {entry.size:,} bytes, the others {file_size:,}"
            yield subject.finding(kind, path, 0, entry.size, reason, None, queue)
        elif not is_number or int(entry.name) % file_size:
            reason = "its name is no address at which a file begins"
            yield subject.finding(Kind.ODD, path, 0, entry.size, reason, None, queue)


def _entries(folder: str) -> list[FileStat]:
    try:
        return sorted(system.entries(folder), key=lambda entry: entry.name)
    except (FileNotFoundError, NotADirectoryError):
        return []


def _log_holes(subject: Subject) -> Iterator[Finding]:
    log = subject.listing.log
    for before, after in pairwise(log.files):
        start = before.base_offset + log.file_size
        for base in range(start, after.base_offset, max(log.file_size, 1)):
            path = os.path.join(os.path.dirname(before.path), paths.chain_name(base))
            yield subject.finding(
                Kind.FILE_LOST, path, 0, log.file_size, "the log has files before and after this one, which is missing"
            )


def _queue_holes(subject: Subject, key: QueueKey, chain: FileChain) -> Iterator[Finding]:
    for before, after in pairwise(chain.files):
        first, stop = before.base_offset + chain.file_size, after.base_offset
        for base in range(first, stop, max(chain.file_size, 1)):
            path = os.path.join(os.path.dirname(before.path), paths.chain_name(base))
            low = base // QUEUE_ENTRY.size
            reason = f"the queue has files before and after this one, of offsets {low} to "
            reason += f"{low + chain.file_size // QUEUE_ENTRY.size - 1}, which is missing"
            yield subject.finding(Kind.QUEUE_FILE_LOST, path, 0, chain.file_size, reason, None, key)


def _in_queue_root(subject: Subject) -> Iterator[Finding]:
    root = os.path.join(subject.listing.root, paths.CONSUME_QUEUE)
    if subject.listing.rocksdb_queues:
        return
    for topic in _entries(root):
        path = os.path.join(root, topic.name)
        if not topic.is_directory:
            yield subject.finding(Kind.ODD, path, 0, topic.size, "a file between the folders of topics", IGNORES)
            continue
        for entry in _entries(path):
            if not entry.is_directory or paths.queue_id_of(entry.name) is None:
                inner = os.path.join(path, entry.name)
                reason = "this is no folder of a queue, whose name is its number"
                yield subject.finding(Kind.ODD, inner, 0, 0 if entry.is_directory else entry.size, reason, IGNORES)


def _in_index_folder(subject: Subject) -> Iterator[Finding]:
    folder = os.path.join(subject.listing.root, paths.INDEX)
    for entry in _entries(folder):
        if not (entry.name.isascii() and entry.name.isdigit()):
            reason = "this is no index file, whose name is a time"
            yield subject.finding(Kind.ODD, os.path.join(folder, entry.name), 0, entry.size, reason, IGNORES)


def wrong_small_files(subject: Subject, newest_ms: int) -> Iterator[Finding]:
    """Findings about checkpoint and config; `newest_ms` is the largest store time in the log, 0 when it is empty."""
    root = subject.listing.root
    path = os.path.join(root, paths.CHECKPOINT)
    size = system.stat(path).size if system.exists(path) else None
    noted = subject.listing.checkpoint
    if size is None:
        yield subject.finding(Kind.CHECKPOINT, path, 0, 0, "the file is missing")
    elif size != FILE_SIZE:
        yield subject.finding(Kind.CHECKPOINT, path, 0, size, f"it has {size} bytes instead of {FILE_SIZE}")
    elif newest_ms and max(noted.physic_ms, noted.logics_ms) > newest_ms:
        reason = f"it notes the store time {max(noted.physic_ms, noted.logics_ms)}, the newest message has {newest_ms}"
        yield subject.finding(Kind.CHECKPOINT, path, 0, 24, reason, "scans too little of the log after a crash")
    for name in CONFIG_FILES:
        yield from _config(subject, os.path.join(root, paths.CONFIG, name))


def _config(subject: Subject, path: str) -> Iterator[Finding]:
    if config_problem(path) is None:
        return
    backup = f"{path}.bak"
    good = system.exists(backup) and config_problem(backup) is None
    effect = "uses the .bak file" if good else "starts with an empty table"
    yield subject.finding(Kind.CONFIG, path, 0, system.stat(path).size, "it is not JSON", effect, repairable=good)
