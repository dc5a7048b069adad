"""The files of a RocketMQ store directory, listed once; of their content, only that of tiny files is read.

What a broker would make of them is decided by `recovery`.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from storage_core.errors import StoreNotFoundError, UnsupportedFormatError
from storage_core.files import system
from storage_core.files.file_chain import FileChain, find_chain
from storage_core.files.small_file import names_in, read_start
from storage_core.formats.rocketmq import paths
from storage_core.formats.rocketmq.checkpoint import FILE_SIZE, Checkpoint, decode_checkpoint
from storage_core.rocketmq.disk.batch_queue import batch_queue_files
from storage_core.rocketmq.disk.consume_queue import ConsumeQueue
from storage_core.rocketmq.disk.ledger import (
    LedgerState,
    as_ledger,
    begins_with_header,
    has_headers,
    ledger_of,
    ledger_state,
)
from storage_core.store import QueueKey

Signature = tuple[object, ...]

MARKS = (paths.ABORT, paths.ABORT_BACKUP, paths.COMPACTION)
"""Names whose presence says something about a store, besides the checkpoint and what is below log and queues."""


@dataclass(frozen=True)
class Listing:
    """The files of one store, as they were when `list_store` was called; its log is in `log_folders`."""

    root: str
    log_folders: tuple[str, ...]
    log: FileChain
    queues: dict[QueueKey, ConsumeQueue]
    abort: bool
    checkpoint: Checkpoint
    has_5x_marks: bool
    rocksdb_queues: bool
    batch_queues: Mapping[QueueKey, FileChain]
    has_compaction: bool
    ledger: LedgerState | None

    @property
    def entries_per_file(self) -> int:
        """How many entries most files of queues have, the larger number of two equals; 0 if no queue has a file."""
        found = Counter(queue.entries_per_file for queue in self.queues.values() for _ in queue.chain.files)
        return max(found, key=lambda count: (found[count], count), default=0)

    @cached_property
    def signature(self) -> Signature:
        """Equal for two listings if no file was added, removed or written through the file system between them."""
        chains = [self.log, *(queue.chain for queue in self.queues.values()), *self.batch_queues.values()]
        files = tuple((f.path, f.size, *f.stamp) for chain in chains for f in chain.files)
        keys = tuple(self.queues), tuple(self.batch_queues)
        return self.abort, self.checkpoint, self.has_5x_marks, self.ledger, keys, files


def looks_like_store(root: str) -> bool:
    """Whether a directory holds a commit log, consume queues or a DLedger log."""
    try:
        names = system.names(root)
    except (FileNotFoundError, NotADirectoryError):
        return False
    marks = (paths.COMMIT_LOG, paths.CONSUME_QUEUE)
    return any(name in marks or name.startswith(paths.DLEDGER_PREFIX) for name in names)


def log_folders(root: str, commit_log_paths: Sequence[str] = ()) -> list[str]:
    """The folders that contain the log of a store: those given, else the broker's default ones."""
    if commit_log_paths:
        return list(commit_log_paths)
    folders, ledger = [os.path.join(root, paths.COMMIT_LOG)], ledger_of(root)
    return folders if ledger is None else [*folders, os.path.join(ledger, paths.DLEDGER_DATA)]


def list_store(root: str, commit_log_paths: Sequence[str] = ()) -> Listing:
    """Lists a store directory.

    Raises StoreNotFoundError when there is none, UnsupportedFormatError for queues without a commit log, and for
    DLedger logs of several nodes (interface.md 44).
    """
    folders = log_folders(root, commit_log_paths)
    log = find_log(root, folders)
    if not log.files:
        _refuse_missing_log(root, folders)
    return Listing(root, tuple(folders), log, _list_queues(os.path.join(root, paths.CONSUME_QUEUE)), **_marks(root))


def with_checkpoint(listing: Listing) -> Listing:
    """The same files with the current state of the rest of the directory; the same listing object if that is unchanged.

    For a directory whose files and folders still have the same stamps: a broker writes the checkpoint through a memory
    map, so the checkpoint is read.
    """
    if _checkpoint(listing.root) == listing.checkpoint and (
        listing.ledger is None or ledger_state(listing.root) == listing.ledger
    ):
        return listing
    return replace(listing, **_marks(listing.root))


def with_log(listing: Listing, folders: Sequence[str]) -> Listing:
    """The same queues with the current log files."""
    return replace(listing, log=find_log(listing.root, folders))


