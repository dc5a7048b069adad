"""Replays a queue's log through its state machine: what is left in the queue, and where each message is stored.

Source: docs/format/rabbitmq-quorum.md 8 to 11. Entries are read a window at a time; for each message in the
queue, only a few numbers are kept.
"""

from __future__ import annotations

from typing import Any
from zlib import crc32

import numpy as np
import numpy.typing as npt

from storage_core.arrays import as_mask
from storage_core.errors import DataLossError, FormatError, UnsupportedFormatError
from storage_core.files import system
from storage_core.formats.layout import Bytes, Positions
from storage_core.formats.rabbitmq.erlang import external_term as et
from storage_core.formats.rabbitmq.message import basic_message
from storage_core.formats.rabbitmq.quorum import log_entry
from storage_core.formats.rabbitmq.quorum.log_entry import Enqueues
from storage_core.rabbitmq.disk.damage import Damage
from storage_core.rabbitmq.disk.raft_log import LogEntries, RaftLog
from storage_core.rabbitmq.disk.span_reader import SpanReader
from storage_core.rabbitmq.quorum.machine.commands import Command, apply, facts_for
from storage_core.rabbitmq.quorum.machine.machine import Machine
from storage_core.rabbitmq.quorum.machine.machine_v5 import MachineV4, MachineV5, MachineV7
from storage_core.rabbitmq.quorum.machine.machine_v8 import MachineV8
from storage_core.rabbitmq.quorum.machine.map_order import node_of
from storage_core.rabbitmq.quorum.machine.message_facts import (
    NORMAL_PRIORITY,
    MessageFacts,
    message_facts,
    noted_facts,
    sized_facts,
)
from storage_core.rabbitmq.quorum.machine.snapshot_state import from_snapshot
from storage_core.rabbitmq.quorum.machine.state import STRICT, State
from storage_core.rabbitmq.quorum.message_table import MESSAGE, MessageTable
from storage_core.rabbitmq.read.partition import batch_ranges

MACHINES: dict[int, type[Machine]] = {
    2: Machine, 3: Machine, 4: MachineV4, 5: MachineV5, 6: MachineV5, 7: MachineV7, 8: MachineV8,
}  # fmt: skip
"""The supported machine versions."""
FAILS, KEPT = "the entry fails its checksum", "kept entry"
"""KEPT is the kind of damage of an entry that a snapshot keeps: it affects one message, and does not end the replay."""
_ODD = (TypeError, ValueError, IndexError, KeyError, AttributeError)
"""Exceptions that Python raises for a command that no node writes."""
_RELEASES = {0: "3.8", 1: "3.9"}


class Replay:
    """The machine of one queue after the entries of `log` up to the index `stop`.

    `messages` locates the messages that the machine holds. `damages` are the one that ended the replay early, and those
    of the kind KEPT. `watched` are the nodes of the processes known after the entries up to `applied`: there a starting
    node becomes the leader, and applies the remaining entries again (rabbitmq-quorum.md 11).
    """

    def __init__(self, root: str, name: str, log: RaftLog, stop: int, applied: int) -> None:
        self.root, self.name, self.log, self._applied = root, name, log, applied
        self.messages = MessageTable()
        self._window = np.zeros(0, MESSAGE)
        self.damages: list[Damage] = []
        self.members: tuple[Any, ...] | None = None
        self.deleted = False
        self.machine = self._first_machine()
        if self.machine.state.version >= STRICT:
            self._locate_snapshot_messages()
        self.watched = self._nodes()
        self._run(stop)

    def _first_machine(self) -> Machine:
        snapshot = self.log.snapshot
        if snapshot is None:
            return Machine(State(), self._counted)
        version = self._checked(snapshot.machine_version)
        self.members = snapshot.members
        try:
            state = from_snapshot(snapshot.state, version)
        except FormatError as error:
            raise UnsupportedFormatError(f"UnsupportedFormatError: {self.root}: {self.name}: {error.reason}") from None
        return MACHINES[version](state, self._counted)

    def _checked(self, version: int) -> int:
        """Returns the version if it is supported; otherwise raises UnsupportedFormatError."""
        if version not in MACHINES:
            raise self._unread(f"machine version {version} (RabbitMQ {_RELEASES.get(version, 'after 4.3')})")
        return version

    def _unread(self, what: str) -> UnsupportedFormatError:
        return UnsupportedFormatError(
            f"UnsupportedFormatError: {self.root}: {self.name} has {what}; mqstore reads versions 2 to 8 (RabbitMQ "
            "3.10 to 4.3): consume it from a running node; queueType=classic and queueType=stream read other "
            "queues"
        )

    def _enter(self, version: int, now: int) -> None:
        """Begins a term of the log, in which the machine has this version."""
        state = self.machine.state
        if self._checked(version) == state.version:
            return
        if version < state.version:
            raise self._unread(f"machine version {version} after version {state.version}")
        self.machine = MACHINES[version](state.upgraded(version, now), self._counted)

    def _counted(self, index: int) -> int:
        window = self._window
        row = index - int(window["index"][0]) if len(window) else -1
        return int(window["counted"][row]) if 0 <= row < len(window) else self.messages.counted(index)

    def _locate_snapshot_messages(self) -> None:
        """Locates the messages of the snapshot. A message that is damaged or no longer stored counts as missing."""
        held = np.unique(np.fromiter(self.machine.state.held(), np.int64))
        rows = self.log.kept(held)
        reader = SpanReader(self.root, list(self.log.files))
        try:
            for start, stop in batch_ranges(rows["size"]):
                self._note_snapshot_messages(reader, rows[start:stop])
        finally:
            reader.close()

    def _note_snapshot_messages(self, reader: SpanReader, rows: LogEntries) -> None:
        loaded = self._load(reader, rows)
        if loaded is None:
            return
        buffer, starts = loaded
        stops = starts + rows["size"]
        wrong = set(_wrong_sums(rows, buffer, starts, stops).tolist())
        found = log_entry.find_enqueues(buffer, starts, stops)
        self._note(rows, buffer, found, starts)
        for row in sorted({*np.flatnonzero(~found.ok).tolist(), *wrong}):
            entry = rows[row]
            if row in wrong:
                self._window["length"][row] = 0
                self._broken(entry, FAILS, KEPT)
                continue
            try:
                data = buffer[starts[row] : stops[row]].tobytes()
                command = Command.of(int(entry["index"]), log_entry.decode(data))
                if command is not None and command.message is not None:
                    self._note_one(row, entry, command, data)
            except (FormatError, *_ODD) as error:
                reason = f"entry {entry['index']} of the raft log cannot be read: {_reason(error)}"
                self._broken(entry, reason, KEPT)
        self.messages.add(self._window[self._window["length"] > 0])
        self._window = self._window[:0]

    def _load(self, reader: SpanReader, rows: LogEntries) -> tuple[Bytes, Positions] | None:
        """Reads some entries and sets up the window for them; None if a file ends before them, which is damage.

        Raises DataLossError if a file vanished: a node has moved its entries elsewhere since the log was listed.
        """
        window = np.zeros(len(rows), MESSAGE)
        for name in ("index", "term", "file"):
            window[name] = rows[name]
        self._window = window
        try:
            return reader.load(rows["file"].astype(np.int64), rows["position"], rows["position"] + rows["size"])
        except DataLossError as error:
            if not all(system.exists(f"{self.root}/{self.log.files[file]}") for file in np.unique(rows["file"])):
                raise
            self._broken(rows[0], str(error))
            return None

    def _run(self, last: int) -> None:
        reader = SpanReader(self.root, list(self.log.files))
        try:
            for chunk in self.log.chunks(last):
                for part in np.split(chunk, np.searchsorted(chunk["index"], [self._applied + 1])):
                    for start, stop in batch_ranges(part["size"]):
                        if not self._read(reader, part[start:stop]):
                            return
                    if len(part) and part["index"][-1] <= self._applied:
                        self.watched = self._nodes()
        finally:
            reader.close()

    def _nodes(self) -> frozenset[bytes]:
        return frozenset(map(node_of, self.machine.state.pids()))

    def _read(self, reader: SpanReader, rows: LogEntries) -> bool:
        """Reads and applies some entries; False if one is damaged."""
        loaded = self._load(reader, rows)
        if loaded is None:
            return False
        window = self._window
        whole = self._apply(rows, *loaded)
        self.messages.add(window[window["length"] > 0])
        self._window = window[:0]
        if self.messages.is_full:
            self.messages.retain_only(self.machine.state.held())
        return whole

    def _apply(self, rows: LogEntries, buffer: Bytes, starts: Positions) -> bool:
        """Applies a window of entries up to the first damaged one; False if there is one."""
        stops = starts + rows["size"]
        all_wrong = _wrong_sums(rows, buffer, starts, stops)
        wrong = int(all_wrong[0]) if len(all_wrong) else None
        damaged = rows[wrong] if wrong is not None else None
        rows, starts, stops = rows[:wrong], starts[:wrong], stops[:wrong]
        found = log_entry.find_enqueues(buffer, starts, stops)
        facts = self._note(rows, buffer, found, starts)
        pids = [et.Opaque(term) for term in found.publisher_terms]
        counts_metadata = self.machine.counts_metadata
        for begin, end in _runs(found, facts):
            if not found.ok[begin]:
                for row in range(begin, end):
                    if not self._command(row, rows[row], buffer[starts[row] : stops[row]].tobytes()):
                        return False
                if self.machine.counts_metadata != counts_metadata:
                    counts_metadata = self.machine.counts_metadata
                    facts |= self._note(rows, buffer, found, starts, end)
                continue
            self._enqueue(found, facts, pids, rows["index"][begin:end].tolist(), begin, end)
        self._tick(int(found.times.max(initial=0)))
        if damaged is not None:
            self._broken(damaged, FAILS)
        return damaged is None

    def _enqueue(
        self, found: Enqueues, facts: dict[int, MessageFacts], pids: list[et.Opaque], indexes: list[int], begin: int,
        end: int,
    ) -> None:  # fmt: skip
        """Applies the enqueues of one run."""
        named = int(found.publishers[begin]) != log_entry.NOBODY
        pid = pids[int(found.publishers[begin])] if named else et.UNDEFINED
        low, high = int(found.sequences[begin]), int(found.sequences[end - 1])
        if isinstance(pid, et.Opaque) and begin not in facts and self.machine.enqueue_run(pid, low, high, indexes):
            return
        for row, index in zip(range(begin, end), indexes, strict=True):
            at = self._window[row]
            fact = facts.get(row) or MessageFacts(int(at["size"]), metadata=int(at["counted"] - at["size"]))
            sequence = int(found.sequences[row]) if named else et.UNDEFINED
            self.machine.enqueue(int(found.times[row]), index, pid, sequence, fact)

    def _note(
        self, rows: LogEntries, buffer: Bytes, found: Enqueues, starts: Positions, first: int = 0
    ) -> dict[int, MessageFacts]:
        """Records the locations and sizes of messages enqueued from the row `first` on, as the machine's version counts
        them. Returns the facts of the non-plain ones, by row.
        """
        facts: dict[int, MessageFacts] = {}
        chosen = first + np.flatnonzero(found.ok[first:])
        begin, end = found.message_starts[chosen], found.message_stops[chosen]
        window = self._window
        window["position"][chosen] = rows["position"][chosen] + (begin - starts[chosen])
        window["length"][chosen] = end - begin
        window["enqueued_ms"][chosen] = found.times[chosen]
        # The term has no version byte of its own; it overwrites the byte in front, which has been read already.
        buffer[begin - 1] = et.VERSION
        sizes, metadata = found.sizes[chosen], found.metadata[chosen]
        spans = basic_message.locate(buffer, begin - 1, end, 0)
        is_sized = sizes != log_entry.NO_SIZE
        # For a message of another protocol a node does not count the bytes of the property list; for a list that it
        # keeps decoded, it counts the headers.
        is_listed = as_mask(spans.made.is_null())
        if not self.machine.counts_metadata:
            is_listed |= ~spans.relisted
        known = spans.known & (is_sized | is_listed)
        unsized = np.flatnonzero(known & ~is_sized)
        sizes[unsized] = (spans.body_stops - spans.body_starts)[unsized]
        metadata[unsized] = (spans.property_stops - spans.property_starts)[unsized]
        noted = spans.ttl, spans.priority, spans.deliveries
        has_facts = (spans.ttl >= 0) | (spans.deliveries > 0)
        has_facts |= (spans.priority >= 0) & (spans.priority != NORMAL_PRIORITY)
        has_facts &= known
        for place in np.flatnonzero(has_facts | ~known).tolist():
            size, listed = int(sizes[place]), int(metadata[place])
            if known[place]:
                fact = noted_facts(size, listed, *(int(column[place]) for column in noted))
            elif is_sized[place]:
                fact = sized_facts(buffer[begin[place] - 1 : end[place]].tobytes(), size, listed)
            else:
                fact = message_facts(buffer[begin[place] - 1 : end[place]].tobytes())
                sizes[place], metadata[place] = fact.size, fact.metadata
            if not fact.plain:
                facts[int(chosen[place])] = fact
        window["size"][chosen] = sizes
        window["counted"][chosen] = sizes + metadata if self.machine.counts_metadata else sizes
        return facts

    def _command(self, row: int, entry: np.void, data: bytes) -> bool:
        """Applies one entry that is not a plain enqueue; False if it cannot be read."""
        index = int(entry["index"])
        try:
            term = log_entry.decode(data)
            if isinstance(term, tuple) and term[0] == "noop":
                if len(term) == 3 and isinstance(term[2], int):
                    self._enter(term[2], int(term[1].get("ts", 0)))
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
            if command.message is not None:
                self._note_one(row, entry, command, data)
            apply(self.machine, command)
            self._tick(command.time)
        except (FormatError, *_ODD) as error:
            self._broken(entry, f"entry {index} of the raft log cannot be applied: {_reason(error)}")
            return False
        return True

    def _tick(self, now: int) -> None:
        self.machine.state.clock = max(self.machine.state.clock, now)

    def _note_one(self, row: int, entry: np.void, command: Command, data: bytes) -> None:
        """Records the location of the message of a decoded entry. Raises FormatError."""
        start, stop = log_entry.message_span(data)
        facts, at = facts_for(command), self._window[row]
        at["position"], at["length"] = int(entry["position"]) + start, stop - start
        at["enqueued_ms"], at["size"], at["counted"] = command.time, facts.size, self.machine.counted(facts)

    def _broken(self, entry: np.void, reason: str, kind: str = "entry") -> None:
        place = self.log.files[int(entry["file"])], int(entry["position"]), int(entry["size"])
        self.damages.append(Damage(*place, kind, reason))


def _reason(error: Exception) -> str:
    return error.reason if isinstance(error, FormatError) else "it is spelled in no known way"


def _wrong_sums(rows: LogEntries, buffer: Bytes, starts: Positions, stops: Positions) -> npt.NDArray[np.intp]:
    """The rows whose CRC-32 does not match."""
    checked = np.flatnonzero(rows["crc"] != 0)
    spans = map(buffer.data.__getitem__, map(slice, starts[checked].tolist(), stops[checked].tolist()))
    sums = np.fromiter(map(crc32, spans), np.uint32, len(checked))
    wrong: npt.NDArray[np.intp] = checked[sums != rows["crc"][checked]]
    return wrong


def _runs(found: Enqueues, facts: dict[int, MessageFacts]) -> list[tuple[int, int]]:
    """Half-open ranges of rows to apply together: consecutive enqueues of one publisher, or other entries."""
    count = len(found.ok)
    if not count:
        return []
    ok, plain = found.ok, np.ones(count, bool)
    plain[list(facts)] = False
    fresh = np.ones(count, bool)
    same = (ok[1:] == ok[:-1]) & (found.publishers[1:] == found.publishers[:-1])
    rising = (found.sequences[1:] == found.sequences[:-1] + 1) & (plain[1:] == plain[:-1])
    fresh[1:] = ~(same & (rising | ~ok[1:]))
    firsts = np.flatnonzero(fresh).tolist()
    return list(zip(firsts, [*firsts[1:], count], strict=True))
