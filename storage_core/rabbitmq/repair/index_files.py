"""Repairs segments and journals of a queue: keeps the records that a node accepts, in order, and drops the others.

A node reads neither file past bytes that do not begin a record, so the repair searches for what follows them: an entry
whose message is in the message store, or embedded with the same id. Source: rabbitmq.md 2, 3, 3.1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from storage_core.formats.rabbitmq.classic import index_records, journal, segment

TERM_START = b"\x83h"
LARGEST_STEP = 1 << 20
"""The most by which a sequence id found after damage may exceed those before it."""
PUBLISH, DELIVER, ACK, NOTHING = 1, 2, 3, 0
MOST_STRANGERS = 0.1
"""Fraction of a segment's publishes that may be outside its range; more mean that `.config` is from another store."""

Known = Callable[[bytes], bool]
"""Whether the message store has a message of this id."""


class Record(NamedTuple):
    """One record of an index file: a publish or a mark. In a segment, a first mark is a deliver, a second an ack."""

    sequence: int
    is_publish: bool
    is_ack: bool
    size: int
    position: int


@dataclass
class SegmentRules:
    """What a segment of `entry_count` entries accepts."""

    data: bytes
    entry_count: int
    known: Known
    states: dict[int, int] = field(default_factory=dict)
    strangers: int = 0

    def parse(self, at: int) -> Record | None:
        """The record at `at`; None if no record begins there, or it is incomplete."""
        data = self.data
        if at + segment.MARK.size > len(data):
            return None
        head = int.from_bytes(data[at : at + 2], "big")
        relative = head & segment.RELATIVE_MASK
        if not head & segment.PUBLISH_BIT:
            return Record(relative, False, False, segment.MARK.size, at) if head & segment.MARK_BITS else None
        size = _publish_size(data, at, segment.PUBLISH.size)
        return Record(relative, True, False, size, at) if size else None

    def is_legal(self, record: Record) -> bool:
        """Whether a node accepts the record after those taken before."""
        state = self.states.get(record.sequence, NOTHING)
        if record.is_publish and record.sequence >= self.entry_count:
            self.strangers += self.is_entry(record.position, record)
            return False
        return state == NOTHING if record.is_publish else PUBLISH <= state < ACK

    def take(self, record: Record) -> None:
        """Registers a record that is kept."""
        self.states[record.sequence] = self.states.get(record.sequence, NOTHING) + 1

    def is_entry(self, at: int, record: Record) -> bool:
        """Whether the record is a publish, and not just bytes that look like one."""
        return record.is_publish and _has_message(self.data, at, segment.PUBLISH.size, record.size, self.known)


@dataclass
class JournalRules:
    """What a journal accepts. `segments` has the states of sequence ids in the segments: 1 published, 2, 3 marked."""

    data: bytes
    segments: Mapping[int, int]
    known: Known
    states: dict[int, int] = field(default_factory=dict)

    def parse(self, at: int) -> Record | None:
        """The record at `at`; None if no record begins there, or it is incomplete."""
        data = self.data
        if at + journal.MARK.size > len(data):
            return None
        head = int.from_bytes(data[at : at + 8], "big")
        kind, sequence = head >> journal.KIND_SHIFT, head & journal.MAX_SEQUENCE_ID
        if kind > journal.PUBLISH_TRANSIENT:
            return Record(sequence, False, kind == journal.ACK, journal.MARK.size, at)
        size = _publish_size(data, at, journal.PUBLISH.size)
        if not size or data[at : at + journal.PUBLISH.size] == bytes(journal.PUBLISH.size):
            return None
        return Record(sequence, True, False, size, at)

    def is_legal(self, record: Record) -> bool:
        """Whether a node accepts the record after those taken before, and together with the segments."""
        state, below = self.states.get(record.sequence, NOTHING), self.segments.get(record.sequence, NOTHING)
        if record.is_publish:
            return state == NOTHING
        if record.is_ack:
            return state in {NOTHING, DELIVER} and (state == DELIVER or below != NOTHING)
        return state == PUBLISH or (state == NOTHING and below in {PUBLISH, DELIVER})

    def take(self, record: Record) -> None:
        """Registers a record that is kept."""
        action = PUBLISH if record.is_publish else ACK if record.is_ack else DELIVER
        self.states[record.sequence] = NOTHING if action == ACK else action

    def is_entry(self, at: int, record: Record) -> bool:
        """Whether the record is a publish, and not just bytes that look like one."""
        highest = max(max(self.states, default=0), max(self.segments, default=0))
        near = record.sequence <= highest + LARGEST_STEP
        return record.is_publish and near and _has_message(self.data, at, journal.PUBLISH.size, record.size, self.known)


def mended(rules: SegmentRules | JournalRules) -> bytes:
    """The records of a file that a node accepts. After an invalid record, records count only from a proven entry on."""
    data, kept = rules.data, []
    at, proven = 0, True
    while at < len(data):
        record = rules.parse(at)
        if record is not None and (proven or rules.is_entry(at, record)) and rules.is_legal(record):
            rules.take(record)
            kept.append(data[at : at + record.size])
            at += record.size
            proven = True
            continue
        following = None if record is None else rules.parse(at + record.size)
        if (
            record is not None
            and proven
            and (at + record.size == len(data) or _is_followed(rules, at, record, following))
        ):
            at += record.size
        else:
            at = _next_entry(rules, at + 1)
            proven = False
    return b"".join(kept)


def _is_followed(rules: SegmentRules | JournalRules, at: int, record: Record, following: Record | None) -> bool:
    """Whether a record that a node rejects is nevertheless a record: what follows it is valid."""
    if following is None:
        return False
    return rules.is_entry(at + record.size, following) if following.is_publish else rules.is_legal(following)


def _next_entry(rules: SegmentRules | JournalRules, at: int) -> int:
    for position in range(at, len(rules.data)):
        record = rules.parse(position)
        if record is not None and record.is_publish and rules.is_entry(position, record):
            return position
    return len(rules.data)


def _publish_size(data: bytes, at: int, fixed: int) -> int:
    """Length of the publish at `at`; 0 if it does not fit into the file."""
    if at + fixed > len(data):
        return 0
    size = fixed + int.from_bytes(data[at + fixed - 4 : at + fixed], "big")
    return size if at + size <= len(data) else 0


def _has_message(data: bytes, at: int, fixed: int, size: int, known: Known) -> bool:
    start = at + fixed - index_records.BODY.size
    message_id = data[start : start + 16]
    if size == fixed:
        return known(message_id)
    term = data[at + fixed : at + size]
    return term.startswith(TERM_START) and message_id in term
