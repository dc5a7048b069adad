"""Reads one part of the log once, and compares its records with the queue and index entries that point into it.

Whole columns are compared: a record is a row number, and an entry finds its row by address. Source of the rules:
rocketmq.md 3.2, 4.2, 5.6.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc

from storage_core.arrays import as_array, as_mask
from storage_core.files.open_files import OpenFiles
from storage_core.formats.layout import Mask, Positions
from storage_core.formats.rocketmq.message import ROLLBACK, TRANSACTION_MASK, Messages
from storage_core.formats.rocketmq.paths import SCHEDULE_TOPIC
from storage_core.formats.rocketmq.properties import MULTI_DISPATCH
from storage_core.rocketmq.disk.commit_log import RecordRun, bad_delays
from storage_core.rocketmq.disk.log_walk import Gap, LogSpan, SpanWalk
from storage_core.rocketmq.disk.tags_code import tags_codes
from storage_core.rocketmq.index.index_files import hashes_of
from storage_core.rocketmq.recovery.dispatch import DueEntries, due_entries
from storage_core.rocketmq.recovery.verdict import Rules
from storage_core.rocketmq.verify.index_chains import CheckedIndex
from storage_core.rocketmq.verify.kinds import Subject
from storage_core.rocketmq.verify.queues import CheckedQueue
from storage_core.store import QueueKey

LARGEST_EXT_CODE = -2_147_483_649
"""A tags code of this value or less is an address in an extended queue file (rocketmq.md 3.6)."""


@dataclass(frozen=True)
class Expectations:
    """What all spans of one store are compared with.

    Records that end at or before `listed_to` must be in their queue, those that end at or before `named_to` in the
    queues that they name besides it (rocketmq.md 3.8), and those below `indexed_to` in the index.
    """

    subject: Subject
    queues: Sequence[CheckedQueue]
    indexes: Sequence[CheckedIndex]
    numbers: dict[QueueKey, int]
    listed_to: int
    named_to: int
    indexed_to: int
    unlisted_topics: frozenset[str]


@dataclass(frozen=True)
class Run:
    """A run of `count` messages between two addresses that a queue lacks, with queue offsets [first, stop), or that the
    index lacks, if `key` is None. `named`: it is not their own queue.

    `opens`, `closes`: whether they include the first and the last of the messages with keys that were checked together.
    """

    key: QueueKey | None
    first: int
    stop: int
    start_address: int
    stop_address: int
    count: int
    named: bool = False
    opens: bool = False
    closes: bool = False


@dataclass(frozen=True)
class WrongEntry:
    """An entry of queue or index file number `owner` that does not fit the record at its address."""

    owner: int
    number: int
    physical_offset: int
    reason: str


@dataclass
class SpanReport:
    """What one span contains. `last_end` is the address after its last valid record, -1 if there is none. In
    `unindexed`, None stands for messages that the index has.
    """

    span: LogSpan
    records: int = 0
    last_end: int = -1
    newest_ms: int = 0
    with_keys: int = 0
    after_end: int = 0
    after_end_bytes: int = 0
    gaps: list[Gap] = field(default_factory=list)
    bad_checksums: list[tuple[int, int]] = field(default_factory=list)
    bad_delays: list[tuple[int, int]] = field(default_factory=list)
    bad_ports: list[tuple[int, int]] = field(default_factory=list)
    wrong_entries: list[WrongEntry] = field(default_factory=list)
    wrong_index: list[WrongEntry] = field(default_factory=list)
    unlisted: list[Run] = field(default_factory=list)
    unindexed: list[Run | None] = field(default_factory=list)
    entries_nowhere: Positions = field(default_factory=lambda: np.empty((0, 3), np.int64))
    index_nowhere: Positions = field(default_factory=lambda: np.empty((0, 3), np.int64))


@dataclass(frozen=True)
class _Entries:
    """Entries that point into a span, sorted by address. Arrays have shape (n,)."""

    owner: npt.NDArray[np.int64]
    number: Positions
    physical_offset: Positions
    size: Positions
    code: Positions

    def part(self, start: int, stop: int) -> _Entries:
        """The entries that point into [start, stop)."""
        low, high = np.searchsorted(self.physical_offset, (start, stop))
        rows = slice(int(low), int(high))
        return _Entries(
            self.owner[rows], self.number[rows], self.physical_offset[rows], self.size[rows], self.code[rows]
        )

    @property
    def rows(self) -> Positions:
        """Owner, number and address of each entry. Shape (n, 3)."""
        return np.stack((self.owner, self.number, self.physical_offset), axis=1)


def checked_span(expectations: Expectations, span: LogSpan, number: int) -> SpanReport:
    """Checks span `number`, which is between the edges `number` and `number + 1` of queues and index files."""
    report = SpanReport(span)
    log = expectations.subject.listing.log
    file = log.file_at(span.start)
    if file is None:
        return report
    with OpenFiles() as files:
        listed = _queue_entries(expectations, span, number, files)
        indexed = _index_entries(expectations, span, number, files)
        position = span.start
        for item in SpanWalk(log, files, file, span, guesses=listed.physical_offset):
            start = item.start if isinstance(item, Gap) else int(item.physical_offsets[0])
            stop = item.stop if isinstance(item, Gap) else item.end_offset
            _note_nowhere(report, listed.part(position, start), indexed.part(position, start))
            position = stop
            entries, puts = listed.part(start, stop), indexed.part(start, stop)
            if isinstance(item, Gap):
                report.gaps.append(item)
                _note_nowhere(report, entries, puts)
            else:
                _check_records(report, expectations, item)
                _check_queues(report, expectations, item, entries)
                _check_index(report, expectations, item, puts)
        _note_nowhere(report, listed.part(position, span.stop), indexed.part(position, span.stop))
    return report


def _note_nowhere(report: SpanReport, entries: _Entries, puts: _Entries) -> None:
    """Notes entries that point where there is no record."""
    if len(entries.number):
        report.entries_nowhere = np.concatenate((report.entries_nowhere, entries.rows))
    if len(puts.number):
        report.index_nowhere = np.concatenate((report.index_nowhere, puts.rows))


# -- records


def _check_records(report: SpanReport, expectations: Expectations, run: RecordRun) -> None:
    messages, addresses = run.messages, run.physical_offsets
    report.records += len(messages)
    report.last_end = run.end_offset
    report.newest_ms = max(report.newest_ms, int(messages.column("store_ms").max()))
    wrong = messages.wrong_bodies()
    for row in np.flatnonzero(wrong).tolist():
        report.bad_checksums.append((int(addresses[row]), int(run.sizes[row])))
    for row in np.flatnonzero(bad_delays(messages)).tolist():
        report.bad_delays.append((int(addresses[row]), int(run.sizes[row])))
    for row in np.flatnonzero(messages.wrong_ports()).tolist():
        report.bad_ports.append((int(addresses[row]), int(run.sizes[row])))
    after = (addresses >= expectations.subject.verdict.log_end) & ~wrong
    report.after_end += int(after.sum())
    report.after_end_bytes += int(run.sizes[after].sum())


# -- queues


def _queue_entries(expectations: Expectations, span: LogSpan, number: int, files: OpenFiles) -> _Entries:
    parts = []
    for owner, checked in enumerate(expectations.queues):
        start, stop = checked.bounds[number : number + 2].tolist()
        if start >= stop:
            continue
        entries = checked.queue.entries(files, start, stop)
        numbers = np.arange(start, stop)
        if len(checked.wrong):
            right = ~np.isin(numbers, checked.wrong)
            entries, numbers = entries[right], numbers[right]
        parts.append((np.full(len(numbers), owner), numbers, entries))
    return _by_address(parts, span, "size", "tags_code")


def _by_address(parts: list[tuple[Positions, Positions, npt.NDArray[Any]]], span: LogSpan, *names: str) -> _Entries:
    owner, number = (np.concatenate([np.empty(0, np.int64), *(part[at] for part in parts)]) for at in (0, 1))
    address, *rest = (
        np.concatenate([np.empty(0, np.int64), *(part[2][name].astype(np.int64) for part in parts)])
        for name in ("physical_offset", *names)
    )
    order = np.argsort(address, kind="stable")
    order = order[(address[order] >= span.start) & (address[order] < span.stop)]
    size, code = rest if len(rest) == 2 else (rest[0], rest[0])
    return _Entries(owner[order], number[order], address[order], size[order], code[order])


def _rows_of(entries: _Entries, addresses: Positions) -> tuple[npt.NDArray[np.intp], Mask]:
    """The row of the record that each entry points to, and whether a record begins there."""
    rows = np.minimum(np.searchsorted(addresses, entries.physical_offset), len(addresses) - 1)
    return rows, addresses[rows] == entries.physical_offset


def _check_queues(report: SpanReport, expectations: Expectations, run: RecordRun, entries: _Entries) -> None:
    messages, addresses = run.messages, run.physical_offsets
    verdict = expectations.subject.verdict
    due = due_entries(messages, verdict.rules is Rules.V5, verdict.is_batched)
    owners = np.array([expectations.numbers.get(key, -1) for key in due.keys], np.int64)[due.queue]
    rows, there = _rows_of(entries, addresses)
    _note(report.wrong_entries, entries, ~there, "no record begins where it points")
    _note(report.wrong_entries, entries, there & (entries.size != run.sizes[rows]), "its size is not the record's")
    is_own, listed = _paired(due, owners, entries, rows, there)
    strange = there & ~is_own
    if strange.any():
        strange[strange] = ~_dispatched_to(expectations, messages, entries, rows, np.flatnonzero(strange))
        _note(report.wrong_entries, entries, strange, "the record there belongs to another queue, or to none")
    _check_tags(report, run, entries, rows, is_own)
    ends = (addresses + run.sizes)[due.rows]
    must_exist = np.where(due.named, ends <= expectations.named_to, ends <= expectations.listed_to)
    missing = must_exist & ~listed
    if expectations.unlisted_topics and missing.any():
        missing &= np.array([key[0] not in expectations.unlisted_topics for key in due.keys], bool)[due.queue]
    if missing.any():
        report.unlisted += _unlisted_runs(run, due, np.flatnonzero(missing))


def _paired(
    due: DueEntries, owners: npt.NDArray[np.int64], entries: _Entries, rows: npt.NDArray[np.intp], there: Mask
) -> tuple[Mask, Mask]:
    """Which entries are called for by their records, and which `due` entries, of queues number `owners`, exist.

    `rows` are the records that the entries point to, if one is `there`.
    """
    if due.named.any():
        expected, actual = due.rows << 32 | owners, rows << 32 | entries.owner
        is_own = there & _among(actual, expected)
        return is_own, _among(expected, actual[is_own])
    count = 1 + max(int(due.rows[-1]) if len(due.rows) else 0, int(rows.max(initial=0)))
    own, listed = np.full(count, -1, np.int64), np.zeros(count, bool)
    own[due.rows] = owners
    is_own = there & (own[rows] == entries.owner)
    listed[rows[is_own]] = True
    return is_own, listed[due.rows]


def _check_tags(report: SpanReport, run: RecordRun, entries: _Entries, rows: npt.NDArray[np.intp], own: Mask) -> None:
    differs = own & (entries.code != tags_codes(run.messages)[rows]) & (entries.code > LARGEST_EXT_CODE)
    if differs.any():
        # After a crash, 4.9 stores the hash of TAGS for a delayed message (rocketmq.md 3.2).
        differs &= ~as_mask(pc.equal(run.messages.topics(), SCHEDULE_TOPIC))[rows]
        _note(report.wrong_entries, entries, differs, "its tags code is not that of the record's TAGS")


def _dispatched_to(
    expectations: Expectations, messages: Messages, entries: _Entries, rows: npt.NDArray[np.intp], strange: Positions
) -> Mask:
    """Which of the strange entries belong to queues that their record names itself (rocketmq.md 3.8)."""
    named = messages.property_column().values(MULTI_DISPATCH)
    listed = pc.binary_join_element_wise(",", pc.fill_null(named, ""), ",", "")
    found = np.zeros(len(strange), bool)
    owners = entries.owner[strange]
    for owner in np.unique(owners).tolist():
        at = np.flatnonzero(owners == owner)
        texts = listed.take(as_array(rows[strange[at]]))
        found[at] = as_mask(pc.match_substring(texts, f",{expectations.queues[owner].key[0]},"))
    return found


def _note(target: list[WrongEntry], entries: _Entries, rows: Mask, reason: str) -> None:
    if rows.any():
        columns = (entries.owner[rows], entries.number[rows], entries.physical_offset[rows])
        found = zip(*(column.tolist() for column in columns), strict=True)
        target += [WrongEntry(owner, number, address, reason) for owner, number, address in found]


def _unlisted_runs(run: RecordRun, due: DueEntries, missing: Positions) -> list[Run]:
    runs = []
    kind = due.queue[missing] << 1 | due.named[missing]
    for number in np.unique(kind).tolist():
        entries = missing[kind == number]
        offsets, rows = due.queue_offsets[entries], due.rows[entries]
        cuts = np.flatnonzero(np.diff(offsets) != 1) + 1
        for part, numbers in zip(np.split(rows, cuts), np.split(offsets, cuts), strict=True):
            start, stop = int(run.physical_offsets[part[0]]), int(run.physical_offsets[part[-1]] + run.sizes[part[-1]])
            first, last = int(numbers[0]), int(numbers[-1])
            runs.append(Run(due.keys[number >> 1], first, last + 1, start, stop, len(part), bool(number & 1)))
    return runs


# -- the index


def _index_entries(expectations: Expectations, span: LogSpan, number: int, files: OpenFiles) -> _Entries:
    parts = []
    for owner, index in enumerate(expectations.indexes):
        start, stop = index.bounds[number : number + 2].tolist()
        if start < stop:
            parts.append((np.full(stop - start, owner), np.arange(start, stop), index.entries(files, start, stop)))
    return _by_address(parts, span, "key_hash")


def _check_index(report: SpanReport, expectations: Expectations, run: RecordRun, entries: _Entries) -> None:
    messages, addresses = run.messages, run.physical_offsets
    hashes, owners = hashes_of(messages)
    indexed = messages.column("sys_flag") & TRANSACTION_MASK != ROLLBACK
    due = (indexed & (addresses < expectations.indexed_to))[owners]
    with_keys = _distinct(owners[due], len(messages))
    report.with_keys += len(with_keys)
    if not expectations.indexes:
        return
    rows, there = _rows_of(entries, addresses)
    _note(report.wrong_index, entries, ~there, "no record begins where it points")
    expected = owners.astype(np.int64) << 32 | hashes.astype(np.int64)
    actual = rows.astype(np.int64) << 32 | entries.code
    strange = there & ~_among(actual, expected[indexed[owners]])
    _note(report.wrong_index, entries, strange, "its record has no such key")
    missing = _distinct(owners[due & ~_among(expected, actual[there])], len(messages))
    # Runs of messages with keys that have no indexed message between them.
    order = np.searchsorted(with_keys, missing)
    parts = np.split(np.arange(len(missing)), np.flatnonzero(np.diff(order) != 1) + 1) if len(missing) else []
    for part in parts:
        first, last = int(missing[part[0]]), int(missing[part[-1]])
        opens, closes = bool(order[part[0]] == 0), bool(order[part[-1]] == len(with_keys) - 1)
        start, stop = int(addresses[first]), int(addresses[last] + run.sizes[last])
        report.unindexed.append(Run(None, 0, 0, start, stop, len(part), opens=opens, closes=closes))
    if len(with_keys) and not len(missing):
        report.unindexed.append(None)


def _distinct(rows: npt.NDArray[np.int64], count: int) -> npt.NDArray[np.intp]:
    """The row numbers below `count` that occur, ascending; faster than `numpy.unique`, which hashes or sorts."""
    seen = np.zeros(count, bool)
    seen[rows] = True
    return np.flatnonzero(seen)


def _among(values: npt.NDArray[np.int64], table: npt.NDArray[np.int64]) -> Mask:
    """Which values are in a table. They are nearly sorted, by row, so that the searches stay in the cache."""
    if not len(table):
        return np.zeros(len(values), bool)
    ordered = np.sort(table)
    at = np.minimum(np.searchsorted(ordered, values), len(ordered) - 1)
    found: Mask = ordered[at] == values
    return found
