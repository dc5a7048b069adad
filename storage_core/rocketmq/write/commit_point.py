"""The steps around a job's commit point: guard, draft and intent; taking back a draft, carrying out an intent.

`publish` writes the job's data in between, `job` holds the locks, and `redo` finishes what a killed writer left.
Source of the rules: commit-protocol.md 3, 4, 8.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress

from storage_core.errors import MqStoreError
from storage_core.files import system
from storage_core.files.undo_log import Changes, zero_span
from storage_core.job import JobFolder, sync_staged, write_json
from storage_core.rocketmq.write.commit_plan import Plan, plan_to_json
from storage_core.rocketmq.write.publish import Publisher
from storage_core.rocketmq.write.staging import KeptRows
from storage_core.rocketmq.write.store_end import log_path

GUARD = "mqstore-unfinished-write"
GUARD_TEXT = (
    b"mqstore is writing here; no broker loads this store until the write is finished, by it or by the next one\n"
)


def commit(root: str, plan: Plan, changes: Changes, kept: KeptRows | None = None) -> None:
    """Writes draft, log and intent, which commits the job. The guard must be raised. `kept` is passed to `Publisher`.

    Raises MqStoreError, OSError; the log is then as it was, and the caller takes `changes` back. If restoring the log
    fails too, `changes` is emptied: the next writer takes the draft back, or finishes the job if its intent remains.
    """
    publisher = Publisher(root, plan, kept)
    publisher.check_rights()
    try:
        _write_draft(root, plan)
        publisher.write_log()
        _commit_draft(root)
    except BaseException as error:
        if isinstance(error, OSError) and system.exists(JobFolder(root).intent):
            changes.forget()
            raise not_finished(root, error) from error
        try:
            take_back(root, plan)
        except OSError as again:
            changes.forget()
            raise MqStoreError(
                f"{root}: nothing was written ({text_of(error)}), but what was begun could not be taken back "
                f"({text_of(again)}); the next write to this store does it first"
            ) from error
        raise


def _write_draft(root: str, plan: Plan) -> None:
    """Writes the draft. From here on readers answer as if the store ended where the job begins."""
    sync_staged(JobFolder(root), plan.job)
    write_json(JobFolder(root).draft, plan_to_json(plan, root))


def _commit_draft(root: str) -> None:
    """The commit point."""
    folder = JobFolder(root)
    system.rename(folder.draft, folder.intent)
    try:
        system.sync_folder(folder.folder)
    except OSError:
        system.rename(folder.intent, folder.draft)
        raise


def take_back(root: str, plan: Plan) -> None:
    """Restores the log to its state before a draft, then removes the draft. Raises OSError; may be called again."""
    folder = JobFolder(root)
    if not system.exists(folder.draft):
        with suppress(FileNotFoundError):
            system.unlink(folder.draft + ".tmp")
        return
    # Once its records are removed, a power failure must not bring the draft back as an intent.
    system.sync_folder(folder.folder)
    size = plan.ends.log_file_size
    for base in range(plan.ends.log_end // size * size, plan.after.log_end, size):
        path = log_path(plan.folders, base, size)
        if system.exists(path):
            zero_span(path, max(plan.ends.log_end - base, 0), min(plan.after.log_end - base, size))
    system.unlink(folder.draft)
    system.sync_folder(folder.folder)


def carry_out(root: str, plan: Plan) -> None:
    """Publishes a committed job and marks it done. Raises MqStoreError; the next writer then continues."""
    publisher = Publisher(root, plan)
    try:
        publisher.publish()
        publisher.done(os.path.join(plan.folders[0], GUARD))
    except (OSError, MqStoreError) as error:
        raise not_finished(root, error) from error


# -- the file that keeps a stock broker from loading the store


def raise_guard(folders: Sequence[str], changes: Changes | None = None) -> None:
    """Keeps brokers from loading the store until `remove_guard`, or until the next writer finds no intent."""
    folder, changes = folders[0], changes or Changes()
    changes.folder(folder)
    if not is_guarded(folders):
        changes.create(os.path.join(folder, GUARD), GUARD_TEXT)
        system.sync_folder(folder)
        system.sync_folder(os.path.dirname(folder))


def remove_guard(folders: Sequence[str]) -> None:
    """Lets brokers load the store again."""
    for folder in folders:
        if is_guarded([folder]):
            system.unlink(os.path.join(folder, GUARD))
            system.sync_folder(folder)


def is_guarded(folders: Sequence[str]) -> bool:
    """Whether the guard is in one of the folders: an earlier job may have been given them in another order."""
    return any(system.exists(os.path.join(folder, GUARD)) for folder in folders)


# -- errors


def not_finished(root: str, error: Exception) -> MqStoreError:
    """The error for a job that stopped after its commit point."""
    return MqStoreError(
        f"{root}: the job is committed but not finished ({text_of(error)}); do not run it again: the next write "
        "to this store finishes it first"
    )


def text_of(error: BaseException) -> str:
    """The message of an error, with the file that it names, in one line."""
    named = isinstance(error, OSError) and error.filename
    return f"{error.filename}: {error.strerror}" if named else str(error)  # type: ignore[attr-defined]
