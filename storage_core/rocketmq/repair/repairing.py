"""`mqstore repair`: repairs what `verify` finds, one level at a time: files, then the log, then queues and index.

It holds both locks of a writer, and raises the guard that keeps a broker from loading a half-repaired store. Queues and
index are rebuilt from the log by the code of a write, as a broker start would rebuild them. After a stop at any point
it can be run again: each run examines the store from scratch. Source: docs/recovery.md "Repair".
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from storage_core.files import system
from storage_core.files.open_files import OpenFiles
from storage_core.files.small_file import read_start, write_whole
from storage_core.finding import Finding
from storage_core.formats.rocketmq import paths
from storage_core.formats.rocketmq.checkpoint import FILE_SIZE, encode_times
from storage_core.job import new_job_id
from storage_core.repair.cut_bytes import CutBytes
from storage_core.rocketmq.disk.directory import list_store, log_folders
from storage_core.rocketmq.index.geometry import noted_geometry
from storage_core.rocketmq.index.index_files import described, index_paths
from storage_core.rocketmq.recovery.recovery import recover
from storage_core.rocketmq.recovery.verdict import Rules
from storage_core.rocketmq.repair.batch_repair import list_batches
from storage_core.rocketmq.repair.log_repair import LogRepair
from storage_core.rocketmq.repair.offset_moves import (
    finish_moves,
    is_set,
    remember,
    remember_in_order,
    remembered_entries,
    remembered_in_order,
    set_remembered,
)
from storage_core.rocketmq.repair.queue_repair import empty_queue, list_in_order, without_beginning
from storage_core.rocketmq.verify.folders import usual_size
from storage_core.rocketmq.verify.kinds import Kind, Subject
from storage_core.rocketmq.verify.verification import verified
from storage_core.rocketmq.write.commit_point import raise_guard, remove_guard
from storage_core.rocketmq.write.job import complete, locked
from storage_core.rocketmq.write.options import WriteSettings
from storage_core.rocketmq.write.redo import finish_pending
from storage_core.rocketmq.write.truncate import refuse_lost_dispatch
from storage_core.store import QueueKey

MOST_ROUNDS = 8
FILES = frozenset({Kind.EMPTY, Kind.ODD, Kind.CONFIG})
LOG = frozenset({Kind.FILE_LOST, Kind.LENGTH, Kind.BYTES, Kind.DELAY, Kind.PORT, Kind.CHECKSUM, Kind.TORN})
QUEUES = frozenset({Kind.QUEUE_FILE_LOST, Kind.QUEUE_FILE_BLANK, Kind.ENTRY, Kind.PAST_END, Kind.UNLISTED})
BATCHES = frozenset({Kind.BATCH_ENTRY, Kind.UNLISTED_BATCH})
INDEX = frozenset({Kind.INDEX_LOST, Kind.INDEX_FILE, Kind.INDEX_ENTRY, Kind.INDEX_PAST_END, Kind.UNINDEXED})

PLANNED = {
    Kind.UNFINISHED: "finish the write, or remove what is left of it",
    Kind.EMPTY: "move it away",
    Kind.ODD: "move it away",
    Kind.CONFIG: "move it away, so that the .bak file is used",
    Kind.FILE_LOST: "create a blank one",
    Kind.LENGTH: "give it its length",
    Kind.BYTES: "fill the place with a record that no queue lists",
    Kind.DELAY: "put a record there that no queue lists",
    Kind.PORT: "keep the low 16 bits of the port",
    Kind.CHECKSUM: "keep the message as it is, with the checksum of its present body",
    Kind.TORN: "cut it",
    Kind.AFTER_END: "serve them again",
    Kind.CHECKPOINT: "rewrite it",
    Kind.QUEUE_TYPE: "nothing; restore topics.json, or move the queue away if it holds nothing",
    Kind.COMPACTION_FILE: "nothing; restore the file, or move both folders of the queue out of compaction/",
    Kind.COMPACTED_ENTRY: "nothing; a compaction of the broker drops it",
    Kind.UNSERVED: "nothing; scan=log reads the messages that are still in the commit log",
    **dict.fromkeys(QUEUES | BATCHES, "rebuild the queue from the log"),
    **dict.fromkeys(INDEX, "rebuild the index from the log"),
    Kind.INDEX_LOST: "rebuild the index from the log, if mqstore wrote it, or with the broker's maxHashSlotNum and "
    "maxIndexNum",
}

UNMENDED = "nothing; scan=log reads the messages"
"""What is done about messages whose queue cannot have a folder, or whose entry would be listed again as it is."""


def planned(findings: Iterator[Finding]) -> Iterator[str]:
    """What a repair would do about each finding, one line each."""
    for finding in findings:
        kind = Kind(finding.kind)
        is_left = kind in QUEUES | BATCHES and not finding.repairable
        yield f"{placed(finding)}: {kind.value}: {UNMENDED if is_left else PLANNED[kind]}"


def placed(finding: Finding) -> str:
    """`FILE at POSITION`."""
    return f"{finding.file} at {finding.position}" if finding.length else finding.file


@dataclass
class Repair:
    """One in-place repair of the store at `root`. `rules`: those of the store's broker, None to detect them."""

    root: str
    settings: WriteSettings
    rules: Rules | None = None
    done: list[str] = field(default_factory=list)
    _made: set[QueueKey] = field(default_factory=set)

    def run(self) -> list[str]:
        """Repairs what can be repaired. Returns what was done, one line each.

        Raises StoreLockedError while a broker or another writer works on the store, MqStoreError, OSError. After a stop
        at any step, the same call continues.
        """
        with locked(self.root, self.settings.lock_timeout_s, self.settings.commit_log_path):
            if finish_pending(self.root, self.settings):
                self.done.append("finished a write that was committed")
            if is_set(self.root):
                finish_moves(self.root)
            cut = CutBytes(self.root, f"repair-{new_job_id()}")
            was_stopped = remembered_entries(self.root) is not None
            if unlisted := remembered_in_order(self.root):
                raise_guard(self._folders)
                self._start_over()
                self._list_in_order(self._subject(), unlisted, cut)
            before: list[Finding] = []
            for _ in range(MOST_ROUNDS):
                subject = self._subject()
                findings = [finding for finding in verified(subject) if Kind(finding.kind) is not Kind.UNFINISHED]
                if not findings or findings == before:
                    break
                if not before:  # refusing later would leave a store that no broker loads
                    refuse_lost_dispatch(subject.listing, replace(subject.verdict, batches={}))
                before = findings
                if not self._mend(subject, findings, cut):
                    break
            if (self.done or was_stopped) and system.exists(os.path.join(self.root, paths.ABORT)):
                subject = self._subject()
                self._list_batches(subject, _listable(subject), cut)
                complete(self.root, self._with_queue_entries(self._with_geometry()))
            self.done += set_remembered(list_store(self.root, self.settings.commit_log_path))
            remove_guard(self._folders)
        return self.done

    @property
    def _folders(self) -> Sequence[str]:
        return log_folders(self.root, self.settings.commit_log_path)

    def _subject(self) -> Subject:
        listing = list_store(self.root, self.settings.commit_log_path)
        return Subject(listing, recover(listing, self.rules))

    def _mend(self, subject: Subject, findings: list[Finding], cut: CutBytes) -> bool:
        """Repairs the lowest level that has findings. Returns False if there is nothing that it can do."""
        raise_guard(self._folders)
        of_files = self._files(findings, cut)
        if of_files:
            return True
        log = LogRepair(subject.listing.log, cut)
        mended = False
        for finding in findings:
            if Kind(finding.kind) in LOG:
                outcome = log.mend(finding) if finding.queue is None else self._resize(subject, finding, cut)
                mended = mended or bool(outcome)
                self._record_outcome(finding, outcome)
        return mended or self._rebuild(subject, findings, cut)

    def _files(self, findings: list[Finding], cut: CutBytes) -> bool:
        mended = False
        for finding in findings:
            if Kind(finding.kind) in FILES and finding.repairable:
                cut.move(os.path.join(self.root, finding.file))
                self._record_outcome(finding, "moved away")
                mended = True
        return mended

    def _resize(self, subject: Subject, finding: Finding, cut: CutBytes) -> str:
        """Gives a file of a queue the length of the others; what it then lacks is found by the next round."""
        listing = subject.listing
        is_batch = finding.file.startswith(f"{paths.BATCH_CONSUME_QUEUE}/")
        chains = listing.batch_queues.values() if is_batch else [queue.chain for queue in listing.queues.values()]
        size = usual_size(chains)
        cut.resize(os.path.join(self.root, finding.file), size)
        return f"has {size:,} bytes now"

    def _record_outcome(self, finding: Finding, outcome: str) -> None:
        self.done.append(f"{placed(finding)}: {finding.kind}: {outcome or 'not mended'}")

    # -- queues and index

    def _rebuild(self, subject: Subject, findings: list[Finding], cut: CutBytes) -> bool:
        kinds = {Kind(finding.kind) for finding in findings}
        queues = _queues_of(finding for finding in findings if Kind(finding.kind) in QUEUES)
        settings = self._with_geometry()
        of_index = bool(kinds & INDEX) and settings.index_given
        batches = _queues_of(each for each in findings if Kind(each.kind) in BATCHES and each.repairable)
        if not queues and not batches and not of_index and Kind.CHECKPOINT not in kinds:
            return False
        self._list_batches(subject, batches | _listable(subject), cut)
        remember(subject, queues)
        settings = self._with_queue_entries(settings)
        self._start_over()
        again = {key for key in queues if key in self._made} | without_beginning(subject, queues)
        if again:
            remember_in_order(self.root, again)
            self._list_in_order(subject, again, cut)
        for key in sorted(queues - again):
            empty_queue(subject, key, cut)
            self.done.append(f"{paths.CONSUME_QUEUE}/{key[0]}/{key[1]}: rebuilt from the log")
        self._made |= queues
        if of_index:
            for path in index_paths(self.root):
                cut.move(path)
            self.done.append(f"{paths.INDEX}: rebuilt from the log")
        if Kind.CHECKPOINT in kinds:
            self.done.append(f"{paths.CHECKPOINT}: rewritten")
        complete(self.root, settings)
        return True

    def _list_in_order(self, subject: Subject, keys: set[QueueKey], cut: CutBytes) -> None:
        list_in_order(subject, keys, self._with_queue_entries(self.settings).queue_entries, cut)
        for key in sorted(keys):
            text = "rebuilt with every message in the order of the log"
            self.done.append(f"{paths.CONSUME_QUEUE}/{key[0]}/{key[1]}: {text}")

    def _list_batches(self, subject: Subject, keys: set[QueueKey], cut: CutBytes) -> None:
        """Rebuilds batch queues, also those that a broker start would complete: with complete queues it will not."""
        if keys:
            list_batches(subject, keys, cut)
        for key in sorted(keys):
            self.done.append(f"{paths.BATCH_CONSUME_QUEUE}/{key[0]}/{key[1]}: rebuilt from the log")

    def _start_over(self) -> None:
        """Makes the next broker start dispatch the whole log, as after a crash with an all-zero checkpoint."""
        abort, checkpoint = (os.path.join(self.root, name) for name in (paths.ABORT, paths.CHECKPOINT))
        if system.exists(checkpoint):
            write_whole(checkpoint, encode_times(read_start(checkpoint, FILE_SIZE), 0, 0, 0))
        if not system.exists(abort):
            write_whole(abort, b"")

    def _with_geometry(self) -> WriteSettings:
        """The settings with the slots and entries of index files: those given, else those that one of the files
        reveals, else those that mqstore recorded.
        """
        if self.settings.index_given:
            return self.settings
        noted = noted_geometry(self.root)
        with OpenFiles() as files:
            index_files = [described(path, files, noted) for path in index_paths(self.root)]
        geometry = next((file.geometry for file in index_files if file.entries and not file.flaw), noted)
        return self.settings if geometry is None else replace(self.settings, index=geometry, index_given=True)

    def _with_queue_entries(self, settings: WriteSettings) -> WriteSettings:
        """The settings with the entries of a queue file that this or a stopped repair noted."""
        entries = remembered_entries(self.root)
        return settings if entries is None else replace(settings, queue_entries=entries)


def _listable(subject: Subject) -> set[QueueKey]:
    """The batch queues that a broker start would complete, and that can have a folder."""
    return {key for key in subject.verdict.batches if paths.has_folder(*key)}


def _queues_of(findings: Iterator[Finding]) -> set[QueueKey]:
    named = (finding.queue.rpartition("/") for finding in findings if finding.queue is not None)
    keys = {(topic, int(queue_id)) for topic, _, queue_id in named}
    return {key for key in keys if paths.has_folder(*key)}
