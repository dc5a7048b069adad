"""Bytes of remote files that are requested before they are read, and blocks that were read and may be read again.

Both are bounded, and neither changes a result: what is not here is requested when it is read.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field

from storage_core.files.remote.back_end import Found

PIECE_SIZE = 8 << 20
MOST_AHEAD = 40 << 20
"""Most bytes in one process that are on their way, wait to be read, or were read and are retained."""
SMALLEST_RETAINED = 256 << 10
"""Bytes of the smallest piece that is worth retaining after it was read; smaller spans are in blocks."""
GAP = 256 << 10
"""The largest gap between two spans, in bytes, that is read rather than skipped."""
BLOCK_SIZE = 32 << 10
MOST_BLOCKS = 2048

File = tuple[int, str, str]
"""The number of a bucket's client, path and version."""
Submit = Callable[[Found, int, int], "Future[memoryview]"]


@dataclass(eq=False)
class Piece:
    """A requested span of one file, and how far it was read; `remote` is the number of the bucket's client."""

    remote: int
    found: Found
    start: int
    stop: int
    future: Future[memoryview] | None = None
    read_to: int = 0

    @property
    def size(self) -> int:
        """Length in bytes."""
        return self.stop - self.start

    @property
    def file(self) -> File:
        """The file that it is a span of."""
        return self.remote, self.found.path, self.found.version

    @property
    def is_here(self) -> bool:
        """Whether its bytes have arrived."""
        return (
            self.future is not None
            and self.future.done()
            and not self.future.cancelled()
            and (self.future.exception() is None)
        )


@dataclass(eq=False)
class Reader:
    """What one reader requested ahead: pieces that wait for room, in reading order, and those under way."""

    waiting: deque[Piece] = field(default_factory=deque)
    under_way: dict[File, list[Piece]] = field(default_factory=dict)


class Pieces:
    """The pieces of all readers of this process. Thread-safe.

    Those that were read are retained until their room is needed, so a scan of a small log finds what recovery read.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held = 0
        self._readers: list[Reader] = []
        self._retained: dict[File, list[Piece]] = {}

    def ask(self, remote: int, reader: Reader, spans: Iterable[tuple[Found, int, int]], submit: Submit) -> None:
        """Queues spans in reading order, near ones as one, and requests as many as there is room for."""
        with self._lock:
            if reader not in self._readers:
                self._readers.append(reader)
            for found, start, stop in _joined(spans):
                for first, last in self._not_retained((remote, found.path, found.version), start, stop):
                    for begin in range(first, last, PIECE_SIZE):
                        reader.waiting.append(Piece(remote, found, begin, min(begin + PIECE_SIZE, last), None, begin))
            self._fill_up(submit)

    def _not_retained(self, file: File, start: int, stop: int) -> list[tuple[int, int]]:
        """The parts of a span that no retained piece covers."""
        parts = []
        for piece in sorted(self._retained.get(file, ()), key=lambda each: each.start):
            if start < piece.start < stop:
                parts.append((start, piece.start))
            if piece.start < stop:
                start = max(start, piece.stop)
        return [*parts, (start, stop)] if start < stop else parts

    def _fill_up(self, submit: Submit) -> None:
        for reader in self._readers:
            while reader.waiting and self._has_room(reader.waiting[0].size):
                piece = reader.waiting.popleft()
                piece.future = submit(piece.found, piece.start, piece.stop)
                self._held += piece.size
                reader.under_way.setdefault(piece.file, []).append(piece)

    def _has_room(self, size: int) -> bool:
        """Whether a piece fits. Evicts retained pieces to make room, last first, as files are read front to back."""
        while self._held + size > MOST_AHEAD and self._retained:
            file, pieces = next(reversed(self._retained.items()))
            self._held -= pieces.pop().size
            if not pieces:
                del self._retained[file]
        return self._held + size <= MOST_AHEAD

    def _release(self, piece: Piece) -> None:
        """Retains a piece that no reader waits for, if it has arrived and is worth it."""
        same = self._retained.get(piece.file, ())
        if piece.size >= SMALLEST_RETAINED and piece.is_here and all(each.start != piece.start for each in same):
            self._retained.setdefault(piece.file, []).append(piece)
            return
        self._held -= piece.size
        if piece.future is not None:
            piece.future.cancel()

    def holding(self, remote: int, found: Found, position: int, stop: int) -> tuple[Piece | None, int]:
        """The piece that holds the byte at `position`, and its start; or None and the start of the next piece before
        `stop`, or `stop` if there is none.
        """
        following, file = stop, (remote, found.path, found.version)
        with self._lock:
            for pieces in (self._retained, *(reader.under_way for reader in self._readers)):
                for piece in pieces.get(file, ()):
                    if piece.start <= position < piece.stop:
                        return piece, piece.start
                    if position < piece.start < following:
                        following = piece.start
        return None, following

    def passed(self, found: Found, position: int, stop: int) -> None:
        """Drops queued spans that were meanwhile read directly."""
        with self._lock:
            for reader in self._readers:
                if reader.waiting:
                    kept = [
                        piece
                        for piece in reader.waiting
                        if piece.found != found or piece.start < position or piece.stop > stop
                    ]
                    reader.waiting = deque(kept)

    def was_read(self, piece: Piece, to: int, submit: Submit) -> None:
        """Notes how far a piece was read. Finished pieces before it are released to make room; the last one stays,
        because a record that begins in it is read again with the next.
        """
        with self._lock:
            piece.read_to = max(piece.read_to, to)
            if piece.read_to < piece.stop:
                return
            for reader in self._readers:
                mine = reader.under_way.get(piece.file, [])
                if piece in mine:
                    done = [each for each in mine if each.read_to >= each.stop and each is not piece]
                    reader.under_way[piece.file] = [each for each in mine if each not in done]
                    for each in done:
                        self._release(each)
            self._fill_up(submit)

    def drop(self, reader: Reader) -> None:
        """Drops what a reader requested and did not read."""
        with self._lock:
            if reader not in self._readers:
                return
            self._readers.remove(reader)
            reader.waiting.clear()
            for pieces in reader.under_way.values():
                for piece in pieces:
                    self._release(piece)
            reader.under_way.clear()


def _joined(spans: Iterable[tuple[Found, int, int]]) -> list[tuple[Found, int, int]]:
    """Neighbouring spans of one file, joined if the gap is small; parts past the file's end are cut off."""
    joined: list[tuple[Found, int, int]] = []
    for found, start, stop in spans:
        stop = min(stop, found.size)
        if stop <= start:
            continue
        last = joined[-1] if joined else None
        if last is not None and last[0] == found and last[1] <= start <= last[2] + GAP:
            joined[-1] = (found, last[1], max(last[2], stop))
        else:
            joined.append((found, start, stop))
    return joined


class Blocks:
    """Aligned blocks of files; the least recently used are evicted first. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._blocks: OrderedDict[tuple[int, str, str, int], bytes] = OrderedDict()

    def get(self, remote: int, found: Found, number: int) -> bytes | None:
        """A retained block, or None; `remote` is the number of the bucket's client."""
        key = (remote, found.path, found.version, number)
        with self._lock:
            block = self._blocks.get(key)
            if block is not None:
                self._blocks.move_to_end(key)
        return block

    def put(self, remote: int, found: Found, number: int, block: bytes) -> None:
        """Retains a block."""
        with self._lock:
            self._blocks[remote, found.path, found.version, number] = block
            while len(self._blocks) > MOST_BLOCKS:
                self._blocks.popitem(last=False)
