"""Reads spans of a chain's bytes into one bounded, reused buffer, by `preadv`.

Nothing is memory-mapped: a file that shrinks while mapped kills Python, and a mapped file counts as resident memory.
"""

from __future__ import annotations

from contextlib import suppress

import numpy as np
import numpy.typing as npt

from storage_core.errors import CorruptionError
from storage_core.files import system
from storage_core.files.file_chain import ChainFile, FileChain
from storage_core.files.open_files import OpenFiles


class Window:
    """A reader of one chain with a buffer that grows to the largest request and is reused by every call."""

    def __init__(self, chain: FileChain, files: OpenFiles) -> None:
        self.chain = chain
        self._files = files
        self._buffer = np.empty(0, np.uint8)
        self.bytes_read = 0

    @property
    def announces_reads(self) -> bool:
        """Whether it helps to announce reads: each request costs time, and many may be under way."""
        return bool(self.chain.files) and not system.is_local(self.chain.files[0].path)

    def will_need(self, starts: npt.NDArray[np.int64], stops: npt.NDArray[np.int64]) -> None:
        """Announces the spans, each inside one file, that will be read next."""
        spans = []
        for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
            file = self.chain.file_at(start)
            if file is not None:
                spans.append((file.path, start - file.base_offset, stop - file.base_offset))
        self._files.will_need(spans)

    def read_ahead(self, starts: npt.NDArray[np.int64], size: int) -> None:
        """Reads small spans at addresses concurrently, so that they are at hand when they are loaded one by one; does
        nothing on a local disk.
        """
        if not self.announces_reads:
            return
        wanted = []
        for start in starts.tolist():
            file = self.chain.file_at(start)
            with suppress(FileNotFoundError):  # reported when it is loaded
                if file is not None:
                    wanted.append((self._files.descriptor(file.path), size, start - file.base_offset))
        system.pread_each(wanted)

    def load(self, start: int, stop: int) -> npt.NDArray[np.uint8]:
        """The bytes [start, stop), which must be inside one file. Valid until the next load."""
        target = self._room(stop - start)
        self._fill(start, target)
        return target

    def load_runs(
        self, starts: npt.NDArray[np.int64], stops: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
        """Several spans, each inside one file, one after another; and where each begins in the buffer."""
        sizes = stops - starts
        places = np.cumsum(sizes) - sizes
        target = self._room(int(sizes.sum()))
        for start, size, place in zip(starts.tolist(), sizes.tolist(), places.tolist(), strict=True):
            self._fill(start, target[place : place + size])
        return target, places

    def _room(self, size: int) -> npt.NDArray[np.uint8]:
        if len(self._buffer) < size:
            self._buffer = np.empty(size, np.uint8)
        return self._buffer[:size]

    def _fill(self, start: int, target: npt.NDArray[np.uint8]) -> None:
        file = self.chain.file_at(start)
        if file is None:
            raise ValueError(f"address {start} lies in no file")
        position = start - file.base_offset
        try:
            count = system.pread_into(self._files.descriptor(file.path), target.data, position)
        except FileNotFoundError:
            raise vanished(file) from None
        self.bytes_read += count
        if count < len(target):
            raise shrunk(file, position + count)


def vanished(file: ChainFile) -> CorruptionError:
    """The error for a file that was listed but no longer exists."""
    return CorruptionError(file.path, 0, "the file vanished while the store was read; read again, or read a copy")


def shrunk(file: ChainFile, position: int) -> CorruptionError:
    """The error for a file that ends before the length it had when it was listed."""
    return CorruptionError(
        file.path, position, f"the file ends here, it had {file.size} bytes when the read began; read again, or a copy"
    )
