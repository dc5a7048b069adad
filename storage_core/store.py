"""The interface of the storage core: what every engine offers, and the plain values that travel through it.

The connector and the command line use this module, `open_store` and `storage_core.errors`, and nothing deeper; what an
engine does behind these methods belongs to it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import pyarrow as pa

from storage_core.closable import Closable
from storage_core.errors import OptionError, UnsupportedFormatError
from storage_core.finding import Finding
from storage_core.frame import as_table


class Mode(Enum):
    """What becomes of a message that cannot be decoded or fails its checksum."""

    FAILFAST = "FAILFAST"
    DROPMALFORMED = "DROPMALFORMED"
    PERMISSIVE = "PERMISSIVE"


class Scan(Enum):
    """Through the queues, or every record of the log in physical order."""

    QUEUES = "queues"
    LOG = "log"


QueueKey = tuple[str, int]
"""(topic, queue id); for RabbitMQ (queue name, 0)."""

EARLIEST, LATEST = -2, -1


@dataclass(frozen=True)
class OffsetBound:
    """Where a read starts or ends in each queue.

    `offsets` holds absolute queue offsets, EARLIEST or LATEST for the queues it names; the others take `default`.
    `last` asks for the last so many messages of each queue, `group` for where a consumer group stands.
    """

    default: int = EARLIEST
    offsets: Mapping[QueueKey, int] = field(default_factory=dict)
    last: int | None = None
    group: str | None = None


@dataclass(frozen=True)
class Predicate:
    """One filter `column op value`, as pushed down: every message for which it is not true may be left out.

    `op` is one of `=`, `!=`, `<`, `<=`, `>`, `>=`, `in`, `not in`, `is null`, `is not null`, `starts with`,
    `not starts with`, `contains`. Times are epoch microseconds. `any of` names no column: its value is a tuple of
    tuples of predicates, and one of these must hold as a whole.
    """

    column: str
    op: str
    value: Any = None


FEW_ROUNDS = 8
"""From so many tasks a core on, one core that waits for the last of them does not matter."""


@dataclass(frozen=True)
class ScanRequest:
    """What to read. Every field narrows; the defaults read everything that a stock broker would serve.

    `hidden_property` is a RocketMQ property that the column `properties` leaves out.
    """

    columns: tuple[str, ...] | None = None
    topics: tuple[str, ...] | None = None
    topic_pattern: str | None = None
    assign: tuple[QueueKey, ...] | None = None
    start: OffsetBound = OffsetBound(EARLIEST)
    stop: OffsetBound = OffsetBound(LATEST)
    start_ms: int | None = None
    stop_ms: int | None = None
    keys: tuple[str, ...] | None = None
    message_ids: tuple[str, ...] | None = None
    tags: tuple[str, ...] | None = None
    predicates: tuple[Predicate, ...] = ()
    scan: Scan = Scan.QUEUES
    mode: Mode = Mode.FAILFAST
    verify_crc: bool = True
    decompress: bool = True
    fail_on_data_loss: bool = True
    use_index: bool = True
    include_acked: bool = False
    min_partitions: int = 1
    max_records_per_partition: int | None = None
    max_bytes_per_partition: int = 256 << 20
    cores: int = 1
    store_name: str | None = None
    hidden_property: str | None = None

    def partition_count(self, total_bytes: int) -> int:
        """How many partitions so many bytes get, before any is cut at the most records.

        A few more than `cores` are made a multiple of it: else some cores have nothing to do while the last tasks run.
        """
        count = max(self.min_partitions, -(-total_bytes // max(self.max_bytes_per_partition, 1)), 1)
        return -(-count // self.cores) * self.cores if self.cores < count < FEW_ROUNDS * self.cores else count


@dataclass(frozen=True)
class QueueInfo:
    """One queue and its half-open range of readable offsets."""

    topic: str
    queue_id: int
    start: int
    stop: int


@dataclass(frozen=True)
class Definitions:
    """What a node must know to serve a store: the `document` it imports, the store's `folder` among virtual hosts."""

    document: Mapping[str, Any]
    folder: str


@dataclass(frozen=True)
class StoreState:
    """How a store was left, and what its reader makes of that.

    `version`: whose rules are followed; `running`: a broker has the store open; `clean`: it was stopped cleanly.
    A broker's start would cut up to `cut_bytes` bytes of messages, from the address `cut_offset` of the log on.
    `unfinished_write`: the next write finishes a committed job. `delay_offsets`: of each delay level's next message.
    `repairable`: a first look finds damage that a repair mends. `replicated`: the nodes of a group share the log.
    """

    version: str
    running: bool
    clean: bool
    cut_bytes: int = 0
    cut_offset: int | None = None
    unfinished_write: bool = False
    delay_offsets: Mapping[int, int] = field(default_factory=dict)
    repairable: bool = False
    due_ms: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    replicated: bool = False


