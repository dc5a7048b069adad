"""Folders and files as one listing of objects shows them. Pure: it makes no requests.

Object storage has no folders: one exists as long as there is something below it. A name that ends with a slash, which
some tools leave for a folder, is that folder, and so is an object with others below it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from storage_core.files.remote.back_end import Found
from storage_core.files.stamp import FileStat, Stamp

Folder = dict[str, Found | None]
"""Name → the object, None for a folder."""


class Tree:
    """Everything below one folder, whose path is `root`; "" is the whole bucket."""

    def __init__(self, root: str, found: Iterable[Found]) -> None:
        self.root = root
        self.folders: dict[str, Folder] = {}
        self._stamps: dict[str, Stamp] = {}
        for each in found:
            self._add(each)

    def _add(self, found: Found) -> None:
        path = found.path
        if path.endswith("/"):
            self._make_folder(path.rstrip("/"))
            return
        folder, _, name = path.rpartition("/")
        self._make_folder(folder)
        if path not in self.folders:
            self.folders[folder][name] = found

    def _make_folder(self, path: str) -> None:
        if path in self.folders:
            return
        self.folders[path] = {}
        if path != self.root:
            above, _, name = path.rpartition("/")
            self._make_folder(above)
            self.folders[above][name] = None

    def covers(self, path: str) -> bool:
        """Whether the listing is complete for a path."""
        return not self.root or path == self.root or path.startswith(self.root + "/")

    def file(self, path: str) -> Found | None:
        """The object of that path; None for a folder, and if there is nothing."""
        folder, _, name = path.rpartition("/")
        return self.folders.get(folder, {}).get(name)

    def stat(self, path: str) -> FileStat | None:
        """The name, kind and stamp of a path; None if there is nothing."""
        name = path.rpartition("/")[2]
        if path in self.folders:
            return FileStat(name, True, self._folder_stamp(path))
        found = self.file(path)
        return None if found is None else FileStat(name, False, stamp_of(found))

    def _folder_stamp(self, path: str) -> Stamp:
        """A stamp that changes with the names in a folder and, harmlessly and unlike on a disk, with its files."""
        known = self._stamps.get(path)
        if known is None:
            content = sorted(
                (name, found and (found.version, found.size)) for name, found in self.folders[path].items()
            )
            known = self._stamps[path] = Stamp(inode=number_of(repr(content)))
        return known


def stamp_of(found: Found) -> Stamp:
    """The stamp of an object, made from its ETag, length and time."""
    return Stamp(found.modified_ns, 0, found.size, number_of(found.etag))


def number_of(text: str) -> int:
    """A hash of a text, of 63 bits."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1
