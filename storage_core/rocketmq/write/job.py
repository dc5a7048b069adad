"""One atomic write into a RocketMQ store: locks, guard, commit point, and finishing what a killed writer left.

`staging` stages the rows, `prepare` plans what is written, and `publish` carries the plan out. The steps, and the state
after a stop at each of them: commit-protocol.md 1 to 8.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace

import pyarrow as pa

from storage_core.errors import MqStoreError, StoreLockedError
from storage_core.files import system
from storage_core.files.lock import FileLock, FolderLock
from storage_core.files.small_file import remove_empty_folder
from storage_core.files.undo_log import Changes
from storage_core.formats.rocketmq import paths
from storage_core.job import (
    JobFolder,
    check_staged,
    drop_orphans,
    drop_staging,
    is_marked,
    missing_folders,
    new_job_id,
    open_staging,
    read_json,
    remove_made,
)
from storage_core.rocketmq.disk.directory import find_log, log_folders, looks_like_store
from storage_core.rocketmq.disk.ledger import refuse_ledger
from storage_core.rocketmq.write.commit_plan import Plan
from storage_core.rocketmq.write.commit_point import carry_out, commit, is_guarded, raise_guard, text_of
from storage_core.rocketmq.write.input_rows import check_columns
from storage_core.rocketmq.write.options import WriteSettings
from storage_core.rocketmq.write.prepare import check_directory, known_queues, prepare, refuse_batched
from storage_core.rocketmq.write.redo import finish_pending
from storage_core.rocketmq.write.staging import KeptRows, Task, stage_task
from storage_core.rocketmq.write.truncate import refuse_holes, refuse_long_files
from storage_core.store import StagedPart
from storage_core.stream.streamed_job import StreamedJob


@dataclass
class RocketWriteJob(StreamedJob):
    """A job whose staging folder exists. Plain data, so it can be pickled for tasks and for the process that commits.

    `made`: the store's directory and its parents, if they did not exist before. `warnings` is filled at the commit.
    """

    root: str
    settings: WriteSettings
    job: str
    queue_counts: dict[str, int]
    log_file_size: int
    made: tuple[str, ...] = ()
    warnings: list[str] = field(default_factory=list)

    def stage(
        self, batches: Iterator[pa.RecordBatch], partition: int = 0, attempt: int = 0, task: int = 0
    ) -> StagedPart:
        """Stages the rows of one task. Raises RowError for a row that cannot be written, and OptionError."""
        return self._stage(batches, partition, f"{partition}-{attempt}-{task}", None)

    def write(self, batches: Iterator[pa.RecordBatch]) -> int:
        """Stages and commits rows that are in memory; their records are written directly to the log."""
        kept = KeptRows()
        part = self._stage(batches, 0, "0-0-0", kept)
        return self._commit([part], None if kept.is_full else kept)

    def _stage(self, batches: Iterator[pa.RecordBatch], partition: int, stem: str, kept: KeptRows | None) -> StagedPart:
        folder = JobFolder(self.root).staging(self.job)
        if not system.exists(folder):
            raise MqStoreError(
                f"{folder} does not exist for a task; every machine that writes must see the store at this path"
            )
        state = Task(self.settings, self.queue_counts, partition, self.log_file_size)
        try:
            return stage_task(folder, stem, state, batches, partition, kept)
        except OSError as error:
            raise _one_line(self.root, error) from error

    def commit(self, parts: Sequence[StagedPart]) -> int:
        """Commits the staged rows and returns their number; 0 if this version of the query was already written."""
        return self._commit(parts, None)

    def _commit(self, parts: Sequence[StagedPart], kept: KeptRows | None) -> int:
        job_folder = JobFolder(self.root)
        with locked(self.root, self.settings.lock_timeout_s, self.settings.commit_log_path) as locks:
            finish_pending(self.root, self.settings)
            drop_orphans(job_folder, {self.job})
            written = self.settings.query is not None and is_marked(
                self.root, self.settings.query, self.settings.version
            )
            rows = 0 if written else sum(part.rows for part in parts)
            if rows:
                check_staged(job_folder, self.job, list(parts), crc=False)
                plan = self._pass_commit_point(parts, locks, kept)
                carry_out(self.root, plan)
                self._warn_of_nulls(parts)
                if plan.unlisted:
                    self.warnings.append(
                        f"{self.root}: {plan.unlisted} of the preserved messages are in no queue, because their "
                        "queueOffset is below the end of their queue; a broker never delivers them"
                    )
            elif not written:
                _make_empty_store(self.root, self.settings)
            # The rows are in the store; the next writer removes what cannot be removed now.
            with suppress(OSError):
                drop_staging(job_folder, self.job)
        return rows

    def of_query(self, query: str, version: int) -> RocketWriteJob:
        """The same job; its commit marks the query and version as written (commit-protocol.md 6)."""
        return replace(self, settings=replace(self.settings, query=f"stream:{query}", version=version))

    def _pass_commit_point(self, parts: Sequence[StagedPart], locks: ExitStack, kept: KeptRows | None) -> Plan:
        """Runs the steps prepare, guard, draft, log and intent. An error in between leaves every file as it was."""
        refuse_batched(self.root, parts)
        changes = Changes()
        try:
            plan = prepare(self.root, self.settings, self.job, parts, changes)
            raise_guard(plan.folders, changes)
            if not system.exists(os.path.join(self.root, paths.LOCK)):
                changes.create(os.path.join(self.root, paths.LOCK), b"lock")
                locks.enter_context(_broker_lock(self.root))
            commit(self.root, plan, changes, kept)
        except BaseException as error:
            changes.undo()
            if isinstance(error, OSError):
                raise _one_line(self.root, error) from error
            raise
        return plan

    def _warn_of_nulls(self, parts: Sequence[StagedPart]) -> None:
        nulls = sum(int(part.detail.get("nulls", 0)) for part in parts)
        if nulls:
            why = "RocketMQ has no null, so these messages are without them"
            self.warnings.append(
                f"{self.root}: {nulls} properties had a null name or value and were not written; {why}"
            )

    def abort(self) -> None:
        """Drops the staged files and the directories that only this job made, unless it passed its commit point."""
        job_folder = JobFolder(self.root)
        intent = read_json(job_folder.intent)
        if intent is not None and intent["job"] == self.job:
            return
        drop_staging(job_folder, self.job)
        remove_made(job_folder, self.made, [os.path.join(self.root, paths.COMMIT_LOG)])


def begin(
    root: str, settings: WriteSettings, columns: list[str] | None = None, application: str = ""
) -> RocketWriteJob:
    """Starts a job: checks what can be checked now, finishes what a killed writer left, creates the staging folder.

    Raises OptionError, StoreLockedError, MqStoreError.
    """
    if columns is not None:
        check_columns(columns, settings)
    folders = log_folders(root, settings.commit_log_path)
    check_directory(root, folders)
    job_folder = JobFolder(root)
    unfinished = system.exists(job_folder.intent) or is_guarded(folders)
    if unfinished:
        with locked(root, settings.lock_timeout_s, settings.commit_log_path):
            finish_pending(root, settings)
    else:
        _refuse_running_broker(root)
    log = find_log(root, folders)
    refuse_ledger(root, log)
    refuse_long_files(log, log.file_size)
    if settings.commit_log_path:
        refuse_holes(log, folders)
    size = log.file_size or settings.log_file_size
    job = RocketWriteJob(root, settings, new_job_id(), known_queues(root), size, missing_folders(root))
    try:
        open_staging(job_folder, job.job, application, job.made)
    except OSError as error:
        raise _one_line(root, error) from error
    return job


def locked(root: str, timeout_s: float, log: Sequence[str] = ()) -> ExitStack:
    """Takes mqstore's writer lock (waits), then the broker's (does not wait); closing the result releases both.

    `log`: folders of a log outside of the store, which are made and locked too (waits): several stores may share them.
    """
    job_folder = JobFolder(root)
    with ExitStack() as stack:
        system.make_folder(job_folder.folder)
        stack.enter_context(
            FileLock(job_folder.lock, timeout_s, "another writer of mqstore; try again when it is done")
        )
        inside = os.path.join(system.real_path(root), "")
        for folder in sorted({system.real_path(folder) for folder in log}):
            if not folder.startswith(inside):
                stack.enter_context(_folder_lock(folder, timeout_s))
        stack.enter_context(_broker_lock(root))
        return stack.pop_all()


@contextmanager
def _folder_lock(folder: str, timeout_s: float) -> Iterator[None]:
    made = not system.exists(folder)
    if made:
        system.make_folder(folder)
    try:
        with FolderLock(
            folder, timeout_s, "a write of mqstore into a store with the same log; try again when it is done"
        ):
            yield
    except BaseException:
        if made:
            remove_empty_folder(folder)
        raise


def _refuse_running_broker(root: str) -> None:
    """Refuses a store that a broker holds, before any row is staged.

    While another writer of mqstore holds the writers' lock, the broker's lock belongs to that writer too, and testing
    it would get in that writer's way; the commit checks again.
    """
    job_folder = JobFolder(root)
    if not system.exists(os.path.join(root, paths.LOCK)):
        return
    system.make_folder(job_folder.folder)
    try:
        writers = FileLock(job_folder.lock, 0, "another writer of mqstore")
    except StoreLockedError:
        return
    with writers, _broker_lock(root):
        pass


def _broker_lock(root: str) -> AbstractContextManager[object]:
    """Takes the lock that a broker holds while it runs. A booting broker has the file open, but no lock yet."""
    path = os.path.join(root, paths.LOCK)
    if not system.exists(path):
        return nullcontext()
    advice = "a running broker; stop it, or write into a copy of its store"
    lock = FileLock(path, 0, advice)
    others = lock.other_holders()
    if others:
        lock.close()
        raise StoreLockedError(f"StoreLockedError: {path} is about to be locked by {advice} (process {others[0]})")
    return lock


def _make_empty_store(root: str, settings: WriteSettings) -> None:
    """Makes an empty store of a new directory, so a job without rows is read back as no rows (interface.md 15)."""
    if looks_like_store(root):
        return
    try:
        for folder in (*log_folders(root, settings.commit_log_path), os.path.join(root, paths.CONSUME_QUEUE)):
            system.make_folder(folder)
            system.sync_folder(os.path.dirname(folder))
    except OSError as error:
        raise _one_line(root, error) from error


# -- the part of a write that a repair uses


def complete(root: str, settings: WriteSettings) -> None:
    """Adds what the queues and the index lack of the log, as one job without rows. The locks must be held.

    Raises MqStoreError, CorruptionError, OSError; then every file is as it was, or the next writer finishes the job.
    """
    job_folder, changes = JobFolder(root), Changes()
    job = new_job_id()
    open_staging(job_folder, job)
    try:
        plan = prepare(root, settings, job, [], changes, visited=True)
        raise_guard(plan.folders, changes)
        commit(root, plan, changes)
    except BaseException:
        changes.undo()
        drop_staging(job_folder, job)
        raise
    carry_out(root, plan)
    drop_staging(job_folder, job)


def _one_line(root: str, error: OSError) -> MqStoreError:
    return MqStoreError(f"{root}: {text_of(error)}; nothing was written")