class ScanPartition(ABC):
    """A picklable piece of a plan: all that a reader on another machine needs. It holds ranges, never entries."""

    @abstractmethod
    def read(self) -> Iterator[pa.RecordBatch]:
        """The rows, in batches of the request's schema: a small first one, then 4k to 16k rows and at most 16 MB.

        Raises CorruptionError (FAILFAST), DataLossError when files vanished. Never touches a file's times.
        """

    @property
    def estimated_bytes(self) -> int:
        """Bytes of log that reading will touch, for logging and balancing."""
        return 0

    @property
    def estimated_rows(self) -> int:
        """Messages that reading will look at, for logging; 0 where nobody counted."""
        return 0

    @property
    def file_count(self) -> int:
        """Files of the log and of queues that reading may touch, for logging; 0 where nobody counted."""
        return 0

    def files(self) -> Sequence[str]:
        """Their paths, and those of every other file that reading may touch."""
        return ()


class Snapshot(ABC):
    """What a store serves at one moment. Consistent and read-only; taking one writes nothing."""

    @abstractmethod
    def queues(self) -> Sequence[QueueInfo]:
        """All queues with their readable ranges, sorted by topic and queue id."""

    def topics(self, wanted: Sequence[str] = ()) -> frozenset[str]:
        """Names of all topics. `wanted` helps a store that has only hashes of some names to recognise these."""
        return frozenset(queue.topic for queue in self.queues())

    @abstractmethod
    def schema(self, request: ScanRequest) -> pa.Schema:
        """Arrow schema of the rows of `request`, in the request's column order. OptionError for an unknown column."""

    @abstractmethod
    def plan(self, request: ScanRequest) -> list[ScanPartition]:
        """Partitions that together hold each selected message once.

        Raises OptionError (a topic or queue that is not there, with the names that are), OffsetOutOfRangeError,
        DataLossError, UnsupportedFormatError.
        """

    def read(self, request: ScanRequest) -> Iterator[pa.RecordBatch]:
        """The rows of all partitions of `plan`. Raises what planning and reading raise."""
        for partition in self.plan(request):
            yield from partition.read()

    def offsets_at(self, request: ScanRequest) -> Mapping[QueueKey, int]:
        """For each queue that a request selects, the offset of the first message stored at or after its `start_ms`.

        Raises OptionError for a topic or queue that is not there, UnsupportedFormatError where messages have no time.
        """
        del request
        raise UnsupportedFormatError("RabbitMQ notes no time at which a message was stored")

    def warnings(self) -> Sequence[str]:
        """One line for each thing a user should know before trusting the rows, such as bytes that recovery cuts."""
        return ()


@dataclass(frozen=True)
class StagedFile:
    """A file that a task staged: its name in the job's staging folder, its length in bytes, its CRC-32."""

    name: str
    size: int
    crc: int


@dataclass(frozen=True)
class StagedPart:
    """What one task staged, as its message to the driver says it. `detail` is the engine's, and JSON."""

    partition: int
    rows: int
    files: tuple[StagedFile, ...]
    detail: Mapping[str, Any]


class WriteJob(ABC):
    """One atomic job: tasks stage, then one process commits or aborts. Picklable.

    `warnings`, of the commit: one line for each thing that a user should know.
    """

    warnings: Sequence[str] = ()

    @abstractmethod
    def stage(
        self, batches: Iterator[pa.RecordBatch], partition: int = 0, attempt: int = 0, task: int = 0
    ) -> StagedPart:
        """Writes the rows of one task aside. A bad row raises RowError; nothing of the task stays then."""

    @abstractmethod
    def commit(self, parts: Sequence[StagedPart]) -> int:
        """Puts all rows into the store: tasks in the order of their partitions. Returns the number of rows.

        Raises StoreLockedError, OptionError, MqStoreError: nothing was written then, unless the text says that the
        job is committed and will be finished at the next opening for writing.
        """

    def write(self, batches: Iterator[pa.RecordBatch]) -> int:
        """Stages and commits rows that this process has in memory."""
        return self.commit([self.stage(batches)])

    @abstractmethod
    def abort(self) -> None:
        """Drops what was staged. Never undoes a commit, never raises for what is not there."""


