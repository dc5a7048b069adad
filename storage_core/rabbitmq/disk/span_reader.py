"""Reads scattered spans of many files into one buffer, nearby ones with one read. Independent of any format.

A file that vanished or shrank since the plan was made is a DataLossError, never a crash.
"""

from __future__ import annotations

from contextlib import suppress
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from storage_core.errors import DataLossError, FormatError, StoreNotFoundError
from storage_core.files import system
from storage_core.files.open_files import OpenFiles
from storage_core.files.small_file import read_at
from storage_core.formats.layout import Bytes, Positions

_FILE_SHIFT = 44
LARGEST_GAP = 16 << 10
"""Largest gap in bytes that a disk or a server reads faster than it skips it."""
LARGEST_COPIED_GAP = 4 << 10
"""Largest gap in bytes that is copied from the system's memory faster than it is skipped with one more call."""
LONG_RUN = 64
"""Spans need no sorting if, in the order requested, at least this many on average form a run."""
SHORT_FILE_SIZE = 1 << 20
"""More than any `.config`, `.vhost`, `.queue_name` or `config` of a quorum queue has: names have at most 255 bytes."""
TABLE_SIZE = 512 << 20
"""More than the tables of millions of queues have; tables that grow with the messages have a higher limit."""
PIECE_SIZE, MOST_ZEROS = 1 << 20, 4096


def read_file(path: str) -> bytes:
    """Reads a whole file; b"" if it does not exist. Raises StoreNotFoundError if it may not be read."""
    try:
        size = system.stat(path).size + 1
        descriptor = system.open_read(path)
    except FileNotFoundError:
        return b""
    except PermissionError:
        raise _forbidden(path) from None
    try:
        parts = []
        position = 0
        while data := system.pread(descriptor, size, position):
            parts.append(data)
            position += len(data)
            if len(data) < size:
                break
            size = 8 << 20
        return parts[0] if len(parts) == 1 else b"".join(parts)
    finally:
        system.close(descriptor)


def read_short_file(path: str) -> bytes:
    """Reads a file of names or settings; b"" if it does not exist. A longer file in its place is not read whole.

    Raises StoreNotFoundError if it may not be read, FormatError if it has more than `SHORT_FILE_SIZE` bytes.
    """
    try:
        data = read_at(path, SHORT_FILE_SIZE + 1)
    except FileNotFoundError:
        return b""
    except PermissionError:
        raise _forbidden(path) from None
    if len(data) > SHORT_FILE_SIZE:
        raise FormatError(SHORT_FILE_SIZE, f"the file has more than {SHORT_FILE_SIZE:,} bytes")
    return data


def read_table(path: str, head: bytes = b"", head_position: int = 0, most: int = TABLE_SIZE) -> bytes:
    """Reads a file of tables or terms; b"" if it does not exist, only some first bytes if it lacks its `head`.

    Keeps `MOST_ZEROS` of a longer run of zeros after the content. Raises StoreNotFoundError if the file may not be
    read, FormatError if it has content beyond `most` bytes.
    """
    try:
        size = min(system.stat(path).size + 1, PIECE_SIZE)
        descriptor = system.open_read(path)
    except FileNotFoundError:
        return b""
    except PermissionError:
        raise _forbidden(path) from None
    parts: list[bytes] = []
    position = zero_count = 0
    try:
        while data := system.pread(descriptor, size, position):
            if not position and data[head_position : head_position + len(head)] != head:
                return data
            position += len(data)
            if not np.frombuffer(data, np.uint8).any():
                zero_count += len(data)
            elif position > most:
                raise FormatError(most, f"longer than the {most >> 20} MiB that mqstore reads of such a file")
            else:
                parts += [bytes(zero_count), data]
                zero_count = 0
            if len(data) < size:
                break
            size = PIECE_SIZE
    finally:
        system.close(descriptor)
    if zero_count > MOST_ZEROS:
        parts = [*parts[:-1], *(part.rstrip(b"\0") for part in parts[-1:]), bytes(MOST_ZEROS)]
        zero_count = 0
    return b"".join([*parts, bytes(zero_count)])


class FileReader:
    """Reads whole files, one at a time, into one buffer: fresh memory costs more than reading."""

    def __init__(self) -> None:
        self._buffer = np.empty(0, np.uint8)

    def read(self, path: str) -> memoryview:
        """A whole file, valid until the next call; empty if it does not exist. Raises what `read_file` raises."""
        try:
            size = system.stat(path).size
            descriptor = system.open_read(path)
        except FileNotFoundError:
            return memoryview(b"")
        except PermissionError:
            raise _forbidden(path) from None
        try:
            if len(self._buffer) <= size:
                self._buffer = np.empty(size + (size >> 2) + 1, np.uint8)
            count = system.pread_into(descriptor, self._buffer.data, 0)
        finally:
            system.close(descriptor)
        grown = count == len(self._buffer)
        return memoryview(read_file(path)) if grown else self._buffer[:count].data


def _forbidden(path: str) -> StoreNotFoundError:
    return StoreNotFoundError(f"StoreNotFoundError: {path} may not be read; check its permissions")


