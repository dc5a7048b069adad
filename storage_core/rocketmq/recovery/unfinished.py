"""The store as a reader and a writer see it while a job of mqstore is committed but not finished.

Such a job is ignored: log and queues end where they ended before it. Recovery itself is in `recovery`; finishing the
job belongs to `write`. See docs/commit-protocol.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from storage_core.errors import UnsupportedFormatError
from storage_core.files import system
from storage_core.files.file_chain import FileChain
from storage_core.files.stamp import NO_STAMP, Stamp
from storage_core.formats.rocketmq.checkpoint import Checkpoint
from storage_core.formats.rocketmq.consumequeue import QUEUE_ENTRY
from storage_core.job import JobFolder, pending_intent, read_json
from storage_core.rocketmq.disk.directory import Listing, list_store
from storage_core.rocketmq.disk.ledger import refuse_ledger
from storage_core.rocketmq.disk.recent import Recent
from storage_core.rocketmq.recovery.directory_cache import is_settled
from storage_core.rocketmq.recovery.recovery import recover
from storage_core.rocketmq.recovery.verdict import Verdict


@dataclass(frozen=True)
class LastJobs:
    """The job that was finished last, and the one that is committed but not finished, with its intent."""

    finished: str | None
    unfinished: str | None
    intent: Mapping[str, Any] | None = field(default=None, compare=False)


def last_jobs(root: str) -> LastJobs:
    """The state of mqstore's jobs in a store. If two results are equal, no job was committed or finished in between."""
    folder = JobFolder(root)
    finished = _finished_job(folder.state)
    # In nearly every store neither exists, and a stat costs less than opening a missing file. The draft comes first:
    # one that is renamed meanwhile is found under its second name.
    is_under_way = any(system.stamp(path) != NO_STAMP for path in (folder.draft, folder.intent))
    intent = pending_intent(root) if is_under_way else None
    return LastJobs(finished, None if intent is None else intent["job"], intent)


_finished: Recent[str, tuple[Stamp, str | None]] = Recent()
"""The job that each `state.json` names, with the stamp of the file, which is always replaced whole, by a new inode."""


def _finished_job(path: str) -> str | None:
    """The job that a `state.json` names; not read again while its stamp is the same."""
    stamp = system.stamp(path)
    if stamp == NO_STAMP:
        return None
    known = _finished.get(path)
    if known is not None and known[0] == stamp:
        return known[1]
    job = (read_json(path) or {}).get("job")
    if is_settled(stamp):
        _finished.keep(path, (stamp, job))
    return job


@dataclass(frozen=True)
class StoreState:
    """The files of a store and the recovery verdict on them."""

    listing: Listing
    verdict: Verdict

    @property
    def incomplete(self) -> bool:
        """Whether the log holds messages that are missing from the queues."""
        return bool(self.verdict.replays)


def find_store(root: str, folders: Sequence[str], intent: Mapping[str, Any] | None = None) -> StoreState:
    """Lists a store and runs recovery on it; with an intent, as the store was before that job.

    Raises UnsupportedFormatError when the queues are in RocksDB, and for a DLedger log.
    """
    listing = list_store(root, folders)
    if listing.rocksdb_queues:
        raise UnsupportedFormatError(
            f"{root}/consumequeue: the queues are in RocksDB, which mqstore does not write; "
            "read with scan=log and write a new store"
        )
    refuse_ledger(root, listing.log)
    if intent is not None:
        listing = as_before(listing, intent)
    return StoreState(listing, recover(listing))


def noted_state(store: StoreState) -> dict[str, Any]:
    """The state of the store before the job, to be noted in an intent for `as_before`."""
    listing, checkpoint = store.listing, store.listing.checkpoint
    return {
        "abort": listing.abort,
        "says_5x": listing.has_5x_marks,
        "checkpoint": [getattr(checkpoint, name) for name in Checkpoint.__dataclass_fields__],
        "disk": [[*key, verdict.disk_stop] for key, verdict in store.verdict.queues.items()],
    }


def as_before(listing: Listing, intent: Mapping[str, Any]) -> Listing:
    """The listing as it was before a job: log and queues without what the job writes after their ends.

    A half-written queue would otherwise hide from recovery what other queues lack (rocketmq.md 5.5).
    """
    noted = intent["seen"]
    queue_stops = intent["ends"]["queues"] if noted is None else noted["disk"]
    stops = {(topic, queue_id): stop * QUEUE_ENTRY.size for topic, queue_id, stop in queue_stops}
    queues = {
        key: replace(queue, chain=clipped(queue.chain, stops[key]))
        for key, queue in listing.queues.items()
        if stops.get(key)
    }
    listing = replace(listing, log=clipped(listing.log, intent["ends"]["log_end"]), queues=queues)
    if noted is None:
        return listing
    checkpoint = Checkpoint(*noted["checkpoint"])
    return replace(listing, abort=noted["abort"], has_5x_marks=noted["says_5x"], checkpoint=checkpoint)


def clipped(chain: FileChain, stop: int) -> FileChain:
    """The chain without the bytes from an address on."""
    files = tuple(
        replace(file, size=min(file.size, stop - file.base_offset)) for file in chain.files if file.base_offset < stop
    )
    return FileChain(files, chain.file_size)
