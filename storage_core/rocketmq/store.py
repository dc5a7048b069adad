"""A RocketMQ store directory behind the door: opening it, and what is remembered of it in this process.

Opening reads no log. Where the log ends is judged at the first question that needs it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import pyarrow as pa

from storage_core.errors import OptionError, StoreClosedError
from storage_core.rocketmq.listing import Listing
from storage_core.rocketmq.plan import LastJobs, last_jobs
from storage_core.rocketmq.readable import ReadableQueues, readable_queues
from storage_core.rocketmq.recovery import Rules, Verdict
from storage_core.rocketmq.remembered import remembered_verdict
from storage_core.rocketmq.repair import as_before
from storage_core.rocketmq.shard_job import begin_shards, drop_orphan_shards
from storage_core.rocketmq.sighting import seen_store
from storage_core.rocketmq.snapshot import RocketSnapshot
from storage_core.rocketmq.views import view_batches, view_schema
from storage_core.rocketmq.write_job import begin
from storage_core.rocketmq.write_settings import NAMES as WRITE_OPTIONS
from storage_core.rocketmq.write_settings import write_settings
from storage_core.store import ScanRequest, Store, WriteJob

RECOVERY = {"auto": None, "4.9": Rules.V4, "5.x": Rules.V5, "none": Rules.NONE}
OPTIONS = ("recovery", "commitLogPath")


class RocketStore(Store):
    """One RocketMQ store.

    Options: `recovery`, whose rules say what a crashed store serves; `commitLogPath`, where its log lies.
    """

    engine = "rocketmq"

    def __init__(self, path: str, options: Mapping[str, Any]) -> None:
        self.path = path
        unknown = [name for name in options if name not in (*OPTIONS, *WRITE_OPTIONS)]
        if unknown:
            known = ", ".join(dict.fromkeys((*OPTIONS, *WRITE_OPTIONS)))
            raise OptionError(unknown[0], str(options[unknown[0]]), f"a RocketMQ store takes {known}")
        self._write_options = {name: options[name] for name in options if name in WRITE_OPTIONS}
        recovery = str(options.get("recovery") or "auto")
        if recovery not in RECOVERY:
            raise OptionError("recovery", recovery, f"it is one of {', '.join(RECOVERY)}")
        self._rules = RECOVERY[recovery]
        paths = options.get("commitLogPath") or ()
        names = paths.split(",") if isinstance(paths, str) else paths
        self._log_paths = tuple(name.strip() for name in names if name.strip())
        self._readable: ReadableQueues | None = None
        self._closed = False

    def snapshot(self) -> RocketSnapshot:
        """What the store serves now."""
        if self._closed:
            raise StoreClosedError(f"StoreClosedError: {self.path}: the store was closed; open it again")
        jobs = last_jobs(self.path)
        listing = seen_store(self.path, self._log_paths)
        return RocketSnapshot(listing, partial(self._judged, jobs, listing), self.name, self._queues_of)

    def _queues_of(self, listing: Listing, verdict: Verdict) -> ReadableQueues:
        """The same as the last time while listing and verdict are."""
        known = self._readable
        if known is None or not known.are_of(listing, verdict):
            known = self._readable = readable_queues(listing, verdict)
        return known

    def _judged(self, before: LastJobs, listing: Listing) -> tuple[Listing, Verdict]:
        """The files and the verdict on them; while a job is committed and not done, as if it were absent."""
        while True:
            if before.intent is not None:
                listing = as_before(listing, before.intent)
            verdict = remembered_verdict(listing, self._rules)
            # A job may have passed its commit point, or may have been finished, while the ends were taken.
            after = last_jobs(self.path)
            if after == before:
                return listing, verdict
            before, listing = after, seen_store(self.path, self._log_paths)

    def begin_job(self, columns: Sequence[str] | None = None, application: str = "", **options: Any) -> WriteJob:
        """Starts an atomic write. `options` go before those that the store was opened with."""
        settings = write_settings({**self._write_options, **options})
        names = None if columns is None else list(columns)
        drop_orphan_shards(self.path)
        if settings.shards:
            return begin_shards(self.path, settings, names, application)
        return begin(self.path, settings, names, application)

    def view_schema(self, name: str) -> pa.Schema:
        """Schema of a view."""
        return view_schema(name)

    def view(self, name: str, request: ScanRequest | None = None) -> Iterator[pa.RecordBatch]:
        """The rows of a view."""
        return view_batches(self.snapshot(), name, request or ScanRequest())

    def close(self) -> None:
        """Every descriptor is closed where it was opened; only further questions are refused."""
        self._closed = True
