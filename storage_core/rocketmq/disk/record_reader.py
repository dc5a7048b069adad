"""Records at known addresses of the log: the head of one, or many of them decoded.

Choosing the addresses and interpreting the records is left to the callers.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from storage_core.files import system
from storage_core.files.file_chain import FileChain
from storage_core.files.open_files import OpenFiles
from storage_core.files.window import Window
from storage_core.formats.layout import Positions
from storage_core.formats.rocketmq.message import (
    HEAD_SIZE,
    HEADER_V4,
    MIN_SIZE,
    Flaw,
    Messages,
    RecordHead,
    decode,
    decode_head,
)

AT_ONCE, AT_ONCE_REMOTE = 1024, 256
RECORD_AHEAD = 4096
"""Bytes of a record that are read before its size is known, when many records are read at once."""


def head_at(log: FileChain, files: OpenFiles, physical_offset: int) -> RecordHead | None:
    """The head of the record at an address, unchecked; None when the log has too few bytes there."""
    file = log.file_at(physical_offset)
    if file is None:
        return None
    return decode_head(system.pread(files.descriptor(file.path), HEAD_SIZE, physical_offset - file.base_offset))


def store_ms_at(log: FileChain, files: OpenFiles, physical_offset: int) -> int | None:
    """Store time of the record at an address; None when the record there does not state that address."""
    head = head_at(log, files, physical_offset)
    return head.store_ms if head is not None and head.physical_offset == physical_offset else None


def record_at(log: FileChain, files: OpenFiles, physical_offset: int, log_end: int) -> Messages | None:
    """The record at an address; None if there is no valid one there below the address `log_end`."""
    file = log.file_at(physical_offset)
    stop = None if file is None else min(file.end, log_end)
    if stop is None or physical_offset + HEADER_V4.size > stop:
        return None
    window = Window(log, files)
    size = int.from_bytes(window.load(physical_offset, physical_offset + 4).tobytes(), "big", signed=True)
    if size < HEADER_V4.size or physical_offset + size > stop:
        return None
    messages = decode(window.load(physical_offset, physical_offset + size), np.zeros(1, np.int64), np.array([size]))
    wrong = messages.flaws[0] != 0 or int(messages.column("physical_offset")[0]) != physical_offset
    return None if wrong else messages


class RecordReader:
    """Reads records below the address `log_end`. Keeps the last ones, because lookups request the same ones twice."""

    def __init__(self, log: FileChain, files: OpenFiles, log_end: int) -> None:
        self._log, self._log_end = log, log_end
        self._window = Window(log, files)
        self._last: tuple[bytes, Messages] | None = None

    def records(self, physical_offsets: Positions) -> Iterator[tuple[int, Messages]]:
        """Yields the records at ascending addresses in groups: the number of a group's first record, and its records.

        If no valid record below the end of the log begins at an address, the record for it is flawed. Each group is
        valid until the next step.
        """
        step = AT_ONCE_REMOTE if self._window.announces_reads else AT_ONCE
        for first in range(0, len(physical_offsets), step):
            part = physical_offsets[first : first + step]
            key = part.tobytes()
            if self._last is None or self._last[0] != key:
                self._last = None
                self._last = key, self._decoded(part)
            yield first, self._last[1]

    def _decoded(self, physical_offsets: Positions) -> Messages:
        room = self._room(physical_offsets)
        fits = room >= MIN_SIZE
        self._window.read_ahead(physical_offsets[fits], RECORD_AHEAD)
        begin = np.where(fits, physical_offsets, self._log.start)
        heads, _ = self._window.load_runs(begin, begin + np.where(fits, 4, 0))
        sizes = np.zeros(len(fits), np.int64)
        sizes[fits] = heads.view(">i4")
        sizes = np.where((sizes >= MIN_SIZE) & (sizes <= room), sizes, 0)
        buffer, starts = self._window.load_runs(begin, begin + sizes)
        if not len(buffer):
            buffer = np.zeros(MIN_SIZE, np.uint8)
        messages = decode(buffer, starts, sizes)
        messages.mark(messages.column("physical_offset") != physical_offsets, Flaw.PRESERVED)
        return messages

    def _room(self, physical_offsets: Positions) -> Positions:
        """Bytes of the log from each address on, in its file and below the end of the log; 0 in a hole."""
        log = self._log
        if not log.files:
            return np.zeros(len(physical_offsets), np.int64)
        file = np.searchsorted(log.base_array, physical_offsets, "right") - 1
        room: Positions = np.maximum(np.minimum(log.end_array[file], self._log_end) - physical_offsets, 0)
        room[file < 0] = 0
        return room
