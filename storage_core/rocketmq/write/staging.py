"""Stages one task's rows: encodes them, chooses their queues, hashes their keys for the index, and writes the files.

Addresses, queue offsets and the store time are left zero for `publish` to set; `preserve` keeps those of the rows.
The staged files: `.records` (records one after another), `.dispatch` (one struct per record), `.keys` (one hash per
key, in index order), and with preserve `.preserved` and `.named`. Rows that are committed by the process that has them
in memory need no `.records`: `KeptRows` holds them, and their records are encoded when the log is written.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from storage_core.arrays import as_mask
from storage_core.errors import shorten
from storage_core.files import system
from storage_core.files.append_file import AppendFile
from storage_core.formats.byte_search import find_all
from storage_core.formats.grouping import distinct_below
from storage_core.formats.java_hash import java_hashes
from storage_core.formats.layout import Positions, struct
from storage_core.formats.rocketmq.encode import Encoded, Rows, encode, lengths
from storage_core.formats.rocketmq.hosts import one_host
from storage_core.formats.rocketmq.message import BLANK
from storage_core.formats.rocketmq.paths import SCHEDULE_TOPIC
from storage_core.formats.rocketmq.properties import KEYS, MULTI_OFFSETS, TAGS, UNIQ_KEY, PropertyColumn, delay_ms
from storage_core.formats.rocketmq.property_pairs import Stored, index_keys, stored
from storage_core.formats.spans import data_of, offsets_of
from storage_core.rocketmq.recovery.dispatch import has_entry
from storage_core.rocketmq.recovery.light_queues import named_queues
from storage_core.rocketmq.write.input_rows import (
    BORN_HOST,
    PRESERVED,
    GivenColumns,
    Message,
    check_columns,
    check_folder_names,
    check_places,
    checked,
    need_values,
    new_ids,
)
from storage_core.rocketmq.write.options import MAX_PROPERTIES_SIZE, MAX_RECORD_SIZE, WriteSettings
from storage_core.store import QueueKey, StagedFile, StagedPart

DISPATCH = struct(
    "staged record",
    ("size", "<i4", "TOTALSIZE"),
    ("queue", "<i4", "number of the queue in the task's list"),
    ("tags_code", "<i8", "tagsCode"),
    ("sys_flag", "<u2", "the low bits of SYSFLAG"),
    ("key_count", "<u2", "keys for the index"),
    size=20,
)

PRESERVED_OFFSETS = struct(
    "preserved offsets",
    ("physical_offset", "<i8", "the record's own address"),
    ("queue_offset", "<i8", "the record's own QUEUEOFFSET"),
    ("store_ms", "<i8", "the record's own store time"),
    size=24,
)

NAMED_ENTRY = struct(
    "entry of a named queue",
    ("row", "<i8", "number of the record in the task"),
    ("queue_offset", "<i8", "the offset that the record gives for this queue"),
    ("queue", "<i4", "number of the queue in the task's list of named queues"),
    size=20,
)
"""An entry that a record requests in a queue that it names besides its own (rocketmq.md 3.8)."""

RECORDS = "records"
"""The staged file that is not synced: its bytes are forced into the log before the commit point."""

BATCH_SIZE = 8 << 20
MOST_KEPT = 128 << 20
ROW_SIZE = 64
"""Bytes that one row takes in the columns of numbers, topics and hosts."""
MOST_QUEUES = 1024
"""The most queues that the column queueId alone gives a topic; topics.json or the option may set more."""


@dataclass(frozen=True)
class Batch:
    """A batch ready to be staged."""

    rows: Rows
    tags_codes: npt.NDArray[np.int64]
    queues: Positions
    key_counts: npt.NDArray[np.int64]
    hashes: npt.NDArray[np.int32]
    named: npt.NDArray[Any] | None = None


class KeptRows:
    """The rows of a task whose records are encoded when the log is written: at most MOST_KEPT bytes beyond what the
    caller has in memory anyway. Each row is returned once, in order.
    """

    def __init__(self) -> None:
        self._rows: deque[Rows] = deque()
        self._size = self._at = 0

    @property
    def is_full(self) -> bool:
        """Whether no more rows are to be kept."""
        return self._size > MOST_KEPT

    def add(self, rows: Rows, batch: pa.RecordBatch) -> None:
        """Keeps the rows of one of the caller's batches."""
        self._rows.append(rows)
        self._size += int(lengths(rows.properties).sum()) + ROW_SIZE * len(rows)
        if not _shares(rows.bodies, batch):
            self._size += int(lengths(rows.bodies).sum())

    def take(self, count: int) -> Iterator[Rows]:
        """The next `count` rows, in pieces."""
        while count:
            piece = self._rows[0]
            stop = min(self._at + count, len(piece))
            yield piece.part(self._at, stop)
            count -= stop - self._at
            self._at = stop
            if stop == len(piece):
                self._rows.popleft()
                self._at = 0

    def take_all(self) -> Iterator[Rows]:
        """All rows, as they were added."""
        while self._rows:
            yield self._rows.popleft()


