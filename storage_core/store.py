"""The interface of the storage core: what every engine offers, and the plain values that pass through it.

The connector and the command line use this module, `open_store` and `storage_core.errors`, and nothing deeper; how an
engine implements these methods is up to it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import pyarrow as pa

from storage_core.closable import Closable
from storage_core.errors import UnsupportedFormatError
from storage_core.finding import Finding
from storage_core.python_input import as_table, check_read, check_request, one_text


class Mode(Enum):
    """What to do with a message that cannot be decoded or fails its checksum."""

    FAILFAST = "FAILFAST"
    DROPMALFORMED = "DROPMALFORMED"
    PERMISSIVE = "PERMISSIVE"


class Scan(Enum):
    """Whether to read through the queues, or every record of the log in physical order."""

    QUEUES = "queues"
    LOG = "log"


QueueKey = tuple[str, int]
"""(topic, queue id); for RabbitMQ (queue name, 0)."""
EARLIEST, LATEST = -2, -1


@dataclass(frozen=True)
class OffsetBound:
    """Where a read starts or ends in each queue.

    `offsets` holds absolute queue offsets, EARLIEST or LATEST for the queues it names; the others use `default`. `last`
    is a number of messages at the end of each queue, `group` a consumer group whose offsets are used.
    """

    default: int = EARLIEST
    offsets: Mapping[QueueKey, int] = field(default_factory=dict)
    last: int | None = None
    group: str | None = None


@dataclass(frozen=True)
class Predicate:
    """One filter `column op value`, as pushed down: every message for which it is not true may be left out.

    `op` is one of `=`, `!=`, `<`, `<=`, `>`, `>=`, `in`, `not in`, `is null`, `is not null`, `starts with`, `not starts
    with`, `contains`, `not blank` (more than Java's white space). Times are epoch microseconds. `any of` names no
    column: its value is a tuple of tuples of predicates, and all predicates of at least one tuple must hold.
    """

    column: str
    op: str
    value: Any = None


FEW_ROUNDS = 8
"""From this many tasks per core on, one core that waits for the last of them does not matter."""


@dataclass(frozen=True)
class ScanRequest:
    """What to read. Every field narrows; the defaults read everything that a stock broker would serve. Lists count as
    tuples, and texts in any case as members of Mode and Scan. Raises OptionError for anything else.
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

    def __post_init__(self) -> None:
        check_request(self, Mode, Scan)

    def partition_count(self, total_bytes: int) -> int:
        """The number of partitions for `total_bytes`, before any is cut at the maximum number of records. A few more
        than `cores` become a multiple of it: otherwise some cores are idle while the last tasks run.
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
    """What a node needs to serve a store: the `document` it imports, the store's `folder` among the virtual hosts."""

    document: Mapping[str, Any]
    folder: str


@dataclass(frozen=True)
class StoreState:
    """How a store was left, and how it is read as a result.

    `version`: whose rules are followed; `running`: a broker has the store open; `clean`: it was stopped cleanly. At
    startup a broker would cut up to `cut_bytes` bytes of messages, from the address `cut_offset` of the log on.
    `unfinished_write`: the next write finishes a committed job. `delay_offsets`: of each delay level's next message.
    `repairable`: a quick check finds damage that can be repaired. `replicated`: the nodes of a group share the log.
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
    """A picklable piece of a plan: all that a reader on another machine needs, as ranges or as packed entries."""

    @abstractmethod
    def read(self) -> Iterator[pa.RecordBatch]:
        """The rows, in batches of the request's schema: a small first one, then up to 16k rows and 5 MiB of records.

        A larger record comes alone. Raises CorruptionError (FAILFAST), DataLossError when files vanished. Never touches
        a file's times.
        """

    @property
    def estimated_bytes(self) -> int:
        """Bytes of log that reading will touch, for logging and balancing."""
        return 0

    @property
    def estimated_rows(self) -> int:
        """Number of messages that reading will examine, for logging; 0 if unknown."""
        return 0

    @property
    def file_count(self) -> int:
        """Number of log and queue files that reading may touch, for logging; 0 if unknown."""
        return 0

    def files(self) -> Sequence[str]:
        """The paths of these files, and of every other file that reading may touch."""
        return ()


class Snapshot(ABC):
    """What a store serves at one moment. Consistent and read-only; taking one writes nothing."""

    repeated_topics: frozenset[str] = frozenset()
    """Those that several virtual hosts have."""

    @abstractmethod
    def queues(self) -> Sequence[QueueInfo]:
        """All queues with their readable ranges, sorted by topic and queue id."""

    def topics(self, wanted: Sequence[str] = ()) -> frozenset[str]:
        """Names of all topics. `wanted` helps a store that has only hashes of some names to recognise these."""
        return frozenset(queue.topic for queue in self.queues())

    @abstractmethod
    def schema(self, request: ScanRequest) -> pa.Schema:
        """Arrow schema of the rows of `request`, in its column order. Raises OptionError for an unknown column."""

    @abstractmethod
    def plan(self, request: ScanRequest) -> list[ScanPartition]:
        """Partitions that together hold each selected message once.

        Raises OptionError for an unknown name, OffsetOutOfRangeError, DataLossError, UnsupportedFormatError.
        """

    def read(self, request: ScanRequest) -> Iterator[pa.RecordBatch]:
        """The rows of all partitions of `plan`. Raises what planning and reading raise."""
        for partition in self.plan(request):
            yield from partition.read()

    def offsets_at(self, request: ScanRequest) -> Mapping[QueueKey, int]:
        """For each queue that a request selects, the offset of the first message stored at or after its `start_ms`.

        Raises OptionError for an unknown topic or queue, UnsupportedFormatError where messages have no store time.
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
    """What one task staged, as reported to the driver. `detail` belongs to the engine, and is JSON."""

    partition: int
    rows: int
    files: tuple[StagedFile, ...]
    detail: Mapping[str, Any]


class WriteJob(ABC):
    """One atomic job: tasks stage, then one process commits or aborts. Picklable.

    `warnings` of the commit: one line for each thing that a user should know.
    """

    warnings: Sequence[str] = ()

    @abstractmethod
    def stage(
        self, batches: Iterator[pa.RecordBatch], partition: int = 0, attempt: int = 0, task: int = 0
    ) -> StagedPart:
        """Writes the rows of one task to staging. A bad row raises RowError; no file of the task is kept then."""

    @abstractmethod
    def commit(self, parts: Sequence[StagedPart]) -> int:
        """Puts all rows into the store: tasks in the order of their partitions. Returns the number of rows.

        Raises StoreLockedError, OptionError, MqStoreError: nothing was written, unless the text says it is committed.
        """

    def write(self, batches: Iterator[pa.RecordBatch]) -> int:
        """Stages and commits rows that this process has in memory."""
        return self.commit([self.stage(batches)])

    @abstractmethod
    def abort(self) -> None:
        """Drops what was staged. Never undoes a commit, never raises if nothing was staged."""


class Store(Closable):
    """One directory that one broker, node or vhost would own. Only RabbitMQ has a `queue_type` other than classic."""

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
        """Network requests that reads of this process have made so far, and their bytes; zeros for a local store."""
        return 0, 0

    def object_sizes(self) -> Sequence[int] | None:
        """Lengths of the objects of a remote store; None for a local one, whose files may have holes."""
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
        """Schema of a view. Raises OptionError, which lists the views, if there is none called `name`."""

    @abstractmethod
    def view(self, name: str, request: ScanRequest | None = None) -> Iterator[pa.RecordBatch]:
        """The rows of a view (`queues`, `topics`, `segments`, `index`, `offsets`, `damage`)."""

    def queues(self) -> Sequence[QueueInfo]:
        """All queues with their readable ranges."""
        return self.snapshot().queues()

    def read(
        self, topic: str, queue_id: int | None = None, start: int = EARLIEST, stop: int = LATEST, **options: Any
    ) -> Iterator[pa.RecordBatch]:
        """Messages [start, stop) of one queue, in order, in native columns; without `queue_id`, of all queues of the
        topic. `options` are fields of a ScanRequest. Raises OptionError for offsets without a queue and wrong values.
        """
        check_read(ScanRequest, topic, queue_id, options, start=(start, EARLIEST), stop=(stop, LATEST))
        if queue_id is None:
            request = ScanRequest(topics=(topic,), **options)
        else:
            bounds = OffsetBound(EARLIEST, {(topic, queue_id): start}), OffsetBound(LATEST, {(topic, queue_id): stop})
            request = ScanRequest(assign=((topic, queue_id),), start=bounds[0], stop=bounds[1], **options)
        yield from self.snapshot().read(request)

    def find(
        self, key: str | None = None, msg_id: str | None = None, topic: str | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Messages by key or id, through the index files where they are provably correct."""
        keys, ids, topics = one_text("key", key), one_text("msg_id", msg_id), one_text("topic", topic)
        yield from self.snapshot().read(ScanRequest(keys=keys, message_ids=ids, topics=topics))

    def begin_job(self, columns: Sequence[str] | None = None, application: str = "", **options: Any) -> WriteJob:
        """Starts an atomic write. `columns` are checked now if given; `options` are those of a write.

        Raises OptionError, StoreLockedError, MqStoreError.
        """
        raise UnsupportedFormatError(f"{self.path}: {self.engine} stores are not written")

    def drop_staged_by(self, application: str) -> None:
        """Drops what jobs of an application in this session staged and did not commit, once none of them is running."""

    def verify(self) -> Iterator[Finding]:
        """Everything that is wrong in the store, found by reading all of it; nothing for an intact one.

        Changes nothing. Raises UnsupportedFormatError for an unreadable part, CorruptionError if a file changes.
        """
        raise UnsupportedFormatError(f"{self.path}: {self.engine} stores are not verified")

    def repair(self, target: str | None = None, dry_run: bool = False) -> Sequence[str]:
        """Repairs what `verify` finds, here or in a copy at `target`. Returns a line for each step done or to do."""
        raise UnsupportedFormatError(f"{self.path}: no {self.queue_type} queue can be repaired; use mode=DROPMALFORMED")

    def definitions(self) -> Definitions:
        """What a node must import before it serves this store. Raises UnsupportedFormatError if nothing needs that."""
        raise UnsupportedFormatError(f"{self.path}: a {self.engine} store needs no definitions; start a broker on it")

    def set_group_offsets(self, group: str, offsets: Mapping[QueueKey, int]) -> None:
        """Sets the committed offset of a consumer group in these queues: the next offset that it reads. Raises
        StoreLockedError while a broker runs, UnsupportedFormatError where a store has no such groups.
        """
        del group, offsets
        raise UnsupportedFormatError(f"{self.path}: a {self.engine} store has no consumer groups")

    def append(self, table: Any, **options: Any) -> int:
        """Writes a pyarrow Table or RecordBatch, a pandas DataFrame, or a dict of columns as one atomic job. Returns
        the number of rows. Columns as in a Spark write. Raises MqStoreError for what cannot be converted.
        """
        rows = as_table(table)
        job = self.begin_job(rows.schema.names, **options)
        try:
            return job.write(iter(rows.to_batches()))
        except BaseException:
            job.abort()
            raise

    def close(self) -> None:
        """Closes descriptors; later calls raise StoreClosedError."""
