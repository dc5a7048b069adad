"""A store at a URI: the engine's own store over listed objects, read-only; its partitions can be read anywhere.

The engine works as it does on a disk. This module lists the bucket before each request, gives partitions what a task on
another machine needs, and rejects every change. Source: docs/object-storage.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn

import pyarrow as pa

from storage_core.errors import UnsupportedFormatError
from storage_core.files import system
from storage_core.files.address import address_of
from storage_core.files.remote import registry
from storage_core.files.remote.access import Access
from storage_core.files.remote.back_end import Found
from storage_core.finding import Finding
from storage_core.store import (
    Definitions,
    QueueInfo,
    QueueKey,
    ScanPartition,
    ScanRequest,
    Snapshot,
    Store,
    StoreState,
    WriteJob,
)


@dataclass(frozen=True)
class RemotePartition(ScanPartition):
    """A partition of an engine's plan, with the version of every object that it reads, and how to reach them."""

    piece: ScanPartition
    access: Access
    pinned: tuple[tuple[str, tuple[Found, ...]], ...]

    @property
    def estimated_bytes(self) -> int:
        """As for the engine's partition."""
        return self.piece.estimated_bytes

    @property
    def estimated_rows(self) -> int:
        """As for the engine's partition."""
        return self.piece.estimated_rows

    @property
    def file_count(self) -> int:
        """As for the engine's partition."""
        return self.piece.file_count

    def files(self) -> Sequence[str]:
        """As for the engine's partition."""
        return self.piece.files()

    def read(self) -> Iterator[pa.RecordBatch]:
        """The rows. Raises StoreChangedError if an object has changed since the read was planned."""
        attached = []
        try:
            for origin, files in self.pinned:
                registry.attach(origin, self.access)
                attached.append(origin)
                registry.pin(origin, files)
            yield from self.piece.read()
        finally:
            for origin in attached:
                registry.detach(origin)


class RemoteSnapshot(Snapshot):
    """What a remote store served when it was last listed."""

    def __init__(self, snapshot: Snapshot, root: str, access: Access) -> None:
        self._snapshot, self._root, self._access = snapshot, root, access
        self.repeated_topics = snapshot.repeated_topics

    def queues(self) -> Sequence[QueueInfo]:
        """All queues."""
        return self._snapshot.queues()

    def topics(self, wanted: Sequence[str] = ()) -> frozenset[str]:
        """Names of all topics."""
        return self._snapshot.topics(wanted)

    def schema(self, request: ScanRequest) -> pa.Schema:
        """Arrow schema of the rows of `request`."""
        return self._snapshot.schema(request)

    def plan(self, request: ScanRequest) -> list[ScanPartition]:
        """Partitions with everything that a task needs to read them where nothing else is known about the store."""
        return [
            RemotePartition(piece, self._access, self._pinned(piece.files())) for piece in self._snapshot.plan(request)
        ]

    def _pinned(self, paths: Iterable[str]) -> tuple[tuple[str, tuple[Found, ...]], ...]:
        """The objects at these paths, by bucket; the store's own bucket is always included."""
        found: dict[str, list[Found]] = {address_of(self._root).origin: []}
        for path in paths:
            listed = registry.found_file(path)
            if listed is not None:
                found.setdefault(address_of(path).origin, []).append(listed)
        return tuple((origin, tuple(files)) for origin, files in found.items())

    def offsets_at(self, request: ScanRequest) -> Mapping[QueueKey, int]:
        """Offsets by time."""
        return self._snapshot.offsets_at(request)

    def warnings(self) -> Sequence[str]:
        """What a user should know before trusting the rows."""
        return self._snapshot.warnings()


class RemoteStore(Store):
    """One store at a URI, attached until it is closed."""

    def __init__(self, store: Store, access: Access, attached: Sequence[str]) -> None:
        self._store, self._access, self._attached = store, access, list(attached)
        self.engine, self.path, self.queue_type = store.engine, store.path, store.queue_type

    @property
    def virtual_host(self) -> str | None:
        """That of the engine's store."""
        return self._store.virtual_host

    @property
    def virtual_hosts(self) -> frozenset[str]:
        """Those of the engine's store."""
        return self._looked().virtual_hosts

    @property
    def traffic(self) -> tuple[int, int]:
        """Requests of this process to the bucket of the store, and their bytes."""
        return registry.requests_of(self.path)

    def _looked(self) -> Store:
        for uri in self._attached:
            registry.look(uri)
        return self._store

    def object_sizes(self) -> Sequence[int]:
        """Lengths of all objects below the store."""
        self._looked()
        return list(_sizes_below(self.path))

    def snapshot(self) -> Snapshot:
        """What the store serves now, from a single listing."""
        return RemoteSnapshot(self._looked().snapshot(), self.path, self._access)

    def state(self) -> StoreState:
        """How the store was left; whether a broker runs elsewhere cannot be determined."""
        return self._looked().state()

    def view_schema(self, name: str) -> pa.Schema:
        """Schema of a view."""
        return self._store.view_schema(name)

    def view(self, name: str, request: ScanRequest | None = None) -> Iterator[pa.RecordBatch]:
        """The rows of a view."""
        return self._looked().view(name, request)

    def verify(self) -> Iterator[Finding]:
        """Everything that is wrong in the store."""
        return self._looked().verify()

    def definitions(self) -> Definitions:
        """What a node must import before it serves this store."""
        return self._looked().definitions()

    def repair(self, target: str | None = None, dry_run: bool = False) -> Sequence[str]:
        """Reports what would be done, or makes a repaired copy on a local disk from which a broker boots."""
        if target is None and not dry_run:
            self._refuse()
        return self._looked().repair(target, dry_run)

    def begin_job(self, columns: Sequence[str] | None = None, application: str = "", **options: Any) -> WriteJob:
        """Raises UnsupportedFormatError: the store is read-only."""
        self._refuse()

    def set_group_offsets(self, group: str, offsets: Mapping[QueueKey, int]) -> None:
        """Raises UnsupportedFormatError: the store is read-only."""
        self._refuse()

    def queue(self, *_: Any, **__: Any) -> NoReturn:
        """Raises UnsupportedFormatError: an open queue changes its files."""
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise UnsupportedFormatError(f"{self.path}: {system.READ_ONLY}")

    def close(self) -> None:
        """Rejects further requests, and detaches from the bucket."""
        self._store.close()
        while self._attached:
            registry.detach(self._attached.pop())


def _sizes_below(folder: str) -> Iterator[int]:
    for entry in system.entries(folder):
        if entry.is_directory:
            yield from _sizes_below(f"{folder}/{entry.name}")
        else:
            yield entry.size


@contextmanager
def searched(uri: str, access: Access) -> Iterator[None]:
    """Lists once everything that a path or glob may match, for use while the block runs. Raises MqStoreError."""
    address = address_of(uri)
    parts = address.path.split("/")
    plain = next((number for number, part in enumerate(parts) if set(part) & set("*?[")), len(parts))
    registry.attach(uri, access)
    try:
        registry.look("/".join([address.origin, *parts[:plain]]), 0.0)
        yield
    finally:
        registry.detach(uri)
