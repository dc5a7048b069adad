"""A RocketMQ store directory as a `Store`: its options, and the queues that it served most recently.

Opening a store does not read the log; recovery runs when a call needs it. What only writes, checks, repairs, views and
streams need is imported by the methods that begin them: a process that plans a read starts without it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from storage_core.errors import OptionError, StoreClosedError
from storage_core.finding import Finding
from storage_core.job import drop_staged_by
from storage_core.options.option import Option, parsed
from storage_core.options.values import choice
from storage_core.rocketmq.disk.directory import Listing, find_log, log_folders
from storage_core.rocketmq.disk.ledger import refuse_ledger
from storage_core.rocketmq.read.snapshot import RocketSnapshot
from storage_core.rocketmq.recovery.directory_cache import cached_listing
from storage_core.rocketmq.recovery.queue_ranges import ServedQueues, served_queues
from storage_core.rocketmq.recovery.recovery_cache import cached_verdict
from storage_core.rocketmq.recovery.unfinished import LastJobs, as_before, last_jobs
from storage_core.rocketmq.recovery.verdict import Rules
from storage_core.rocketmq.write.options import WRITE_OPTIONS, write_settings
from storage_core.store import Definitions, QueueKey, ScanRequest, StoreState, WriteJob
from storage_core.stream.tail import FollowedStore

if TYPE_CHECKING:
    from storage_core.rocketmq.stream.tail import RocketTail

RECOVERY = {"auto": None, "4.9": Rules.V4, "5.x": Rules.V5, "none": Rules.NONE}
RECOVERY_OPTION = Option(
    "recovery", ", ".join(RECOVERY), "auto", "whose rules a crashed store follows", parse=choice(*RECOVERY)
)
STORE_OPTIONS = (RECOVERY_OPTION, *WRITE_OPTIONS)


class RocketStore(FollowedStore):
    """One RocketMQ store.

    Options: `recovery`, which selects the rules for what a crashed store serves; and the write options, of which
    `commitLogPath` is the location of the log.
    """

    engine = "rocketmq"

    def __init__(self, path: str, options: Mapping[str, Any]) -> None:
        self.path = path
        given = parsed(options, STORE_OPTIONS, "options of a RocketMQ store")
        self._rules = RECOVERY[given["recovery"]]
        self._log_paths: tuple[str, ...] = given["commitLogPath"] or ()
        self._write_options = {name: options[name] for name in options if name.lower() != RECOVERY_OPTION.name}
        self._served: ServedQueues | None = None
        self._closed = False

    def snapshot(self) -> RocketSnapshot:
        """What the store serves now."""
        self._check_open()
        jobs = last_jobs(self.path)
        listing = self._listing(jobs)
        return RocketSnapshot(listing, partial(self._serve, jobs, listing), self.name)

    def _listing(self, jobs: LastJobs) -> Listing:
        """The files of the store, without the effects of a job that is committed but not finished."""
        listing = cached_listing(self.path, self._log_paths)
        return listing if jobs.intent is None else as_before(listing, jobs.intent)

    def _serve(self, jobs: LastJobs, listing: Listing) -> ServedQueues:
        """The queues that a broker would serve; the same object while files and verdict are unchanged."""
        verdict = cached_verdict(listing, self._rules)
        # A job may have passed its commit point, or have finished, while the ends were read.
        while (after := last_jobs(self.path)) != jobs:
            jobs, listing = after, self._listing(after)
            verdict = cached_verdict(listing, self._rules)
        # A broker may compact a queue without changing anything else.
        served = self._served  # another thread may replace it
        if served is None or served.batched or not served.are_of(listing, verdict):
            self._served = served = served_queues(listing, verdict)
        return served

    def state(self) -> StoreState:
        """Whether a broker runs, whether the last one stopped cleanly, and what the next one would cut."""
        from storage_core.rocketmq.views.store_state import store_state

        return store_state(self.snapshot(), last_jobs(self.path).intent is not None)

    def follow(self, names: Sequence[str] = ()) -> RocketTail:
        """The store as a stream sees it. Raises OptionError with `recovery=none`, which does not find the log end."""
        from storage_core.rocketmq.stream.tail import RocketTail

        del names
        self._check_open()
        if self._rules is Rules.NONE:
            raise OptionError("recovery", "none", "a stream must know where the log ends; leave the option out")
        return RocketTail(self.path, log_folders(self.path, self._log_paths), self._rules, self.name, self.snapshot)

    def begin_job(self, columns: Sequence[str] | None = None, application: str = "", **options: Any) -> WriteJob:
        """Starts an atomic write. `options` override those that the store was opened with."""
        from storage_core.rocketmq.write.job import begin
        from storage_core.rocketmq.write.shards import begin_shards, drop_orphan_shards

        self._check_open()
        settings = write_settings({**self._write_options, **options})
        names = None if columns is None else list(columns)
        drop_orphan_shards(self.path)
        if settings.shards:
            return begin_shards(self.path, settings, names, application)
        return begin(self.path, settings, names, application)

    def drop_staged_by(self, application: str) -> None:
        """Drops what jobs of an application in this session have staged but not committed."""
        self._check_open()
        drop_staged_by(self.path, application)

    def set_group_offsets(self, group: str, offsets: Mapping[QueueKey, int]) -> None:
        """Sets the committed offsets of a consumer group in these queues."""
        from storage_core.rocketmq.group_offsets import set_group_offsets

        self._check_open()
        set_group_offsets(self.path, group, offsets)

    def view_schema(self, name: str) -> pa.Schema:
        """Schema of a view."""
        from storage_core.rocketmq.views.views import view_schema

        self._check_open()
        return view_schema(name)

    def view(self, name: str, request: ScanRequest | None = None) -> Iterator[pa.RecordBatch]:
        """The rows of a view."""
        from storage_core.rocketmq.views.file_views import damage
        from storage_core.rocketmq.views.views import DAMAGE_VIEW, view_batches

        if name == DAMAGE_VIEW:
            return damage(self.verify())
        return view_batches(self.snapshot(), name, request or ScanRequest())

    def verify(self) -> Iterator[Finding]:
        """Everything that is wrong in the store, and how a broker of its version handles it."""
        from storage_core.rocketmq.verify.kinds import Subject
        from storage_core.rocketmq.verify.verification import verified

        self._check_open()
        listing = self._listing(last_jobs(self.path))
        rules = None if self._rules is Rules.NONE else self._rules
        return verified(Subject(listing, cached_verdict(listing, rules)))

    def repair(self, target: str | None = None, dry_run: bool = False) -> Sequence[str]:
        """Repairs the store, or a copy of it at `target`, which must be new; `dry_run` only reports what would be done.

        The write options set the geometry of a lost index. What is cut is kept below `.mqstore/cut`. A repair that was
        interrupted at any point can be started again. Raises StoreLockedError while a broker works on the store,
        UnsupportedFormatError for a DLedger log, MqStoreError.
        """
        from storage_core.repair.copying import finish_copy
        from storage_core.repair.target import target_folder
        from storage_core.rocketmq.repair.copying import copy_store
        from storage_core.rocketmq.repair.repairing import Repair, planned

        self._check_open()
        target = None if target is None else target_folder(target)
        refuse_ledger(self.path, find_log(self.path, log_folders(self.path, self._log_paths)))
        if dry_run:
            return list(planned(self.verify()))
        settings = write_settings(self._write_options)
        rules = None if self._rules is Rules.NONE else self._rules
        if target is None:
            return Repair(self.path, settings, rules).run()
        copy_store(self.path, self._log_paths, target)
        lines = Repair(target, replace(settings, commit_log_path=()), rules).run()
        finish_copy(target)
        return lines

    def definitions(self) -> Definitions:
        """Raises UnsupportedFormatError: a broker needs no definitions."""
        self._check_open()
        return super().definitions()

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosedError(f"{self.path}: the store was closed; open it again")

    def close(self) -> None:
        """Makes further calls fail. No descriptor stays open between calls."""
        self._closed = True
