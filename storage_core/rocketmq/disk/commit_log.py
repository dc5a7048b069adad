"""The commit log on disk: its records in physical order, in bounded memory.

Which records count is decided by `recovery`; this module only walks the log, with the given checks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage_core.arrays import as_mask
from storage_core.files.file_chain import ChainFile, FileChain
from storage_core.files.open_files import OpenFiles
from storage_core.files.window import Window
from storage_core.formats.byte_search import spans_with
from storage_core.formats.java_numbers import whole_of
from storage_core.formats.layout import Bytes, Mask, Positions
from storage_core.formats.rocketmq.ledger import walk_ledger
from storage_core.formats.rocketmq.message import (
    BLANK,
    MAGIC_V1,
    MAGIC_V2,
    Messages,
    Wanted,
    decode,
)
from storage_core.formats.rocketmq.paths import SCHEDULE_TOPIC
from storage_core.formats.rocketmq.properties import INNER_BASE, INNER_NUM, delay_ms, property_of
from storage_core.formats.rocketmq.record_walk import Stop, Walk, walk
from storage_core.rocketmq.disk.ledger import header_size

WINDOW_SIZE = 8 << 20

SHORT_NUMBER = "^[0-9]{1,4}$"
"""A number that is small enough for each of Java's types, as brokers write nearly all."""

_SCHEDULE = SCHEDULE_TOPIC.encode()


@dataclass(frozen=True)
class Checks:
    """The checks that a record must pass in a walk: accepted magics, whether bodies must match their CRC, and whether
    PHYSICALOFFSET must be the record's address (a broker does not check that). `broker`: also reject what stops a
    broker's dispatch. `whole_blank`: a blank record must not be longer than the rest of its file.
    """

    magics: tuple[int, ...] = (MAGIC_V1, MAGIC_V2)
    crc: bool = True
    physical_offset: bool = False
    broker: bool = True
    whole_blank: bool = False


@dataclass(frozen=True)
class RecordRun:
    """Consecutive valid records of one file, decoded, and the address of buffer byte 0."""

    messages: Messages
    sizes: Positions
    base_offset: int

    @property
    def physical_offsets(self) -> Positions:
        """Address of each record."""
        return self.messages.starts + self.base_offset

    @property
    def end_offset(self) -> int:
        """Address one past the last record."""
        return int(self.messages.starts[-1] + self.sizes[-1] + self.base_offset)

    def part(self, start: int, stop: int) -> RecordRun:
        """The records [start, stop), without a copy."""
        rows = slice(start, stop)
        return RecordRun(self.messages.take(rows), self.sizes[rows], self.base_offset)


@dataclass
class FileWalk:
    """Walks one file of the log. After iteration, `end_offset` and `reason` state where it stopped and why.

    `guesses`: addresses where records begin according to an index, ascending; `likely_end`: an address up to which the
    walk reads first. Both only make it faster. Each run is valid until the next step.
    """

    chain: FileChain
    files: OpenFiles
    file: ChainFile
    start: int
    checks: Checks
    window_size: int = WINDOW_SIZE
    guesses: Positions | None = None
    likely_end: int = 0
    end_offset: int = 0
    reason: Stop = Stop.END

    def __iter__(self) -> Iterator[RecordRun]:
        window = Window(self.chain, self.files)
        self.end_offset = self.start
        size, likely_end = self.window_size, self.likely_end
        while self.end_offset < self.file.end:
            stop = min(self.end_offset + size, self.file.end)
            if self.end_offset < likely_end < stop:
                stop, likely_end = min(likely_end + BLANK.size, stop), 0
            buffer = window.load(self.end_offset, stop)
            records = self._records(buffer, stop)
            self.reason = records.reason
            messages = decode(buffer, records.starts, records.sizes, Wanted(crcs=self.checks.crc))
            run = RecordRun(messages, records.sizes, self.end_offset)
            valid = _leading_valid(run, self.checks)
            if valid:
                run = run if valid == len(records.starts) else run.part(0, valid)
                self.end_offset = run.end_offset
                yield run
            if valid < len(records.starts):
                self.reason = Stop.CORRUPT
                return
            if records.reason is not Stop.TORN or stop == self.file.end:
                if records.reason is Stop.BLANK and self.checks.whole_blank:
                    size = int.from_bytes(buffer[records.stop : records.stop + 4].tobytes(), "big", signed=True)
                    self.reason = Stop.CORRUPT if size > self.file.end - self.end_offset else Stop.BLANK
                return
            # A record that is larger than the window: continue with a larger window.
            size = self.window_size if valid else size * 4

    def _records(self, buffer: Bytes, stop: int) -> Walk:
        if header_size(self.chain, self.file):
            return walk_ledger(buffer)
        return walk(buffer, guesses=self._guesses(self.end_offset, stop))

    def _guesses(self, start: int, stop: int) -> Positions | None:
        if self.guesses is None:
            return None
        low, high = np.searchsorted(self.guesses, (start, stop))
        return self.guesses[low:high] - start


def _leading_valid(run: RecordRun, checks: Checks) -> int:
    """The number of leading records that pass the checks."""
    messages = run.messages
    wrong = messages.flaws != 0
    if checks.magics != (MAGIC_V1, MAGIC_V2):
        magics = messages.column("magic")
        wrong |= np.logical_and.reduce([magics != magic for magic in checks.magics])
    if checks.crc:
        wrong |= messages.wrong_bodies()
    if checks.physical_offset:
        wrong |= messages.column("physical_offset") != run.physical_offsets
    if checks.broker:
        wrong |= bad_delays(messages)
        if MAGIC_V2 in checks.magics:
            leading = int(wrong.argmax()) if wrong.any() else len(messages)
            wrong[:leading] |= bad_batches(messages.take(slice(0, leading)))
    return int(wrong.argmax()) if wrong.any() else len(messages)


def bad_batches(messages: Messages) -> Mask:
    """Which valid records have INNER_NUM and INNER_BASE, one of which is no number: recovery of 5.x stops there."""
    starts = messages.properties_start
    wrong = spans_with(messages.buffer, starts, starts + messages.properties_size, [INNER_BASE.encode()])
    rows = np.flatnonzero(wrong)
    if not len(rows):
        return wrong
    columns = messages.take(rows).property_column()
    bases, numbers = columns.values(INNER_BASE), columns.values(INNER_NUM)
    given = as_mask(bases.is_valid()) & as_mask(numbers.is_valid())
    wrong[rows] = given & (_not_whole(bases, 64) | _not_whole(numbers, 16))
    return wrong


def _not_whole(texts: pa.StringArray, bits: int) -> Mask:
    """Which texts Java does not read as a whole number of so many bits. All but a few are short and plain."""
    wrong = ~as_mask(pc.match_substring_regex(texts.fill_null(""), SHORT_NUMBER))
    for row in np.flatnonzero(wrong).tolist():
        wrong[row] = whole_of(texts[row].as_py() or "", bits) is None
    return wrong


def bad_delays(messages: Messages) -> Mask:
    """Which records of the schedule topic have a DELAY that is not a number: dispatch and recovery stop there."""
    wrong = np.zeros(len(messages), bool)
    rows = np.flatnonzero(messages.topic_size == len(_SCHEDULE))
    for row in rows.tolist():
        start, size = int(messages.topic_start[row]), int(messages.topic_size[row])
        if messages.buffer[start : start + size].tobytes() != _SCHEDULE:
            continue
        at = int(messages.properties_start[row])
        properties = messages.buffer[at : at + int(messages.properties_size[row])].tobytes()
        wrong[row] = delay_ms(property_of(properties, "DELAY")) is None
    return wrong
