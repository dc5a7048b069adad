"""`publish=shards`: each task makes a complete store of its own, and one rename puts all of them in place.

`job` makes each store. The rename is the only step of a single writer, so a job scales as RocketMQ itself does, by
brokers. Source of the rules: commit-protocol.md 12.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import pyarrow as pa

from storage_core.errors import MqStoreError
from storage_core.files import system
from storage_core.job import (
    FOLDER,
    OWNER,
    JobFolder,
    drop_tree,
    drop_written,
    is_marked,
    is_orphan,
    new_job_id,
    note_owner,
    set_mark,
)
from storage_core.rocketmq.write.input_rows import check_columns
from storage_core.rocketmq.write.job import begin
from storage_core.rocketmq.write.options import WriteSettings
from storage_core.store import StagedPart, WriteJob


@dataclass(frozen=True)
class ShardJob(WriteJob):
    """A job whose stores are kept in one folder beside the target until all of them are complete. Plain data."""

    root: str
    settings: WriteSettings
    job: str

    @property
    def folder(self) -> str:
        """The folder in which the stores are made: beside the target, so that a rename can put them in place."""
        return _sibling_prefix(self.root) + self.job

    @property
    def _made(self) -> str:
        """The folder of the stores that count. No task writes to it, so a late attempt never reaches the target."""
        return os.path.join(self.folder, "made")

    def stage(
        self, batches: Iterator[pa.RecordBatch], partition: int = 0, attempt: int = 0, task: int = 0
    ) -> StagedPart:
        """Makes the whole store of one task; none for a task without rows."""
        self._check_folder()
        name = f"attempt-{partition}-{attempt}-{task}"
        store = os.path.join(self.folder, name)
        try:
            job = begin(store, replace(self.settings, shards=False, query=None))
            part = job.stage(batches, partition, attempt, task)
            rows = job.commit([part])
            # A late attempt recreates the job's folder after the job when it makes its first folder.
            self._check_folder()
        except BaseException:
            drop_tree(store)
            if not system.exists(os.path.join(self.folder, OWNER)):
                drop_tree(self.folder)
            raise
        if not rows:
            drop_tree(store)
        return StagedPart(partition, rows, (), {"store": name})

    def _check_folder(self) -> None:
        if not system.exists(os.path.join(self.folder, OWNER)):
            raise MqStoreError(
                f"{self.folder} does not exist for a task; every machine that writes must see the folder of the stores"
            )

    def commit(self, parts: Sequence[StagedPart]) -> int:
        """Renames the stores that count to `<job>-<n>`, then their folder to the target, and drops all others.

        Returns the number of rows; 0 if this version of the query was already written.
        """
        chosen: list[StagedPart] = []
        written = _is_written(self.root, self.settings)
        if not written:
            _check_target(self.root)
            chosen = [part for part in sorted(parts, key=lambda each: each.partition) if part.rows]
        if not written:
            stores = [part.detail["store"] for part in chosen] or [self._empty_store()]
            system.make_folder(self._made, exist_ok=False)
            for number, store in enumerate(stores):
                system.rename(os.path.join(self.folder, store), os.path.join(self._made, f"{self.job}-{number}"))
            if self.settings.query is not None:
                set_mark(self._made, self.settings.query, self.settings.version)
            for folder in (self._made, self.folder):
                system.sync_folder(folder)
            _clear_target(self.root)
            try:
                system.rename(self._made, self.root)
            except OSError as error:
                raise MqStoreError(f"{self.root}: the stores could not be put there ({error.strerror})") from error
            for folder in (os.path.dirname(self.root), self.folder):
                system.sync_folder(folder)
        # The stores are in place; the next job removes what a late attempt still holds.
        with suppress(OSError):
            self.abort()
        return sum(part.rows for part in chosen)

    def _empty_store(self) -> str:
        """Makes a store without messages, so that a job without rows is read back as no rows; returns its name."""
        name = "empty"
        begin(os.path.join(self.folder, name), replace(self.settings, shards=False, query=None)).commit([])
        return name

    def abort(self) -> None:
        """Drops every store that was made."""
        drop_written(self.folder)


def begin_shards(root: str, settings: WriteSettings, columns: list[str] | None, application: str = "") -> ShardJob:
    """Starts a job of shards. Raises OptionError, ColumnError, MqStoreError."""
    if columns is not None:
        check_columns(columns, settings)
    if not _is_written(root, settings):
        _check_target(root)
    job = ShardJob(root, settings, new_job_id())
    system.make_folder(job.folder, exist_ok=False)
    try:
        note_owner(job.folder, application)
    except BaseException:
        job.abort()
        raise
    return job


def drop_orphan_shards(root: str) -> None:
    """Removes what shard jobs for this target left beside it, if their owners no longer exist."""
    parent, start = os.path.split(_sibling_prefix(root))
    with suppress(OSError):  # someone else may be removing the same folders, and this is not urgent
        for name in system.names(parent):
            folder = os.path.join(parent, name)
            if name.startswith(start) and is_orphan(folder):
                drop_tree(folder)


def _sibling_prefix(root: str) -> str:
    """The beginning of the path of every folder in which stores for this target are made."""
    parent, name = os.path.split(root)
    return os.path.join(parent, f".{name}.mqstore-")


def _is_written(root: str, settings: WriteSettings) -> bool:
    return settings.query is not None and is_marked(root, settings.query, settings.version)


def _check_target(root: str) -> None:
    if system.exists(root) and set(system.names(root)) - {FOLDER}:
        raise MqStoreError(
            f"{root} is not empty; publish=shards makes a new folder of stores: name another path, or publish=append"
        )


def _clear_target(root: str) -> None:
    """Removes `.mqstore` from an existing empty target, because a rename replaces only a folder with nothing in it."""
    with suppress(FileNotFoundError):
        drop_tree(JobFolder(root).folder)
