"""The index of one queue: which sequence ids it holds, and in which order they reach the journal and the segments.

`formats.rabbitmq` defines the bytes, `index_recovery` does recovery. Source: rabbitmq.md 2, 3 and 5.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from storage_core.files import system
from storage_core.files.small_file import remove_file
from storage_core.formats.layout import Mask
from storage_core.formats.rabbitmq import paths
from storage_core.formats.rabbitmq.classic import index_records, journal
from storage_core.rabbitmq.index.index_segment import IndexSegment
from storage_core.rabbitmq.index.journal_file import JournalFile
from storage_core.rabbitmq.index.message_run import PERSISTENT, TO_INDEX, MessageRun, SequenceIds, empty_run, joined

PUBLISHED_PERSISTENT = index_records.PUBLISHED | index_records.PERSISTENT


class QueueIndex:
    """Segment map, journal and dirty count. `hint` of a publish is the target_ram_count, None for infinity."""

    def __init__(self, directory: str, stub: bytes | None, entry_count: int, max_journal_entries: int) -> None:
        self.directory, self.entry_count, self.max_journal_entries = directory, entry_count, max_journal_entries
        self.journal = JournalFile(directory, stub)
        self.segments: dict[int, IndexSegment] = {}
        self.dirty_count = 0
        self._batch: list[tuple[SequenceIds, bytes]] = []
        self._batch_size = 0

    def boundary_after(self, sequence_id: int) -> int:
        """First sequence id of the segment after the one that `sequence_id` is in."""
        return (sequence_id // self.entry_count + 1) * self.entry_count

    def segment(self, number: int) -> IndexSegment:
        """Segment `number`, added to the map if necessary."""
        found = self.segments.get(number)
        if found is None:
            found = self.segments[number] = IndexSegment(self.directory, number, self.entry_count)
        return found

    def _pieces(self, sequence_ids: SequenceIds) -> Iterator[tuple[IndexSegment, slice | Mask]]:
        """The segments of `sequence_ids`, each with the selection of its own."""
        numbers = sequence_ids // self.entry_count
        if len(numbers) and (numbers == numbers[0]).all():
            yield self.segment(int(numbers[0])), slice(None)
            return
        for number in np.unique(numbers).tolist():
            yield self.segment(number), numbers == number

    def publish(self, run: MessageRun, hint: int | None) -> None:
        """Adds messages one by one: each publish, with its deliver right after, and the flush checks of both."""
        for at in range(len(run)):
            one = run[at : at + 1]
            self.journal.append(self._add_publishes(one))
            self._maybe_flush(hint)
            self._deliver(one.sequence_ids)

    def publish_batch(self, run: MessageRun, hint: int | None) -> None:
        """Adds messages to the open batch, which is written out when it reaches the size of a segment."""
        while len(run):
            part = run[: max(self.entry_count - self._batch_size, 1)]
            run = run[len(part) :]
            self._batch.append((part.sequence_ids, self._add_publishes(part)))
            self._batch_size += len(part)
            if self._batch_size >= self.entry_count:
                self.end_batch(hint)

    def end_batch(self, hint: int | None) -> None:
        """Writes the open batch to the journal: its publishes, then their delivers."""
        if self._batch:
            batch, self._batch, self._batch_size = self._batch, [], 0
            for _, records in batch:
                self.journal.append(records)
            self._deliver(
                batch[0][0] if len(batch) == 1 else np.concatenate([sequence_ids for sequence_ids, _ in batch])
            )
        self._maybe_flush(hint)

    def _add_publishes(self, run: MessageRun) -> bytes:
        """Adds publishes to the segments; returns their journal records."""
        embedded = run.has(TO_INDEX)
        terms = run.terms
        if not embedded.all():
            terms = terms.copy()
            terms[~embedded] = b""
        listed = terms.tolist()
        bodies = index_records.publish_bodies(run.ids, run.rows["expiry"], run.rows["size"], listed)
        persistent, sequence_ids = run.has(PERSISTENT), run.sequence_ids
        flags = np.where(persistent, PUBLISHED_PERSISTENT, index_records.PUBLISHED).astype(np.uint8)
        for segment, where in self._pieces(sequence_ids):
            segment.publish(sequence_ids[where] % self.entry_count, flags[where], bodies[where], terms[where])
        self.dirty_count += len(run)
        return index_records.journal_publishes(sequence_ids, persistent, bodies, listed)

    def _deliver(self, sequence_ids: SequenceIds) -> None:
        self.journal.append(journal.encode_marks(journal.DELIVER, sequence_ids))
        for segment, where in self._pieces(sequence_ids):
            segment.deliver(sequence_ids[where] % self.entry_count)
        self.dirty_count += len(sequence_ids)
        self._maybe_flush(None)

    def ack(self, sequence_ids: SequenceIds, one_by_one: bool = False) -> None:
        """Acknowledges entries, with one flush check after all of them, or `one_by_one` after each."""
        while len(sequence_ids):
            room = max(self.max_journal_entries - self.dirty_count + 1, 1) if one_by_one else len(sequence_ids)
            part, sequence_ids = sequence_ids[:room], sequence_ids[room:]
            self.journal.append(journal.encode_marks(journal.ACK, part))
            for segment, where in self._pieces(part):
                segment.ack(part[where] % self.entry_count)
            self.dirty_count += len(part)
            self._maybe_flush(None)

    def read(self, start: int, stop: int) -> MessageRun:
        """The live messages of [start, stop), ascending, as they are loaded into a queue."""
        found = []
        while start < stop:
            number = start // self.entry_count
            base, end = number * self.entry_count, min(self.boundary_after(start), stop)
            found.append(self.segment(number).read(start - base, end - base))
            start = end
        return joined(found) if found else empty_run()

    def _maybe_flush(self, hint: int | None) -> None:
        if self.dirty_count > self.max_journal_entries or (hint is not None and self.dirty_count > hint):
            self.flush()

    def flush_if_dirty(self) -> None:
        """Flushes if anything is dirty, as hibernation and memory reduction do."""
        if self.dirty_count:
            self.flush()

    def flush(self) -> None:
        """Moves the journal into the segments: appends to and syncs each, drops empty ones, empties the journal.

        Syncs new names before that: a power failure would lose them when the journal may already be empty.
        """
        renamed = False
        for number, segment in list(self.segments.items()):
            renamed = segment.flush() or renamed
            if segment.unacked == 0:
                del self.segments[number]
        if renamed:
            system.sync_folder(self.directory)
        self.journal.clear()
        self.dirty_count = 0

    def sync(self) -> None:
        """Forces the journal's buffered records to disk."""
        self.journal.sync()

    def reset(self) -> None:
        """Discards everything and deletes the queue's directory."""
        self.journal.abandon()
        self.segments, self.dirty_count = {}, 0
        self._batch, self._batch_size = [], 0
        try:
            names = system.names(self.directory)
        except FileNotFoundError:
            return
        for name in names:
            remove_file(f"{self.directory}/{name}")
        system.remove_folder(self.directory)

    def close(self) -> dict[int, int]:
        """Stops cleanly: syncs the journal, without a flush. Returns unacknowledged entries per segment in memory."""
        self.journal.close()
        return {number: segment.unacked for number, segment in sorted(self.segments.items())}

    def abandon(self) -> None:
        """Closes as a killed process would: what was not synced is lost."""
        self.journal.abandon()

    def bounds(self) -> tuple[int, int]:
        """First sequence ids of the lowest segment in memory and of the one after the highest; (0, 0) if none."""
        if not self.segments:
            return 0, 0
        return min(self.segments) * self.entry_count, (max(self.segments) + 1) * self.entry_count

    def segment_numbers_on_disk(self) -> list[int]:
        """Numbers of the segment files, ascending."""
        try:
            names = system.names(self.directory)
        except FileNotFoundError:
            return []
        numbers = (paths.number_of(name, paths.SEGMENT_SUFFIX) for name in names)
        return sorted(number for number in numbers if number is not None)
