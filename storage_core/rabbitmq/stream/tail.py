"""Follows a vhost's store: cheap if nothing changed; a queue that changed is read again, the others are not.

Nothing is written and no lock is taken. Source of the rules: docs/streaming.md "While a node writes".
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from storage_core.errors import StoreNotFoundError
from storage_core.files import system
from storage_core.files.stamp import Stamp
from storage_core.formats.rabbitmq import paths
from storage_core.job import JobFolder
from storage_core.rabbitmq.disk.detect import looks_like_vhost
from storage_core.rabbitmq.index.queue_directory import QueueFiles
from storage_core.rabbitmq.message_store.locations import file_sizes
from storage_core.rabbitmq.stream.live_locations import LiveLocations
from storage_core.rabbitmq.stream.snapshot import VhostFacts, VhostStreamSnapshot
from storage_core.stream.tail import Tail

HOLD_S = 1.0
"""How long nothing must change before a message that is in no message file counts as lost in a crash."""
PAUSE_S = 0.02

Stamps = list[tuple[str, Stamp]]


class VhostTail(Tail):
    """The queues of one vhost. `names` are those of queues whose directories may have no stub."""

    def __init__(self, facts: VhostFacts, names: Sequence[str]) -> None:
        self._facts, self._names = facts, tuple(names)
        self._live = LiveLocations(facts.root)
        self._last: VhostStreamSnapshot | None = None
        self._store: Stamps = []
        self._queues: dict[str, Stamps] = {}
        self._newest: Stamps = []
        self._changed_s = time.monotonic()
        self._waits = False

    def look(self) -> VhostStreamSnapshot:
        """A snapshot of what may be read now; while nothing changed the same object, at a few stat calls per queue.

        Raises StoreNotFoundError if the vhost's directory is gone: its queues were not deleted one by one.
        """
        if self._last is not None and self._is_unchanged() and not self._is_due():
            return self._last
        while True:
            store = self._store_stamps()
            queues = self._queue_stamps()
            found = self._read(store, queues)
            if self._store_stamps() == store:
                break
        if not queues and not looks_like_vhost(self._facts.root):
            raise StoreNotFoundError(f"{self._facts.root}: there is no vhost here any more; check the path")
        newest = self._newest_stamps(found)
        if (store, queues, newest) != (self._store, self._queues, self._newest):
            self._changed_s = time.monotonic()
        self._store, self._queues, self._newest = store, queues, newest
        missing = found.forgotten()
        self._waits = bool(missing) and time.monotonic() - self._changed_s < HOLD_S
        found.held = missing if self._waits else {}
        self._last = found
        return found

    def settled(self) -> VhostStreamSnapshot:
        """The same as `look`, once every message listed now is present, or nobody has written for a second."""
        found = self.look()
        missing = found.held
        while any(found.held.get(key, position + 1) <= position for key, position in missing.items()):
            time.sleep(PAUSE_S)
            found = self.look()
        return found

    def close(self) -> None:
        """Does nothing: no file is held open."""

    def _is_unchanged(self) -> bool:
        stamps = self._queues.values()
        return system.unchanged(self._store) and all(system.unchanged(each) for each in stamps)

    def _is_due(self) -> bool:
        """Whether a missing message may be present now, or is given up."""
        if not self._waits:
            return False
        return not system.unchanged(self._newest) or time.monotonic() - self._changed_s >= HOLD_S

    def _store_stamps(self) -> Stamps:
        job, root = JobFolder(self._facts.root), self._facts.root
        watched = [job.state, job.intent, f"{root}/{paths.RECOVERY_FILE}", f"{root}/{paths.QUEUES_FOLDER}"]
        return [(path, system.stamp(path)) for path in watched]

    def _queue_stamps(self) -> dict[str, Stamps]:
        """The stamps of each directory and its journal, which every flush cuts; of all files if there is no journal."""
        folder = f"{self._facts.root}/{paths.QUEUES_FOLDER}"
        try:
            names = [entry.name for entry in system.entries(folder) if entry.is_directory]
        except (FileNotFoundError, NotADirectoryError):
            return {}
        found: dict[str, Stamps] = {}
        for name in sorted(names):
            journal = f"{folder}/{name}/{paths.JOURNAL_FILE}"
            watched = [f"{folder}/{name}", journal]
            if not system.exists(journal):
                watched += [f"{folder}/{name}/{file}" for file in _files(f"{folder}/{name}")]
            found[name] = [(path, system.stamp(path)) for path in watched]
        return found

    def _newest_stamps(self, found: VhostStreamSnapshot) -> Stamps:
        """The stamps of the message file that grows, if a message is missing."""
        if not found.forgotten():
            return []
        files = [f"{self._facts.root}/{path}" for path in file_sizes(self._facts.root)]
        folder = f"{self._facts.root}/{paths.PERSISTENT_FOLDER}"
        return [(path, system.stamp(path)) for path in (folder, *files[-1:])]

    def _read(self, store: Stamps, queues: dict[str, Stamps]) -> VhostStreamSnapshot:
        known: dict[str, QueueFiles] = {}
        if self._last is not None and store == self._store:
            known = {
                name: queue
                for name, queue in self._last.read_directories.items()
                if queues.get(name) == self._queues.get(name) and queue.absent is None
            }
        found = VhostStreamSnapshot(self._facts, self._live, self._names, known)
        found.forgotten()
        return found


def _files(folder: str) -> list[str]:
    try:
        return system.names(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []
