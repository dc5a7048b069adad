"""A queue's log run through its state machine: what is left in the queue, and where each message lies.

Source: docs/format/rabbitmq-quorum.md 8 to 11. Entries are read a window at a time; of each remain a few numbers.
"""

from __future__ import annotations

from typing import Any
from zlib import crc32

import numpy as np
import numpy.typing as npt

from storage_core.errors import DataLossError, FormatError, UnsupportedFormatError
from storage_core.formats.layout import Bytes, Positions
from storage_core.formats.rabbitmq.erlang import external_term as et
from storage_core.formats.rabbitmq.message import basic_message
from storage_core.formats.rabbitmq.quorum import log_entry
from storage_core.formats.rabbitmq.quorum.log_entry import Enqueues
from storage_core.rabbitmq.disk.damage import Damage
from storage_core.rabbitmq.disk.span_reader import SpanReader
from storage_core.rabbitmq.quorum.commands import Command, apply, message_facts
from storage_core.rabbitmq.quorum.machine import Machine
from storage_core.rabbitmq.quorum.machine_state import State, from_snapshot
from storage_core.rabbitmq.quorum.raft_log import LogEntries, RaftLog
from storage_core.rabbitmq.read.partition import batch_ranges

MACHINE_VERSION = 2
NO_TTL = -1
_VERSIONS = {0: "3.8", 1: "3.9", 3: "3.11 to 3.13"}


