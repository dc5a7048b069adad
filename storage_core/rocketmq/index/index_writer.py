"""Puts the keys of appended records into index files: how many go into which file, and writes that can be repeated.

`index_insert` makes the bytes. Source of the rules: rocketmq.md 4.3, 4.4. Entries are written first, then the header,
then the slots: a slot above the header's count would hide an old key from a broker.
"""

from __future__ import annotations

import datetime
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from storage_core.errors import CorruptionError
from storage_core.files import system
from storage_core.formats.layout import Positions
from storage_core.formats.rocketmq.index_insert import (
    EMPTY,
    Puts,
    distinct,
    encode_header,
    put,
    put_into,
    rolled,
    room,
)
from storage_core.formats.rocketmq.indexfile import ENTRY, HEADER, SLOT, Geometry, IndexHeader
from storage_core.rocketmq.index.index_files import index_paths

PAGE_SLOTS = 1024
RUN_SLOTS = 1 << 18


@dataclass(frozen=True)
class Keys:
    """Keys of records in log order: all hashes in one array, `counts` of them for each record."""

    hashes: npt.NDArray[np.int32]
    counts: npt.NDArray[np.int64]
    physical_offsets: Positions
    store_ms: Positions

    @property
    def puts(self) -> Puts:
        """One put per key."""
        if len(self.hashes) == len(self.counts) and (self.counts == 1).all():
            return Puts(self.hashes, self.physical_offsets, self.store_ms)
        return Puts(self.hashes, np.repeat(self.physical_offsets, self.counts), np.repeat(self.store_ms, self.counts))


@dataclass
class FileNeeds:
    """Counts the new index files of a job, with the same steps as `IndexWriter` but on numbers alone."""

    geometry: Geometry
    left: int | None
    new_files: int = 0

    def add(self, keys: int, last_has_keys: bool) -> None:
        """Adds records with `keys` keys in total; `last_has_keys`: whether the last record has any."""
        if not self.left:
            self._roll()
        while keys > (self.left or 0):
            keys -= self.left or 0
            self._roll()
        self.left = (self.left or 0) - keys
        if not self.left and not last_has_keys:
            self._roll()

    def _roll(self) -> None:
        self.left = self.geometry.entries - 1
        self.new_files += 1


class IndexWriter:
    """Puts keys into the last file and into new ones. `path` is None if there is no file to continue.

    `next_path` returns the path of each new file, which exists at full length, all zeros or as an earlier run of the
    same job left it.
    """

    def __init__(self, geometry: Geometry, path: str | None, header: IndexHeader, next_path: Callable[[], str]) -> None:
        self._geometry, self._next_path = geometry, next_path
        self.header = header
        self._path = path
        self._file = _SlotFile(path, geometry, max(header.entry_count, 1)) if path is not None else None

    def add(self, keys: Keys) -> None:
        """Dispatches records: each requires a file with room, even if it has no keys."""
        if not len(keys.counts):
            return
        if self._file is None or not room(self.header, self._geometry):
            self._roll()
        puts, done = keys.puts, 0
        while done < len(puts):
            if not room(self.header, self._geometry):
                self._roll()
            part = puts.part(done, done + room(self.header, self._geometry))
            self.header = self._slot_file.put(self.header, part)
            done += len(part)
        if not room(self.header, self._geometry) and not keys.counts[-1]:
            self._roll()

    def finish(self) -> None:
        """Writes the header and the slots of the last file, and syncs it to disk."""
        if self._file is not None:
            file, self._file = self._file, None
            file.finish(self.header)

    def close(self) -> None:
        """Closes the file that an error left open."""
        if self._file is not None:
            file, self._file = self._file, None
            file.close()

    @property
    def _slot_file(self) -> _SlotFile:
        if self._file is None:
            raise ValueError("no index file is open")
        return self._file

    def _roll(self) -> None:
        before = self.header if self._file is not None else EMPTY
        self.finish()
        self.header = rolled(before)
        self._file = _SlotFile(self._next_path(), self._geometry, 0)


