"""Reads a whole store once and compares log, queues and index, with a thread for each core, up to eight.

Parts of the log are checked in parallel (`log_spans`), after queues and index files were checked by themselves
(`queues`, `index_chains`). Findings that span several parts are joined here. Source: docs/recovery.md "Damage".
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np

from storage_core.errors import UnsupportedFormatError
from storage_core.files import system
from storage_core.files.open_files import OpenFiles
from storage_core.files.window import Window
from storage_core.finding import Finding
from storage_core.formats.rocketmq import paths
from storage_core.formats.rocketmq.consumequeue import QUEUE_ENTRY
from storage_core.formats.rocketmq.message import BLANK, MAGIC_BLANK
from storage_core.formats.rocketmq.record_walk import Stop
from storage_core.progress import report as report_progress
from storage_core.rocketmq.disk.config_files import batch_topics
from storage_core.rocketmq.disk.log_walk import Gap, LogSpan
from storage_core.rocketmq.recovery.redispatch import redispatched
from storage_core.rocketmq.verify.batch_queues import wrong_batched
from storage_core.rocketmq.verify.folders import wrong_files, wrong_small_files
from storage_core.rocketmq.verify.index_chains import CheckedIndex, checked_indexes, index_finding
from storage_core.rocketmq.verify.kinds import ENDS_HERE, LISTS_AGAIN, Kind, Subject, counted
from storage_core.rocketmq.verify.log_spans import Expectations, Run, SpanReport, WrongEntry, checked_span
from storage_core.rocketmq.verify.queues import CheckedQueue, began_at, checked_queue, entry_finding
from storage_core.store import QueueKey

SPAN_SIZE = 64 << 20
WORK = "checking"
MOST_THREADS = 8
"""Each checks more than a gigabyte a second and takes about 60 MB: more of them would wait for the disk."""


def verified(subject: Subject) -> Iterator[Finding]:
    """Everything that is wrong in a store; findings about the log are yielded while it is read.

    Memory is bounded by the parts that are read at a time (64 MiB of the log and their entries, for each thread).
    Changes nothing. Raises CorruptionError if a file shrinks or vanishes meanwhile.
    """
    if subject.listing.rocksdb_queues:
        raise UnsupportedFormatError(
            f"{subject.listing.root}/consumequeue: the queues are in RocksDB, which mqstore does not read, so log and "
            "queues cannot be compared; option scan=log reads every message of the commit log"
        )
    yield from wrong_files(subject)
    yield from wrong_batched(subject)
    yield from _Verification(subject).findings()


@dataclass
class _Verification:
    """One pass over a store."""

    subject: Subject
    open_gaps: list[Gap] = field(default_factory=list)
    last_end: int = -1
    newest_ms: int = 0
    with_keys: int = 0
    after_end: int = 0
    after_end_bytes: int = 0
    reported_gaps: list[tuple[int, int]] = field(default_factory=list)
    unlisted: dict[QueueKey, list[Run]] = field(default_factory=dict)
    unindexed: list[Run] = field(default_factory=list)
    last_is_indexed: bool = True
    wrong_numbers: dict[QueueKey, list[int]] = field(default_factory=dict)
    past_end: list[tuple[bool, int, int, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        log = self.subject.listing.log
        self.spans = [
            LogSpan(start, min(start + SPAN_SIZE, file.end), start == file.base_offset)
            for file in log.files
            for start in range(file.base_offset, file.end, SPAN_SIZE)
        ]
        self.edges = np.array([span.start for span in self.spans] + [log.stop], np.int64)
        self.queues: list[CheckedQueue] = []
        self.indexes: list[CheckedIndex] = []

    def findings(self) -> Iterator[Finding]:
        """All findings except those of `wrong_files` and `wrong_batched`."""
        with ThreadPoolExecutor(_thread_count()) as pool:
            listing = self.subject.listing
            self.queues = list(
                pool.map(lambda queue: checked_queue(self.subject, queue, self.edges), listing.queues.values())
            )
            yield from (finding for checked in self.queues for finding in checked.findings)
            for found, index in checked_indexes(self.subject, self.edges):
                yield from found
                self.indexes += [index] if index is not None else []
            expectations = self._expectations()
            done, total = 0, sum(file.size for file in listing.log.files)
            tasks = (lambda n=n, s=s: checked_span(expectations, s, n) for n, s in enumerate(self.spans))
            for report in _in_order(pool, tasks):
                yield from self._of_span(report)
                done += report.span.stop - report.span.start
                report_progress(WORK, done, total)
        yield from self._at_the_end()
        first, stop = self.subject.verdict.unlisted
        if first < stop:
            reason = "messages from here on, which a start after a crash takes out of their queues"
            yield self.subject.log_finding(Kind.UNLISTED, first, stop, reason, "does not serve them after this start")

    def _expectations(self) -> Expectations:
        subject, listing = self.subject, self.subject.listing
        numbers = {checked.key: number for number, checked in enumerate(self.queues)}
        listed_to = named_to = indexed_to = subject.verdict.log_end
        if listing.abort:
            # A broker that is running or was killed has not yet listed and indexed its newest messages.
            listed_to = min(listed_to, max((checked.reach for checked in self.queues), default=-1))
            # The last record that it listed may be in its own queue alone.
            named_to = listed_to - 1
            newest = max((index.file.header.end_offset for index in self.indexes), default=listed_to)
            indexed_to = min(listed_to, newest + 1)
        return Expectations(
            subject, self.queues, self.indexes, numbers, listed_to, named_to, indexed_to,
            batch_topics(listing.root) | {topic for topic, _ in listing.batch_queues},
        )  # fmt: skip

    # -- findings of one span

    def _of_span(self, report: SpanReport) -> Iterator[Finding]:
        self.newest_ms = max(self.newest_ms, report.newest_ms)
        self.with_keys += report.with_keys
        self.after_end += report.after_end
        self.after_end_bytes += report.after_end_bytes
        if report.last_end >= 0:
            self.last_end = report.last_end
        for gap in report.gaps:
            self.open_gaps.append(gap)
        yield from self._damaged_gaps()
        for kind, places in (
            (Kind.CHECKSUM, report.bad_checksums), (Kind.DELAY, report.bad_delays), (Kind.PORT, report.bad_ports)
        ):  # fmt: skip
            yield from (self._record_finding(kind, start, size) for start, size in places)
        yield from (self._entry_finding(wrong) for wrong in report.wrong_entries)
        yield from (
            index_finding(
                self.subject, self.indexes[wrong.owner], Kind.INDEX_ENTRY, wrong.number,
                f"entry {wrong.number}, for the log at {wrong.physical_offset}: {wrong.reason}",
            )
            for wrong in report.wrong_index
        )  # fmt: skip
        self.past_end += [(True, *row) for row in report.entries_nowhere.tolist()]
        self.past_end += [(False, *row) for row in report.index_nowhere.tolist()]
        for run in report.unlisted:
            if run.key is not None:
                _join(self.unlisted.setdefault(run.key, []), run, run.first)
        for run_or_none in report.unindexed:
            self._add_unindexed(run_or_none)

    def _damaged_gaps(self) -> Iterator[Finding]:
        """Findings about the gaps that are followed by a record; the others may be the end of the log."""
        ready = [gap for gap in self.open_gaps if gap.start < self.last_end or gap.followed]
        self.open_gaps = [gap for gap in self.open_gaps if gap not in ready]
        for gap in ready:
            if not self._ends_file(gap):
                yield self._gap_finding(gap)

    def _ends_file(self, gap: Gap) -> bool:
        """Whether the gap begins with a blank record that reaches the end of its file: what follows means nothing."""
        log = self.subject.listing.log
        file = log.file_at(gap.start)
        if gap.reason is not Stop.BLANK or file is None:
            return False
        with OpenFiles() as files:
            head = Window(log, files).load(gap.start, gap.start + BLANK.size).tobytes()
        end = max(file.end, file.base_offset + log.file_size)
        return head == (end - gap.start).to_bytes(4, "big") + MAGIC_BLANK.to_bytes(4, "big")

    def _gap_finding(self, gap: Gap) -> Finding:
        self.reported_gaps.append((gap.start, gap.stop))
        reason = {
            Stop.END: "zeros, and records after them",
            Stop.BLANK: "a blank record that does not reach the end of its file, and records after it",
        }.get(gap.reason, "bytes that hold no right record, and records after them")
        effect = ENDS_HERE if gap.start == self.subject.verdict.log_end else None
        return self.subject.log_finding(Kind.BYTES, gap.start, gap.stop, reason, effect)

    def _record_finding(self, kind: Kind, start: int, size: int) -> Finding:
        reason = {
            Kind.CHECKSUM: f"the body of the record at {start} does not fit its BODYCRC",
            Kind.DELAY: f"the DELAY of the record at {start} is no number",
            Kind.PORT: f"the born or store host of the record at {start} has a port above 65535",
        }[kind]
        effect = ENDS_HERE if start == self.subject.verdict.log_end and kind is not Kind.PORT else None
        return self.subject.log_finding(kind, start, start + size, reason, effect)

    def _entry_finding(self, wrong: WrongEntry) -> Finding:
        queue = self.queues[wrong.owner].queue
        self.wrong_numbers.setdefault((queue.topic, queue.queue_id), []).append(wrong.number)
        reason = f"it points to {wrong.physical_offset}: {wrong.reason}"
        return entry_finding(self.subject, queue, Kind.ENTRY, wrong.number, 1, reason)

    # -- findings of the whole store

    def _at_the_end(self) -> Iterator[Finding]:
        subject = self.subject
        yield from self._end_of_log()
        if self.after_end:
            end = subject.verdict.log_end
            text = counted(self.after_end, "intact record")
            reason = f"{text} after the end of the log, which is at {end}"
            yield subject.log_finding(Kind.AFTER_END, end, end + self.after_end_bytes, reason)
        yield from self._pointing_nowhere()
        yield from self._unlisted()
        yield from self._unindexed()
        yield from wrong_small_files(subject, self.newest_ms)

    def _end_of_log(self) -> Iterator[Finding]:
        """Findings about bytes after the last valid record, except zeros."""
        for gap in self.open_gaps:
            stop = self._last_byte(gap)
            if gap.reason is Stop.BLANK or stop == gap.start:
                continue
            reason = counted(stop - gap.start, "byte") + " after the last record, which are no whole record"
            yield self.subject.log_finding(Kind.TORN, gap.start, stop, reason)

    def _last_byte(self, gap: Gap) -> int:
        """Address after the last byte of a gap that is not zero; the gap's start if all are zero."""
        log, last = self.subject.listing.log, gap.start
        file = log.file_at(gap.start)
        if file is None:
            return last
        with OpenFiles() as files:
            window, base = Window(log, files), file.base_offset
            for low, high in system.data_spans(files.descriptor(file.path), gap.start - base, gap.stop - base):
                for at in range(low, high, 8 << 20):
                    used = np.flatnonzero(window.load(base + at, base + min(at + (8 << 20), high)))
                    last = base + at + int(used[-1]) + 1 if len(used) else last
        return last

    def _pointing_nowhere(self) -> Iterator[Finding]:
        """Findings about entries that point past the end of the log, or after a blank record; entries that point into
        a gap are reported with it.
        """
        gaps = np.array(sorted(self.reported_gaps), np.int64).reshape(-1, 2)
        grouped: dict[tuple[bool, int, bool], list[tuple[int, int]]] = {}
        for of_queue, owner, number, physical_offset in self.past_end:
            at = int(np.searchsorted(gaps[:, 0], physical_offset, "right")) - 1
            if at < 0 or physical_offset >= gaps[at, 1]:
                key = (of_queue, owner, physical_offset >= self.last_end)
                grouped.setdefault(key, []).append((number, physical_offset))
        for (of_queue, owner, past), rows in grouped.items():
            first, address = min(rows)
            where = "past the last record of the log" if past else "to where no record is"
            reason = f"{counted(len(rows), 'entry points', 'entries point')} {where}, the first to {address}"
            if of_queue:
                queue, kind = self.queues[owner].queue, Kind.PAST_END if past else Kind.ENTRY
                yield entry_finding(self.subject, queue, kind, first, len(rows), reason)
            else:
                kind = Kind.INDEX_PAST_END if past else Kind.INDEX_ENTRY
                yield index_finding(self.subject, self.indexes[owner], kind, first, reason)

    def _unlisted(self) -> Iterator[Finding]:
        if not self.unlisted:
            return
        again = self._listed_again()
        known = {checked.key: checked for checked in self.queues}
        for key, runs in sorted(self.unlisted.items()):
            checked = known.get(key)
            began = -1 if checked is None else began_at(self.subject, checked.queue)
            for run in runs:
                if run.stop_address <= began:
                    continue  # of a deleted queue of the same name
                if checked is not None and _is_reported(checked, self.wrong_numbers.get(key, []), run):
                    continue
                if checked is not None and run.named and _is_ignored(checked, run):
                    continue
                will = int(np.searchsorted(again, run.stop_address)) - int(np.searchsorted(again, run.start_address))
                effect = LISTS_AGAIN if will >= run.count else None
                reason = counted(run.count, "message is", "messages are") + " in no queue file"
                if checked is not None and checked.queue.chain.files:
                    count = run.stop - run.first
                    yield entry_finding(self.subject, checked.queue, Kind.UNLISTED, run.first, count, reason, effect)
                else:
                    folder = os.path.join(self.subject.listing.root, paths.CONSUME_QUEUE, key[0], str(key[1]))
                    reason, mends = f"queue offsets {run.first} to {run.stop - 1}: {reason}", paths.has_folder(*key)
                    reason += "" if mends else ", and the queue cannot have a folder"
                    yield self.subject.finding(Kind.UNLISTED, folder, 0, 0, reason, effect, key, mends)

    def _listed_again(self) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """Addresses of the records that the next broker start lists, ascending."""
        found = [np.empty(0, np.int64)]
        with OpenFiles() as files:
            for _, entries in redispatched(self.subject.listing.log, self.subject.verdict, files):
                found.append(entries.physical_offsets)
        return np.unique(np.concatenate(found))

    def _unindexed(self) -> Iterator[Finding]:
        folder = os.path.join(self.subject.listing.root, paths.INDEX)
        if not self.indexes:
            if self.with_keys:
                text = counted(self.with_keys, "message has", "messages have")
                reason = f"no index file can be used, and {text} a key or an id"
                yield self.subject.finding(Kind.INDEX_LOST, folder, 0, 0, reason)
            return
        for run in self.unindexed:
            reason = counted(run.count, "message") + " with a key or an id " + ("is" if run.count == 1 else "are")
            reason += " in no index file"
            yield self.subject.log_finding(Kind.UNINDEXED, run.start_address, run.stop_address, reason)

    def _add_unindexed(self, run: Run | None) -> None:
        """Adds a run, joined with the previous one if no indexed message is between them."""
        if run is not None and run.opens and not self.last_is_indexed and self.unindexed:
            last = self.unindexed[-1]
            self.unindexed[-1] = replace(last, stop_address=run.stop_address, count=last.count + run.count)
        elif run is not None:
            self.unindexed.append(run)
        self.last_is_indexed = run is None or not run.closes


