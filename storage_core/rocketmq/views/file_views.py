"""The files of a store as tables: `segments` (each file and its content), `index` (each entry of each index file) and
`damage` (what is wrong).

Source of the columns: docs/options.md "Views". `queue_totals` considers which entries are served; here files are
described as they are on the disk.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import islice

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from storage_core.arrays import as_array
from storage_core.files import system
from storage_core.files.open_files import OpenFiles
from storage_core.finding import FINDINGS, Finding
from storage_core.formats.columns import TIMESTAMP, YEAR_10000_MS, timestamps
from storage_core.formats.rocketmq import paths
from storage_core.formats.rocketmq.consumequeue import QUEUE_ENTRY
from storage_core.formats.rocketmq.indexfile import ENTRY, HEADER, SLOT
from storage_core.rocketmq.disk.batch_queue import BatchQueue, addresses
from storage_core.rocketmq.disk.ledger import first_record_offset
from storage_core.rocketmq.disk.record_reader import store_ms_at
from storage_core.rocketmq.index.index_files import IndexFile, described, index_paths
from storage_core.rocketmq.read.snapshot import RocketSnapshot
from storage_core.store import QueueKey

NO_TIME = np.iinfo(np.int64).min

SEGMENTS = pa.schema(
    [
        ("file", pa.string()),
        ("kind", pa.string()),
        ("baseOffset", pa.int64()),
        ("bytes", pa.int64()),
        ("usedBytes", pa.int64()),
        ("messages", pa.int64()),
        ("firstStoreTimestamp", TIMESTAMP),
        ("lastStoreTimestamp", TIMESTAMP),
    ]
)

INDEX = pa.schema(
    [
        ("file", pa.string()),
        ("slot", pa.int32()),
        ("keyHash", pa.int32()),
        ("physicalOffset", pa.int64()),
        ("timestamp", TIMESTAMP),
    ]
)

ENTRIES_AT_ONCE = 1 << 16
FINDINGS_AT_ONCE = 1000
_Row = tuple[str, str, int | None, int, int, int, int | None, int | None]


def segments(snapshot: RocketSnapshot) -> Iterator[pa.RecordBatch]:
    """A row for each file of the log, of the queues and of the index.

    `messages` counts the records that queues list, the entries that are not fillers (in batch queues, their messages),
    or the entries, respectively.
    """
    with OpenFiles() as files:
        rows = [
            *_log_rows(snapshot, files),
            *_queue_rows(snapshot, files),
            *_batch_rows(snapshot, files),
            *_index_rows(snapshot, files),
        ]
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(SEGMENTS)
    arrays = [
        timestamps(np.array([NO_TIME if ms is None or not 0 <= ms < YEAR_10000_MS else ms for ms in column], np.int64))
        if field.type == TIMESTAMP
        else pa.array(column, field.type)
        for field, column in zip(SEGMENTS, columns, strict=True)
    ]
    yield pa.RecordBatch.from_arrays(arrays, schema=SEGMENTS)


def _log_rows(snapshot: RocketSnapshot, files: OpenFiles) -> Iterator[_Row]:
    log, end = snapshot.served.listing.log, snapshot.served.verdict.log_end
    edges = np.append(log.base_array, max(log.stop, end))
    counts, last = np.zeros(len(log.files), np.int64), np.full(len(log.files), -1, np.int64)
    for key, bounds in snapshot.served.verdict.queues.items():
        queue = snapshot.served.files_of(key)
        if bounds.disk_stop <= queue.start:
            continue
        at = queue.lower_bounds(files, queue.start, bounds.disk_stop, edges)
        counts += np.diff(at)
        for number in np.flatnonzero(np.diff(at)).tolist():
            last[number] = max(last[number], queue.physical_offset(files, int(at[number + 1]) - 1))
    for batched in _batch_queues(snapshot).values():
        listed = np.sort(addresses(batched, files))
        at = np.searchsorted(listed, edges)
        counts += np.diff(at)
        filled = np.flatnonzero(np.diff(at))
        last[filled] = np.maximum(last[filled], listed[at[filled + 1] - 1])
    for number, file in enumerate(log.files):
        used = max(0, min(file.end, end) - file.base_offset)
        first_ms = store_ms_at(log, files, first_record_offset(log, file)) if used else None
        last_ms = store_ms_at(log, files, int(last[number])) if last[number] >= 0 else None
        name = _name(snapshot, file.path)
        yield name, "commitlog", file.base_offset, file.size, used, int(counts[number]), first_ms, last_ms


def _queue_rows(snapshot: RocketSnapshot, files: OpenFiles) -> Iterator[_Row]:
    for key, queue in snapshot.served.listing.queues.items():
        bounds = snapshot.served.verdict.queues.get(key)
        stop = bounds.disk_stop if bounds is not None else 0
        for file in queue.chain.files:
            first = file.base_offset // QUEUE_ENTRY.size
            count = max(0, min(file.end // QUEUE_ENTRY.size, stop) - first)
            real = queue.first_real(files, first, first + count)
            times = [
                store_ms_at(snapshot.served.listing.log, files, queue.physical_offset(files, at))
                for at in ((real, first + count - 1) if real < first + count else ())
            ]
            first_ms, last_ms = times or (None, None)
            name = _name(snapshot, file.path)
            used, messages = count * QUEUE_ENTRY.size, first + count - real
            yield name, "consumequeue", file.base_offset, file.size, used, messages, first_ms, last_ms


def _batch_queues(snapshot: RocketSnapshot) -> dict[QueueKey, BatchQueue]:
    """The batch queues, as far as a broker start keeps their files."""
    return {key: queue for key, queue in snapshot.served.batched.items() if not queue.is_compacted}


def _batch_rows(snapshot: RocketSnapshot, files: OpenFiles) -> Iterator[_Row]:
    for queue in _batch_queues(snapshot).values():
        for index, file in enumerate(queue.entry_files.files):
            entries = queue.entries(files, index)
            times = entries["store_ms"].astype(np.int64).tolist() or [None]
            messages = int(entries["count"].astype(np.int64).sum())
            kind, name = paths.BATCH_CONSUME_QUEUE, _name(snapshot, file.path)
            yield name, kind, file.base_offset, file.size, entries.nbytes, messages, times[0], times[-1]


def _index_rows(snapshot: RocketSnapshot, files: OpenFiles) -> Iterator[_Row]:
    for file in _index_files(snapshot, files):
        header, size = file.header, system.stat(file.path).size
        used = HEADER.size + SLOT.size * file.geometry.slots + ENTRY.size * (file.entries + 1)
        times = (header.begin_ms, header.end_ms) if file.entries else (None, None)
        yield _name(snapshot, file.path), "index", None, size, 0 if file.flaw else used, file.entries, *times


def index_entries(snapshot: RocketSnapshot) -> Iterator[pa.RecordBatch]:
    """A row for each entry, in the order of files and entries; files of unknown geometry are left out."""
    with OpenFiles() as files:
        for file in _index_files(snapshot, files):
            if not file.flaw and file.entries:
                yield from _entries(file, _name(snapshot, file.path), files)


def damage(findings: Iterator[Finding]) -> Iterator[pa.RecordBatch]:
    """A row for each finding."""
    while rows := [vars(finding) for finding in islice(findings, FINDINGS_AT_ONCE)]:
        yield pa.RecordBatch.from_pylist(rows, FINDINGS)


def _entries(file: IndexFile, name: str, files: OpenFiles) -> Iterator[pa.RecordBatch]:
    descriptor = files.descriptor(file.path)
    buffer = np.empty(ENTRIES_AT_ONCE * ENTRY.size, np.uint8)
    for first in range(1, file.entries + 1, ENTRIES_AT_ONCE):
        count = min(ENTRIES_AT_ONCE, file.entries + 1 - first)
        position = int(file.geometry.entry_positions(np.array([first]))[0])
        size = system.pread_into(descriptor, buffer[: count * ENTRY.size].data, position)
        entries = ENTRY.all(buffer[:size])
        hashes = entries["key_hash"].astype(np.int32)
        seconds: npt.NDArray[np.int64] = entries["seconds"].astype(np.int64)
        if first == 1 and len(seconds):
            # The first entry of a file counts from the end of the previous file; its own time is in the header.
            seconds[0] = 0
        columns = [
            pa.repeat(pa.scalar(name), len(entries)),
            as_array(hashes % np.int32(file.geometry.slots)),
            as_array(hashes),
            as_array(entries["physical_offset"].astype(np.int64)),
            timestamps(file.header.begin_ms + 1000 * seconds),
        ]
        yield pa.RecordBatch.from_arrays(columns, schema=INDEX)


def _index_files(snapshot: RocketSnapshot, files: OpenFiles) -> Iterator[IndexFile]:
    known = None
    for path in index_paths(snapshot.served.listing.root):
        file = described(path, files, known)
        known = known if file.flaw or not file.entries else file.geometry
        yield file


def _name(snapshot: RocketSnapshot, path: str) -> str:
    """The path relative to the store, or the full path if the log is stored elsewhere."""
    root = snapshot.served.listing.root
    return os.path.relpath(path, root) if path.startswith(os.path.join(root, "")) else path