class Store(Closable):
    """One directory that one broker, node or vhost would own. `queue_type`: only RabbitMQ has others than classic."""

    engine: str
    path: str
    queue_type: str = "classic"

    @property
    def name(self) -> str:
        """Last part of the path."""
        return self.path.rstrip("/").rsplit("/", 1)[-1]

    @property
    def virtual_host(self) -> str | None:
        """Name of the virtual host that owns the store; None where an engine has none."""
        return None

    @property
    def traffic(self) -> tuple[int, int]:
        """Requests over the network that reads of this process have made so far, and bytes; zeros for a local store."""
        return 0, 0

    def object_sizes(self) -> Sequence[int] | None:
        """Lengths of the objects of a remote store; None for a local one, whose files have holes."""
        return None

    @property
    def virtual_hosts(self) -> frozenset[str]:
        """Names of all virtual hosts that have queues in the store."""
        return frozenset() if self.virtual_host is None else frozenset({self.virtual_host})

    @abstractmethod
    def snapshot(self) -> Snapshot:
        """What the store serves now."""

    @abstractmethod
    def state(self) -> StoreState:
        """How the store was left."""

    @abstractmethod
    def view_schema(self, name: str) -> pa.Schema:
        """Schema of a view; OptionError with the names of the views when there is none called `name`."""

    @abstractmethod
    def view(self, name: str, request: ScanRequest | None = None) -> Iterator[pa.RecordBatch]:
        """The rows of a view (`queues`, `topics`, `segments`, `index`, `offsets`, `damage`)."""

    def queues(self) -> Sequence[QueueInfo]:
        """All queues with their readable ranges."""
        return self.snapshot().queues()

    def read(
        self, topic: str, queue_id: int | None = None, start: int = EARLIEST, stop: int = LATEST, **options: Any
    ) -> Iterator[pa.RecordBatch]:
        """Messages [start, stop) of one queue, in order, in native columns; of all queues of the topic without
        `queue_id`. `options` are fields of a ScanRequest. OptionError for offsets without a queue.
        """
        if queue_id is None:
            if (start, stop) != (EARLIEST, LATEST):
                raise OptionError("queue_id", "None", "offsets belong to one queue; give its number")
            request = ScanRequest(topics=(topic,), **options)
        else:
            bounds = OffsetBound(EARLIEST, {(topic, queue_id): start}), OffsetBound(LATEST, {(topic, queue_id): stop})
            request = ScanRequest(assign=((topic, queue_id),), start=bounds[0], stop=bounds[1], **options)
        yield from self.snapshot().read(request)

    def find(
        self, key: str | None = None, msg_id: str | None = None, topic: str | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Messages by key or id, through the index files where they can be proven right."""
        keys, ids, topics = (None if word is None else (word,) for word in (key, msg_id, topic))
        yield from self.snapshot().read(ScanRequest(keys=keys, message_ids=ids, topics=topics))

    def begin_job(self, columns: Sequence[str] | None = None, application: str = "", **options: Any) -> WriteJob:
        """Starts an atomic write. `columns` are checked now where they are known; `options` are those of a write.

        Raises OptionError, StoreLockedError, MqStoreError.
        """
        raise UnsupportedFormatError(f"UnsupportedFormatError: {self.path}: {self.engine} stores are not written")

    def drop_staged_by(self, application: str) -> None:
        """Drops what jobs of an application in this session have staged and not committed, once none of them runs."""

    def verify(self) -> Iterator[Finding]:
        """Everything that is wrong in the store, found by reading all of it; nothing for an intact one.

        Changes nothing. Raises UnsupportedFormatError where a part cannot be read, CorruptionError for a file that
        changes meanwhile.
        """
        raise UnsupportedFormatError(f"{self.path}: {self.engine} stores are not verified")

    def repair(self, target: str | None = None, dry_run: bool = False) -> Sequence[str]:
        """Mends what `verify` finds, here or in a copy at `target`: a line for each thing done, or to be done."""
        raise UnsupportedFormatError(f"{self.path}: no {self.queue_type} queue is repaired; use mode=DROPMALFORMED")

    def definitions(self) -> Definitions:
        """What a node must import before it serves this store. UnsupportedFormatError where nothing needs that."""
        text = f"{self.path}: a {self.engine} store needs no definitions; start a broker on it"
        raise UnsupportedFormatError(f"UnsupportedFormatError: {text}")

    def set_group_offsets(self, group: str, offsets: Mapping[QueueKey, int]) -> None:
        """Sets what a consumer group has committed of these queues: the next offset that it reads.

        Raises StoreLockedError while a broker runs, UnsupportedFormatError where a store has no such groups.
        """
        del group, offsets
        raise UnsupportedFormatError(f"{self.path}: a {self.engine} store has no consumer groups")

    def append(self, table: Any, **options: Any) -> int:
        """Writes a pyarrow Table or RecordBatch, a pandas DataFrame, or a dict of columns as one atomic job; the number
        of rows. Columns as in a Spark write. Raises MqStoreError for what cannot be made one of them.
        """
        rows = as_table(table)
        job = self.begin_job(rows.schema.names, **options)
        try:
            return job.write(iter(rows.to_batches()))
        except BaseException:
            job.abort()
            raise

    def close(self) -> None:
        """Lets go of descriptors; StoreClosedError afterwards."""
