"""`file_summary.ets` and `msg_store_index.ets`: the message store's tables, dumped at a clean shutdown.

Decodes and encodes them; the engine decides whether they can be trusted. Source: rabbitmq.md 1.5.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from storage_core.errors import FormatError
from storage_core.formats.layout import Bytes, Positions, values_at
from storage_core.formats.rabbitmq.erlang import disk_log
from storage_core.formats.rabbitmq.erlang.external_term import (
    ATOM,
    BINARY,
    FALSE,
    INTEGER,
    SMALL_ATOM_UTF8,
    SMALL_BIG,
    SMALL_INTEGER,
    SMALL_TUPLE,
    UNDEFINED,
    VERSION,
    Atom,
    decode,
    encode,
)

INDEX_TABLE, SUMMARY_TABLE = Atom("rabbit_msg_store_ets_index"), Atom("rabbit_msg_store_file_summary")

INDEX_ROW = np.dtype([("id", "V16"), ("references", "i8"), ("file", "i8"), ("position", "i8"), ("size", "i8")])
"""A row of the message store's index in memory: `position` and `size` are those of the whole record."""
_NUMBERS = ("references", "file", "position", "size")
SUMMARY_ROW = np.dtype([("file", "i8"), ("valid_size", "i8"), ("file_size", "i8")])

_LOCATION = b"msg_location"
_HEADS = tuple(
    bytes((VERSION, SMALL_TUPLE, 6)) + atom + _LOCATION + bytes((BINARY, 0, 0, 0, 16))
    for atom in (bytes((ATOM, 0, len(_LOCATION))), bytes((SMALL_ATOM_UTF8, len(_LOCATION))))
)

_ROWS_AT_ONCE = 50_000
_CELLS = np.arange(11)
"""The term of a number below 2^63: a tag, a length and a sign if it is a big one, then at most eight digits."""
_DIGITS = np.array([1 << 8 * digits for digits in range(1, 8)])


def _table(data: bytes, name: Atom) -> tuple[Positions, Positions]:
    """Spans of the rows in the dump of table `name`. Raises FormatError for another, a torn or a miscounted table."""
    starts, stops, end = disk_log.items(data)
    if end != len(data) or len(starts) < 2:
        raise FormatError(end, "the dump is cut")
    info = _pairs(_term(data, int(starts[0]), int(stops[0])))
    if info.get("name") != name:
        raise FormatError(int(starts[0]), f"a dump of {info.get('name')}, expected {name}")
    last = _term(data, int(starts[-1]), int(stops[-1]))
    if not isinstance(last, list) or len(last) != 2 or last[0] != "$end_of_table":
        raise FormatError(int(starts[-1]), "the dump has no end of table")
    if _pairs(last[1]).get("count") != len(starts) - 2:
        raise FormatError(int(starts[-1]), f"{len(starts) - 2} rows, the dump says {last[1]}")
    return starts[1:-1], stops[1:-1]


def _term(data: bytes, start: int, stop: int) -> Any:
    try:
        return decode(data[start:stop])
    except FormatError as error:
        raise FormatError(start + error.position, error.reason) from None


def _pairs(term: Any) -> dict[Any, Any]:
    """A tuple or list of {key, value} as a dict; other elements are ignored."""
    items = term if isinstance(term, tuple | list) else ()
    return {item[0]: item[1] for item in items if isinstance(item, tuple) and len(item) == 2}


def decode_index(data: bytes) -> npt.NDArray[np.void]:
    """Rows of `msg_store_index.ets`, dtype INDEX_ROW, in the dump's order. Raises FormatError."""
    starts, stops = _table(data, INDEX_TABLE)
    rows = np.empty(len(starts), INDEX_ROW)
    buffer = np.frombuffer(data, np.uint8)
    done = np.zeros(len(starts), bool)
    for head in _HEADS:
        if not done.all():
            done |= _decode_rows(buffer, head, starts, stops, rows)
    for row in np.flatnonzero(~done).tolist():
        rows[row] = _slow_row(data, int(starts[row]), int(stops[row]))
    return rows


