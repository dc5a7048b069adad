"""Checks each consume queue by itself: entries that cannot be right whatever the log contains, and where in the queue
each part of the log is listed.

Comparing the entries with their records belongs to `log_spans`. Source of the rules: rocketmq.md 3.3, 3.4.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from storage_core.files.open_files import OpenFiles
from storage_core.finding import Finding
from storage_core.formats.layout import Mask, Positions
from storage_core.formats.rocketmq.consumequeue import BLANK_SIZE, QUEUE_ENTRY
from storage_core.rocketmq.disk.consume_queue import ConsumeQueue
from storage_core.rocketmq.disk.record_reader import record_at
from storage_core.rocketmq.disk.tags_code import tags_codes
from storage_core.rocketmq.recovery.dispatch import due_entries
from storage_core.rocketmq.recovery.verdict import Rules
from storage_core.rocketmq.verify.kinds import Kind, Subject
from storage_core.store import QueueKey

PIECE = 1 << 20


@dataclass(frozen=True)
class CheckedQueue:
    """The used entries [start, stop) of a queue, and what is wrong with them.

    `bounds[i]` is the first queue offset whose record is at or after the i-th edge. `wrong` are the queue offsets of
    wrong entries, ascending. `reach` is the address after the last record that the queue lists, -1 if there is none.
    """

    key: QueueKey
    queue: ConsumeQueue
    stop: int
    bounds: Positions
    wrong: Positions
    reach: int
    findings: tuple[Finding, ...]


@dataclass
class _Wrong:
    """Entries of one piece that are wrong for one reason."""

    queue_offsets: Positions
    kind: Kind
    reason: str


def checked_queue(subject: Subject, queue: ConsumeQueue, edges: Positions) -> CheckedQueue:
    """Reads all entries of a queue. `edges` are addresses of the log, ascending."""
    key = (queue.topic, queue.queue_id)
    findings: list[Finding] = []
    wrong: list[Positions] = [np.empty(0, np.int64)]
    with OpenFiles() as files:
        stop = _used_stop(queue, files)
        bounds = np.full(len(edges), -1, np.int64)
        highest, reach = -1, -1
        for first in range(queue.start, stop, PIECE):
            entries = queue.entries(files, first, min(first + PIECE, stop))
            numbers = np.arange(first, first + len(entries))
            here = _in_files(queue, numbers)
            good, bad = _sorted_out(subject, entries[here], numbers[here], highest)
            findings += [each for part in bad for each in part_findings(subject, queue, part)]
            wrong += [part.queue_offsets for part in bad]
            offsets = entries["physical_offset"][good - first].astype(np.int64)
            _fill_bounds(bounds, edges, offsets, good)
            if len(good):
                highest = int(offsets[-1])
                reach = highest + int(entries["size"][good[-1] - first])
        bounds[bounds < 0] = stop
        findings += _blank_files(subject, queue, stop)
    return CheckedQueue(key, queue, stop, bounds, np.sort(np.concatenate(wrong)), reach, tuple(findings))


def began_at(subject: Subject, queue: ConsumeQueue) -> int:
    """The address of the message with which a queue began at offset 0; -1 if its entry 0 does not identify it.

    Messages of the same topic and queue id before it were deleted with their topic, or with the folder of the queue:
    a broker begins at 0 if it finds no queue file, and never lists them again (rocketmq.md 3.3).
    """
    if not queue.chain.files or queue.start:
        return -1
    with OpenFiles() as files:
        entry = queue.entries(files, 0, 1)
        address = int(entry["physical_offset"][0])
        record = record_at(subject.listing.log, files, address, subject.verdict.log_end)
        if record is None:
            return -1
        due = due_entries(record, subject.verdict.rules is Rules.V5, subject.verdict.is_batched)
        started = [due.keys[number] for number in due.queue[due.queue_offsets == 0].tolist()]
        stated = int(record.column("total_size")[0]), int(tags_codes(record)[0])
    fits = (queue.topic, queue.queue_id) in started and (int(entry["size"][0]), int(entry["tags_code"][0])) == stated
    return address if fits else -1


def _used_stop(queue: ConsumeQueue, files: OpenFiles) -> int:
    """The queue offset after the last entry that is not all zeros."""
    for first, end in reversed(list(queue.file_queue_offsets())):
        used = np.flatnonzero(_used(queue.entries(files, first, end)))
        if len(used):
            return first + int(used[-1]) + 1
    return queue.start


def _used(entries: npt.NDArray[Any]) -> Mask:
    used: Mask = (entries["physical_offset"] != 0) | (entries["size"] != 0) | (entries["tags_code"] != 0)
    return used


def _in_files(queue: ConsumeQueue, numbers: Positions) -> Mask:
    """Which queue offsets have a file; a missing file is reported as a whole."""
    here = np.zeros(len(numbers), bool)
    for first, end in queue.file_queue_offsets():
        here |= (numbers >= first) & (numbers < end)
    return here


def _sorted_out(
    subject: Subject, entries: npt.NDArray[Any], numbers: Positions, highest: int
) -> tuple[Positions, list[_Wrong]]:
    """Queue offsets of the entries that may be right and are not expired, in ascending order of addresses; and the
    wrong entries.

    `highest` is the address that the last right entry before these names.
    """
    offsets, sizes = entries["physical_offset"].astype(np.int64), entries["size"].astype(np.int64)
    used, filler = _used(entries), sizes == BLANK_SIZE
    invalid = used & ((offsets < 0) | (sizes <= 0))
    beyond = used & ~invalid & ~filler & (offsets >= subject.listing.log.stop)
    rest = np.flatnonzero(used & ~invalid & ~filler & ~beyond & (offsets >= subject.verdict.log_start))
    wrong = _out_of_order(offsets[rest], highest)
    disorder = rest[wrong]
    found = [
        _Wrong(numbers[~used], Kind.ENTRY, "the entry is empty, and others follow"),
        _Wrong(numbers[invalid], Kind.ENTRY, "its address or size is negative or zero"),
        _Wrong(
            numbers[beyond], Kind.PAST_END, f"it points past the log, whose files end at {subject.listing.log.stop}"
        ),
        _Wrong(numbers[disorder], Kind.ENTRY, "its address is not between those of its neighbours"),
    ]
    return numbers[np.delete(rest, wrong)], [part for part in found if len(part.queue_offsets)]


def _out_of_order(offsets: Positions, highest: int) -> Positions:
    """The smallest set of entries that break the order, as far as one pass from each side can tell."""
    if not len(offsets):
        return np.empty(0, np.int64)
    before = np.maximum.accumulate(np.concatenate(([highest], offsets)))[:-1]
    after = np.minimum.accumulate(offsets[::-1])[::-1]
    too_low = np.flatnonzero(offsets <= before)
    if not len(too_low):
        return too_low
    too_high = np.flatnonzero(np.append(offsets[:-1] >= after[1:], False) | (offsets <= highest))
    return too_high if len(too_high) < len(too_low) else too_low


def _fill_bounds(bounds: Positions, edges: Positions, offsets: Positions, numbers: Positions) -> None:
    """Notes the first queue offset at or after each edge that these entries reach."""
    if not len(offsets):
        return
    open_edges = np.flatnonzero((bounds < 0) & (edges <= offsets[-1]))
    ordered = np.maximum.accumulate(offsets)
    bounds[open_edges] = numbers[np.searchsorted(ordered, edges[open_edges])]


def part_findings(subject: Subject, queue: ConsumeQueue, part: _Wrong) -> Iterator[Finding]:
    """A finding for each run of wrong entries, split at file boundaries."""
    numbers = part.queue_offsets
    cuts = np.flatnonzero((np.diff(numbers) > 1) | (np.diff(numbers // max(queue.entries_per_file, 1)) > 0)) + 1
    for run in np.split(numbers, cuts):
        yield entry_finding(subject, queue, part.kind, int(run[0]), len(run), part.reason)


def entry_finding(
    subject: Subject, queue: ConsumeQueue, kind: Kind, first: int, count: int, reason: str, effect: str | None = None
) -> Finding:
    """A finding about the entries of `count` queue offsets from `first` on."""
    position = first * QUEUE_ENTRY.size
    path = queue.chain.name_of(position)
    inside = position % max(queue.chain.file_size, QUEUE_ENTRY.size)
    place = f"queue offset {first}" if count == 1 else f"queue offsets {first} to {first + count - 1}"
    key = (queue.topic, queue.queue_id)
    return subject.finding(kind, path, inside, count * QUEUE_ENTRY.size, f"{place}: {reason}", effect, key)


def _blank_files(subject: Subject, queue: ConsumeQueue, stop: int) -> Iterator[Finding]:
    """Files after a queue's last entry: brokers leave them only in light queues of 4.9 (rocketmq.md 3.4, 3.8)."""
    for file in queue.chain.files:
        if file.base_offset // QUEUE_ENTRY.size >= stop:
            key = (queue.topic, queue.queue_id)
            yield subject.finding(Kind.QUEUE_FILE_BLANK, file.path, 0, file.size, "the file holds no entry", None, key)
