"""What the contract suite needs to know about an engine: how its stores are made, damaged and named.

Nothing else differs. A third engine needs another subclass and its entry in `engines.ENGINES`; the tests themselves
do not depend on the engine.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa

from storage_core import open_store
from storage_core.store import QueueKey, ScanPartition, ScanRequest, Store

Seen = tuple[str, int, bytes]
"""A message, for any engine: its queue, its offset in the queue, its body."""

TIME = pa.timestamp("us", "UTC")
FIRST_SECOND = 1_700_000_000


@dataclass(frozen=True)
class Message:
    """A message to write. `text` is written to the engine's `text_column`; `second` counts from 1970."""

    queue: str
    body: bytes
    text: str | None = None
    second: int = FIRST_SECOND


class Engine(ABC):
    """An engine, as the suite sees it."""

    name: str
    queue_column: str
    offset_column: str
    text_column: str
    """A nullable text column that can be written, read and filtered."""
    time_column: str
    """A time column that the caller writes; every engine preserves whole seconds."""
    views: tuple[str, ...]
    refuses: frozenset[str]
    """Selection options that this engine does not support and rejects."""
    acknowledges: bool
    """Whether messages leave a queue one by one, so that its offsets have gaps and a missing one is not a loss."""
    small_files: ClassVar[dict[str, Any]]
    """Options that make the files of a new store so small that a few dozen messages fill several."""

    @abstractmethod
    def table(self, messages: Sequence[Message]) -> pa.Table:
        """The messages as a table to write."""

    @abstractmethod
    def damage(self, root: Path, message: Seen) -> None:
        """Makes one served message of a store unreadable, and no other one."""

    @abstractmethod
    def lose_first(self, root: Path, queue: str) -> int:
        """Removes the first messages of a queue and returns the offset of the first one that is left."""

    @abstractmethod
    def message_files(self, root: Path) -> list[Path]:
        """The files that bodies are read from."""

    def commit_group(self, root: Path, group: str, offsets: dict[str, int]) -> None:
        """Stores the offsets of a consumer group in some queues, if the engine supports groups."""
        raise NotImplementedError(f"{self.name} knows no consumer groups")

    def new(self, root: Path, **options: Any) -> Store:
        """A store to be created, in a directory that need not exist yet."""
        return open_store(str(root), self.name, **self.small_files, **options)

    def made(self, root: Path, messages: Sequence[Message]) -> Path:
        """A store of these messages, written as one job."""
        with self.new(root) as store:
            assert store.append(self.table(messages)) == len(messages)
        return root

    def request(self, **fields: Any) -> ScanRequest:
        """A request for the columns that `seen` needs, unless `columns` is given."""
        return ScanRequest(**{"columns": (self.queue_column, self.offset_column, "body"), **fields})

    def rows(self, root: Path, **fields: Any) -> list[Seen]:
        """The messages that a request selects, in the order of the plan."""
        with open_store(str(root)) as store:
            return self.seen(read(store.snapshot().plan(self.request(**fields))))

    def seen(self, batches: Iterable[pa.RecordBatch]) -> list[Seen]:
        """The messages in batches that contain queue, offset and body."""
        names = (self.queue_column, self.offset_column, "body")
        return [
            row for batch in batches for row in zip(*(batch.column(name).to_pylist() for name in names), strict=True)
        ]

    @staticmethod
    def key(queue: str) -> QueueKey:
        """How a request names a queue."""
        return (queue, 0)


def read(partitions: Iterable[ScanPartition]) -> list[pa.RecordBatch]:
    """All batches of some partitions."""
    return [batch for partition in partitions for batch in partition.read()]