def _decode_rows(
    buffer: Bytes, head: bytes, starts: Positions, stops: Positions, rows: npt.NDArray[np.void]
) -> npt.NDArray[np.bool_]:
    """Fills the rows that begin with `head`; returns which ones it filled."""
    shortest = len(head) + 16 + 8
    fits = stops - starts >= shortest
    inside = np.flatnonzero(fits)
    done = np.zeros(len(starts), bool)
    if not len(inside):
        return done
    found = inside[values_at(buffer, f"S{len(head)}", starts[inside]) == head]
    rows["id"][found] = values_at(buffer, "V16", starts[found] + len(head))
    position, ok = starts[found] + len(head) + 16, np.ones(len(found), bool)
    for column in _NUMBERS:
        values, position, good = integers(buffer, position, stops[found])
        rows[column][found] = values
        ok &= good
    done[found] = ok & (position == stops[found])
    return done


def integers(
    buffer: Bytes, positions: Positions, stops: Positions
) -> tuple[npt.NDArray[np.int64], Positions, npt.NDArray[np.bool_]]:
    """Non-negative integer terms at `positions`: values, positions after them, and which could be read."""
    last = len(buffer) - 1

    def byte(at: Positions) -> npt.NDArray[np.int64]:
        return buffer[np.minimum(at, last)].astype(np.int64)

    tags = byte(positions)
    small, plain, big = tags == SMALL_INTEGER, tags == INTEGER, tags == SMALL_BIG
    lengths = np.where(small, 1, np.where(plain, 4, np.where(big, byte(positions + 1), 0)))
    first = positions + np.where(big, 3, 1)
    values = np.zeros(len(positions), np.int64)
    for index in range(int(lengths.max(initial=0)) if len(lengths) else 0):
        if index >= 8:
            break
        present = index < lengths
        digit = byte(first + index)
        values = np.where(present & ~big, values << 8 | digit, values)
        values = np.where(present & big, values | digit << (8 * index), values)
    ok = (small | plain | big) & (lengths <= 8) & (first + lengths <= stops)
    ok &= ~(plain & (values >= 1 << 31)) & ~(big & (byte(positions + 2) != 0)) & (values >= 0)
    return values, first + lengths, ok


def _slow_row(data: bytes, start: int, stop: int) -> tuple[bytes, int, int, int, int]:
    term = _term(data, start, stop)
    good = isinstance(term, tuple) and len(term) == 6 and term[0] == _LOCATION.decode()
    if not good or not isinstance(term[1], bytes) or len(term[1]) != 16:
        raise FormatError(start, "not a row of the message store's index")
    if not all(isinstance(value, int) and 0 <= value < 1 << 63 for value in term[2:]):
        raise FormatError(start, "a row of the message store's index with a wrong number")
    return term[1], term[2], term[3], term[4], term[5]


def decode_summary(data: bytes) -> npt.NDArray[np.void]:
    """Rows of `file_summary.ets`, dtype SUMMARY_ROW, sorted by file number. Raises FormatError."""
    starts, stops = _table(data, SUMMARY_TABLE)
    rows = []
    for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
        term = _term(data, start, stop)
        if not isinstance(term, tuple) or len(term) != 8 or term[0] != "file_summary":
            raise FormatError(start, "not a row of the file summary")
        numbers = (term[1], term[2], term[5])
        if not all(isinstance(value, int) and 0 <= value < 1 << 63 for value in numbers):
            raise FormatError(start, "a row of the file summary with a wrong number")
        rows.append(numbers)
    return np.sort(np.array(rows, SUMMARY_ROW), order="file")


