"""The valid records of a part of the log, and the gaps between them.

Ignores the queues and the rules of recovery: after damage it continues at the next record. Source of the rule:
interface.md 4.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from storage_core.files import system
from storage_core.files.file_chain import ChainFile, FileChain
from storage_core.files.open_files import OpenFiles
from storage_core.files.window import Window
from storage_core.formats.layout import Positions
from storage_core.formats.rocketmq.message import HEADER_V4
from storage_core.formats.rocketmq.record_walk import Stop, find_records
from storage_core.rocketmq.disk.commit_log import WINDOW_SIZE, Checks, FileWalk, RecordRun
from storage_core.rocketmq.disk.record_reader import record_at

FIRST_SEARCH_SIZE = 16 << 10
"""Bytes searched first for the next record, which is near the start of a span but far behind damage."""


@dataclass(frozen=True)
class LogSpan:
    """Addresses [start, stop) of one file; `at_record`: whether a record is known to begin at `start`."""

    start: int
    stop: int
    at_record: bool


@dataclass(frozen=True)
class Gap:
    """Addresses [start, stop) of one file that contain no valid record, and why the walk stopped there.

    `followed`: a valid record begins at `stop`; otherwise `stop` is the end of the file.
    """

    start: int
    stop: int
    reason: Stop
    followed: bool


@dataclass
class SpanWalk:
    """The valid records and the gaps that begin in a span of one file, in log order.

    A record is valid when its magic and lengths are correct and it states its own address; checking body checksums is
    left to the caller. The bytes from a blank record on are a gap only if a valid record follows in the file. Those
    before the first record of a span that is not `at_record` are none: they belong to the previous span. Without
    `gaps_of_zeros`, gaps of zeros are left out, and no zeros after the span are read. `guesses` are those of FileWalk.
    Each run is valid until the next step.
    """

    log: FileChain
    files: OpenFiles
    file: ChainFile
    span: LogSpan
    gaps_of_zeros: bool = True
    guesses: Positions | None = None

    def __iter__(self) -> Iterator[RecordRun | Gap]:
        at: int | None = self.span.start
        if not self.span.at_record:
            at = self._next_record(self.span.start, self.span.stop)
        while at is not None and at < self.span.stop:
            checks = Checks(crc=False, physical_offset=True, broker=False)
            walk = FileWalk(self.log, self.files, self.file, at, checks, guesses=self.guesses)
            for run in walk:
                count = int(np.searchsorted(run.physical_offsets, self.span.stop))
                if count:
                    yield run.part(0, count)
                if count < len(run.sizes):
                    return
            if walk.reason is Stop.END and not self.gaps_of_zeros:
                at = self._next_record(walk.end_offset + 1, self.span.stop)
                continue
            at = self._next_record(walk.end_offset + 1, self.file.end)
            stop = self.file.end if at is None else at
            if stop > walk.end_offset and (walk.reason is not Stop.BLANK or at is not None):
                yield Gap(walk.end_offset, stop, walk.reason, at is not None)

    def _next_record(self, start: int, before: int) -> int | None:
        """Address of the first valid record that begins in [start, before) of this file; holes of a sparse file are
        not read.
        """
        base = self.file.base_offset
        descriptor = self.files.descriptor(self.file.path)
        for low, high in system.data_spans(descriptor, start - base, before - base):
            # A record may begin a few bytes before the part of the file that has a block on the disk.
            found = self._next_in(max(start, base + low - HEADER_V4.size), base + high)
            if found is not None:
                return found if found < before else None
        return None

    def _next_in(self, start: int, end: int) -> int | None:
        window = Window(self.log, self.files)
        end, size = min(end + HEADER_V4.size, self.file.end), FIRST_SEARCH_SIZE
        while start + HEADER_V4.size <= end:
            stop, size = min(start + size, end), min(4 * size, WINDOW_SIZE)
            buffer = window.load(start, stop)
            candidates: list[int] = find_records(buffer, start).tolist() if buffer.any() else []
            for position in candidates:
                if record_at(self.log, self.files, start + position, self.file.end) is not None:
                    return start + position
            if stop == end:
                return None
            start = stop - HEADER_V4.size + 1
        return None
