"""What one RocketMQ store serves at one moment: its queues, and plans for reading them.

`recovery` decides what a broker would serve. A plan is made in three steps: `selection` of queue offsets, `key_search`
if the request selects by keys, ids or addresses, and `partitioning`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property

import pyarrow as pa

from storage_core.errors import OptionError, UnsupportedFormatError, listing
from storage_core.files.open_files import OpenFiles
from storage_core.files.window import Window
from storage_core.formats.rocketmq.message import BLANK
from storage_core.formats.rocketmq.record_walk import Stop
from storage_core.rocketmq.disk.batch_queue import UNSERVED
from storage_core.rocketmq.disk.config_files import topic_table
from storage_core.rocketmq.disk.directory import Listing
from storage_core.rocketmq.read.batch_partition import batch_partitions
from storage_core.rocketmq.read.few_messages import few_messages
from storage_core.rocketmq.read.key_search import parts_to_read
from storage_core.rocketmq.read.partitioning import log_partitions, queue_partitions
from storage_core.rocketmq.read.selection import selected_queues, unlisted_of_compacted
from storage_core.rocketmq.recovery.queue_ranges import ServedQueues
from storage_core.rocketmq.schema import message_schema
from storage_core.store import Predicate, QueueInfo, QueueKey, Scan, ScanPartition, ScanRequest, Snapshot

HAS_KEYS = Predicate("key", "not blank")
"""What a broker requires of a message before it appends it to the log of a compacted queue (rocketmq.md 3.9)."""


class RocketSnapshot(Snapshot):
    """A listing and what a broker would serve of it. `serve` walks the log, so it is called only when needed."""

    def __init__(self, listing: Listing, serve: Callable[[], ServedQueues], store_name: str) -> None:
        self._listing = listing
        self._serve = serve
        self._store_name = store_name

    @cached_property
    def served(self) -> ServedQueues:
        """Files, recovery verdict and queues."""
        return self._serve()

    def queues(self) -> Sequence[QueueInfo]:
        """All queues that hold an entry, with their readable ranges."""
        return self.served.infos

    def topics(self, wanted: Sequence[str] = ()) -> frozenset[str]:
        """The topics of all queues, and those of `wanted` that only `topics.json` has: nothing was sent to them."""
        found = super().topics(wanted)
        return found if found.issuperset(wanted) else found | (topic_table(self._listing.root).keys() & set(wanted))

    def schema(self, request: ScanRequest) -> pa.Schema:
        """Native columns in the request's order. Raises OptionError for an unknown one."""
        return message_schema(request)

    def plan(self, request: ScanRequest) -> list[ScanPartition]:
        """Partitions that together hold each selected message once."""
        message_schema(request)
        if request.include_acked:
            raise OptionError("includeAcked", "true", "RocketMQ does not delete acknowledged messages; leave it out")
        store_name = request.store_name or self._store_name
        if request.scan is Scan.LOG:
            return log_partitions(request, self._listing, store_name)
        self._check_queues()
        served = self.served
        with OpenFiles() as files:
            selection = selected_queues(request, served, files)
            looked_up = parts_to_read(request, served, selection, files)
            partitions = queue_partitions(request, served, selection, looked_up, store_name, files)
            if selection.batched:
                partitions += batch_partitions(request, selection.batched, served, store_name, files)
                unlisted, listed = unlisted_of_compacted(selection, served, files)
                keyed = replace(request, predicates=(*request.predicates, HAS_KEYS))
                partitions += queue_partitions(keyed, served, unlisted, listed, store_name, files)
            return partitions

    def read(self, request: ScanRequest) -> Iterator[pa.RecordBatch]:
        """The rows of `plan`; a lookup that finds few messages returns them without a plan."""
        if request.keys is not None or request.message_ids is not None:
            message_schema(request)
            self._check_queues()
            with OpenFiles() as files:
                selection = selected_queues(request, self.served, files)
                name = request.store_name or self._store_name
                found = None if selection.batched else few_messages(request, self.served, selection, name, files)
            if found is not None:
                if found.num_rows:
                    yield found
                return
        yield from super().read(request)

    def _check_queues(self) -> None:
        if self._listing.rocksdb_queues:
            raise UnsupportedFormatError(
                f"{self._listing.root}/consumequeue: the queues are in RocksDB, which mqstore does not read; option "
                "scan=log reads every message of the commit log without them"
            )

    def offsets_at(self, request: ScanRequest) -> Mapping[QueueKey, int]:
        """By queue, the offset of the first message stored at or after the request's `start_ms`."""
        self._check_queues()
        with OpenFiles() as files:
            selection = selected_queues(request, self.served, files)
        return selection.starts

    def warnings(self) -> Sequence[str]:
        """Warnings about what a read through the queues leaves out: bytes after the end of the log, messages that a 5.x
        start with DLedger takes out of their queues, and messages of compacted topics.
        """
        lines = []
        left_out = self.bytes_after_end()
        if left_out:
            lines.append(
                f"{self._store_name}: up to {left_out} bytes of the commit log from physical offset "
                f"{self.served.verdict.log_end} on are not served, because a broker would discard them; option "
                "scan=log reads the intact records among them"
            )
        first, stop = self.served.verdict.unlisted
        if first < stop:
            lines.append(
                f"{self._store_name}: the messages between physical offsets {first} and {stop} are not served, as a "
                "5.x broker with DLedger removes them from their queues when it starts after a crash; option scan=log "
                "reads them"
            )
        if compacted := sorted({topic for (topic, _), queue in self.served.batched.items() if queue.is_compacted}):
            lines.append(
                f"{self._store_name}: of compacted topics ({listing(compacted)}) the rows are those that a broker "
                "serves, without messages whose key was sent again; option scan=log reads every message of the log"
            )
        if unserved := sorted(f"{key[0]}/{key[1]}" for key, queue in self.served.batched.items() if queue is UNSERVED):
            lines.append(
                f"{self._store_name}: of the compacted queues {listing(unserved)} a broker serves nothing, because the "
                "first file of entries has none, or the folder of the entries or of their log is missing; option "
                "scan=log reads their messages"
            )
        return lines

    def bytes_after_end(self) -> int:
        """The number of log bytes that a broker would cut: from an invalid record on, and in later files."""
        log, verdict = self.served.listing.log, self.served.verdict
        end = verdict.log_end
        if verdict.reason in (Stop.END, Stop.BLANK):
            return 0
        with OpenFiles() as files:
            window = Window(log, files)
            later = [file for file in log.files if file.base_offset >= end and file.size >= BLANK.size]
            filled = [f.size for f in later if window.load(f.base_offset, f.base_offset + BLANK.size).any()]
        here = log.file_at(end)
        return sum(filled) + (here.end - end if here else 0)
