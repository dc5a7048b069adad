"""Copies a store from a disk to a URI: the log first, the manifest last, and only while no broker runs.

A note at the URI states that a copy has begun, and which files it includes; the manifest, which is put only if there is
none, states that it is complete. Run again after an interruption, it skips what is there: files that match the note,
and whose objects have the right length.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from zlib import crc32

from storage_core.errors import MqStoreError, StoreChangedError
from storage_core.files import system
from storage_core.files.address import address_of
from storage_core.files.remote.back_end import Found
from storage_core.files.remote.remote import Remote
from storage_core.job import COPY_NOTE, FOLDER
from storage_core.progress import report
from storage_core.transfer.copies import CopyReport, each_done
from storage_core.transfer.manifest import FORMAT, MANIFEST_NAME, Manifest, ManifestFile, pieces_of
from storage_core.transfer.store_files import StoreFile, files_of, stopped

WORK, THREADS = "copying", 4
NOTE_NAME = f"{FOLDER}/{COPY_NOTE}"
CHANGED = "it changed while it was copied; stop its broker, and run the copy again"


class Upload:
    """One copy of the local store `root` to the folder `target` of a bucket that is attached."""

    def __init__(self, root: str, engine: str, log_paths: Sequence[str], target: str, remote: Remote) -> None:
        self._root, self._engine, self._log_paths = root, engine, log_paths
        self._target, self._remote = target, remote
        self._prefix = address_of(target).path
        self._stop = threading.Event()
        self._done = 0

    def run(self) -> CopyReport:
        """Copies what is missing. Raises StoreLockedError while a broker runs, MqStoreError for a non-empty target."""
        with stopped(self._root, self._engine):
            files, folders = files_of(self._root, self._engine, self._log_paths)
            there = self._listed()
            noted = self._noted(there, files)
            uploaded = self._uploaded(files, there, noted)
            total, resumed = (sum(file.size for file in some) for some in (files, uploaded))
            crcs = self._send(files, {file.name for file in uploaded}, total)
            self._check(files)
            sums = {file.name: ManifestFile(file.size, file.modified_ns, crcs[file.name]) for file in files}
            self._finish(Manifest(sums, folders))
        return CopyReport(self._root, self._target, self._engine, len(files), total, resumed, "sizes")

    def _path(self, name: str) -> str:
        return f"{self._prefix}/{name}" if self._prefix else name

    def _listed(self) -> dict[str, Found]:
        """The objects at the target, by name."""
        below = self._prefix + "/" if self._prefix else ""
        found = self._remote.requests.walk(self._prefix)
        return {each.path[len(below) :]: each for each in found if each.path[-1:] != "/"}

    def _noted(self, there: Mapping[str, Found], files: Sequence[StoreFile]) -> dict[str, Any]:
        """The note of this copy, written if there is none. Raises MqStoreError for an unusable target."""
        if MANIFEST_NAME in there:
            raise MqStoreError(f"{self._target}: there is already a complete copy of a store; copy to a new folder")
        own = {file.name: [file.size, file.modified_ns] for file in files}
        note = {"format": FORMAT, "source": self._root, "host": os.uname().nodename, "files": own}
        if NOTE_NAME not in there:
            if there:
                raise MqStoreError(f"{self._target} is not empty, such as {min(there)}; copy to a new folder")
            self._put(NOTE_NAME, json.dumps(note, separators=(",", ":")).encode(), CHANGED)
            return note
        found = there[NOTE_NAME]
        try:
            noted: dict[str, Any] = json.loads(bytes(self._remote.requests.get(found, 0, found.size)))
            same_place = (noted["source"], noted["host"]) == (self._root, note["host"])
            noted["files"] = dict(noted["files"])
            same_files = noted["files"] == own
        except (ValueError, KeyError, TypeError):
            raise MqStoreError(
                f"{self._target}/{NOTE_NAME}: it is not a note of a copy; copy to a new folder"
            ) from None
        if not same_place and not same_files:
            whose = f"{noted['source']} of host {noted['host']}"
            raise MqStoreError(f"{self._target} has an unfinished copy of {whose}; copy to a new folder")
        strange = there.keys() - own.keys() - {NOTE_NAME}
        if strange:
            raise MqStoreError(
                f"{self._target} has a file that is not part of the store: {min(strange)}; remove it there"
            )
        return noted

    @staticmethod
    def _uploaded(files: Sequence[StoreFile], there: Mapping[str, Found], noted: Mapping[str, Any]) -> list[StoreFile]:
        """The files that an earlier run uploaded, and that have not changed since it began."""
        return [
            file
            for file in files
            if noted["files"].get(file.name) == [file.size, file.modified_ns]
            and file.name in there
            and there[file.name].size == file.size
        ]

    def _send(self, files: Sequence[StoreFile], uploaded: set[str], total: int) -> dict[str, tuple[int, ...]]:
        """Uploads the files, those with messages before the others. Returns the checksums of all."""
        sums: dict[str, tuple[int, ...]] = {}

        def send(file: StoreFile) -> tuple[str, tuple[int, ...]]:
            return self._send_one(file, uploaded)

        try:
            for is_log in (True, False):
                some = [file for file in files if file.is_log == is_log]
                sums.update(each_done(send, some, THREADS, lambda: report(WORK, self._done, total)))
        except BaseException:
            self._stop.set()
            raise
        return sums

    def _send_one(self, file: StoreFile, uploaded: set[str]) -> tuple[str, tuple[int, ...]]:
        """Uploads one file, or only reads it if it is already there. Returns its checksums."""
        crcs: list[int] = []
        problem: list[Exception] = []

        def source() -> Iterator[bytes]:
            self._done -= sum(stop - start for start, stop in list(pieces_of(file.size))[: len(crcs)])
            crcs.clear()
            problem.clear()
            try:
                yield from self._pieces(file, crcs)
            except Exception as error:
                problem.append(error)
                raise

        try:
            if file.name in uploaded:
                for _ in source():
                    pass
            else:
                self._remote.requests.put(self._path(file.name), source, file.size)
        except Exception:
            if problem:
                raise problem[0] from None
            raise
        return file.name, tuple(crcs)

    def _pieces(self, file: StoreFile, crcs: list[int]) -> Iterator[bytes]:
        descriptor = system.open_read(file.path)
        try:
            for start, stop in pieces_of(file.size):
                if self._stop.is_set():
                    raise MqStoreError(f"{self._target}: the copy was stopped")
                data = system.pread(descriptor, stop - start, start)
                if len(data) < stop - start:
                    raise StoreChangedError(f"{file.path}: {CHANGED}")
                crcs.append(crc32(data))
                self._done += len(data)
                yield data
        finally:
            system.close(descriptor)

    def _check(self, files: Sequence[StoreFile]) -> None:
        """Raises StoreChangedError if a file changed meanwhile, MqStoreError if an object is not what was sent."""
        now, _ = files_of(self._root, self._engine, self._log_paths)
        changed = set(now) ^ set(files)
        if changed:
            raise StoreChangedError(f"{min(file.path for file in changed)}: {CHANGED}")
        there = self._listed()
        for file in files:
            size = there[file.name].size if file.name in there else -1
            if size != file.size:
                uri = f"{self._target}/{file.name}"
                raise MqStoreError(f"{uri} has not the {file.size} bytes that were sent; run the copy again")

    def _finish(self, manifest: Manifest) -> None:
        self._put(MANIFEST_NAME, manifest.encoded(), "another copy was finished there meanwhile; copy to a new folder")

    def _put(self, name: str, data: bytes, other: str) -> None:
        """Uploads a note that must be new. An existing identical one is ours: its response was lost."""
        path = self._path(name)
        try:
            self._remote.requests.put(path, lambda: iter([data]), len(data), only_new=True)
        except FileExistsError:
            found = self._listed().get(name)
            if found is None or bytes(self._remote.requests.get(found, 0, found.size)) != data:
                raise MqStoreError(f"{self._target}: {other}") from None
