"""A shared message store, open for writing: reference counts, locations, appending to and deleting files.

`message_file` defines how records are stored in a file, `compaction` merges files, `startup` does recovery.
Source: rabbitmq.md 6.5 and 6.6.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from storage_core.errors import CorruptionError
from storage_core.files import system
from storage_core.formats.layout import Mask
from storage_core.formats.rabbitmq.classic import message_file
from storage_core.formats.rabbitmq.erlang.cursor import pieces
from storage_core.rabbitmq.message_store.compaction import FilePair, combine, next_pair
from storage_core.rabbitmq.message_store.message_files import Location, MessageFile, MessageFiles

WRITE_BUFFER_SIZE = 1 << 20


class MessageStore(MessageFiles):
    """The messages of one vhost, by id. `directory` is created if it is missing."""

    def __init__(self, directory: str, file_size_limit: int, durable: bool) -> None:
        super().__init__(directory)
        self.file_size_limit, self.durable = file_size_limit, durable
        self.current = 0
        self._descriptor: int | None = None
        self._buffered: list[bytes] = []
        self._buffered_size = 0
        self._unsynced = False

    def start(self, locations: dict[bytes, Location], files: dict[int, MessageFile]) -> None:
        """Starts from what recovery found; messages are appended to the highest file."""
        system.make_folder(self.directory)
        if self.durable:
            system.sync_folder(os.path.dirname(self.directory))
        self.locations, self.files = locations, files or {0: MessageFile()}
        self._open(max(self.files))
        self._maybe_combine()

    def _open(self, number: int) -> None:
        descriptor = system.open_write(self.path(number), create=True)
        if self.durable:
            system.sync_folder(self.directory)
        if self._descriptor is not None:
            system.close(self._descriptor)
        self._descriptor, self.current = descriptor, number
        self.files.setdefault(number, MessageFile())

    def _live(self) -> int:
        if self._descriptor is None:
            raise RuntimeError("the message store was not started")
        return self._descriptor

    def write(self, ids: npt.NDArray[Any], terms: Sequence[bytes]) -> None:
        """Adds messages; one that exists, even without references, only gains a reference."""
        for message_id, term in zip(_split(ids), terms, strict=True):
            found = self.locations.get(message_id)
            if found is not None:
                if found.references == 0:
                    self.files[found.file].valid_size += found.size
                found.references += 1
                continue
            file = self.files[self.current]
            record = message_file.encode(message_id, term)
            self.locations[message_id] = Location(1, self.current, file.size, len(record))
            self._buffered.append(record)
            self._buffered_size += len(record)
            file.size += len(record)
            file.valid_size += len(record)
            file.ids.append(message_id)
            if file.size >= self.file_size_limit:
                self._roll()
            elif self._buffered_size >= WRITE_BUFFER_SIZE:
                self._write_out()

    def _write_out(self) -> None:
        """Passes buffered records to the system."""
        if self._buffered:
            data = b"".join(self._buffered)
            start = self.files[self.current].size - self._buffered_size
            system.pwrite(self._live(), data, start)
            self._buffered, self._buffered_size, self._unsynced = [], 0, True

    def sync(self) -> None:
        """Forces written data to disk; a transient store is never synced."""
        self._write_out()
        if self.durable and self._unsynced:
            system.fsync(self._live())
            self._unsynced = False

    def _roll(self) -> None:
        """Closes the file that reached its limit and starts the next one."""
        self._write_out()
        system.fsync(self._live())
        self._unsynced = False
        full = self.current
        self._open(full + 1)
        self._maybe_delete(full)
        self._maybe_combine()

    def contains(self, ids: npt.NDArray[Any]) -> Mask:
        """Which messages have a reference."""
        found = (self.locations.get(message_id) for message_id in _split(ids))
        return np.array([location is not None and location.references > 0 for location in found], np.bool_)

    def read(self, ids: npt.NDArray[Any]) -> list[bytes]:
        """The terms of messages. Raises KeyError for an unknown id, CorruptionError for another message's record."""
        terms = []
        descriptors: dict[int, int] = {}
        try:
            for message_id in _split(ids):
                location = self.locations[message_id]
                if location.file not in descriptors:
                    if location.file == self.current:
                        self._write_out()
                    descriptors[location.file] = system.open_read(self.path(location.file))
                record = system.pread(descriptors[location.file], location.size, location.position)
                if record[8:24] != message_id or len(record) != location.size:
                    raise CorruptionError(
                        self.path(location.file), location.position, "another record than the index says"
                    )
                terms.append(record[24:-1])
        finally:
            for descriptor in descriptors.values():
                system.close(descriptor)
        return terms

    def remove(self, ids: npt.NDArray[Any]) -> None:
        """Removes one reference from each message; deletes files without any, merges sparse neighbours."""
        touched = set()
        for message_id in _split(ids):
            found = self.locations[message_id]
            found.references -= 1
            if found.references == 0:
                self.files[found.file].valid_size -= found.size
                touched.add(found.file)
        for number in touched:
            self._maybe_delete(number)
        self._maybe_combine()

    def _maybe_delete(self, number: int) -> None:
        if number != self.current and self.files[number].valid_size == 0:
            for message_id in self.files.pop(number).ids:
                del self.locations[message_id]
            system.unlink(self.path(number))

    def _maybe_combine(self) -> None:
        """Merges neighbours until the rule is satisfied: one pair per check, and a check after each merge."""
        while (pair := next_pair(self.files, self.current, self.file_size_limit)) is not None:
            self._combine(pair)

    def _combine(self, pair: FilePair) -> None:
        kept = []
        for message_id in self.files[pair.left].ids + self.files[pair.right].ids:
            if self.locations[message_id].references:
                kept.append(message_id)
            else:
                del self.locations[message_id]
        size = combine(self, pair)
        self.files[pair.left] = MessageFile(size, size, kept)
        del self.files[pair.right]

    def close(self) -> None:
        """Syncs and closes the current file."""
        self._write_out()
        system.fsync(self._live())
        self.abandon()

    def abandon(self) -> None:
        """Closes as a killed process would: what was not passed to the system is lost."""
        self._buffered, self._buffered_size = [], 0
        if self._descriptor is not None:
            system.close(self._descriptor)
            self._descriptor = None


def _split(ids: npt.NDArray[Any]) -> list[bytes]:
    return pieces(ids.tobytes(), message_file.ID_SIZE)
