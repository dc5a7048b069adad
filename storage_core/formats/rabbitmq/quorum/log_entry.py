"""Entries of a raft log: the commands of a quorum queue.

The enqueues of a window are matched by template, all at once; other commands are decoded one by one. The engine applies
the commands. Source: docs/format/rabbitmq-quorum.md 6.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from storage_core.errors import FormatError
from storage_core.formats.layout import Bytes, Mask, Positions, values_at
from storage_core.formats.rabbitmq.erlang import external_term as et
from storage_core.formats.rabbitmq.erlang.term_layout import Stretch, stretch
from storage_core.formats.rabbitmq.erlang.term_spans import atom_at, elements, end_of

MESSAGE_AT = {("enqueue", 4): 3, ("e", 4): 2, ("requeue", 6): 5}
"""Index of the part of a command that is its message, by the command's name and number of parts."""
NO_SIZE = -1
NOBODY = -1
"""Stands for the publisher of messages that have none."""
_UNDEFINED = b"undefined"
_TEMPLATES, _FEWEST = 32, 16
"""How many templates are tried in a window, and the fewest entries that are worth one."""
_WIDTHS = {et.SMALL_INTEGER: 1, et.INTEGER: 4}
_PIDS, _PID_SIZE = {88, 103}, 12
_Span = tuple[int, int]


@dataclass
class Enqueues:
    """The enqueues of n entries, shape (n,): `ok` rows are plain ones with both publisher and number, or with neither.

    `publishers` are indexes into `publisher_terms`, the bytes of the pids, or NOBODY. Messages are spans without a
    version byte. `sizes` are body sizes in bytes if the command states them, else NO_SIZE; `metadata` are the metadata
    sizes stated with them.
    """

    ok: Mask
    times: npt.NDArray[np.int64]
    publishers: npt.NDArray[np.int64]
    sequences: npt.NDArray[np.int64]
    message_starts: Positions
    message_stops: Positions
    sizes: npt.NDArray[np.int64]
    metadata: npt.NDArray[np.int64]
    publisher_terms: list[bytes]


def decode(data: bytes) -> Any:
    """The term of one entry. Raises FormatError."""
    return et.decode(data)


def message_span(data: bytes) -> tuple[int, int]:
    """The span of the message in an enqueue or requeue entry. Raises FormatError if there is none."""
    whole = elements(data, 1)
    if len(whole) != 4:
        raise FormatError(0, "the entry is no command")
    parts = elements(data, whole[2][0])
    at = MESSAGE_AT.get((atom_at(data, parts[0][0]).decode("latin-1"), len(parts))) if parts else None
    if at is None:
        raise FormatError(0, "the command has no message")
    return parts[at]


def find_enqueues(buffer: Bytes, starts: Positions, stops: Positions) -> Enqueues:
    """The plain enqueues among the entries [start, stop) of `buffer`. Never raises."""
    count = len(starts)
    times, publishers, sequences, begins, ends, sizes, metadata = np.zeros((7, count), np.int64)
    found = Enqueues(np.zeros(count, bool), times, publishers, sequences, begins, ends, sizes, metadata, [])
    pids: dict[bytes, int] = {}
    rest = np.arange(count)
    for _ in range(_TEMPLATES):
        if len(rest) < _FEWEST:
            break
        template = None
        for row in rest[:_FEWEST].tolist():
            template = _template(buffer[starts[row] : stops[row]].tobytes())
            if template is not None:
                break
        if template is None:
            rest = rest[_FEWEST:]
            continue
        hit = template.matches(buffer, starts[rest], stops[rest])
        _fill(found, pids, template, buffer, rest[hit], starts, stops)
        rest = rest[~hit]
    found.publisher_terms = list(pids)
    return found


@dataclass(frozen=True)
class _Template:
    """The bytes before and after the message that entries share, except for the numbers and ids in them, which vary.

    Positions before the message count from the first byte of an entry; those after it are negative, from its end.
    """

    head: Stretch
    tail: Stretch
    time: int
    publisher: tuple[int, int] | None
    sequence: tuple[int, int] | None
    sizes: tuple[tuple[int, int], tuple[int, int]] | None
    """The spans of the metadata size and of the body size."""

    def matches(self, buffer: Bytes, starts: Positions, stops: Positions) -> Mask:
        fits: Mask = stops - starts >= self.head.size + self.tail.size
        fits &= self.head.matches(buffer, starts)
        fits &= self.tail.matches(buffer, np.maximum(stops - self.tail.size, 0))
        return fits


def _template(data: bytes) -> _Template | None:
    """The template of one entry; None if it is not a plain enqueue."""
    try:
        whole = elements(data, 1)
        if len(whole) != 4 or end_of(data, 1) != len(data) or atom_at(data, whole[0][0]) != b"$usr":
            return None
        time = _only_time(data, whole[1])
        command = elements(data, whole[2][0])
        if time is None or len(command) != 4:
            return None
        name = atom_at(data, command[0][0])
        make = {b"enqueue": _of_enqueue, b"e": _of_sized}.get(name)
        return make(data, time, command, whole[3]) if make else None
    except FormatError:
        return None