def _shares(texts: pa.BinaryArray, batch: pa.RecordBatch) -> bool:
    """Whether a column shares its bytes with a column of a batch."""
    data = texts.buffers()[2]
    there = (buffer for column in batch.columns for buffer in column.buffers() if buffer is not None)
    return data is None or any(buffer.address == data.address for buffer in there)


@dataclass
class Task:
    """The state of one task: its queues so far, and the round-robin position of each topic."""

    settings: WriteSettings
    queue_counts: Mapping[str, int]
    partition: int
    log_file_size: int
    numbers: dict[QueueKey, int] = field(default_factory=dict)
    named: dict[QueueKey, int] = field(default_factory=dict)
    turns: dict[str, int] = field(default_factory=dict)
    row: int = 0
    nulls: int = 0

    def prepare(self, batch: pa.RecordBatch) -> Batch:
        """Checks a batch and encodes what can be encoded so far. Raises RowError, OptionError."""
        if not self.row:
            check_columns(batch.schema.names, self.settings)
        given = GivenColumns(batch, self.row)
        made = self._preserved(given) if self.settings.preserve else self._plain(given)
        self.row += batch.num_rows
        self.nulls += given.nulls
        limit = min(MAX_RECORD_SIZE, self.log_file_size - BLANK.size)
        if self.settings.preserve:
            limit = self.log_file_size - BLANK.size
        if int(made.rows.sizes.max(initial=0)) > limit:
            row = int((made.rows.sizes > limit).argmax())
            size, body = int(made.rows.sizes[row]), int(lengths(made.rows.bodies)[row])
            rule = f"its record has {size} bytes, the limit is {limit}"
            raise given.error("body", row, f"{body} bytes long", rule)
        return made

    def _plain(self, given: GivenColumns) -> Batch:
        settings = self.settings
        message = checked(given, settings)
        assigns = settings.assign_id and message.pairs.value_of(UNIQ_KEY).null_count
        ids = new_ids(given.count) if assigns else pa.nulls(given.count, pa.string())
        made = stored(message.topics, message.pairs, message.key, message.tags, ids)
        sizes = lengths(made.properties)
        if int(sizes.max(initial=0)) > MAX_PROPERTIES_SIZE:
            row = int((sizes > MAX_PROPERTIES_SIZE).argmax())
            rule = f"the properties of a message have at most {MAX_PROPERTIES_SIZE} bytes"
            raise given.error("properties", row, f"{sizes[row]} bytes long", rule)
        queue_ids = self._choose(given, message)
        rows = Rows(
            topics=message.topics,
            bodies=message.bodies,
            properties=made.properties,
            born_hosts=given.hosts("bornHost", BORN_HOST),
            store_hosts=one_host(settings.store_host, given.count),
            queue_id=queue_ids,
            flag=given.numbers("flag", pa.int32(), 0),
            sys_flag=0,
            born_ms=given.times_ms("bornTimestamp", time.time_ns() // 1_000_000),
            reconsume_times=given.numbers("reconsumeTimes", pa.int32(), 0),
        )
        return self._batch(given, rows, made, pa.nulls(given.count, pa.string()))

    def _preserved(self, given: GivenColumns) -> Batch:
        need_values(given, dict.fromkeys(PRESERVED, "preserve=true needs every column of the record"))
        check_places(given)
        topics, raw = given.topics(), given.binary("rawProperties")
        check_folder_names(given, topics)
        packed = pc.binary_join_element_wise(b"\x02", raw, b"")
        bounds = offsets_of(packed).astype(np.int64)
        data = data_of(packed)
        read = PropertyColumn(data, bounds[:-1] + 1, np.diff(bounds) - 1)
        rows = Rows(
            topics=topics,
            bodies=given.binary("body"),
            properties=raw,
            born_hosts=given.hosts("bornHost", BORN_HOST),
            store_hosts=given.hosts("storeHost", self.settings.store_host),
            queue_id=given.numbers("queueId", pa.int32(), 0),
            flag=given.numbers("flag", pa.int32(), 0),
            sys_flag=given.numbers("sysFlag", pa.int32(), 0),
            born_ms=given.times_ms("bornTimestamp", 0),
            reconsume_times=given.numbers("reconsumeTimes", pa.int32(), 0),
            queue_offset=given.numbers("queueOffset", pa.int64(), 0),
            physical_offset=given.numbers("physicalOffset", pa.int64(), 0),
            store_ms=given.times_ms("storeTimestamp", 0),
            prepared_offset=given.numbers("preparedTransactionOffset", pa.int64(), 0),
        )
        counts, hashes = index_keys(topics, read.values(UNIQ_KEY), read.values(KEYS), rows.sys_flag)
        codes = java_hashes(read.values(TAGS)).astype(np.int64)
        made = self._batch(given, rows, Stored(raw, counts, hashes, codes), read.values("DELAY"))
        return replace(made, named=self._named(read, rows) if len(find_all(data, MULTI_OFFSETS.encode())) else None)

    def _named(self, properties: PropertyColumn, rows: Rows) -> npt.NDArray[Any] | None:
        found = named_queues(properties, rows.queue_id, has_entry(rows.sys_flags))
        if found is None:
            return None
        entries = np.empty(len(found.rows), NAMED_ENTRY.dtype)
        entries["queue"] = _queue_numbers(found.topics.dictionary_encode(), found.queue_ids, self.named)
        entries["row"], entries["queue_offset"] = self.row + found.rows, found.queue_offsets
        return entries

    def _batch(self, given: GivenColumns, rows: Rows, made: Stored, delays: pa.StringArray) -> Batch:
        counts, codes = made.key_counts, made.tags_codes
        if int(counts.max(initial=0)) > 0xFFFF:
            row = int((counts > 0xFFFF).argmax())
            raise given.error("key", row, f"{counts[row]} words", "a message has at most 65535 keys")
        for row in _rows_of(rows.topics, SCHEDULE_TOPIC):
            delay = delay_ms(delays[row].as_py())
            if delay is None:
                value = shorten(repr(delays[row].as_py()))
                raise given.error("DELAY", row, value, "it must be a whole number, a broker's log ends there otherwise")
            if delay:
                codes[row] = int(np.asarray(rows.store_ms)[row]) + delay
        return Batch(rows, codes, _queue_numbers(rows.topics, rows.queue_id, self.numbers), counts, made.hashes)

    def _choose(self, given: GivenColumns, message: Message) -> npt.NDArray[np.int32]:
        """The queue of each row: its own, else by key as in RocketMQ, else round robin (interface.md 15, 17)."""
        chosen = given.numbers("queueId", pa.int32(), -1).copy()
        names = message.topics.dictionary.to_pylist()
        self._refuse_many_queues(given, message, names, chosen)
        open_rows = np.flatnonzero(chosen < 0)
        if not len(open_rows):
            return chosen
        counts = self._queue_counts_of(names)
        keys = pc.coalesce(message.key, message.pairs.value_of(KEYS)) if len(message.pairs.names) else message.key
        topic = message.topics.indices.to_numpy()[open_rows]
        keyed = as_mask(keys.is_valid())[open_rows]
        hashes = java_hashes(keys)[open_rows]
        chosen[open_rows] = np.abs(np.fmod(hashes, counts[topic]))
        for number, name in enumerate(names if not keyed.all() else []):
            rows = open_rows[(topic == number) & ~keyed]
            if len(rows):
                turn = self.turns.get(name, self.partition)
                chosen[rows] = (turn + np.arange(len(rows))) % counts[number]
                self.turns[name] = turn + len(rows)
        return chosen

    def _queue_counts_of(self, names: list[str]) -> npt.NDArray[np.int32]:
        return np.array([max(self.queue_counts.get(name, self.settings.queues), 1) for name in names], np.int32)

    def _refuse_many_queues(
        self, given: GivenColumns, message: Message, names: list[str], queue_ids: npt.NDArray[np.int32]
    ) -> None:
        """Raises RowError for a queue that would give a topic more queues than anybody requested (interface.md 17)."""
        if queue_ids.max(initial=0) < MOST_QUEUES:
            return
        limits = np.maximum(np.maximum(self._queue_counts_of(names), self.settings.queues), MOST_QUEUES)
        wrong = np.flatnonzero(queue_ids >= limits[message.topics.indices.to_numpy()])
        if len(wrong):
            limit = int(limits[message.topics.indices.to_numpy()[wrong[0]]])
            rule = f"the topic would get more than {limit} queues; if that is meant, give option queues"
            raise given.error("queueId", wrong[0], str(int(queue_ids[wrong[0]])), rule)


def _queue_numbers(topics: pa.DictionaryArray, queue_ids: npt.NDArray[Any], known: dict[QueueKey, int]) -> Positions:
    """The number of each row's queue in `known`, to which new queues are added."""
    names = topics.dictionary.to_pylist()
    least = int(queue_ids.min(initial=0))
    width = int(queue_ids.max(initial=0)) - least + 1
    pairs = topics.indices.to_numpy().astype(np.int64) * width + (queue_ids - np.int64(least))
    distinct, inverse = distinct_below(len(names) * width, pairs)
    keys = ((names[pair // width], pair % width + least) for pair in distinct.tolist())
    return np.array([known.setdefault(key, len(known)) for key in keys], np.int64)[inverse]


def _rows_of(topics: pa.DictionaryArray, name: str) -> list[int]:
    names = topics.dictionary.to_pylist()
    return np.flatnonzero(topics.indices.to_numpy() == names.index(name)).tolist() if name in names else []


def stage_task(
    folder: str,
    stem: str,
    task: Task,
    batches: Iterator[pa.RecordBatch],
    partition: int,
    kept: KeptRows | None = None,
) -> StagedPart:
    """Stages all rows of a task in files `<stem>.*` of `folder`; removes these files if a row is refused.

    `kept` receives the rows instead of the file of records, unless there are too many.
    """
    kinds = ["dispatch", "keys", *(["preserved", "named"] if task.settings.preserve else [])]
    files: dict[str, AppendFile] = {}
    first: int | None = None

    def create(kind: str) -> None:
        files[kind] = AppendFile(os.path.join(folder, f"{stem}.{kind}"), forced=kind != RECORDS)

    try:
        for kind in kinds if kept is not None else [RECORDS, *kinds]:
            create(kind)
        for piece in (piece for batch in batches for piece in _pieces(batch)):
            made = task.prepare(piece)
            if first is None and task.settings.preserve and len(made.rows):
                first = int(np.asarray(made.rows.physical_offset)[0])
            _append(files, made)
            if RECORDS in files or kept is None:
                _append_records(files[RECORDS], made.rows)
                continue
            kept.add(made.rows, piece)
            if kept.is_full:
                create(RECORDS)
                for rows in kept.take_all():
                    _append_records(files[RECORDS], rows)
        for file in files.values():
            file.finish()
        system.sync_folder(folder)
    except BaseException:
        for file in files.values():
            with suppress(FileNotFoundError):  # the job was aborted meanwhile and its folder removed
                system.unlink(file.path)
        raise
    finally:
        for file in files.values():
            file.close()
    staged = tuple(StagedFile(os.path.basename(file.path), file.size, file.crc) for file in files.values())
    queues, named = ([list(key) for key in keys] for keys in (task.numbers, task.named))
    detail = {"queues": queues, "named": named, "first": first, "nulls": task.nulls}
    return StagedPart(partition, task.row, staged, detail)


def _pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Slices of the batch whose records fit into memory that was just used."""
    if not batch.num_rows:
        return
    step = max(1, min(batch.num_rows, BATCH_SIZE * batch.num_rows // max(batch.nbytes, 1)))
    for start in range(0, batch.num_rows, step):
        yield batch.slice(start, step)


def _append_records(file: AppendFile, rows: Rows) -> None:
    encoded: Encoded = encode(rows, file.room)
    file.append(memoryview(encoded.data)[: int(encoded.bounds[-1])], at_once=True)


def _append(files: dict[str, AppendFile], made: Batch) -> None:
    count = len(made.rows)
    dispatch = np.zeros(count, DISPATCH.dtype)
    dispatch["size"], dispatch["queue"], dispatch["tags_code"] = made.rows.sizes, made.queues, made.tags_codes
    dispatch["sys_flag"], dispatch["key_count"] = made.rows.sys_flags & 0xFFFF, made.key_counts
    files["dispatch"].append(dispatch.data)
    files["keys"].append(np.ascontiguousarray(made.hashes, "<i4").data)
    if "preserved" in files:
        preserved = np.empty(count, PRESERVED_OFFSETS.dtype)
        preserved["physical_offset"], preserved["queue_offset"] = (
            made.rows.physical_offset,
            made.rows.queue_offset,
        )
        preserved["store_ms"] = made.rows.store_ms
        files["preserved"].append(preserved.data)
    if made.named is not None:
        files["named"].append(made.named.data)
