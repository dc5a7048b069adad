"""Where the message store keeps each message while a node writes to it: scanned again when an id is not known yet.

Only what was added to the newest message file is scanned; an older file that changed was compacted and is scanned from
scratch. Source: rabbitmq.md 6.1, 6.5; docs/streaming.md "While a node writes".
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from storage_core.files import system
from storage_core.files.stamp import Stamp
from storage_core.formats.rabbitmq import paths
from storage_core.formats.rabbitmq.erlang import ets_dump
from storage_core.rabbitmq.message_store.file_scan import scan_file
from storage_core.rabbitmq.message_store.locations import MessageLocations, youngest

SUFFIXES = (paths.MESSAGE_SUFFIX, paths.COMPACTION_SUFFIX)


@dataclass(frozen=True)
class _Scanned:
    """The last scan of one message file: the file's stamp before the scan, where the walk ended, and its records."""

    stamp: Stamp
    stop: int
    rows: npt.NDArray[np.void]

    @property
    def end(self) -> int:
        """Where the last record ends, which may have been found after the end of the walk."""
        return max(self.stop, int((self.rows["position"] + self.rows["size"]).max(initial=0)))


class LiveLocations(MessageLocations):
    """The locations of the persistent store below `root`, without any tables. Starts empty and scans on demand."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._scanned: dict[int, _Scanned] = {}
        self._with_containers = False
        super().__init__(np.empty(0, ets_dump.INDEX_ROW), {}, {}, False, "a node may be at work")

    def find(self, ids: npt.NDArray[np.void]) -> npt.NDArray[np.int64]:
        """The current row number of each id (dtype V16), -1 if there is none."""
        found = super().find(ids)
        if (found >= 0).all() or not self._scan():
            return found
        return super().find(ids)

    def forget(self) -> None:
        """Scans all files from scratch: a message was not where a scan had found it."""
        self._scanned = {}
        self._scan()

    def _scan(self) -> bool:
        """Looks at the files again. Returns whether anything changed."""
        folder = f"{self._root}/{paths.PERSISTENT_FOLDER}"
        try:
            listed = {entry.name: entry.stamp for entry in system.entries(folder) if not entry.is_directory}
        except (FileNotFoundError, NotADirectoryError):
            listed = {}
        files, stamps = {}, {}
        for name, stamp in listed.items():
            for suffix in SUFFIXES:
                number = paths.number_of(name, suffix)
                if number is not None:
                    key = number if suffix == paths.MESSAGE_SUFFIX else -1 - number
                    files[key], stamps[key] = f"{paths.PERSISTENT_FOLDER}/{name}", stamp
        if stamps == {key: scanned.stamp for key, scanned in self._scanned.items()}:
            return False
        knew = self._with_containers
        self._scanned = self._all(files, stamps)
        if self._with_containers and not knew:
            # Files before the first container were scanned as files of an older node.
            self._scanned = {}
            self._scanned = self._all(files, stamps)
        # A message that is being moved is in two files: the leftover of a compaction has a negative number and comes
        # first, so the file that the message moves to counts.
        rows = [scanned.rows for scanned in self._scanned.values()]
        self.rows = youngest(np.concatenate(rows) if rows else np.empty(0, ets_dump.INDEX_ROW))
        self.files, self.sizes = files, {key: scanned.end for key, scanned in self._scanned.items()}
        self.__post_init__()
        return True

    def _all(self, files: dict[int, str], stamps: dict[int, Stamp]) -> dict[int, _Scanned]:
        newest = max(files, default=0)
        return {key: self._again(key, files[key], stamps[key], key == newest) for key in sorted(files)}

    def _again(self, number: int, path: str, stamp: Stamp, newest: bool) -> _Scanned:
        known = self._scanned.get(number)
        if known is not None and known.stamp == stamp:
            return known
        grew = newest and known is not None and known.stamp.identity == stamp.identity and stamp.size >= known.stop
        start, rows = (known.stop, [known.rows]) if grew and known is not None else (0, [])
        scan = scan_file(f"{self._root}/{path}", path, start, self._with_containers)
        self._with_containers |= scan.with_containers
        return _Scanned(stamp, max(scan.stop, start), np.concatenate([*rows, scan.rows(number)]))
