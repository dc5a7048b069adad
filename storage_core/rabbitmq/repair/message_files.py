"""Repairs a message file in place: no record moves, and a node's scan gets past the lost bytes to every whole record.

Source: rabbitmq.md 6.1, 6.7: a scan ends at a record of length 0 or one that is longer than the rest of the file, and
ids that no queue has are ignored.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from storage_core.errors import FormatError
from storage_core.files.small_file import read_whole
from storage_core.formats.rabbitmq.classic import message_file
from storage_core.formats.rabbitmq.classic.message_file import HEAD, ID_SIZE, MARKER, OVERHEAD
from storage_core.formats.rabbitmq.message import basic_message
from storage_core.repair.cut_bytes import CutBytes

SMALLEST = HEAD.size + 1
NO_ID = bytes(ID_SIZE)
TERM = re.compile(rb"\x83h[\x04\x06][dw]", re.DOTALL)
"""How the term of a message begins: version, a tuple of six or four elements, an atom."""


@dataclass(frozen=True)
class Gap:
    """Bytes [start, stop) between records that hold no valid record; `whole`: only the end marker is wrong."""

    start: int
    stop: int
    whole: bool = False


def gaps(data: bytes) -> list[Gap]:
    """The gaps that a scan of the file would skip or end at, in file order; the last one may reach the end."""
    found = []
    start = 0
    while start < len(data):
        records = message_file.walk(np.frombuffer(data, np.uint8)[start:], start, len(data))
        bad = records.unmarked[0] if len(records.unmarked) else records.stop
        if bad >= len(data):
            break
        gap = _gap(data, int(bad))
        found.append(gap)
        start = gap.stop
    return found


def _gap(data: bytes, start: int) -> Gap:
    if _is_record(data, start, marked=False):
        return Gap(start, start + _size(data, start) + OVERHEAD, whole=True)
    for match in TERM.finditer(data, start + HEAD.size + 1):
        if match.start() - HEAD.size >= start + SMALLEST and _is_record(data, match.start() - HEAD.size, marked=True):
            return Gap(start, match.start() - HEAD.size)
    return Gap(start, len(data))


def _size(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 8], "big")


def _is_record(data: bytes, at: int, marked: bool) -> bool:
    """Whether a whole message begins at `at`: lengths, term and id match; `marked` requires the end marker too."""
    stop = at + _size(data, at) + OVERHEAD
    if stop > len(data) or stop < at + SMALLEST or (marked and data[stop - 1] != MARKER):
        return False
    try:
        message = basic_message.decode(data[at + HEAD.size : stop - 1])
    except FormatError:
        return False
    return message.id == data[at + 8 : at + HEAD.size]


def mend(path: str, cut: CutBytes) -> list[str]:
    """Repairs the file at `path`. Returns what was done, a text for each gap."""
    data = read_whole(path) or b""
    done = []
    for gap in gaps(data):
        size = gap.stop - gap.start
        if gap.whole:
            cut.overwrite(path, gap.stop - 1, bytes((MARKER,)))
            done.append(f"at {gap.start}: the record's end marker is restored, its message is complete")
        elif gap.stop == len(data):
            cut.resize(path, gap.start)
            done.append(f"at {gap.start}: {size:,} bytes after the last whole record are cut")
        else:
            # The marker first: until the head is written, these bytes are not a record.
            cut.overwrite(path, gap.stop - 1, bytes((MARKER,)))
            cut.overwrite(path, gap.start, (size - OVERHEAD).to_bytes(8, "big") + NO_ID)
            done.append(f"at {gap.start}: {size:,} damaged bytes became a record that no queue has")
    return done