class _SlotFile:
    """One index file while keys are put into it. Entries are written at once, slots when all entries are on disk.

    `first`: entries from this number on belong to this job, possibly from an earlier run; 0 for a file made by this
    job, whose slots all count as empty.
    """

    def __init__(self, path: str, geometry: Geometry, first: int) -> None:
        self._descriptor = system.open_write(path)
        self._geometry, self._first = geometry, first
        # Zero: nothing put or read so far. A small job touches few slots, one with more keys than pages reads all.
        self._slots = np.frombuffer(system.zeros(SLOT.size * geometry.slots), np.int32)
        self._changed: list[npt.NDArray[np.int64]] = []
        self._knows_all = self._as_found = False

    def put(self, header: IndexHeader, puts: Puts) -> IndexHeader:
        """Appends entries; returns the header after them."""
        if not self._knows_all and len(puts) * PAGE_SLOTS > self._geometry.slots:
            self._learn_all()
        if self._knows_all:
            entries, after = put_into(self._slots, header, puts, self._geometry)
        else:
            change = put(header, puts, self._values_of, self._geometry)
            self._slots[change.slots] = change.values
            self._changed.append(change.slots)
            entries, after = change.entries, change.header
        position = self._geometry.entries_position + ENTRY.size * max(header.entry_count, 1)
        system.pwrite(self._descriptor, entries.view(np.uint8).data, position)
        system.release(self._descriptor, position, entries.nbytes)
        return after

    def finish(self, header: IndexHeader) -> None:
        """Syncs the entries to disk, then writes the header, then the slots; syncs and closes the file."""
        try:
            system.fsync(self._descriptor)
            system.pwrite(self._descriptor, encode_header(header), 0)
            for start, stop in slot_runs(self._changed_slots()):
                self._write_run(start, stop)
            system.fsync(self._descriptor)
        finally:
            system.close(self._descriptor)

    def close(self) -> None:
        """Closes the file as it is."""
        system.close(self._descriptor)

    def _changed_slots(self) -> npt.NDArray[np.int64]:
        """Slots that hold an entry of this job, ascending."""
        if self._knows_all:
            return np.flatnonzero(self._slots >= max(self._first, 1))
        return distinct(np.concatenate([np.empty(0, np.int64), *self._changed]), self._geometry.slots)

    def _learn_all(self) -> None:
        """Reads what each slot held before this job, for slots into which this job has put nothing yet."""
        self._knows_all = self._as_found = True
        if not self._first:
            return
        for low in range(0, self._geometry.slots, RUN_SLOTS):
            known = self._slots[low : low + RUN_SLOTS]
            data = system.pread(self._descriptor, known.nbytes, HEADER.size + SLOT.size * low)
            before = np.frombuffer(data, ">i4").astype(np.int32)
            if int(before.max()) >= self._first:
                self._as_found = False
                before = self._followed(before)
            np.copyto(known, before, where=known == 0)

    def _values_of(self, slots: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
        values = self._slots[slots]
        unknown = np.flatnonzero(values == 0)
        if self._first and len(unknown):
            values[unknown] = self._slots[slots[unknown]] = self._before(slots[unknown])
        return values

    def _before(self, slots: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
        """What slots held before this job."""
        return self._followed(self._read(slots))

    def _followed(self, values: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
        """Slot values, where entries of this job are followed back to an earlier one that is not."""
        while True:
            own = np.flatnonzero(values >= self._first)
            if not len(own):
                return values
            for at in own.tolist():
                position = self._geometry.entries_position + ENTRY.size * int(values[at]) + 16
                data = system.pread(self._descriptor, 4, position)
                values[at] = min(int.from_bytes(data, "big", signed=True), int(values[at]) - 1)

    def _read(self, slots: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
        values = np.empty(len(slots), np.int32)
        at = 0
        for start, stop in slot_runs(slots):
            data = system.pread(self._descriptor, SLOT.size * (stop - start), HEADER.size + SLOT.size * start)
            run = np.frombuffer(data, ">i4")
            inside = slots[at : at + int(np.searchsorted(slots[at:], stop))]
            values[at : at + len(inside)] = run[inside - start]
            at += len(inside)
        return np.maximum(values, 0)

    def _write_run(self, start: int, stop: int) -> None:
        """Writes the slots [start, stop); those that did not change keep their value on disk."""
        for low in range(start, stop, RUN_SLOTS):
            known = self._slots[low : min(low + RUN_SLOTS, stop)]
            position = HEADER.size + SLOT.size * low
            if self._first and not self._as_found:
                present = np.frombuffer(system.pread(self._descriptor, SLOT.size * len(known), position), ">i4")
                known = np.where(known < self._first, present, known)
            system.pwrite(self._descriptor, known.astype(">i4").view(np.uint8).data, position)


def slot_runs(slots: npt.NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Ranges of slots that cover all of `slots` (ascending), split where a page's worth of others is in between."""
    if not len(slots):
        return
    cuts = np.flatnonzero(np.diff(slots) > PAGE_SLOTS) + 1
    starts, ends = np.append(0, cuts), np.append(cuts, len(slots)) - 1
    yield from zip(slots[starts].tolist(), (slots[ends] + 1).tolist(), strict=True)


def new_index_names(root: str, count: int) -> Iterator[str]:
    """Names of new index files: the local time now, as a broker uses, but after the last name (interface.md 50)."""
    there = index_paths(root)
    last = os.path.basename(there[-1]) if there else ""
    now = datetime.datetime.now()  # noqa: DTZ005 - the broker names its files in local time
    for _ in range(count):
        name = now.strftime("%Y%m%d%H%M%S") + f"{now.microsecond // 1000:03d}"
        if last and name <= last:
            now = _time_of(last) + datetime.timedelta(milliseconds=1)
            name = now.strftime("%Y%m%d%H%M%S") + f"{now.microsecond // 1000:03d}"
        yield name
        last = name


def _time_of(name: str) -> datetime.datetime:
    try:
        seconds = datetime.datetime.strptime(name[:14], "%Y%m%d%H%M%S")  # noqa: DTZ007 - local time
    except ValueError:
        raise CorruptionError(name, 0, "the name of an index file is not a time; rename or remove the file") from None
    return seconds + datetime.timedelta(milliseconds=int(name[14:17] or "0"))
