"""The files of one task of a write: segments and message files that lack only their final numbers.

Sequence ids in a segment are relative to it, so the bytes of a segment do not depend on its number, except for the
header of version 2; the same holds for message files. `placement` decides where they go. Source: commit-protocol.md 15,
rabbitmq.md 1.6, 3, 6.1, 6.2, 8.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from storage_core.arrays import as_array
from storage_core.files.append_file import AppendFile
from storage_core.formats.rabbitmq import paths
from storage_core.formats.rabbitmq.binary_columns import fixed, lengths, where
from storage_core.formats.rabbitmq.erlang import ets_dump
from storage_core.formats.rabbitmq.message.message_columns import (
    encode_entries,
    encode_records,
    encode_segment,
    encode_segment_v2,
    encode_terms,
)
from storage_core.formats.spans import data_of, offsets_of
from storage_core.rabbitmq.write.input_rows import MessageColumns
from storage_core.rabbitmq.write.store_facts import StoreFacts
from storage_core.store import StagedFile

SLICE_BYTES = 64 << 20
LARGEST_PRIORITY_COUNT = 256
FORCED_TOGETHER = 64
"""Complete files that stay open until they are synced together: syncing the first one writes most of the others."""


@dataclass
class _Pending:
    """Entries of one directory that do not fill a segment yet, and (files, count, body bytes) of written segments."""

    name: bytes
    priority: int | None
    version: int
    segment_size: int
    parts: list[pa.BinaryArray] = field(default_factory=list)
    sizes: list[npt.NDArray[np.int64]] = field(default_factory=list)
    count: int = 0
    segments: list[tuple[list[str], int, int]] = field(default_factory=list)


class TaskWriter:
    """Writes the files of one task below `folder`, all named `prefix.*`.

    `priorities` maps queue names to their `x-max-priority`; rows of other queues go into one directory.
    """

    def __init__(
        self,
        folder: str,
        prefix: str,
        facts: StoreFacts,
        priorities: Mapping[bytes, int],
    ) -> None:
        self._folder, self._prefix, self._facts = folder, prefix, facts
        self._vhost, self._settings, self._priorities = facts.vhost.encode(), facts.settings, dict(priorities)
        self._directories: dict[str, _Pending] = {}
        self._message_file: AppendFile | None = None
        self._message_size = 0
        self._files: list[StagedFile] = []
        self._whole: list[AppendFile] = []
        self._message_files: list[tuple[str, int]] = []
        self._index: list[npt.NDArray[np.void]] = []
        self.rows = 0

    def add(self, rows: MessageColumns) -> None:
        """Encodes rows, a slice of bounded size at a time, and writes segments and message files as they fill up."""
        weights = np.cumsum(lengths(rows.bodies) + lengths(rows.properties) + 200)
        start = 0
        while start < len(rows):
            before = int(weights[start - 1]) if start else 0
            stop = max(start + 1, int(np.searchsorted(weights, before + SLICE_BYTES, side="right")))
            self._add(rows.slice(start, stop))
            start = stop
        self.rows += len(rows)

    def _add(self, rows: MessageColumns) -> None:
        ids = np.frombuffer(secrets.token_bytes(16 * len(rows)), "V16")
        raw_ids = fixed(ids)
        terms = encode_terms(self._vhost, rows.exchanges, rows.keys, rows.properties, rows.bodies, raw_ids)
        body_sizes = lengths(rows.bodies)
        below = self._settings.queue_index_embed_msgs_below
        embedded = (body_sizes < below) & (body_sizes + lengths(rows.properties) < below)
        stored = np.flatnonzero(~embedded)
        if len(stored) == len(rows):  # a selection would copy all of them
            self._store(ids, encode_records(raw_ids, terms))
        elif len(stored):
            chosen = as_array(stored)
            self._store(ids[stored], encode_records(raw_ids.take(chosen), terms.take(chosen)))
        entries = encode_entries(raw_ids, rows.expiries, body_sizes, where(embedded, terms))
        self._enqueue(rows, entries, body_sizes)

    def _enqueue(self, rows: MessageColumns, entries: pa.BinaryArray, body_sizes: npt.NDArray[np.int64]) -> None:
        encoded = rows.queues.dictionary_encode()
        names = encoded.dictionary.to_pylist()
        most = np.array([self._priorities.get(name, -1) for name in names], np.int64)
        numbers = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        priorities = np.minimum(rows.priorities, most[numbers])
        codes = numbers * LARGEST_PRIORITY_COUNT * 2 + priorities + 1
        for code in np.unique(codes).tolist():
            chosen = np.flatnonzero(codes == code)
            number, priority = divmod(code, LARGEST_PRIORITY_COUNT * 2)
            pending = self._pending(names[number], None if priority == 0 else priority - 1)
            pending.parts.append(entries.take(as_array(chosen)))
            pending.sizes.append(body_sizes[chosen])
            pending.count += len(chosen)
            if pending.count >= pending.segment_size:
                self._write_segments(pending, whole=True)

    def _pending(self, name: bytes, priority: int | None) -> _Pending:
        directory = paths.queue_directory(self._vhost, name, priority)
        if directory not in self._directories:
            version = self._facts.version_of(name, priority)
            self._directories[directory] = _Pending(name, priority, version, self._facts.segment_size(version))
        return self._directories[directory]

    def _write_segments(self, pending: _Pending, whole: bool) -> None:
        """Writes the full segments and, unless `whole`, the last, partial one."""
        entries, sizes = pa.concat_arrays(pending.parts), np.concatenate(pending.sizes)
        directory = paths.queue_directory(self._vhost, pending.name, pending.priority)
        start = 0
        while start < len(entries) and (not whole or len(entries) - start >= pending.segment_size):
            stop = min(start + pending.segment_size, len(entries))
            names = []
            for suffix, data in _segment_files(pending, entries.slice(start, stop - start)):
                names.append(f"{self._prefix}.{directory}.{len(pending.segments)}{suffix}")
                self._write(names[-1], [data])
            pending.segments.append((names, stop - start, int(sizes[start:stop].sum())))
            start = stop
        pending.parts, pending.sizes = [entries.slice(start)], [sizes[start:]]
        pending.count = len(entries) - start

    def _store(self, ids: npt.NDArray[np.void], records: pa.BinaryArray) -> None:
        """Appends records to message files, rolling as a node does: when a file's end has reached the limit."""
        offsets = offsets_of(records).astype(np.int64)
        data = data_of(records)
        start = 0
        while start < len(records):
            file = self._message_file
            if file is None:
                name = f"{self._prefix}.{len(self._message_files)}{paths.MESSAGE_SUFFIX}"
                file = self._message_file = AppendFile(f"{self._folder}/{name}")
                self._message_size = 0
            room = offsets[start] + self._settings.msg_store_file_size_limit - self._message_size
            stop = min(int(np.searchsorted(offsets[start + 1 :], room, side="left")) + start + 1, len(records))
            file.append(data[offsets[start] : offsets[stop]].data)
            rows = np.empty(stop - start, ets_dump.INDEX_ROW)
            rows["id"], rows["references"], rows["file"] = ids[start:stop], 1, len(self._message_files)
            rows["position"] = self._message_size + offsets[start:stop] - offsets[start]
            rows["size"] = offsets[start + 1 : stop + 1] - offsets[start:stop]
            self._index.append(rows)
            self._message_size += int(offsets[stop] - offsets[start])
            if self._message_size >= self._settings.msg_store_file_size_limit:
                self._close_message_file()
            start = stop

    def _close_message_file(self) -> None:
        file = self._message_file
        if file is None:
            return
        self._message_file = None
        self._whole.append(file)
        staged = self._note(file)
        self._message_files.append((staged.name, staged.size))

    def _write(self, name: str, parts: Iterable[bytes]) -> None:
        """Writes a file from its parts."""
        file = AppendFile(f"{self._folder}/{name}")
        self._whole.append(file)
        for part in parts:
            file.append(part)
        self._note(file)

    def _note(self, file: AppendFile) -> StagedFile:
        """Records a complete file as staged; it is synced to disk together with others."""
        file.flush()
        staged = StagedFile(file.path.rsplit("/", 1)[1], file.size, file.crc)
        self._files.append(staged)
        if len(self._whole) == FORCED_TOGETHER:
            self._force()
        return staged

    def _force(self) -> None:
        while self._whole:
            self._whole[0].finish()
            self._whole.pop(0).close()

    def finish(self) -> tuple[list[StagedFile], dict[str, Any]]:
        """Writes what is left. Returns the files, and what the commit must know about them, as JSON."""
        for pending in self._directories.values():
            if pending.count:
                self._write_segments(pending, whole=False)
        self._close_message_file()
        index = f"{self._prefix}.index"
        self._write(index, (rows.tobytes() for rows in self._index))
        self._force()
        queues = {
            directory: {
                "name": pending.name.hex(),
                "priority": pending.priority,
                "version": pending.version,
                "segments": pending.segments,
            }
            for directory, pending in self._directories.items()
        }
        return self._files, {"queues": queues, "messageFiles": self._message_files, "index": index}

    def close(self) -> None:
        """Closes open files, for a task that failed."""
        for file in (*self._whole, *([self._message_file] if self._message_file is not None else [])):
            file.close()
        self._whole, self._message_file = [], None


def _segment_files(pending: _Pending, entries: pa.BinaryArray) -> list[tuple[str, bytes]]:
    """The files of one segment with their suffixes: messages before the index that names them."""
    if pending.version == 1:
        return [(paths.SEGMENT_SUFFIX, encode_segment(entries))]
    index, store = encode_segment_v2(entries, pending.segment_size)
    return [(paths.STORE2_SUFFIX, store)] * bool(store) + [(paths.INDEX2_SUFFIX, index)]