def with_queues(listing: Listing, keys: Iterable[QueueKey]) -> Listing:
    """The listing with the current files of some queues; a queue without files is left as it was."""
    folder = os.path.join(listing.root, paths.CONSUME_QUEUE)
    found = {key: find_chain([os.path.join(folder, key[0], str(key[1]))]) for key in keys}
    queues = {key: ConsumeQueue(*key, chain) for key, chain in found.items() if chain.files}
    if not queues.keys() <= listing.queues.keys():
        return replace(listing, queues=dict(sorted({**listing.queues, **queues}.items())))
    return replace(listing, queues={**listing.queues, **queues}) if queues else listing


def without_deleted(listing: Listing) -> Listing:
    """The listing without the queues of topics whose folder no longer exists."""
    there = set(names_in(os.path.join(listing.root, paths.CONSUME_QUEUE)))
    queues = {key: queue for key, queue in listing.queues.items() if key[0] in there}
    return listing if len(queues) == len(listing.queues) else replace(listing, queues=queues)


def find_log(root: str, folders: Sequence[str]) -> FileChain:
    """The log in the folders. If the store directory has a ledger, the last folder contains its records, unless they
    have no headers. It is ignored if the log in the other folders continues behind its first record: then the broker
    has left DLedger. 5.x spreads a ledger over several folders.
    """
    ledger = ledger_of(root)
    if ledger is None:
        return find_chain(folders)
    others = [folder for folder in folders[:-1] if not _belongs_to_ledger(folder, folders)]
    plain, data = find_chain(others), find_chain([folder for folder in folders if folder not in others])
    if not data.files or plain.stop > data.start:
        return plain
    whole = find_chain(folders)
    return as_ledger(whole, data.start) if has_headers(data.files[0]) else whole


def _belongs_to_ledger(folder: str, folders: Sequence[str]) -> bool:
    """Whether the files in a folder are part of a ledger, the last part of which is in the last folder: they begin with
    a header, or with nothing behind the first file that does.
    """
    chain = find_chain([folder])
    if not chain.files or begins_with_header(chain):
        return bool(chain.files)
    headed = [other.start for each in folders if begins_with_header(other := find_chain([each]))]
    return has_headers(chain.files[0]) and chain.start > min(headed, default=chain.start)


def _marks(root: str) -> dict[str, Any]:
    """The state of the directory besides its log and queues."""
    checkpoint = _checkpoint(root)
    has_compaction = system.is_folder(os.path.join(root, paths.COMPACTION))
    batch_queues = batch_queue_files(root)
    return {
        "abort": system.exists(os.path.join(root, paths.ABORT)),
        "checkpoint": checkpoint,
        "has_5x_marks": has_compaction or bool(batch_queues) or _has_5x_marks(root, checkpoint),
        "rocksdb_queues": system.exists(os.path.join(root, paths.CONSUME_QUEUE, paths.ROCKSDB_MARK)),
        "batch_queues": batch_queues,
        "has_compaction": has_compaction,
        "ledger": ledger_state(root),
    }


def _checkpoint(root: str) -> Checkpoint:
    return decode_checkpoint(read_start(os.path.join(root, paths.CHECKPOINT), FILE_SIZE))


def _refuse_missing_log(root: str, folders: list[str]) -> None:
    if not looks_like_store(root):
        raise StoreNotFoundError(f"{root}: there is no store here yet; write to it first, or check the path")
    if not any(system.is_folder(folder) for folder in folders):
        raise UnsupportedFormatError(
            f"{folders[0]}: there is no commit log here, but queues that point into one; if it lies elsewhere (the "
            "broker's storePathCommitLog), name that directory with option commitLogPath"
        )


def _list_queues(root: str) -> dict[QueueKey, ConsumeQueue]:
    queues: dict[QueueKey, ConsumeQueue] = {}
    for topic in names_in(root):
        folder = os.path.join(root, topic)
        for name in names_in(folder):
            if (queue_id := paths.queue_id_of(name)) is not None:
                chain = find_chain([f"{folder}/{name}"])
                queues[topic, queue_id] = ConsumeQueue(topic, queue_id, chain)
    return dict(sorted(queues.items()))


def _has_5x_marks(root: str, checkpoint: Checkpoint) -> bool:
    """Whether there are marks that only a 5.x broker leaves (interface.md 8); V2 records are looked for in the log."""
    if system.exists(os.path.join(root, paths.ABORT_BACKUP)):
        return True
    if checkpoint.master_flushed_offset or checkpoint.confirm_offset:
        return True
    return bool(read_start(os.path.join(root, paths.ABORT), 1))
