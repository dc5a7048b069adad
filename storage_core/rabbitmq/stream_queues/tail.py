"""Follows the streams of a node: a few stat calls if nothing changed; a stream that grew is read from its last index.

A node writes a chunk before its index record, and a reader follows the index, so a partial chunk is never read. Nothing
is written and no lock is taken. Source of the rules: docs/streaming.md "Streams of RabbitMQ".
"""

from __future__ import annotations

import time

from storage_core.errors import DataLossError
from storage_core.files import system
from storage_core.files.stamp import Stamp
from storage_core.formats.rabbitmq.stream_queues import log_files
from storage_core.rabbitmq.disk import node
from storage_core.rabbitmq.stream_queues.directory import StreamDirectory, list_streams, node_is_of_3_13
from storage_core.rabbitmq.stream_queues.growing_snapshot import GrowingSnapshot, damage_offset
from storage_core.rabbitmq.stream_queues.stream_log import StreamLog, read_log
from storage_core.stream.tail import Tail

NAMED_S = 30.0
"""The node's tables name a stream within this time of its declaration; an older one keeps the name of its directory."""
HOLD_S = 1.0
"""How long a new segment may look damaged because a node is still creating its files."""
PAUSE_S = 0.02

Stamps = list[tuple[str, Stamp]]


class StreamsTail(Tail):
    """The streams in the folder `root`, only those of `vhost` if it is given."""

    def __init__(self, root: str, store: str, vhost: str | None) -> None:
        self._root, self._store, self._vhost = root, store, vhost
        self._last: GrowingSnapshot | None = None
        self._folders: Stamps = []
        self._streams: list[StreamDirectory] = []
        self._logs: dict[str, tuple[Stamps, StreamLog]] = {}
        self._unnamed = self._of_3_13 = False

    def look(self) -> GrowingSnapshot:
        """A snapshot of what may be read now; the same object while nothing changed."""
        folders = self._folder_stamps()
        listed = folders != self._folders or self._unnamed
        if listed:
            self._list()
        changed = [each for each in self._streams if not self._is_unchanged(each.folder)]
        self._folders = folders
        for stream in changed:
            found = self._read(stream)
            if found is None:
                self._streams.remove(stream)
                self._folders = []
            else:
                self._logs[stream.folder] = found
        if self._last is None or listed or changed:
            logs = [self._logs[stream.folder][1] for stream in self._streams]
            self._last = GrowingSnapshot(self._root, self._store, logs)
        return self._last

    def settled(self) -> GrowingSnapshot:
        """The same as `look`: everything that the indexes list is complete."""
        return self.look()

    def close(self) -> None:
        """Does nothing: no file is held open."""

    def _folder_stamps(self) -> Stamps:
        parent = self._root.rsplit("/", 1)[0]
        tables = [f"{parent}/{name}" for name in (node.DUMP_FILE, node.LOG_FILE, *node.TRANSACTION_FILES)]
        return [(path, system.stamp(path)) for path in (self._root, *tables)]

    def _list(self) -> None:
        """Lists the streams again. A new one that has no name yet is left out until the node's tables name it, and one
        without a log until it has one.
        """
        found = [
            each for each in list_streams(self._root)
            if each.has_log and (self._vhost is None or each.vhost == self._vhost)
        ]  # fmt: skip
        has_tables = any(stamp.size for _, stamp in self._folder_stamps()[1:])
        waiting = [
            each for each in found
            if has_tables and each.vhost is None and abs(time.time() - each.declared_ns / 1e9) < NAMED_S
        ]  # fmt: skip
        self._unnamed = bool(waiting)
        self._of_3_13 = node_is_of_3_13(self._root)
        self._streams = [each for each in found if each not in waiting]
        kept = {each.folder: each for each in self._streams}
        self._logs = {folder: known for folder, known in self._logs.items() if kept.get(folder) == known[1].stream}

    def _is_unchanged(self, folder: str) -> bool:
        if folder not in self._logs:
            return False
        stamps, log = self._logs[folder]
        return system.unchanged(stamps) and not _has_damaged_end(log)

    def _read(self, stream: StreamDirectory) -> tuple[Stamps, StreamLog] | None:
        """A stream's log, read while no file was added or removed, and stamps taken before; None if it was deleted."""
        before = self._logs.get(stream.folder)
        known = {} if before is None else {segment.file: segment for segment in before[1].segments}
        end_s = time.monotonic() + HOLD_S
        while True:
            is_late = time.monotonic() > end_s
            try:
                stamps = self._stamps_of(stream.folder)
                log = read_log(self._root, stream, self._of_3_13, known)
            except (DataLossError, FileNotFoundError):
                if not system.exists(f"{self._root}/{stream.folder}"):
                    return None
                if is_late:
                    raise
                continue
            is_steady = system.unchanged(stamps[:1]) and not _has_damaged_end(log)
            if is_steady or is_late or (before is not None and log.damages and before[1].damages == log.damages):
                return stamps, log
            time.sleep(PAUSE_S)

    def _stamps_of(self, folder: str) -> Stamps:
        """The stamps of a stream's folder and of the index that grows."""
        path = f"{self._root}/{folder}"
        of_folder = path, system.stamp(path)
        index = max((name for name in system.names(path) if name.endswith(log_files.INDEX_SUFFIX)), default=None)
        return [of_folder] if index is None else [of_folder, (f"{path}/{index}", system.stamp(f"{path}/{index}"))]


def _has_damaged_end(log: StreamLog) -> bool:
    return any(damage_offset(damage) >= log.stop for damage in log.damages)