class Replay:
    """The machine of one queue after the entries of `log` up to the index `stop`.

    `positions`, `sizes` (of the message term), `times` (ms) are by row of the log; size 0 where an entry has no
    message. `damages` are those that ended the run early.
    """

    def __init__(self, root: str, name: str, log: RaftLog, stop: int) -> None:
        self.root, self.name, self.log = root, name, log
        self.entries = log.entries[: int(np.searchsorted(log.entries["index"], stop, "right"))]
        self.base = log.snapshot_index + 1
        count = len(self.entries)
        self.positions = np.zeros(count, np.int64)
        self.sizes = np.zeros(count, np.int64)
        self.times = np.zeros(count, np.int64)
        self.body_sizes = np.zeros(count, np.int64)
        self.damages: list[Damage] = []
        self.members: tuple[Any, ...] | None = None
        self.deleted = False
        self.machine = Machine(self._first_state(), self._body_size)
        self._run()

    def _first_state(self) -> State:
        snapshot = self.log.snapshot
        if snapshot is None:
            return State()
        self._check_version(snapshot.machine_version)
        self.members = snapshot.members
        try:
            return from_snapshot(snapshot.state)
        except FormatError as error:
            raise UnsupportedFormatError(f"UnsupportedFormatError: {self.root}: {self.name}: {error.reason}") from None

    def _check_version(self, version: int) -> None:
        if version != MACHINE_VERSION:
            release = _VERSIONS.get(version, "4.0 or later")
            raise UnsupportedFormatError(
                f"UnsupportedFormatError: {self.root}: {self.name} has machine version {version} (RabbitMQ {release}); "
                f"mqstore reads version {MACHINE_VERSION} (RabbitMQ 3.10): consume it from a running node"
            )

    def _body_size(self, index: int) -> int:
        row = index - self.base
        return int(self.body_sizes[row]) if 0 <= row < len(self.body_sizes) else 0

    def _run(self) -> None:
        reader = SpanReader(self.root, list(self.log.files))
        entries = self.entries
        try:
            for start, stop in batch_ranges(entries["size"]):
                rows = entries[start:stop]
                where = rows["file"].astype(np.int64), rows["position"], rows["position"] + rows["size"]
                try:
                    buffer, starts = reader.load(*where)
                except DataLossError as error:
                    self._broken(start, str(error))
                    return
                if not self._window(start, rows, buffer, starts):
                    return
        finally:
            reader.close()

    def _window(self, first: int, rows: LogEntries, buffer: Bytes, starts: Positions) -> bool:
        """Applies a window of entries; False at a damaged one."""
        stops = starts + rows["size"]
        wrong = _wrong_sums(rows, buffer, starts, stops)
        if wrong is not None:
            rows, starts, stops = rows[:wrong], starts[:wrong], stops[:wrong]
        found = log_entry.find_enqueues(buffer, starts, stops)
        ttls = self._note(first, rows, buffer, found, starts)
        pids = [et.Opaque(term) for term in found.publisher_terms]
        for begin, end in _runs(found, ttls):
            if not found.ok[begin]:
                for row in range(begin, end):
                    if not self._command(first + row, buffer[starts[row] : stops[row]].tobytes()):
                        return False
                continue
            pid, indexes = pids[int(found.publishers[begin])], rows["index"][begin:end].tolist()
            low, high = int(found.sequences[begin]), int(found.sequences[end - 1])
            if ttls[begin] == NO_TTL and self.machine.enqueue_run(pid, low, high, indexes):
                continue
            for row, index in zip(range(begin, end), indexes, strict=True):
                ttl = None if ttls[row] == NO_TTL else int(ttls[row])
                size = int(self.body_sizes[first + row])
                self.machine.enqueue(int(found.times[row]), index, pid, int(found.sequences[row]), ttl, size)
        if wrong is not None:
            self._broken(first + wrong, "the entry fails its checksum")
        return wrong is None

    def _note(
        self, first: int, rows: LogEntries, buffer: Bytes, found: Enqueues, starts: Positions
    ) -> npt.NDArray[np.int64]:
        """Keeps where the messages of enqueues lie and how large they are. Returns the time to live of each."""
        ttls = np.full(len(rows), NO_TTL, np.int64)
        chosen = np.flatnonzero(found.ok)
        begin, end = found.message_starts[chosen], found.message_stops[chosen]
        kept = slice(first, first + len(rows))
        self.positions[kept][chosen] = rows["position"][chosen] + (begin - starts[chosen])
        self.sizes[kept][chosen] = end - begin
        self.times[kept][chosen] = found.times[chosen]
        # The term has no version byte of its own; the byte before it was read already.
        buffer[begin - 1] = et.VERSION
        spans = basic_message.locate(buffer, begin - 1, end, 0)
        sizes = spans.body_stops - spans.body_starts
        for place in np.flatnonzero(~spans.ok).tolist():
            facts = message_facts(buffer[begin[place] - 1 : end[place]].tobytes())
            sizes[place] = facts.size
            if facts.ttl is not None:
                ttls[chosen[place]] = facts.ttl
        self.body_sizes[kept][chosen] = sizes
        return ttls

    def _command(self, row: int, data: bytes) -> bool:
        """Applies one entry that is no plain enqueue; False when it cannot be read."""
        index = int(self.entries["index"][row])
        try:
            term = log_entry.decode(data)
            if isinstance(term, tuple) and term[0] == "noop":
                if len(term) == 3 and isinstance(term[2], int):
                    self._check_version(term[2])
                return True
            if isinstance(term, tuple) and term[0] == "$ra_cluster_change" and len(term) == 4:
                self.members = tuple(term[2])
                return True
            if isinstance(term, tuple) and term[0] == "$ra_cluster" and len(term) == 4 and term[2] == "delete":
                self.deleted = True
                return True
            command = Command.of(index, term)
            if command is None:
                return True
            if command.carries_message:
                start, stop = log_entry.message_span(data)
                self.positions[row] = int(self.entries["position"][row]) + start
                self.sizes[row], self.times[row] = stop - start, command.time
                self.body_sizes[row] = command.message_size
            apply(self.machine, command)
        except (FormatError, TypeError, ValueError, IndexError, KeyError, AttributeError) as error:
            reason = error.reason if isinstance(error, FormatError) else "it is spelled in no known way"
            self._broken(row, f"entry {index} of the raft log cannot be applied: {reason}")
            return False
        return True

    def _broken(self, row: int, reason: str) -> None:
        at = self.entries[row]
        place = self.log.files[int(at["file"])], int(at["position"]), int(at["size"])
        self.damages.append(Damage(*place, "entry", reason))

    def row_of(self, indexes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Rows of the log by raft index; what lies outside is moved inside."""
        return np.clip(indexes - self.base, 0, max(len(self.entries) - 1, 0))


def _wrong_sums(rows: LogEntries, buffer: Bytes, starts: Positions, stops: Positions) -> int | None:
    """The first row whose CRC-32 does not fit."""
    checked = np.flatnonzero(rows["crc"] != 0)
    if not len(checked):
        return None
    spans = map(buffer.data.__getitem__, map(slice, starts[checked].tolist(), stops[checked].tolist()))
    sums = np.fromiter(map(crc32, spans), np.uint32, len(checked))
    wrong = checked[sums != rows["crc"][checked]]
    return int(wrong[0]) if len(wrong) else None


def _runs(found: Enqueues, ttls: npt.NDArray[np.int64]) -> list[tuple[int, int]]:
    """Half-open ranges of rows that go together: of one publisher with rising numbers, or all no plain enqueues."""
    count = len(found.ok)
    if not count:
        return []
    ok = found.ok
    fresh = np.ones(count, bool)
    same = (ok[1:] == ok[:-1]) & (found.publishers[1:] == found.publishers[:-1])
    rising = (found.sequences[1:] == found.sequences[:-1] + 1) & ((ttls[1:] == NO_TTL) == (ttls[:-1] == NO_TTL))
    fresh[1:] = ~(same & (rising | ~ok[1:]))
    firsts = np.flatnonzero(fresh).tolist()
    return list(zip(firsts, [*firsts[1:], count], strict=True))
