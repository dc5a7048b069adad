"""One atomic job that adds rows to a vhost's store: tasks stage files, one process puts them in place.

A job only adds files: message files above the highest number, segments from the next segment boundary on. `staging`
writes the staged files, `prepare` makes the plan, `publish` carries it out. Source: commit-protocol.md 15.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import pyarrow as pa

from storage_core import job as jobs
from storage_core.errors import MqStoreError, StoreLockedError
from storage_core.files import system
from storage_core.files.lock import FileLock
from storage_core.files.small_file import remove_empty_folder
from storage_core.job import JobFolder
from storage_core.rabbitmq.disk.detect import looks_like_vhost
from storage_core.rabbitmq.disk.running_node import check_not_running
from storage_core.rabbitmq.disk.vhost_config import entry_count
from storage_core.rabbitmq.disk.vhost_name import vhost_name
from storage_core.rabbitmq.write.input_rows import InputRows, check_columns
from storage_core.rabbitmq.write.options import WriteOptions
from storage_core.rabbitmq.write.prepare import prepare
from storage_core.rabbitmq.write.publish import carry_out, check_rights, finish_pending
from storage_core.rabbitmq.write.staging import TaskWriter
from storage_core.rabbitmq.write.store_facts import StoreFacts
from storage_core.store import StagedPart, WriteJob

LOCKED = "another writer of mqstore; try again when it is done"


@dataclass
class VhostWriteJob(WriteJob):
    """A job with its staging folder. Plain data, so it can be pickled; the commit fills `warnings`.

    `made`: the store's directory and its parents, if they did not exist before.
    """

    facts: StoreFacts
    options: WriteOptions
    job: str
    made: tuple[str, ...] = ()
    warnings: list[str] = field(default_factory=list)

    @property
    def _folder(self) -> JobFolder:
        return JobFolder(self.facts.root)

    def stage(
        self, batches: Iterator[pa.RecordBatch], partition: int = 0, attempt: int = 0, task: int = 0
    ) -> StagedPart:
        """Writes the rows of one task to staging. A bad row raises RowError, a wrong column ColumnError; no file of the
        task is kept in that case.
        """
        folder, prefix = self._folder.staging(self.job), f"{partition}-{attempt}-{task}"
        if not system.exists(folder):
            raise MqStoreError(
                f"{folder} does not exist for a task; every machine that writes must see the store at this path"
            )
        rows = InputRows(self.options.queue, self.options.exchange, self.facts.other_types)
        writer = TaskWriter(folder, prefix, self.facts, self.options.priorities)
        try:
            for batch in batches:
                writer.add(rows.messages(batch))
            files, detail = writer.finish()
        except BaseException:
            writer.close()
            with suppress(FileNotFoundError):  # the job was aborted meanwhile, its folder removed
                for name in system.names(folder):
                    if name.startswith(prefix + "."):
                        system.unlink(f"{folder}/{name}")
            raise
        system.sync_folder(folder)
        return StagedPart(partition, writer.rows, tuple(files), {**detail, "transient": rows.transient})

    def commit(self, parts: Sequence[StagedPart]) -> int:
        """Puts all rows into the store, tasks in the order of their partitions. Returns the number of rows.

        Raises StoreLockedError, MqStoreError: nothing was written then, unless the text says that the job is committed.
        A job without rows leaves an existing store unchanged, and creates a new one without messages.
        """
        ordered = sorted(parts, key=lambda part: part.partition)
        count = sum(part.rows for part in ordered)
        if count or not looks_like_vhost(self.facts.root):
            self._put_in_place([part for part in ordered if part.rows])
        else:
            self.abort()
        limit = self.options.arguments.get("x-max-length")
        if isinstance(limit, int) and count > limit:
            why = f"has an x-max-length of {limit}; a node drops its oldest messages beyond that when it starts"
            self.warnings.append(f"{self.facts.root}: queue {self.options.queue} {why}")
        transient = sum(int(part.detail["transient"]) for part in ordered)
        if transient:
            why = "were not written: they would not survive a node's start"
            self.warnings.append(f"{self.facts.root}: {transient} rows with deliveryMode 1 (or none) {why}")
        return count

    def _put_in_place(self, parts: Sequence[StagedPart]) -> None:
        root, job_folder = self.facts.root, self._folder
        with FileLock(job_folder.lock, self.options.lock_timeout_s, LOCKED):
            check_not_running(root)
            finish_pending(root)
            self._check_facts()
            jobs.drop_orphans(job_folder, {self.job})
            jobs.check_staged(job_folder, self.job, list(parts), crc=False)
            placement = prepare(self.facts, self.options, job_folder.staging(self.job), parts)
            if not placement.clean:
                why = "so a node will deliver all its messages as redelivered, the new ones too"
                self.warnings.append(f"{root}: the store was not stopped cleanly, {why}")
            check_rights(root, placement.intent())
            jobs.sync_staged(job_folder, self.job)
            jobs.write_json(job_folder.intent, {"job": self.job, **placement.intent()})
            try:
                carry_out(root, self.job, placement.intent())
            except OSError as error:
                raise MqStoreError(
                    f"{root}: the job is committed but not finished ({error}); do not run it again: the next write to "
                    "this store finishes it first"
                ) from error

    def _check_facts(self) -> None:
        """Raises MqStoreError if another write has meanwhile created the store with another vhost or entry count."""
        facts, root = self.facts, self.facts.root
        if not looks_like_vhost(root):
            return
        vhost, count = vhost_name(root).decode("utf-8", "replace"), entry_count(root)
        if (vhost, count) != (facts.vhost, facts.entry_count):
            raise MqStoreError(
                f"{root}: another write made this store meanwhile, for the vhost {vhost} with {count} entries a "
                "segment; nothing was written: run this write again"
            )

    def abort(self) -> None:
        """Drops what was staged and the directories that only this job made, unless it passed its commit point."""
        job_folder = self._folder
        intent = jobs.read_json(job_folder.intent)
        if intent is not None and intent["job"] == self.job:
            return
        jobs.drop_staging(job_folder, self.job)
        remove_empty_folder(job_folder.folder)
        jobs.remove_made(job_folder, self.made)


def begin(
    facts: StoreFacts, options: WriteOptions, columns: Sequence[str] | None = None, application: str = ""
) -> VhostWriteJob:
    """Starts a job: checks what can be checked now, and creates its staging folder.

    `columns` are checked if given. Raises ColumnError, and StoreLockedError when a node is running there.
    """
    if columns is not None:
        check_columns(columns, options.queue)
    _refuse_running_node(facts.root)
    job, job_folder, made = jobs.new_job_id(), JobFolder(facts.root), jobs.missing_folders(facts.root)
    jobs.open_staging(job_folder, job, application)
    return VhostWriteJob(facts, options, job, made)


def _refuse_running_node(root: str) -> None:
    """Refuses a store that a node uses, before any row is staged.

    While another writer of mqstore holds the writers' lock, it may have files of the store open; the commit checks
    again.
    """
    lock = JobFolder(root).lock
    if not system.exists(lock):
        check_not_running(root)
        return
    try:
        writers = FileLock(lock, 0, LOCKED)
    except StoreLockedError:
        return
    with writers:
        check_not_running(root)


def finish_unfinished(root: str, lock_timeout_s: float) -> None:
    """Finishes an interrupted job that passed its commit point, before another one is staged for the same store.

    Raises StoreLockedError, also when a node is running there.
    """
    with FileLock(JobFolder(root).lock, lock_timeout_s, LOCKED):
        check_not_running(root)
        finish_pending(root)
