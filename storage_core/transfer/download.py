"""Copies a store from a URI to a new directory: pieces in parallel, holes for zeros, resumable.

Its files are kept in `.mqstore/copying` until all are complete and correct; then they are moved into place.
`.mqstore/pieces.jsonl` lists the pieces that are on disk, with the version of the object that they come from.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from zlib import crc32

from storage_core.errors import CorruptionError, MqStoreError, StoreChangedError
from storage_core.files import system
from storage_core.files.lock import FileLock
from storage_core.files.remote import registry
from storage_core.files.remote.back_end import Found
from storage_core.files.small_file import names_in, read_whole, remove_empty_folder, remove_file
from storage_core.files.sparse_write import write_sparse
from storage_core.job import FOLDER, JobFolder, drop_tree, read_json, write_json
from storage_core.progress import report
from storage_core.transfer.copies import CopyReport, each_done
from storage_core.transfer.manifest import Manifest, pieces_of, read_manifest
from storage_core.transfer.store_files import StoreFile, files_of

WORK, THREADS = "copying", 12
DONE = "pieces.jsonl"
AGAIN = "copy it again where its writer has finished, or remove that manifest to copy what is there by its sizes"


@dataclass(frozen=True)
class Piece:
    """A part of an object that is copied to a file; `crc` is from the manifest, if there is one."""

    file: StoreFile
    found: Found
    start: int
    stop: int
    crc: int | None

    @property
    def version(self) -> str:
        """Identifies the version of the object that the piece is part of."""
        return f"{self.found.etag} {self.found.size} {'' if self.found.etag else self.found.modified_ns}"


class Download:
    """One copy of the store at the URI `root` to the directory `target`. Raises MqStoreError if it is not new."""

    def __init__(self, root: str, engine: str, log_paths: Sequence[str], target: str) -> None:
        self._root, self._engine, self._target = root, engine, target
        self._notes = JobFolder(target)
        self._log_paths, self._done = log_paths, 0

    def run(self) -> CopyReport:
        """Copies what is missing, and puts it in place."""
        self._check_target()
        system.make_folder(self._notes.folder)
        with FileLock(self._notes.lock, 0, "another copy into this directory; wait for it"):
            noted = read_json(self._notes.copy_note) or {}
            if not noted:
                write_json(self._notes.copy_note, {"source": self._root, "whole": False})
            return self._run(bool(noted.get("whole")))

    def _run(self, is_whole: bool) -> CopyReport:
        manifest = read_manifest(self._root)
        files, folders = files_of(self._root, self._engine, self._log_paths)
        if manifest is not None:
            _check_names(self._root, files, manifest)
            folders = list(manifest.folders)
        resumed = total = sum(file.size for file in files)
        if not is_whole:
            own = {*folders, *(os.path.dirname(file.name) for file in files)}
            for folder in own:
                system.make_folder(os.path.join(self._notes.copying, folder))
            resumed = self._bring(files, own, manifest, total)
            self._set_times(files, manifest)
            write_json(self._notes.copy_note, {"source": self._root, "whole": True})
        self._move()
        checked = "sizes" if manifest is None else "checksums"
        return CopyReport(self._root, self._target, self._engine, len(files), total, resumed, checked)

    def _check_target(self) -> None:
        """Raises MqStoreError for a directory that is not new, empty, or an unfinished copy of the same store."""
        if system.exists(self._target) and not system.is_folder(self._target):
            raise MqStoreError(f"{self._target} is a file; copy to a new directory")
        noted = read_json(self._notes.copy_note)
        inside = set(names_in(self._target)) - {FOLDER}
        if noted is None:
            almost_empty = {os.path.basename(name) for name in (self._notes.copy_note + ".tmp", self._notes.lock)}
            if inside or set(names_in(self._notes.folder)) - almost_empty:
                raise MqStoreError(f"{self._target} is not empty; copy to a new directory")
        elif noted.get("source") != self._root:
            raise MqStoreError(
                f"{self._target} has an unfinished copy of {noted.get('source')}; finish it, or copy to a new one"
            )
        elif inside and not noted.get("whole"):
            raise MqStoreError(f"{self._target}: {min(inside)} was put there before the copy was finished; remove it")

    def _bring(
        self, files: Sequence[StoreFile], folders: Collection[str], manifest: Manifest | None, total: int
    ) -> int:
        """Fetches the missing pieces. Returns the number of bytes that were there already."""
        path = os.path.join(self._notes.folder, DONE)
        there = self._done_before(path)
        wanted = list(self._pieces(files, manifest))
        self._drop_others(wanted, folders, there)
        left = [piece for piece in wanted if (piece.file.name, piece.start) not in there]
        resumed = self._done = total - sum(piece.stop - piece.start for piece in left)
        report(WORK, resumed, total)
        descriptor = system.open_write(path, create=True)
        try:
            end = system.stat(path).size
            for piece in each_done(self._copy, left, THREADS, lambda: report(WORK, self._done, total)):
                line = json.dumps([piece.file.name, piece.start, piece.version]).encode() + b"\n"
                system.pwrite(descriptor, line, end)
                end += len(line)
                self._done += piece.stop - piece.start
        finally:
            system.close(descriptor)
        report(WORK, total, total)
        return resumed

    @staticmethod
    def _done_before(path: str) -> dict[tuple[str, int], str]:
        """The version of each piece that is on disk; a line that was cut by an interruption is ignored."""
        there: dict[tuple[str, int], str] = {}
        for line in (read_whole(path) or b"").split(b"\n"):
            try:
                name, start, etag = json.loads(line)
            except ValueError:
                continue
            there[name, start] = etag
        return there

    def _pieces(self, files: Sequence[StoreFile], manifest: Manifest | None) -> Iterator[Piece]:
        for file in files:
            found = registry.found_file(file.path)
            if found is None:
                raise StoreChangedError(f"{file.path}: the object was deleted while the store was copied; copy again")
            for number, (start, stop) in enumerate(pieces_of(file.size)):
                crc = None if manifest is None else manifest.files[file.name].crcs[number]
                yield Piece(file, found, start, stop, crc)

    def _drop_others(
        self, wanted: Sequence[Piece], folders: Collection[str], there: dict[tuple[str, int], str]
    ) -> None:
        """Removes what an earlier run copied of objects that have changed or are gone since, in part or whole.

        Holes would show the bytes of the version before, so a file of which no piece is known to be of this version is
        removed too: its pieces were on their way when that run ended.
        """
        noted = {
            (piece.file.name, there[piece.file.name, piece.start] == piece.version)
            for piece in wanted
            if (piece.file.name, piece.start) in there
        }
        kept = {name for name, is_same in noted if is_same and (name, False) not in noted}
        for name in list(self._left_by_earlier_runs("")):
            if system.is_folder(self._staged(name)):
                if name not in folders:
                    remove_empty_folder(self._staged(name))
            elif name not in kept:
                remove_file(self._staged(name))
        for key in [key for key in there if key[0] not in kept]:
            del there[key]

    def _left_by_earlier_runs(self, folder: str) -> Iterator[str]:
        """The names of all files and folders that are staged, each folder after what it contains."""
        for each in names_in(self._staged(folder)):
            name = os.path.join(folder, each)
            if system.is_folder(self._staged(name)):
                yield from self._left_by_earlier_runs(name)
            yield name

    def _staged(self, name: str) -> str:
        return os.path.join(self._notes.copying, name)

    def _copy(self, piece: Piece) -> Piece:
        """Fetches one piece and syncs it, in a thread."""
        data = b"" if piece.start == piece.stop else registry.get(piece.file.path, piece.found, piece.start, piece.stop)
        if piece.crc is not None and crc32(data) != piece.crc:
            raise CorruptionError(piece.file.path, piece.start, f"its bytes are not those of the manifest; {AGAIN}")
        descriptor = system.open_write(self._staged(piece.file.name), create=True)
        try:
            if system.stat(self._staged(piece.file.name)).size != piece.file.size:
                system.truncate(descriptor, piece.file.size)
            write_sparse(descriptor, data, piece.start)
            system.fsync(descriptor)
        finally:
            system.close(descriptor)
        return piece

    def _set_times(self, files: Sequence[StoreFile], manifest: Manifest | None) -> None:
        """Sets times as in the store; without a manifest, the times of the objects, ascending with the names."""
        latest: dict[str, int] = {}
        for file in sorted(files, key=lambda file: file.name):
            folder = os.path.dirname(file.name)
            latest[folder] = time = max(file.modified_ns, latest.get(folder, 0))
            time = time if manifest is None else manifest.files[file.name].modified_ns
            path = self._staged(file.name)
            if system.stat(path).size != file.size:
                raise MqStoreError(f"{path}: {system.stat(path).size} bytes and not {file.size}; remove it, copy again")
            system.set_times(path, time, time)

    def _move(self) -> None:
        """Moves the files of the finished copy into place; after an interruption, moves those that are left."""
        own = os.path.join(self._notes.copying, FOLDER)
        for folder, target in ((own, self._notes.folder), (self._notes.copying, self._target)):
            for name in names_in(folder):
                if name != FOLDER:
                    system.rename(os.path.join(folder, name), os.path.join(target, name))
            system.sync_folder(target)
        drop_tree(self._notes.copying)
        remove_file(os.path.join(self._notes.folder, DONE))
        remove_file(self._notes.copy_note)
        remove_file(self._notes.lock)
        remove_empty_folder(self._notes.folder)
        system.sync_folder(self._target)


def _check_names(root: str, files: Sequence[StoreFile], manifest: Manifest) -> None:
    """Raises CorruptionError if a copy has other files than its manifest lists, or a file of another length."""
    there = {file.name: file for file in files}
    path = JobFolder(root).manifest
    for name, noted in manifest.files.items():
        if name not in there:
            raise CorruptionError(os.path.join(root, name), 0, f"{path} names it and it is not there; {AGAIN}")
        if there[name].size != noted.size:
            sizes = f"{there[name].size} bytes and not {noted.size} as in {path}"
            raise CorruptionError(there[name].path, 0, f"{sizes}; {AGAIN}")
    for name in sorted(there.keys() - manifest.files.keys()):
        raise CorruptionError(there[name].path, 0, f"{path} does not name it; {AGAIN}")
