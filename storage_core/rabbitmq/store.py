"""One vhost's directory as a store: its names and settings, and access to snapshots and views.

`snapshot` determines what it serves, `views` holds the tables about it. What only writes, checks, repairs, views and
streams need is imported by the methods that begin them: a process that plans a read starts without it.
Source: rabbitmq.md 1, interface.md 28.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from storage_core.errors import OptionError, StoreClosedError, StoreNotFoundError, closest
from storage_core.finding import Finding
from storage_core.formats.rabbitmq import paths
from storage_core.job import pending_intent
from storage_core.rabbitmq.disk.detect import looks_like_vhost, names_in
from storage_core.rabbitmq.disk.settings import Settings
from storage_core.rabbitmq.disk.vhost_config import entry_count
from storage_core.rabbitmq.disk.vhost_name import vhost_name
from storage_core.rabbitmq.read.snapshot import VhostSnapshot
from storage_core.store import Definitions, ScanRequest, StoreState
from storage_core.stream.tail import FollowedStore

if TYPE_CHECKING:
    from storage_core.rabbitmq.queue.priority_queue import PriorityQueue
    from storage_core.rabbitmq.queue.queue import Queue
    from storage_core.rabbitmq.stream.tail import VhostTail
    from storage_core.rabbitmq.write.job import VhostWriteJob

RECOVERIES = ("auto", "none")
OF_OTHER_QUEUES = frozenset({"commit", "asof"})
"""Options of quorum queues, which may be among the options of a whole node."""
NEW_STORE_NAMES = frozenset({".mqstore"})
FIRST_NAMES = frozenset({paths.VHOST_FILE, paths.CONFIG_FILE})


class VhostStore(FollowedStore):
    """The store in the directory `path`. Opening reads two small files.

    `options`: `recovery` (`auto`: as a node would serve it; `none`: what the files hold, regardless of the terms of
    the last stop), `vhost` (of a new store, which its first job creates), and RabbitMQ's own settings. Raises
    OptionError, StoreNotFoundError, and CorruptionError for a `.config` with which a node would not start the vhost.
    """

    engine = "rabbitmq"

    def __init__(self, path: str, options: Mapping[str, Any] | None = None) -> None:
        self.path = path.rstrip("/") or "/"
        self._recovery, self._vhost_option, self.settings = _parsed(options or {})
        self._closed = False
        self._read_identity()

    def _read_identity(self) -> bool:
        """Reads vhost name and segment entry count from the directory, or for a new store from the options; returns
        whether it is new. Another directory may have taken the place of the one that was opened.
        """
        vhost = self._vhost_option
        if self._is_new():
            self.segment_entry_count = self.settings.queue_index_segment_entry_count
            self.vhost = vhost or "/"
            return True
        self.segment_entry_count = entry_count(self.path)
        self.vhost = vhost_name(self.path).decode("utf-8", "replace")
        if vhost is not None and vhost != self.vhost:
            raise OptionError("vhost", vhost, f"{self.path} is the store of the vhost {self.vhost}")
        return False

    def _is_new(self) -> bool:
        """Whether the directory holds nothing yet, or only the first files of an unfinished write.

        Raises StoreNotFoundError if it holds something that is not a store.
        """
        if looks_like_vhost(self.path):
            return False
        found = names_in(self.path) - NEW_STORE_NAMES
        if found and not (found <= FIRST_NAMES and pending_intent(self.path) is not None):
            text = f"is not a RabbitMQ vhost directory; it has no {paths.PERSISTENT_FOLDER}"
            raise StoreNotFoundError(f"StoreNotFoundError: {self.path} {text}")
        return True

    @property
    def virtual_host(self) -> str:
        """The vhost's name."""
        return self.vhost

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosedError(f"{self.path}: the store was closed; open it again")

    def snapshot(self) -> VhostSnapshot:
        """What a node would serve from the directory as it is now."""
        self._check_open()
        if self._read_identity():
            raise StoreNotFoundError(f"{self.path}: there is no store yet; write to it first")
        return VhostSnapshot(self.path, self.name, self.vhost, self.segment_entry_count, self._recovery != "none")

    def follow(self, names: Sequence[str] = ()) -> VhostTail:
        """The store as a stream sees it. Raises OptionError with `recovery=none`, which finds no end of a queue."""
        from storage_core.rabbitmq.stream.snapshot import VhostFacts
        from storage_core.rabbitmq.stream.tail import VhostTail

        self._check_open()
        if self._recovery == "none":
            raise OptionError("recovery", "none", "a stream follows what a node serves; leave the option out")
        if self._read_identity():
            raise StoreNotFoundError(f"{self.path}: there is no store yet; write to it first")
        return VhostTail(VhostFacts(self.path, self.name, self.vhost, self.segment_entry_count, True), names)

    def state(self) -> StoreState:
        """Whether a node is running, and whether the last one stopped cleanly.

        No number in it counts what a node drops at startup.
        """
        from storage_core.rabbitmq.disk.running_node import is_running
        from storage_core.rabbitmq.verify.verification import quick_findings

        snapshot = self.snapshot()
        directories = snapshot.directories
        clean = bool(snapshot.terms) and all(directory.directory in snapshot.terms for directory in directories)
        version = max((directory.version for directory in directories), default=1)
        return StoreState(
            version=f"queue index version {version}",
            running=is_running(self.path),
            clean=clean,
            unfinished_write=pending_intent(self.path) is not None,
            repairable=next(quick_findings(snapshot), None) is not None,
        )

    def view_schema(self, name: str) -> pa.Schema:
        """Schema of a view. Raises OptionError, which lists the views, if none is called `name`."""
        from storage_core.rabbitmq import views

        self._check_open()
        return views.VIEWS.schema_of(name)

    def view(self, name: str, request: ScanRequest | None = None) -> Iterator[pa.RecordBatch]:
        """The rows of a view: `queues`, `segments` or `damage`."""
        from storage_core.rabbitmq import views

        self.view_schema(name)
        return views.VIEWS.rows_of(name, self.snapshot(), self.name, request or ScanRequest())

    def verify(self) -> Iterator[Finding]:
        """Everything that is wrong in the index of each queue and in the message store."""
        from storage_core.rabbitmq.verify.verification import findings

        snapshot = self.snapshot()
        return findings(snapshot, list(snapshot.named().values()), True)

    def repair(self, target: str | None = None, dry_run: bool = False) -> Sequence[str]:
        """Repairs the store, or a copy of it at `target`, which must be new; `dry_run` only lists the repairs.

        Removed bytes are kept below `.mqstore/cut`. An interrupted repair can be called again. Raises MqStoreError,
        and StoreLockedError while a node is using the store.
        """
        from storage_core.rabbitmq.repair.copying import copy_store
        from storage_core.rabbitmq.repair.repairing import Repair, planned
        from storage_core.repair.copying import finish_copy
        from storage_core.repair.target import target_folder

        target = None if target is None else target_folder(target)
        if dry_run:
            return list(planned(self.verify()))
        self.snapshot()
        if target is None:
            return Repair(self.path, self.vhost, self.segment_entry_count).run()
        copy_store(self.path, target)
        lines = Repair(target, self.vhost, self.segment_entry_count).run()
        finish_copy(target)
        return lines

    def queue(
        self,
        name: str,
        priority: int | None = None,
        durable: bool = True,
        lock_timeout_s: float = 60,
        max_priority: int | None = None,
    ) -> Queue | PriorityQueue:
        """The queue `name`, for publishing and fetching; see `Queue`. It takes the store's lock.

        A priority queue is returned as a `PriorityQueue`; `max_priority` (its `x-max-priority`) creates a new one.
        `priority` selects one of the queues behind it.
        """
        from storage_core.rabbitmq.queue.priority_queue import open_queue

        self._check_open()
        self._read_identity()
        facts = (self.settings, self.vhost, durable, lock_timeout_s)
        return open_queue(self.path, name, *facts, priority, max_priority)

    def begin_job(self, columns: Sequence[str] | None = None, application: str = "", **options: Any) -> VhostWriteJob:
        """A job that adds rows. Options: `queue` (or `topic`) and `exchange` for all rows, `queueArguments` of that
        queue, `lockTimeout` in seconds.

        Raises ColumnError, OptionError, and StoreLockedError if a node is using the store.
        """
        from storage_core.rabbitmq.disk.vhost_config import check_writable
        from storage_core.rabbitmq.read import declared
        from storage_core.rabbitmq.write.job import begin, finish_unfinished
        from storage_core.rabbitmq.write.options import WriteOptions
        from storage_core.rabbitmq.write.store_facts import facts_of

        self._check_open()
        if pending_intent(self.path) is not None:
            finish_unfinished(self.path, WriteOptions.parsed(options, {}).lock_timeout_s)
        snapshot = None if self._read_identity() else self.snapshot()
        parsed = WriteOptions.parsed(options, {} if snapshot is None else declared.priorities(snapshot))
        if snapshot is not None:
            check_writable(self.path, self.segment_entry_count)
        sizes = self.segment_entry_count, self.settings
        facts = facts_of(self.path, self.vhost, *sizes, snapshot, parsed.versions)
        return begin(facts, parsed, columns, application)

    def definitions(self) -> Definitions:
        """The vhost and its classic queues, with their known arguments."""
        from storage_core.rabbitmq.disk import definitions
        from storage_core.rabbitmq.read import declared

        snapshot = self.snapshot()
        known = definitions.merged(None, self.vhost, declared.arguments_by_queue(snapshot))
        return Definitions(json.loads(known), paths.vhost_directory(self.vhost.encode()))

    def close(self) -> None:
        """Closes the store, which holds nothing open; later calls raise StoreClosedError."""
        self._closed = True


def _parsed(options: Mapping[str, Any]) -> tuple[str, str | None, Settings]:
    """Parses the options into `recovery`, `vhost` and RabbitMQ's settings."""
    known = {name.lower(): name for name in ("recovery", "vhost", *Settings.__dataclass_fields__)}
    given: dict[str, Any] = {}
    for name, value in options.items():
        if name.lower() in OF_OTHER_QUEUES:
            continue
        canonical = known.get(name.lower())
        if canonical is None:
            near = closest(name, sorted(known.values())) or sorted(known.values())
            listed = ", ".join(near)
            raise OptionError(name, str(value), f"a RabbitMQ store has no such option; close ones are {listed}")
        given[canonical] = value
    recovery = str(given.pop("recovery", "auto")).lower()
    if recovery not in RECOVERIES:
        raise OptionError("recovery", recovery, f"of a RabbitMQ store it is one of {', '.join(RECOVERIES)}")
    vhost = given.pop("vhost", None)
    return recovery, vhost, Settings().with_options(given)
