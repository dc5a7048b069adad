"""Cuts what a broker's recovery would cut, before a write: bytes after the end of the log, queue entries, files.

Everything that is cut is first kept in a folder, and nothing that is served changes. `recovery` decides where log and
queues end. Source of the rules: interface.md 21, commit-protocol.md 2.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from itertools import pairwise

from storage_core.errors import CorruptionError, MqStoreError, OptionError
from storage_core.errors import listing as listed
from storage_core.files import system
from storage_core.files.file_chain import ChainFile, FileChain
from storage_core.files.open_files import OpenFiles
from storage_core.files.small_file import read_at
from storage_core.files.undo_log import Changes
from storage_core.formats.rocketmq import paths
from storage_core.formats.rocketmq.consumequeue import QUEUE_ENTRY
from storage_core.formats.rocketmq.message import BLANK, MAGIC_BLANK
from storage_core.rocketmq.disk.directory import Listing
from storage_core.rocketmq.disk.record_reader import record_at
from storage_core.rocketmq.recovery.batch_queues import awaits_start
from storage_core.rocketmq.recovery.unfinished import StoreState
from storage_core.rocketmq.recovery.verdict import Verdict

_MAGIC = re.compile(rb"\xda\xa3\x20[\xa7\xab]")
SEARCH_SIZE = 8 << 20
ALL_FOLDERS = "name every folder of the log, or run `mqstore repair STORE --to DIR` if a file is lost"


def cut(store: StoreState, changes: Changes, folder: str) -> None:
    """Removes what recovery would cut, and keeps it in `folder`. Intact records must have been refused before."""
    listing, log_end = store.listing, store.verdict.log_end
    root = listing.root
    for file in listing.log.files:
        if file.end <= log_end:
            continue
        if file.base_offset >= log_end and (file.size != listing.log.file_size or _holds_data(file.path)):
            move_away(root, file.path, changes, folder)
        else:
            position = max(log_end - file.base_offset, 0)
            _zero(root, file, position + _blank_size(file, position), changes, folder)
    for key, queue in listing.queues.items():
        stop = store.verdict.queues[key].disk_stop * QUEUE_ENTRY.size
        for file in queue.chain.files:
            if file.base_offset >= stop:
                move_away(root, file.path, changes, folder)
            elif file.end > stop:
                _zero(root, file, stop - file.base_offset, changes, folder)


def refuse_long_files(log: FileChain, file_size: int) -> None:
    """Raises CorruptionError for a log file that is longer than the others: no broker loads the store.

    A shorter one gets its full length. Source: rocketmq.md 1.6.
    """
    for file in log.files:
        refuse_long_file(file.path, file.size, file_size)


def refuse_long_file(path: str, size: int, usual: int) -> None:
    """Raises CorruptionError if a file of the log or of a queue is longer than `usual`, the length of the others."""
    if size > usual:
        raise CorruptionError(
            path, usual, f"the file has {size:,} bytes, the others {usual:,}; a broker does not load the store; "
            "run `mqstore repair STORE --to DIR`",
        )  # fmt: skip


def refuse_holes(log: FileChain, folders: Sequence[str]) -> None:
    """Raises OptionError if files are missing between those in the folders that were named for the log."""
    for before, after in pairwise(log.files):
        if before.base_offset + log.file_size < after.base_offset:
            name = paths.chain_name(before.base_offset + log.file_size)
            raise OptionError(
                "commitLogPath", ",".join(folders), f"{name} is missing between the log files here; {ALL_FOLDERS}"
            )


def refuse_lost_end(store: StoreState) -> None:
    """Raises OptionError if a queue lists a message behind the last file in the folders that were named for the log.

    A write would cut the entry and use its address again.
    """
    listing, stop = store.listing, store.listing.log.stop
    with OpenFiles() as files:
        for key, queue in listing.queues.items():
            end = store.verdict.queues[key].disk_stop
            if end * QUEUE_ENTRY.size >= queue.chain.stop:
                continue
            entry = queue.entries(files, end, end + 1)[0]
            if entry["size"] > 0 and entry["physical_offset"] >= stop:
                raise OptionError(
                    "commitLogPath", ",".join(listing.log_folders), f"{key[0]}/{key[1]} lists a message at "
                    f"{entry['physical_offset']}, and the log here ends at {stop}; {ALL_FOLDERS}"
                )  # fmt: skip


def refuse_lost_dispatch(listing: Listing, verdict: Verdict) -> None:
    """Raises MqStoreError if a broker start has to dispatch messages to compacted topics or batch queues.

    With complete queues, as every write and repair leaves them, it would not dispatch them (rocketmq.md 3.7, 3.9).
    """
    if topics := awaits_start(listing, verdict):
        raise MqStoreError(
            f"{listing.root}: the broker was killed before it had put all messages of topics that are compacted or in "
            f"batch queues ({listed(topics)}) where it serves them from, which only its next start does; start it and "
            "stop it first"
        )


def refuse_intact_records(store: StoreState) -> None:
    """Raises CorruptionError if an intact record follows the end of the log: a write would lose it."""
    log, log_end = store.listing.log, store.verdict.log_end
    with OpenFiles() as files:
        for file in log.files:
            start = max(log_end - file.base_offset, 0)
            if start >= file.size:
                continue
            for position in _magics(files.descriptor(file.path), start, file.size):
                if record_at(log, files, file.base_offset + position, file.end) is not None:
                    raise CorruptionError(
                        file.path, position, f"an intact record lies here, after the end of the log at {log_end}; a "
                        "write would lose it; run `mqstore repair STORE --to DIR`, or read the store with scan=log",
                    )  # fmt: skip


def refuse_stale_entries(store: StoreState) -> None:
    """Raises CorruptionError for a queue with stale entries (rocketmq.md 3.4): a write would lose them."""
    for key, bounds in store.verdict.queues.items():
        if bounds.stale is not None:
            queue, position = store.listing.queues[key], bounds.disk_stop * QUEUE_ENTRY.size
            path, inside = queue.chain.name_of(position), position % queue.chain.file_size
            raise CorruptionError(
                path, inside, f"the entry of queue offset {bounds.disk_stop} is not valid; a broker would append there "
                f"and serve those from {bounds.stale.start} on again, and a write would lose them; run `mqstore repair "
                "STORE --to DIR`",
            )  # fmt: skip


def _magics(descriptor: int, start: int, stop: int) -> Iterator[int]:
    """Positions where a record may begin: four bytes before each record magic."""
    for first, last in system.data_spans(descriptor, start, stop):
        for at in range(first, last, SEARCH_SIZE):
            data = system.pread(descriptor, min(SEARCH_SIZE + 3, stop - at), at)
            for match in _MAGIC.finditer(data):
                if at + match.start() - 4 >= start:
                    yield at + match.start() - 4


def _blank_size(file: ChainFile, position: int) -> int:
    """8 if a blank record fills the file from `position` on, else 0: it belongs to the log and is not cut."""
    head = read_at(file.path, BLANK.size, position)
    blank = (file.size - position).to_bytes(4, "big") + MAGIC_BLANK.to_bytes(4, "big")
    return BLANK.size if head == blank else 0


def _holds_data(path: str) -> bool:
    descriptor = system.open_read(path)
    try:
        size = system.stat(path).size
        for start, stop in system.data_spans(descriptor, 0, size):
            for at in range(start, stop, SEARCH_SIZE):
                if system.pread(descriptor, min(SEARCH_SIZE, stop - at), at).strip(b"\0"):
                    return True
    finally:
        system.close(descriptor)
    return False


def _zero(root: str, file: ChainFile, position: int, changes: Changes, folder: str) -> None:
    """Zeroes a file from `position` on; the old bytes are copied to `folder`."""
    changes.zero(file.path, position, file.size, f"{_path_in(folder, root, file.path)}.from-{position}")


def _path_in(folder: str, root: str, path: str) -> str:
    inside = os.path.relpath(path, root)
    return os.path.join(folder, os.path.basename(path) if inside.startswith("..") else inside)


def move_away(root: str, path: str, changes: Changes, folder: str) -> None:
    """Moves a file of the store to the same path in `folder`."""
    target = _path_in(folder, root, path)
    changes.folder(os.path.dirname(target))
    changes.move(path, target)
