"""Tracking data of a stream: the last sequences of publishers and the offsets stored by consumers.

Source: docs/format/rabbitmq-streams.md 5.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from storage_core.errors import FormatError

SEQUENCE, OFFSET, TIMESTAMP = 0, 1, 2
LEAST_SIZE = 10
"""Bytes of the shortest record; ten zeros are such a record as well."""
_LENGTH_SIZE = 4
KINDS = {SEQUENCE: "publisher", OFFSET: "consumer", TIMESTAMP: "timestamp"}


@dataclass(frozen=True)
class Tracked:
    """One record: its kind, the reference of the publisher or consumer, and the sequence, offset or time."""

    kind: int
    reference: bytes
    value: int


def records(data: bytes, of_snapshot: bool = False) -> Iterator[Tracked]:
    """The records of a trailer, or of the entry of a tracking chunk. A chunk id precedes a snapshot's sequences.

    Raises FormatError after yielding the records that could be read.
    """
    position = 0
    while position < len(data):
        if position + 2 > len(data):
            raise FormatError(position, "a tracking record is cut")
        kind, size = data[position], data[position + 1]
        if kind not in KINDS:
            raise FormatError(position, f"a tracking record of the unknown type {kind}")
        start = position + 2 + size + (8 if of_snapshot and kind == SEQUENCE else 0)
        if start + 8 > len(data):
            raise FormatError(position, "a tracking record is cut")
        value = int.from_bytes(data[start : start + 8], "big", signed=kind == TIMESTAMP)
        yield Tracked(kind, data[position + 2 : position + 2 + size], value)
        position = start + 8


def of_chunk(data: bytes, of_snapshot: bool) -> list[Tracked]:
    """The records of a tracking chunk, whose data are one entry. Raises FormatError."""
    if int.from_bytes(data[:_LENGTH_SIZE]) != len(data) - _LENGTH_SIZE:
        raise FormatError(0, "the data of a tracking chunk are not one entry")
    return list(records(data[_LENGTH_SIZE:], of_snapshot))