def _encode_table(name: Atom, kind: Atom, rows: bytes, count: int) -> bytes:
    """The dump of `count` rows, which are already items of a disk log."""
    info: tuple[Any, ...] = (
        (Atom("name"), name),
        (Atom("type"), kind),
        (Atom("protection"), Atom("public")),
        (Atom("named_table"), FALSE),
        (Atom("keypos"), 2),
        (Atom("size"), count),
        (Atom("read_concurrency"), FALSE),
        (Atom("write_concurrency"), FALSE),
        (Atom("compressed"), FALSE),
        (Atom("extended_info"), [Atom("object_count")]),
        (Atom("major_version"), 1),
        (Atom("minor_version"), 0),
    )
    last = [Atom("$end_of_table"), [(Atom("count"), count)]]
    return b"".join((disk_log.encode([encode(info)]), rows, disk_log.encode_items([encode(last)])))


def encode_index(rows: npt.NDArray[np.void]) -> bytes:
    """Encodes rows of dtype INDEX_ROW as `msg_store_index.ets`."""
    slices = [_index_items(rows[start : start + _ROWS_AT_ONCE]) for start in range(0, len(rows), _ROWS_AT_ONCE)]
    return _encode_table(INDEX_TABLE, Atom("set"), b"".join(slices), len(rows))


def _index_items(rows: npt.NDArray[np.void]) -> bytes:
    numbers, widths = zip(*(_integer_cells(rows[name]) for name in _NUMBERS), strict=True)
    ids = np.ascontiguousarray(rows["id"]).view(np.uint8).reshape(-1, 16)
    head = np.frombuffer(_HEADS[0], np.uint8)
    sizes = len(head) + 16 + sum(widths)
    items = np.empty(len(rows), disk_log.ITEM.dtype)
    items["size"], items["magic"] = sizes, disk_log.ITEM_MAGIC
    fixed = [items.view(np.uint8).reshape(-1, disk_log.ITEM.size), np.broadcast_to(head, (len(rows), len(head))), ids]
    filled = [np.ones(cells.shape, bool) for cells in fixed] + [width[:, None] > _CELLS for width in widths]
    data: Bytes = np.hstack([*fixed, *numbers])[np.hstack(filled)]
    return data.tobytes()


def _integer_cells(values: npt.NDArray[np.int64]) -> tuple[Bytes, npt.NDArray[np.int64]]:
    """Non-negative integers as terms, each at the start of its row of cells, and the length of each in bytes."""
    small, plain = values < 1 << 8, values < 1 << 31
    wide, big = plain & ~small, ~plain
    little = np.ascontiguousarray(values, "<i8").view(np.uint8).reshape(-1, 8)
    digit_counts = 1 + np.searchsorted(_DIGITS, values, side="right")
    cells = np.zeros((len(values), len(_CELLS)), np.uint8)
    cells[:, 0] = np.where(small, SMALL_INTEGER, np.where(plain, INTEGER, SMALL_BIG))
    cells[small, 1] = little[small, 0]
    cells[wide, 1:5] = little[wide, 3::-1]
    cells[big, 1], cells[big, 3:] = digit_counts[big], little[big]
    return cells, np.where(small, 2, np.where(plain, 5, 3 + digit_counts))


def encode_summary(rows: npt.NDArray[np.void], linked: bool = True) -> bytes:
    """Encodes rows of dtype SUMMARY_ROW, sorted by file number, as `file_summary.ets`. `linked`: each row names its
    neighbours and its readers, as on nodes before 4.0.
    """
    files = rows["file"].tolist()
    unlinked = [UNDEFINED] * len(files)
    lefts, rights = ([UNDEFINED, *files[:-1]], [*files[1:], UNDEFINED]) if linked else (unlinked, unlinked)
    readers = 0 if linked else UNDEFINED
    terms = [
        encode(
            (
                Atom("file_summary"),
                int(row["file"]),
                int(row["valid_size"]),
                left,
                right,
                int(row["file_size"]),
                FALSE,
                readers,
            )
        )
        for row, left, right in zip(rows, lefts, rights, strict=True)
    ]
    return _encode_table(SUMMARY_TABLE, Atom("ordered_set"), disk_log.encode_items(terms), len(terms))
