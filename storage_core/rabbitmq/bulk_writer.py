"""One atomic job that adds rows to a vhost's store: tasks stage files, one process puts them in place.

A job only adds files: message files above the highest number, segments from the next segment boundary on. Leaves to
`task_writer` the staged files, to `clean_files` what a clean store notes about itself. Source: DESIGN 6.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from storage_core import job as jobs
from storage_core.errors import StoreLockedError
from storage_core.files import system
from storage_core.files.append_file import write_aside
from storage_core.files.lock import FileLock
from storage_core.formats.rabbitmq import ets_dump, paths
from storage_core.formats.rabbitmq.paths import QueueName
from storage_core.job import JobFolder
from storage_core.rabbitmq import clean_files, definitions, unfinished
from storage_core.rabbitmq.incoming import Incoming, check_columns
from storage_core.rabbitmq.placement import Placement, place
from storage_core.rabbitmq.settings import Settings
from storage_core.rabbitmq.snapshot import VhostSnapshot
from storage_core.rabbitmq.span_reader import read_file
from storage_core.rabbitmq.task_writer import TaskWriter
from storage_core.rabbitmq.write_options import WriteOptions
from storage_core.store import StagedPart, WriteJob


@dataclass(frozen=True)
class StoreFacts:
    """What a job must know of its store."""

    root: str
    vhost: str
    entry_count: int
    settings: Settings


class VhostWriteJob(WriteJob):
    """A job on one store. Picklable: it holds names and numbers. `warnings` fill at its commit.

    `columns`, where they are known, are checked at once. Raises OptionError, StoreLockedError when a node runs there.
    """

    def __init__(
        self, facts: StoreFacts, options: WriteOptions, columns: Sequence[str] | None = None, application: str = ""
    ) -> None:
        if columns is not None:
            check_columns(columns, options.queue)
        self.facts, self.options, self.root = facts, options, facts.root
        self.job = jobs.new_job_id()
        self.warnings: list[str] = []
        check_not_running(self.root)
        system.make_folder(JobFolder(self.root).staging())
        self.folder = jobs.open_staging(JobFolder(self.root), self.job, application)

    def stage(
        self, batches: Iterator[pa.RecordBatch], partition: int = 0, attempt: int = 0, task: int = 0
    ) -> StagedPart:
        """Writes the rows of one task aside. A bad row raises RowError; nothing of the task stays then."""
        prefix = f"{partition}-{attempt}-{task}"
        incoming = Incoming(self.options.queue, self.options.exchange)
        facts = self.facts
        writer = TaskWriter(
            self.folder, prefix, facts.vhost.encode(), facts.settings, facts.entry_count, self.options.priorities
        )
        try:
            for batch in batches:
                writer.add(incoming.rows(batch))
            files, detail = writer.finish()
        except BaseException:
            writer.close()
            with suppress(FileNotFoundError):  # the job was aborted meanwhile, its folder is gone
                for name in system.names(self.folder):
                    if name.startswith(prefix + "."):
                        system.unlink(f"{self.folder}/{name}")
            raise
        system.sync_folder(self.folder)
        return StagedPart(partition, writer.rows, tuple(files), {**detail, "transient": incoming.transient})

    def commit(self, parts: Sequence[StagedPart]) -> int:
        """Puts all rows into the store, tasks in the order of their partitions. The number of rows.

        Raises StoreLockedError, UnsupportedFormatError, MqStoreError: nothing was written then.
        """
        ordered = sorted(parts, key=lambda part: part.partition)
        places = JobFolder(self.root)
        with FileLock(places.lock, self.options.lock_timeout_s, "another writer"):
            check_not_running(self.root)
            finish_pending(self.root)
            jobs.check_staged(places, self.job, ordered, crc=False)
            placement = self._prepare(ordered)
            jobs.write_json(places.intent, {"job": self.job, **placement.intent()})
            carry_out(self.root, self.job, placement.intent())
        transient = sum(int(part.detail["transient"]) for part in ordered)
        if transient:
            why = "were not written: they would not survive a node's start"
            self.warnings.append(f"{self.root}: {transient} rows with deliveryMode 1 (or none) {why}")
        return sum(part.rows for part in ordered)

    def abort(self) -> None:
        """Drops what was staged, and the folders of a store that has nothing else."""
        jobs.drop_staging(JobFolder(self.root), self.job)
        with suppress(OSError):
            if not set(system.names(JobFolder(self.root).folder)):
                system.remove_folder(JobFolder(self.root).folder)
                system.remove_folder(self.root)

    def _prepare(self, parts: Sequence[StagedPart]) -> Placement:
        """Decides all numbers and stages the files that are the driver's: stubs, and what makes the store clean."""
        snapshot = VhostSnapshot(self.root, "", self.facts.vhost, self.facts.entry_count, True)
        placement = place(snapshot, parts, self.facts.entry_count)
        for directory, queue in placement.queues.items():
            if not queue.known:
                name = f"stub.{directory}"
                stub = paths.encode_stub(QueueName(self.facts.vhost.encode(), queue.name, queue.priority, 1))
                write_aside(f"{self.folder}/{name}", stub)
                placement.moves.append((name, f"{paths.QUEUES_FOLDER}/{directory}/{paths.STUB_FILE}"))
        if not any(system.exists(f"{self.root}/{name}") for name in (paths.PERSISTENT_FOLDER, paths.QUEUES_FOLDER)):
            self._add_skeleton(placement)
        if not placement.has_message_files:
            write_aside(f"{self.folder}/empty{paths.MESSAGE_SUFFIX}", b"")
            placement.moves.append(
                (f"empty{paths.MESSAGE_SUFFIX}", f"{paths.PERSISTENT_FOLDER}/0{paths.MESSAGE_SUFFIX}")
            )
        if placement.clean:
            index = [self._index_rows(part, placement) for part in parts]
            files = clean_files.files(
                snapshot, placement, np.concatenate(index) if index else None, self.options.priorities
            )
            for path, data in files.items():
                name = f"clean.{path.rsplit('/', 1)[-1]}"
                write_aside(f"{self.folder}/{name}", data)
                placement.clean_moves.append((name, path))
        else:
            why = "so a node will deliver all its messages as redelivered, the new ones too"
            self.warnings.append(f"{self.root}: the store was not stopped cleanly, {why}")
        if snapshot.places.clean:
            self._keep_tables(placement.intent()["removes"])
        definitions.write(self.root, self.facts.vhost, self._declared(placement))
        return placement

    def _add_skeleton(self, placement: Placement) -> None:
        """What says of a new store whose it is."""
        contents = {
            paths.CONFIG_FILE: paths.encode_config(self.facts.entry_count),
            paths.VHOST_FILE: self.facts.vhost.encode(),
        }
        for name, data in contents.items():
            write_aside(f"{self.folder}/new{name}", data)
            placement.moves.insert(0, (f"new{name}", name))

    def _keep_tables(self, names: Sequence[str]) -> None:
        """Copies aside what the last clean stop noted: readers go by it until the job is done."""
        folder = f"{self.folder}/{unfinished.BEFORE}"
        system.make_folder(folder)
        for name in names:
            write_aside(f"{folder}/{name.rpartition('/')[2]}", read_file(f"{self.root}/{name}"))

    def _index_rows(self, part: StagedPart, placement: Placement) -> Any:
        rows = np.frombuffer(read_file(f"{self.folder}/{part.detail['index']}"), ets_dump.INDEX_ROW).copy()
        numbers = np.array([placement.file_numbers[name] for name, _ in part.detail["messageFiles"]], np.int64)
        if len(rows):
            rows["file"] = numbers[rows["file"]]
        return rows

    def _declared(self, placement: Placement) -> dict[str, dict[str, Any]]:
        found: dict[str, dict[str, Any]] = {}
        for queue in placement.queues.values():
            own = self.options.queue is not None and queue.name == self.options.queue.encode()
            arguments = dict(self.options.arguments) if own else {}
            most = self.options.priorities.get(queue.name)
            if most is not None:
                arguments.setdefault("x-max-priority", most)
            found[queue.name.decode("utf-8", "replace")] = arguments
        return found


