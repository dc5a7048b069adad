"""`mqstore repair` of a vhost's store: repairs what `verify` finds, so that a node serves every whole message.

Message files come first, then segments and journals, then entries whose message is missing. What the last clean stop
saved is moved away before anything that it describes changes: a node then recounts, as after a crash. A node handles
every intermediate state correctly, and each run examines the store from scratch, so an interrupted repair can be
resumed. Source: docs/recovery.md "Repair".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np

from storage_core.files import system
from storage_core.files.lock import FileLock
from storage_core.files.small_file import read_whole
from storage_core.finding import Finding
from storage_core.formats.rabbitmq import paths
from storage_core.formats.rabbitmq.classic import journal, queue_v2, segment
from storage_core.formats.rabbitmq.message.basic_message import Reach
from storage_core.job import JobFolder, drop_orphans, new_job_id, pending_intent
from storage_core.rabbitmq.disk.running_node import check_not_running
from storage_core.rabbitmq.index.entries import JOURNAL
from storage_core.rabbitmq.index.queue_directory import QueueFiles
from storage_core.rabbitmq.index.segment_reader import mark_counts
from storage_core.rabbitmq.index.segment_v2_reader import entry_count_in
from storage_core.rabbitmq.read.snapshot import VhostSnapshot
from storage_core.rabbitmq.repair import message_files
from storage_core.rabbitmq.repair.dropped_entries import drop
from storage_core.rabbitmq.repair.index_files import MOST_STRANGERS, JournalRules, Known, SegmentRules, mended
from storage_core.rabbitmq.verify.contents import flaws
from storage_core.rabbitmq.verify.kinds import Kind
from storage_core.rabbitmq.verify.verification import findings
from storage_core.rabbitmq.write.placement import CLEAN_PATHS
from storage_core.rabbitmq.write.publish import finish_pending
from storage_core.repair.cut_bytes import CutBytes

MOST_ROUNDS = 8
LOCK_TIMEOUT_S = 60.0
TABLES = CLEAN_PATHS[:3]
HARMLESS = frozenset({Kind.ODD, Kind.TORN_JOURNAL, Kind.UNFINISHED, Kind.ID})
"""Kinds whose repair does not invalidate what the last clean stop saved."""
STORE_FILES = frozenset({Kind.MESSAGE, Kind.TORN, Kind.BLANK})
INDEX_FILES = frozenset({Kind.SEGMENT, Kind.JOURNAL, Kind.TORN_JOURNAL})
DROPPED = "drop the entry: the message is gone"

PLANNED = {
    Kind.UNFINISHED: "finish the write",
    Kind.JOURNAL: "keep the records that a node accepts",
    Kind.TORN_JOURNAL: "cut it",
    Kind.SEGMENT: "keep the records that a node accepts",
    Kind.MESSAGE: "restore the end marker if the message is complete, else detach it from all queues",
    Kind.TORN: "cut it, or lead a node's scan to the next whole record",
    Kind.BLANK: "cut it, or lead a node's scan to the next whole record",
    Kind.UNREADABLE: "drop the entry: nobody can read the message",
    Kind.ID: "write the id of the message into its record",
    Kind.DISAGREEING: "drop the entries whose message is gone, and notes of the last stop that do not fit",
    Kind.DANGLING: DROPPED,
    Kind.TABLES: "move the tables away: a node rebuilds them",
    Kind.COUNT: "move the tables away: a node counts again",
    Kind.ODD: "move it away",
}


def planned(listed: Iterable[Finding]) -> Iterator[str]:
    """What a repair would do about each finding, one line each; nothing about what some consumers can read."""
    for finding in listed:
        if finding.repairable:
            yield f"{placed(finding)}: {finding.kind}: {PLANNED[Kind(finding.kind)]}"


def placed(finding: Finding) -> str:
    """`FILE at POSITION`."""
    return f"{finding.file} at {finding.position}" if finding.position or finding.length else finding.file


@dataclass
class Repair:
    """One in-place repair of the store of `vhost` at `root`, with `entry_count` entries per segment."""

    root: str
    vhost: str
    entry_count: int
    done: list[str] = field(default_factory=list)

    def run(self) -> list[str]:
        """Repairs what can be repaired. Returns what was done, one line each.

        Raises StoreLockedError while a node or another writer works on the store, OSError. If it was interrupted at any
        step, the same call resumes it.
        """
        job_folder = JobFolder(self.root)
        system.make_folder(job_folder.folder)
        with FileLock(job_folder.lock, LOCK_TIMEOUT_S, "another writer of mqstore; try again when it is done"):
            check_not_running(self.root)
            if pending_intent(self.root) is not None:
                self.done.append("finished a write that was committed")
            finish_pending(self.root)
            drop_orphans(job_folder, set())
            cut = CutBytes(self.root, f"repair-{new_job_id()}")
            for _ in range(MOST_ROUNDS):
                snapshot = VhostSnapshot(self.root, "", self.vhost, self.entry_count, True)
                found = findings(snapshot, list(snapshot.named().values()), True)
                listed = [finding for finding in found if finding.repairable]
                so_far = len(self.done)
                self._mend(snapshot, listed, cut)
                if len(self.done) == so_far:
                    break
        return self.done

    def _mend(self, snapshot: VhostSnapshot, listed: list[Finding], cut: CutBytes) -> None:
        kinds = {Kind(finding.kind) for finding in listed}
        if kinds - HARMLESS:
            self._forget_tables(listed, cut)
        for finding in listed:
            if Kind(finding.kind) is Kind.ODD:
                cut.move(f"{self.root}/{finding.file}")
                self.done.append(f"{finding.file}: moved away")
        if Kind.ID in kinds:
            for directory in snapshot.directories:
                self._mend_ids(snapshot.files(directory), cut)
        # The contents of the message files decide which index entries count, and both decide which entries are dropped.
        if self._mend_files(listed, cut) or self._mend_indexes(snapshot, listed, cut):
            return
        if not snapshot.locations.clean:
            for directory in snapshot.directories:
                self._drop_entries(snapshot.files(directory), cut)
            self._forget_terms(snapshot, cut)

    def _mend_files(self, listed: list[Finding], cut: CutBytes) -> bool:
        files = _files(listed, STORE_FILES)
        lines = [f"{file} {text}" for file in files for text in message_files.mend(f"{self.root}/{file}", cut)]
        self.done += lines
        return bool(lines)

    def _mend_indexes(self, snapshot: VhostSnapshot, listed: list[Finding], cut: CutBytes) -> bool:
        texts = [self._mend_index(snapshot, file, cut) for file in _files(listed, INDEX_FILES)]
        self.done += [text for text in texts if text]
        return any(texts)

    # -- what the last clean stop noted

    def _forget_tables(self, listed: list[Finding], cut: CutBytes) -> None:
        there = [path for path in TABLES if system.exists(f"{self.root}/{path}")]
        for path in there:
            cut.move(f"{self.root}/{path}")
        if there:
            self.done.append(f"{paths.PERSISTENT_FOLDER}: its tables are moved away, a node rebuilds them")
        counted = sum(Kind(finding.kind) is Kind.COUNT for finding in listed)
        if counted:
            self.done.append(f"{TABLES[2]}: wrong reference counts of {counted:,} messages; a node counts again")

    def _forget_terms(self, snapshot: VhostSnapshot, cut: CutBytes) -> None:
        """Moves `recovery.dets` away if it does not match the contents of the queues."""
        path = f"{self.root}/{paths.RECOVERY_FILE}"
        wrong = any(_misfits(snapshot.files(directory)) for directory in snapshot.directories)
        if wrong and system.exists(path):
            cut.move(path)
            self.done.append(f"{paths.RECOVERY_FILE}: moved away, a node redelivers all messages")

    # -- segments and journals

    def _mend_index(self, snapshot: VhostSnapshot, file: str, cut: CutBytes) -> str:
        """Repairs one segment or journal. Returns what was done; empty if nothing could be."""
        path = f"{self.root}/{file}"
        data = read_whole(path) or b""
        if file.endswith(paths.INDEX2_SUFFIX):
            return self._mend_header(file, data, cut)
        known = _known(snapshot)
        if file.endswith(paths.JOURNAL_FILE):
            rules: JournalRules | SegmentRules = JournalRules(data, self._states(path.rpartition("/")[0]), known)
        else:
            rules = SegmentRules(data, self.entry_count, known)
        content = mended(rules)
        if isinstance(rules, SegmentRules) and rules.strangers > MOST_STRANGERS * (len(rules.states) + 1):
            return ""  # `.config` is another store's
        if content == data:
            return ""
        cut.replace(path, content)
        return f"{file}: {len(data) - len(content):,} damaged bytes are left out"

    def _states(self, folder: str) -> dict[int, int]:
        """The state of each sequence id in the segments: 1 published, 2 and more with marks."""
        found = {}
        for name in system.names(folder):
            number = paths.number_of(name, paths.SEGMENT_SUFFIX)
            if number is not None:
                counts = mark_counts(read_whole(f"{folder}/{name}") or b"")
                found.update({number * self.entry_count + relative: 1 + marks for relative, marks in counts.items()})
        return found

    def _mend_header(self, file: str, data: bytes, cut: CutBytes) -> str:
        """Repairs a version 2 segment: rebuilds the header from its number, clears entries that point nowhere."""
        folder, _, name = file.rpartition("/")
        number = paths.number_of(name, paths.INDEX2_SUFFIX) or 0
        count = self._entry_count(f"{self.root}/{folder}", name, data)
        header = queue_v2.encode_header(queue_v2.INDEX_MAGIC, number, count)
        own = f"{self.root}/{folder}/{number}{paths.STORE2_SUFFIX}"
        size = system.stat(own).size if system.exists(own) else 0
        content = header + queue_v2.mended(data[len(header) :], size)
        if content == data:
            return ""
        cut.replace(f"{self.root}/{file}", content)
        return f"{file}: its header, and entries that lead nowhere, are mended"

    @staticmethod
    def _entry_count(folder: str, name: str, data: bytes) -> int:
        """The entries of a damaged version 2 segment: as in another one of the queue, else by its own header."""
        others = (other for other in system.names(folder) if other != name)
        number = paths.number_of(name, paths.INDEX2_SUFFIX)
        own = queue_v2.entry_count_of(data, number)
        return entry_count_in(folder, others) or own or queue_v2.SEGMENT_ENTRY_COUNT

    # -- entries

    def _mend_ids(self, files: QueueFiles, cut: CutBytes) -> None:
        """Gives each record the id of the message in it."""
        for flaw in flaws(self.root, files):
            if flaw.own_id is not None:
                layout = journal.PUBLISH if flaw.entry["kind"] == JOURNAL else segment.PUBLISH
                file, position = files.files[flaw.entry["file"]], flaw.entry["position"] + layout.field("id").offset
                cut.overwrite(f"{self.root}/{file}", position, flaw.own_id)
                self.done.append(
                    f"{file}: sequence id {flaw.entry['sequence_id']}: its record has its message's id again"
                )

    def _drop_entries(self, files: QueueFiles, cut: CutBytes) -> None:
        """Drops entries whose message is missing, or cannot be read by anyone."""
        gone = files.forgotten.tolist()
        found = (flaw for flaw in flaws(self.root, files) if flaw.reach is not Reach.OTHER_PROTOCOLS)
        unread = (flaw for flaw in found if flaw.own_id is None)
        bad = {flaw.entry["sequence_id"]: flaw.reason for flaw in unread}
        if not gone and not bad:
            return
        name = f"{paths.QUEUES_FOLDER}/{files.directory.directory}"
        # A queue whose conversion was interrupted has entries of both versions.
        second = [number for number, file in enumerate(files.files) if file.endswith(paths.INDEX2_SUFFIX)]
        of_second = set(files.entries["sequence_id"][np.isin(files.entries["file"], second)].tolist())
        of_second.update(files.forgotten[np.isin(files.forgotten_from, second)].tolist())
        dropped = {*gone, *bad}
        for version, ids in ((1, dropped - of_second), (2, dropped & of_second)):
            if ids:
                drop(f"{self.root}/{name}", version, self.entry_count, ids, cut)
        self.done += [f"{name}: sequence id {each}: the message is gone, its entry is dropped" for each in sorted(gone)]
        self.done += [f"{name}: sequence id {each}: {why}; its entry is dropped" for each, why in sorted(bad.items())]


def _files(listed: Iterable[Finding], kinds: frozenset[Kind]) -> list[str]:
    return sorted({finding.file for finding in listed if Kind(finding.kind) in kinds})


def _known(snapshot: VhostSnapshot) -> Known:
    ids = {row.tobytes() for row in snapshot.locations.rows["id"]}
    return ids.__contains__


def _misfits(files: QueueFiles) -> bool:
    """Whether the queue's terms contradict its files, apart from lost messages."""
    return len(files.disagreements) > bool(len(files.forgotten)) or files.other_bytes is not None
