"""One bucket, container or name node as `system` reads it: folders from listings, bytes from ranges of objects.

A listing is made once for all names below a store, and is valid until the next `look` at the store; each read states
which version of the object it expects. Source: docs/object-storage.md "Consistency".
"""

from __future__ import annotations

import fnmatch
import itertools
import threading
import time
from collections.abc import Iterable
from concurrent.futures import CancelledError, Future

from storage_core.errors import StoreChangedError
from storage_core.files.address import Address
from storage_core.files.remote.access import Access
from storage_core.files.remote.back_end import Found, connect
from storage_core.files.remote.pieces import BLOCK_SIZE, PIECE_SIZE, Blocks, Piece, Pieces, Reader
from storage_core.files.remote.requests import Requests
from storage_core.files.remote.threads import transfers
from storage_core.files.remote.tree import Tree, stamp_of
from storage_core.files.stamp import FileStat

SMALL = 8 * BLOCK_SIZE
YOUNG_S = 1.0
"""Seconds for which a `look` at a store reuses the listing of an earlier one."""

blocks, pieces = Blocks(), Pieces()
_numbers = itertools.count()


class Remote:
    """What is at one `scheme://authority`, reached with one `Access`. Thread-safe.

    Paths are relative to the authority, without slashes at either end. OSErrors are those of a local disk.
    """

    def __init__(self, address: Address, access: Access) -> None:
        self.origin, self.access = address.origin, access
        self.requests = Requests(connect(address, access), self.origin)
        self._number = next(_numbers)
        self._lock = threading.RLock()
        self._trees: dict[str, tuple[Tree, float]] = {}
        self._outside: dict[str, Tree] = {}
        self._pinned: dict[str, Found] = {}

    # -- names

    def look(self, root: str, most_age_s: float = YOUNG_S) -> None:
        """Lists everything below a folder, unless it was listed a moment ago and was there."""
        with self._lock:
            above = next((other for other, (tree, _) in self._trees.items() if tree.covers(root)), root)
            known = self._trees.get(above)
            if known is None:
                for below in [other for other in self._trees if not root or other.startswith(root + "/")]:
                    del self._trees[below]
            is_young = known is not None and time.monotonic() - known[1] <= most_age_s
            if known is None or not is_young or known[0].stat(root) is None:
                root = above
                self._trees[root] = Tree(root, self.requests.walk(root)), time.monotonic()
                self._outside.clear()

    def forget_names(self) -> None:
        """Drops all listings, because something was written there."""
        with self._lock:
            self._trees.clear()
            self._outside.clear()

    def pin(self, files: Iterable[Found]) -> None:
        """Pins files as a plan saw them. Raises StoreChangedError for one that differs from a listing here, which is
        made again first: it may be older than the plan.
        """
        with self._lock:
            for found in files:
                if not self._is_listed(found):
                    self._list_again(found.path)
                if not self._is_listed(found):
                    raise StoreChangedError(
                        f"{self.origin}/{found.path}: the object was replaced after the read was planned; read again"
                    )
                self._pinned[found.path] = found

    def _is_listed(self, found: Found) -> bool:
        """Whether the listing that covers a file has this version of it; true without such a listing."""
        tree = self._tree(found.path)
        listed = None if tree is None else tree.file(found.path)
        return tree is None or (listed is not None and (listed.version, listed.size) == (found.version, found.size))

    def _list_again(self, path: str) -> None:
        root = next(root for root, (tree, _) in self._trees.items() if tree.covers(path))
        self.look(root, -1.0)

    def unpin(self) -> None:
        """Forgets the pinned files."""
        with self._lock:
            self._pinned.clear()

    def _tree(self, path: str) -> Tree | None:
        listed = list(self._trees.values())  # another thread may list a store meanwhile
        return next((tree for tree, _ in listed if tree.covers(path)), None)

    def _listing(self, folder: str) -> Tree:
        """A listing that has the names of a folder; one of this folder alone if no `look` covered it."""
        with self._lock:
            if (tree := self._tree(folder)) is not None:
                return tree
            if (known := self._outside.get(folder)) is None:
                folders, found = self.requests.folder(folder)
                below = folder + "/" if folder else ""
                marks = [Found(f"{below}{name}/", 0, "", 0) for name in folders]
                known = self._outside[folder] = Tree(folder, [*marks, *found])
            return known

    def file(self, path: str) -> Found | None:
        """The object of a path."""
        pinned = self._pinned.get(path)
        return pinned if pinned is not None else self._listing_with(path).file(path)

    def _listing_with(self, path: str) -> Tree:
        return self._tree(path) or self._listing(path.rpartition("/")[0])

    def stat(self, path: str) -> FileStat | None:
        """The name, kind and stamp of a path; None if there is nothing."""
        if not path:
            return self._listing("").stat("")
        pinned = self._pinned.get(path)
        if pinned is not None:
            return FileStat(path.rpartition("/")[2], False, stamp_of(pinned))
        return self._listing_with(path).stat(path)

    def entries(self, path: str) -> list[FileStat]:
        """The entries of a folder. Raises FileNotFoundError, NotADirectoryError."""
        listing = self._listing(path)
        folder = listing.folders.get(path)
        if folder is None:
            uri = f"{self.origin}/{path}"
            if self.file(path) is not None:
                raise NotADirectoryError(20, "Not a directory", uri)
            raise FileNotFoundError(2, "No such file or directory", uri)
        below = path + "/" if path else ""
        found = (listing.stat(below + name) for name in folder)
        return [each for each in found if each is not None]

    def matching(self, pattern: str) -> list[str]:
        """The paths that match a shell pattern, sorted; a star matches inside one name, and no hidden one."""
        parts, found = pattern.split("/"), [""]
        for part in parts:
            above = [(path + "/" if path else "", path) for path in found]
            if any(mark in part for mark in "*?["):
                found = [
                    before + entry.name
                    for before, path in above
                    for entry in self._entries_or_none(path)
                    if fnmatch.fnmatchcase(entry.name, part) and (entry.name[:1] != "." or part[:1] == ".")
                ]
            else:
                found = [before + part for before, _ in above if self.stat(before + part) is not None]
        return sorted(found)

    def _entries_or_none(self, path: str) -> list[FileStat]:
        try:
            return self.entries(path)
        except (FileNotFoundError, NotADirectoryError):
            return []

    # -- bytes

    def read(self, found: Found, size: int, position: int) -> bytes:
        """At most `size` bytes at `position`; fewer only at the end of the object."""
        size = max(min(size, found.size - position), 0)
        if size > SMALL:
            data = bytearray(size)
            self.read_into(found, memoryview(data), position)
            return bytes(data)
        return self._from_blocks(found, size, position) if size else b""

    def _from_blocks(self, found: Found, size: int, position: int) -> bytes:
        stop = position + size
        piece, _ = pieces.holding(self._number, found, position, stop)
        if piece is not None and stop <= piece.stop:
            return bytes(self._arrived(piece)[position - piece.start : stop - piece.start])
        first, last = position // BLOCK_SIZE, (stop - 1) // BLOCK_SIZE
        parts = {number: blocks.get(self._number, found, number) for number in range(first, last + 1)}
        missing = [number for number, block in parts.items() if block is None]
        if missing:
            begin = missing[0] * BLOCK_SIZE
            data = self.requests.get(found, begin, min((missing[-1] + 1) * BLOCK_SIZE, found.size))
            for number in range(missing[0], missing[-1] + 1):
                at = (number - missing[0]) * BLOCK_SIZE
                parts[number] = block = bytes(data[at : at + BLOCK_SIZE])
                blocks.put(self._number, found, number, block)
        whole = b"".join(block for block in parts.values() if block is not None)
        return whole[position - first * BLOCK_SIZE : stop - first * BLOCK_SIZE]

    def read_into(self, found: Found, target: memoryview, position: int) -> int:
        """Fills `target` from `position`; returns the number of bytes, fewer only at the end of the object."""
        target = target.cast("B") if target.format != "B" or target.ndim != 1 else target
        size = max(min(len(target), found.size - position), 0)
        done, waiting = 0, list[tuple[int, Future[memoryview]]]()
        while done < size:
            piece, following = pieces.holding(self._number, found, position + done, position + size)
            if piece is not None:
                begin = position + done
                stop = min(piece.stop, position + size)
                target[done : done + stop - begin] = self._arrived(piece)[begin - piece.start : stop - piece.start]
                pieces.was_read(piece, stop, self._submit)
                done += stop - begin
                continue
            if following - position - done <= SMALL:
                part = self._from_blocks(found, following - position - done, position + done)
                target[done : done + len(part)] = part
                done += len(part)
                continue
            stop = min(following, position + done + PIECE_SIZE)
            pieces.passed(found, position + done, stop)
            waiting.append((done, self._submit(found, position + done, stop)))
            done = stop - position
        for at, future in waiting:
            data = future.result()
            target[at : at + len(data)] = data
        return size

    def _arrived(self, piece: Piece) -> memoryview:
        """The bytes of a piece; fetched here if the reader that requested them was cancelled."""
        try:
            if piece.future is not None:
                return piece.future.result()
        except CancelledError:
            pass
        return self.requests.get(piece.found, piece.start, piece.stop)

    def will_need(self, reader: Reader, spans: Iterable[tuple[str, int, int]]) -> None:
        """Starts reading spans of files that will be needed next, in this order."""
        known = [(self.file(path), start, stop) for path, start, stop in spans]
        wanted = [(found, start, stop) for found, start, stop in known if found is not None]
        pieces.ask(self._number, reader, [each for each in wanted if not self._is_here(*each)], self._submit)

    def _is_here(self, found: Found, start: int, stop: int) -> bool:
        """Whether a span is small and wholly in retained blocks."""
        last = (min(stop, found.size) - 1) // BLOCK_SIZE
        numbers = range(start // BLOCK_SIZE, last + 1)
        return stop - start <= SMALL and all(blocks.get(self._number, found, number) is not None for number in numbers)

    def _submit(self, found: Found, start: int, stop: int) -> Future[memoryview]:
        return transfers(stop - start).submit(self.requests.get, found, start, stop)