def check_not_running(root: str) -> None:
    """StoreLockedError when a node runs on the store: its pid file names a live process, or one has a file open."""
    node_folder = system.real_path(root).rsplit("/", 3)[0]
    noted = read_file(f"{node_folder}.pid").strip()
    if noted.isdigit() and system.process_start(int(noted)) is not None:
        raise StoreLockedError(
            f"StoreLockedError: {root} is locked by a running node (pid {int(noted)}); stop it first"
        )
    for pid in system.holders_below(root):
        raise StoreLockedError(f"StoreLockedError: {root} is locked by process {pid}, which has a file of it open")


def finish_pending(root: str) -> None:
    """Finishes a job that passed its commit point and was stopped. To be called under the lock."""
    intent = jobs.pending_intent(root)
    if intent is not None:
        carry_out(root, intent["job"], intent)
        jobs.drop_orphans(JobFolder(root), set())
    elif system.exists(JobFolder(root).intent):
        system.unlink(JobFolder(root).intent)


def carry_out(root: str, job: str, intent: Mapping[str, Any]) -> None:
    """Does what an intent says, from wherever it was stopped; every step may be done again."""
    places = JobFolder(root)
    staging = places.staging(job)
    waiting = [(s, t) for s, t in intent["moves"] if system.exists(f"{staging}/{s}")]
    clean_moves = [(s, t) for s, t in intent["cleanMoves"] if system.exists(f"{staging}/{s}")]
    # A file under a planned name, or clean files that are not this job's, mean that a node ran in between.
    disturbed = any(system.exists(f"{root}/{target}") for _, target in waiting)
    own = {target for _, target in intent["cleanMoves"]} - {target for _, target in clean_moves}
    for path in intent["removes"]:
        if path not in own and system.exists(f"{root}/{path}"):
            system.unlink(f"{root}/{path}")
    for folder in ("", paths.PERSISTENT_FOLDER):
        if system.exists(f"{root}/{folder}"):
            system.sync_folder(f"{root}/{folder}")
    for source, target in waiting:
        if system.exists(f"{root}/{target}"):
            target = _free(root, target)
        if target is not None:
            _move(f"{staging}/{source}", f"{root}/{target}")
    if not disturbed:
        for source, target in clean_moves:
            _move(f"{staging}/{source}", f"{root}/{target}")
    jobs.write_json(places.state, {"job": job})
    system.unlink(places.intent)
    jobs.drop_staging(places, job)


def _move(source: str, target: str) -> None:
    folder = target.rpartition("/")[0]
    if not system.exists(folder):
        system.make_folder(folder)
        system.sync_folder(folder.rpartition("/")[0])
    system.rename(source, target)
    system.sync_folder(folder)


def _free(root: str, target: str) -> str | None:
    """Another place for a file whose number was taken; None for one that may as well be left out."""
    folder, _, name = target.rpartition("/")
    suffix = "." + name.rpartition(".")[2]
    if suffix not in {paths.MESSAGE_SUFFIX, paths.SEGMENT_SUFFIX}:
        return None
    numbers = [paths.number_of(entry, suffix) for entry in system.names(f"{root}/{folder}")]
    return f"{folder}/{max(n for n in numbers if n is not None) + 1}{suffix}"
