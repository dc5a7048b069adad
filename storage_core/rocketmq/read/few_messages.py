"""The rows of a lookup that finds a handful of plain messages: read once, checked and converted one by one.

Returns what a plan and its partitions would read, without making them. In unusual cases (a record that is not plain or
has a flaw, an entry that is not the record's own, something left to scan) it returns nothing, and a plan is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
from isal.isal_zlib import crc32

from storage_core.files import system
from storage_core.files.open_files import OpenFiles
from storage_core.formats.checksum import MASK
from storage_core.formats.columns import YEAR_1_MS, YEAR_10000_MS, shown_host
from storage_core.formats.compression import InflateError, inflate
from storage_core.formats.rocketmq.consumequeue import QUEUE_ENTRY
from storage_core.formats.rocketmq.message import COMPRESSED, COMPRESSION_MASK, COMPRESSION_SHIFT
from storage_core.formats.rocketmq.properties import KEYS, MULTI_DISPATCH, TAGS, UNIQ_KEY
from storage_core.rocketmq.disk.plain_record import PlainRecord
from storage_core.rocketmq.index.few_keys import few_records
from storage_core.rocketmq.index.index_cache import cached_index
from storage_core.rocketmq.read.key_search import indexed_topics, tell
from storage_core.rocketmq.read.predicates import terms_of
from storage_core.rocketmq.read.queue_search import NEAR
from storage_core.rocketmq.read.selection import Selection
from storage_core.rocketmq.recovery.pull_gaps import ENTRIES_PER_PULL
from storage_core.rocketmq.recovery.queue_ranges import ServedQueues
from storage_core.rocketmq.schema import message_schema
from storage_core.store import Mode, QueueKey, Scan, ScanRequest

FAR = -1 << 62


@dataclass(frozen=True)
class _Message:
    record: PlainRecord
    body: bytes
    store_name: str


def few_messages(
    request: ScanRequest, served: ServedQueues, selection: Selection, store_name: str, files: OpenFiles
) -> pa.RecordBatch | None:
    """The rows of a lookup, in the order of the log; None if a plan is needed. Raises CorruptionError."""
    verdict, is_local = served.verdict, system.is_local(served.listing.root)
    terms = terms_of(request) if is_local and _is_plain(request) and not selection.has_unlisted else None
    if terms is None or any(verdict.log_start <= named < verdict.log_end for named in terms.physical_offsets):
        return None
    topics, log = indexed_topics(request, served), served.listing.log
    index = cached_index(served.listing.root, log, verdict.log_start, verdict.log_end)
    found = few_records(index, topics, terms.keys, log, verdict.log_start, verdict.log_end, files)
    if found is None:
        return None
    messages = []
    for record in found.records:
        body = _checked_body(record, request)
        if body is None or not _is_listed(served, selection, record, files):
            return None
        if record.queue in selection.numbers and _matches(record, request):
            messages.append(_Message(record, body, store_name))
    if _has_neighbours(found.records):
        return None
    tell(terms, topics, found.pages, index, len(found.records), 0)
    return _rows(messages, request.columns)


def _rows(messages: Sequence[_Message], columns: tuple[str, ...] | None) -> pa.RecordBatch:
    # Building one array of structs takes half as long as building an array for each column.
    kind = _row_type(columns)
    rows = [{name: show(each) for name, show in _shown_in(columns)} for each in messages]
    return pa.RecordBatch.from_struct_array(pa.array(rows, kind))


@lru_cache
def _row_type(columns: tuple[str, ...] | None) -> pa.StructType:
    return pa.struct(list(message_schema(ScanRequest(columns=columns))))


@lru_cache
def _shown_in(columns: tuple[str, ...] | None) -> list[tuple[str, Callable[[_Message], Any]]]:
    return [(field.name, _SHOWN[field.name]) for field in _row_type(columns)]


def _is_plain(request: ScanRequest) -> bool:
    """Whether a request looks up keys or ids, with no other condition than queues, offsets and store times."""
    is_lookup = (request.keys is None) != (request.message_ids is None)
    return (
        is_lookup and request.use_index and request.scan is Scan.QUEUES and request.mode is not Mode.PERMISSIVE
        and request.tags is None and not request.predicates and not request.include_acked
    )  # fmt: skip


def _matches(record: PlainRecord, request: ScanRequest) -> bool:
    if request.keys is not None:
        return not set(request.keys).isdisjoint(record.words())
    return record.pairs.get(UNIQ_KEY) in (request.message_ids or ())


def _checked_body(record: PlainRecord, request: ScanRequest) -> bytes | None:
    """The body as a client gets it; None when it is damaged."""
    body, flags = record.body, record.head["sys_flag"]
    if request.verify_crc and body and crc32(body) & MASK != record.head["body_crc"]:
        return None
    if flags & COMPRESSED and body and request.decompress:
        try:
            return inflate(body, flags >> COMPRESSION_SHIFT & COMPRESSION_MASK)
        except InflateError:
            return None
    return body


def _is_listed(served: ServedQueues, selection: Selection, record: PlainRecord, files: OpenFiles) -> bool:
    """Whether no other queue lists a record, and its own queue, if selected, lists it at the queue offset that it
    states, where a pull gets it.
    """
    if MULTI_DISPATCH in record.pairs:
        return False
    number = selection.numbers.get(record.queue)
    if number is None:
        return True
    queue, at = selection.queues[number], record.head["queue_offset"]
    file = queue.chain.file_at(at * QUEUE_ENTRY.size)
    if file is None or not selection.on_disk.start[number] <= at < selection.on_disk.stop[number]:
        return False
    back = min(at - file.base_offset // QUEUE_ENTRY.size, ENTRIES_PER_PULL)
    entries = queue.entries(files, at - back, at + 1)
    starts, sizes = entries["physical_offset"].astype(np.int64), entries["size"].astype(np.int64)
    verdict, ends = served.verdict, starts + sizes
    readable = (sizes > 0) & (starts >= verdict.log_start) & (ends <= verdict.log_end)
    own = starts[-1] == record.head["physical_offset"] and sizes[-1] == record.head["total_size"]
    return bool(own and readable.all() and served.listing.log.contains(starts, ends).all())


def _has_neighbours(records: Sequence[PlainRecord]) -> bool:
    """Whether a plan would also read the entries between some of these records in one queue."""
    last: dict[QueueKey, int] = {}
    for record in records:
        distance = record.head["queue_offset"] - last.get(record.queue, FAR)
        if distance != 1 and abs(distance) <= NEAR + 1:
            return True
        last[record.queue] = record.head["queue_offset"]
    return False


# -- column values of one message


def _head(name: str) -> Callable[[_Message], Any]:
    return lambda message: message.record.head[name]


def _time(name: str) -> Callable[[_Message], Any]:
    def micros(message: _Message) -> int | None:
        ms = message.record.head[name]
        return ms * 1000 if YEAR_1_MS <= ms < YEAR_10000_MS else None

    return micros


def _pair(name: str) -> Callable[[_Message], Any]:
    return lambda message: message.record.pairs.get(name)


def _offset_id(message: _Message) -> str:
    record = message.record
    return (record.hosts[1] + record.head["physical_offset"].to_bytes(8, "big")).hex().upper()


def _words(message: _Message) -> list[str] | None:
    return message.record.words() if KEYS in message.record.pairs else None


_SHOWN: dict[str, Callable[[_Message], Any]] = {
    "topic": lambda message: message.record.topic,
    "queueId": _head("queue_id"),
    "queueOffset": _head("queue_offset"),
    "key": _pair(KEYS),
    "keys": _words,
    "tags": _pair(TAGS),
    "body": lambda message: message.body,
    "properties": lambda message: list(message.record.pairs.items()),
    "bornTimestamp": _time("born_ms"),
    "storeTimestamp": _time("store_ms"),
    "msgId": lambda message: message.record.pairs.get(UNIQ_KEY) or _offset_id(message),
    "offsetMsgId": _offset_id,
    "bornHost": lambda message: shown_host(message.record.hosts[0]),
    "storeHost": lambda message: shown_host(message.record.hosts[1]),
    "sysFlag": _head("sys_flag"),
    "flag": _head("flag"),
    "reconsumeTimes": _head("reconsume_times"),
    "preparedTransactionOffset": _head("prepared_offset"),
    "bodyCrc": _head("body_crc"),
    "physicalOffset": _head("physical_offset"),
    "size": _head("total_size"),
    "rawProperties": lambda message: message.record.properties,
    "store": lambda message: message.store_name,
}
