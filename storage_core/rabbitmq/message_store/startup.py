"""Starting a message store for writing, and what a clean stop leaves for the next startup.

`file_scan` and `locations` find records, `message_store` and `compaction` count and move them.
Source: rabbitmq.md 1.5, 4.1, 6.7.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from storage_core.files import system
from storage_core.files.small_file import remove_file, write_synced
from storage_core.formats.rabbitmq import paths
from storage_core.formats.rabbitmq.erlang import disk_log, erlang_text, ets_dump
from storage_core.formats.rabbitmq.erlang.external_term import Atom
from storage_core.rabbitmq.disk.span_reader import read_table
from storage_core.rabbitmq.message_store.file_scan import scan_file
from storage_core.rabbitmq.message_store.locations import INDEX_MODULE, MessageLocations
from storage_core.rabbitmq.message_store.message_files import MERGED_SUFFIX, Location, MessageFile
from storage_core.rabbitmq.message_store.message_store import MessageStore

COPY_SIZE = 8 << 20
CLEAN_FILES = (paths.CLEAN_FILE, paths.SUMMARY_FILE, paths.INDEX_FILE)


def finish_compactions(folder: str) -> None:
    """Appends each `.rdt` that a node's crash left to its `.rdq`, after the last whole record there, and deletes it.

    Also deletes our own merged files that did not replace their originals.
    """
    if not system.exists(folder):
        return
    for name in system.names(folder):
        if name.endswith(MERGED_SUFFIX):
            system.unlink(f"{folder}/{name}")
        number = paths.number_of(name, paths.COMPACTION_SUFFIX)
        if number is None:
            continue
        target_path = f"{folder}/{number}{paths.MESSAGE_SUFFIX}"
        stop = scan_file(target_path, name).stop
        source, target = system.open_read(f"{folder}/{name}"), system.open_write(target_path, create=True)
        try:
            system.truncate(target, stop)
            at = 0
            while data := system.pread(source, COPY_SIZE, at):
                system.pwrite(target, data, stop + at)
                at += len(data)
            system.fsync(target)
        finally:
            system.close(source)
            system.close(target)
        system.unlink(f"{folder}/{name}")


def start_clean(store: MessageStore, locations: MessageLocations) -> None:
    """Starts the store from the tables of a clean stop."""
    summary = ets_dump.decode_summary(read_table(f"{store.directory}/{paths.SUMMARY_FILE}", disk_log.MAGIC_BYTES))
    files = {int(row["file"]): MessageFile(int(row["valid_size"]), int(row["file_size"])) for row in summary}
    store.start(_locations(locations.rows, locations.rows["references"], files), files)


def start_dirty(store: MessageStore, locations: MessageLocations, ids: npt.NDArray[Any]) -> None:
    """Starts the store with tables rebuilt from the files; `ids` has one id per reference from a queue's index."""
    rows = locations.rows
    unique, counts = np.unique(np.ascontiguousarray(ids).view("S16") if len(ids) else ids, return_counts=True)
    found = locations.find(unique.view("V16")) if len(unique) else np.empty(0, np.int64)
    references = np.zeros(len(rows), np.int64)
    references[found[found >= 0]] = counts[found >= 0]
    rows, references = rows[references > 0], references[references > 0]
    files = {number: MessageFile() for number in locations.files}
    last = max(files, default=0)
    for number in files:
        mine = rows[rows["file"] == number]
        ends = mine["position"] + mine["size"]
        path = store.path(number)
        size = int(ends.max(initial=0)) if number == last else system.stat(path).size
        files[number] = MessageFile(int(mine["size"].sum()), size)
        if number == last and system.stat(path).size > size:
            _cut(path, size)
        elif number != last and not len(mine):
            system.unlink(path)
    files = {number: file for number, file in files.items() if number == last or file.valid_size}
    store.start(_locations(rows, references, files), files)


def _cut(path: str, size: int) -> None:
    descriptor = system.open_write(path)
    try:
        system.truncate(descriptor, size)
    finally:
        system.close(descriptor)


def _locations(
    rows: npt.NDArray[np.void], references: npt.NDArray[np.int64], files: dict[int, MessageFile]
) -> dict[bytes, Location]:
    columns = (references.tolist(), *(rows[name].tolist() for name in ("file", "position", "size")))
    found = {}
    for row, count, file, position, size in zip(rows["id"], *columns, strict=True):
        message_id = row.tobytes()
        found[message_id] = Location(count, file, position, size)
        files[file].ids.append(message_id)
    return found


def forget_clean_stop(folder: str) -> None:
    """Deletes the files that are only valid until the next change."""
    for name in CLEAN_FILES:
        remove_file(f"{folder}/{name}")


def write_clean_stop(store: MessageStore, clients: Iterable[bytes]) -> None:
    """Writes the tables of a closed store; `clients` are the references of its queues."""
    rows = np.empty(len(store.locations), ets_dump.INDEX_ROW)
    rows["id"] = np.frombuffer(b"".join(store.locations), "V16")
    locations = store.locations.values()
    rows["references"] = [location.references for location in locations]
    rows["file"] = [location.file for location in locations]
    rows["position"] = [location.position for location in locations]
    rows["size"] = [location.size for location in locations]
    files = [(number, file.valid_size, file.size) for number, file in sorted(store.files.items())]
    summary = np.array(files, ets_dump.SUMMARY_ROW)
    terms = ((Atom("client_refs"), list(clients)), (Atom("index_module"), Atom(INDEX_MODULE)))
    text = "".join(f"{erlang_text.render(term)}.\n" for term in terms)
    write_synced(f"{store.directory}/{paths.INDEX_FILE}", ets_dump.encode_index(rows))
    write_synced(f"{store.directory}/{paths.SUMMARY_FILE}", ets_dump.encode_summary(summary))
    write_synced(f"{store.directory}/{paths.CLEAN_FILE}", text.encode())