def _of_enqueue(data: bytes, time: int, command: list[_Span], reply: _Span) -> _Template | None:
    """{enqueue, publisher, sequence, message}; dead letters have neither publisher nor sequence."""
    _, publisher, sequence, message = command
    if [atom_at(data, each[0]) for each in (publisher, sequence)] == [_UNDEFINED] * 2:
        tail = _after_message(data, message, _free_of_reply(data, reply))
        return _Template(stretch(data[: message[0]], [(time, time + 6)]), tail, time, None, None, None)
    if data[publisher[0]] not in _PIDS or data[sequence[0]] not in _WIDTHS:
        return None
    free = [(time, time + 6), (publisher[1] - _PID_SIZE, publisher[1]), (sequence[0] + 1, sequence[1])]
    tail = _after_message(data, message, _free_of_reply(data, reply))
    return _Template(stretch(data[: message[0]], free), tail, time, publisher, sequence, None)


def _of_sized(data: bytes, time: int, command: list[_Span], reply: _Span) -> _Template | None:
    """{e, sequence, message, {metadata size, body size}}; the publisher is the pid that is notified."""
    _, sequence, message, sizes = command
    numbers = elements(data, sizes[0])
    reply_parts = elements(data, reply[0])
    if len(numbers) != 2 or len(reply_parts) != 3 or atom_at(data, reply_parts[0][0]) != b"notify":
        return None
    if data[reply_parts[2][0]] not in _PIDS or any(data[each[0]] not in _WIDTHS for each in (sequence, *numbers)):
        return None
    free = [(time, time + 6), (sequence[0] + 1, sequence[1])]
    free_after = [(start + 1, stop) for start, stop in numbers] + _free_of_reply(data, reply)
    publisher, metadata, size = ((start - len(data), stop - len(data)) for start, stop in (reply_parts[2], *numbers))
    head, tail = stretch(data[: message[0]], free), _after_message(data, message, free_after)
    return _Template(head, tail, time, publisher, sequence, (metadata, size))


def _after_message(data: bytes, message: _Span, free: list[_Span]) -> Stretch:
    """The stretch after the message, with the spans in it that may vary."""
    return stretch(data[message[1] :], [(start - message[1], stop - message[1]) for start, stop in free])


def _only_time(data: bytes, span: tuple[int, int]) -> int | None:
    """Position of the six bytes of the leader's clock; None if the meta map holds anything else."""
    start, stop = span
    if data[start] != et.MAP or data[start + 1 : start + 5] != b"\0\0\0\1":
        return None
    key = start + 5, end_of(data, start + 5)
    value = key[1]
    good = (
        atom_at(data, key[0]) == b"ts" and data[value : value + 3] == bytes((et.SMALL_BIG, 6, 0)) and value + 9 == stop
    )
    return value + 3 if good else None


def _free_of_reply(data: bytes, span: tuple[int, int]) -> list[tuple[int, int]]:
    """The spans that vary in the reply modes of entries: the notification number and the pid's own bytes."""
    if data[span[0]] != et.SMALL_TUPLE:
        return []
    free = []
    for start, stop in elements(data, span[0]):
        if data[start] in _WIDTHS:
            free.append((start + 1, stop))
        elif data[start] in _PIDS:
            free.append((stop - _PID_SIZE, stop))
    return free


def _fill(
    found: Enqueues, pids: dict[bytes, int], template: _Template, buffer: Bytes, rows: npt.NDArray[np.int64],
    starts: Positions, stops: Positions,
) -> None:  # fmt: skip
    begin, end = starts[rows], stops[rows]
    found.ok[rows] = True
    words = values_at(buffer, "<u4", begin + template.time).astype(np.int64)
    high = values_at(buffer, "<u2", begin + template.time + 4).astype(np.int64)
    found.times[rows] = words | high << 32
    found.message_starts[rows] = begin + template.head.size
    found.message_stops[rows] = end - template.tail.size
    found.sizes[rows] = NO_SIZE
    if template.sizes is not None:
        found.metadata[rows], found.sizes[rows] = (_numbers(buffer, end, span) for span in template.sizes)
    if template.publisher is None or template.sequence is None:
        found.publishers[rows], found.sequences[rows] = NOBODY, rows
        return
    found.sequences[rows] = _numbers(buffer, begin, template.sequence)
    first, last = template.publisher
    at = (begin if first >= 0 else end) + first
    terms, codes = np.unique(values_at(buffer, f"V{last - first}", at), return_inverse=True)
    numbers = np.array([pids.setdefault(term.tobytes(), len(pids)) for term in terms], np.int64)
    found.publishers[rows] = numbers[codes]


def _numbers(buffer: Bytes, base: Positions, span: _Span) -> npt.NDArray[np.int64]:
    """The integers whose terms are at `span` relative to `base`."""
    kind = "u1" if span[1] - span[0] == 2 else ">i4"
    return values_at(buffer, kind, base + span[0] + 1).astype(np.int64)