class SpanReader:
    """Reads spans of the files `paths` below `root`."""

    def __init__(self, root: str, paths: list[str]) -> None:
        self.root, self.paths = root, paths
        self._files = OpenFiles()
        self._buffer = np.empty(0, np.uint8)

    def load(self, files: npt.NDArray[np.int64], starts: Positions, stops: Positions) -> tuple[Bytes, Positions]:
        """Returns one buffer with all spans [start, stop) of the files with these numbers, and where each begins in it.

        The buffer is valid until the next call.
        """
        if not len(files):
            return np.empty(0, np.uint8), np.empty(0, np.int64)
        local = system.is_local(self.root)
        run_files, run_starts, run_stops, run = _runs(
            files, starts, stops, LARGEST_COPIED_GAP if local else LARGEST_GAP
        )
        sizes = run_stops - run_starts
        targets = np.cumsum(sizes) - sizes
        buffer = self._room(int(sizes.sum()))
        if local:
            self._read_soon(run_files, run_starts, run_stops)
        else:
            numbers = zip(run_files.tolist(), run_starts.tolist(), run_stops.tolist(), strict=True)
            self._files.will_need([(f"{self.root}/{self.paths[n]}", start, stop) for n, start, stop in numbers])
        others = np.flatnonzero(np.diff(run_files)) + 1 if local else np.arange(1, len(sizes))
        for begin, end in pairwise([0, *others.tolist(), len(sizes)]):
            rows = slice(begin, end)
            self._fill(int(run_files[begin]), buffer, targets[rows], targets[rows] + sizes[rows], run_starts[rows])
        return buffer, starts + (targets - run_starts)[run]

    def _read_soon(self, files: npt.NDArray[np.int64], starts: Positions, stops: Positions) -> None:
        """Announces runs that are close together before they are read one by one: a disk reads them in one piece."""
        if len(files) < 2:
            return
        near = (files[1:] == files[:-1]) & (starts[1:] - stops[:-1] <= LARGEST_GAP)
        edges = np.flatnonzero(np.diff(near, prepend=False, append=False))
        for first, last in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
            with suppress(FileNotFoundError):  # the read itself reports it
                descriptor = self._files.descriptor(f"{self.root}/{self.paths[files[first]]}")
                system.read_soon(descriptor, int(starts[first]), int(stops[last] - starts[first]))

    def _room(self, size: int) -> Bytes:
        if len(self._buffer) < size:
            self._buffer = np.empty(size, np.uint8)
        return self._buffer[:size]

    def _fill(self, number: int, target: Bytes, starts: Positions, stops: Positions, positions: Positions) -> None:
        """Reads the bytes of file `number` from each of `positions` on into [start, stop) of `target`."""
        path = f"{self.root}/{self.paths[number]}"
        try:
            descriptors = np.full(len(starts), self._files.descriptor(path))
            ended = system.pread_runs(descriptors, target, starts, stops, positions)
        except FileNotFoundError:
            raise _lost(path, int(positions[0]), "vanished") from None
        if ended is not None:
            row, count = ended
            raise _lost(path, int(positions[row]) + count, "shrank")

    def close(self) -> None:
        """Closes all files."""
        self._files.close()


def _runs(
    files: npt.NDArray[np.int64], starts: Positions, stops: Positions, gap: int
) -> tuple[npt.NDArray[np.int64], Positions, Positions, npt.NDArray[np.intp]]:
    """Merges spans into runs, each read as one: files, starts and stops of the runs by file and position, and the run
    of each span. Neighbouring spans in a run are at most `gap` bytes apart.
    """
    # A queue's messages are stored together, the last one first if a flush wrote them.
    apart = np.maximum(starts[1:] - stops[:-1], starts[:-1] - stops[1:]) > gap
    apart |= files[1:] != files[:-1]
    first = np.append(0, np.flatnonzero(apart) + 1)
    if len(first) * LONG_RUN <= len(files):
        run_starts, run_stops = np.minimum.reduceat(starts, first), np.maximum.reduceat(stops, first)
        order = np.argsort(run_starts + (files[first] << _FILE_SHIFT), kind="stable")
        rank = np.empty(len(order), np.intp)
        rank[order] = np.arange(len(order))
        run = np.repeat(rank, np.diff(first, append=len(files)))
        return files[first[order]], run_starts[order], run_stops[order], run
    order = np.argsort(starts + (files << _FILE_SHIFT), kind="stable")
    file, start = files[order], starts[order]
    base = file << _FILE_SHIFT
    reach = np.maximum.accumulate(stops[order] + base) - base
    fresh = np.ones(len(order), bool)
    fresh[1:] = (file[1:] != file[:-1]) | (start[1:] - reach[:-1] > gap)
    first = np.flatnonzero(fresh)
    run = np.empty(len(order), np.intp)
    run[order] = np.cumsum(fresh) - 1
    return file[first], start[first], reach[np.append(first[1:], len(order)) - 1], run


def _lost(path: str, position: int, what: str) -> DataLossError:
    text = f"the file {what} while the store was read; read again, or a copy"
    return DataLossError(f"DataLossError: {path} at {position}: {text}")