def _is_reported(checked: CheckedQueue, wrong: list[int], run: Run) -> bool:
    """Whether the entries that a run of messages lacks have already been reported as missing or wrong."""
    files = checked.queue.chain.files
    size = checked.queue.chain.file_size
    holes = [(a.base_offset + size, b.base_offset) for a, b in pairwise(files)]
    start, stop = run.first * QUEUE_ENTRY.size, run.stop * QUEUE_ENTRY.size
    if any(low <= start and stop <= high for low, high in holes):
        return True
    numbers = np.union1d(checked.wrong, np.array(wrong, np.int64))
    first, last = np.searchsorted(numbers, (run.first, run.stop))
    return bool(last - first == run.count)


def _is_ignored(checked: CheckedQueue, run: Run) -> bool:
    """Whether a dispatcher ignores a run because its queue offsets are too small: after each start, 4.9 assigns offsets
    from 0 on again in queues that records name (rocketmq.md 3.8).
    """
    with OpenFiles() as files:
        queue, address = checked.queue, np.array([run.start_address])
        return run.first > 0 and run.stop <= int(queue.lower_bounds(files, queue.start, checked.stop, address)[0])


def _join(runs: list[Run], run: Run, first: int) -> None:
    """Adds a run of a queue, joined with the last one if it continues that."""
    if runs and runs[-1].stop == first and runs[-1].named == run.named:
        last = runs[-1]
        runs[-1] = replace(last, stop=run.stop, stop_address=run.stop_address, count=last.count + run.count)
    else:
        runs.append(run)


def _in_order(pool: ThreadPoolExecutor, tasks: Iterator[Callable[[], SpanReport]]) -> Iterator[SpanReport]:
    """Yields the results in task order, while a few tasks run ahead."""
    ahead = 2 * _thread_count()
    waiting: deque[Future[SpanReport]] = deque()
    try:
        for task in tasks:
            waiting.append(pool.submit(task))
            if len(waiting) > ahead:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        for future in waiting:
            future.cancel()


def _thread_count() -> int:
    return min(len(os.sched_getaffinity(0)), MOST_THREADS)
