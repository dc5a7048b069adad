"""The headers of many messages at once: field tables in a buffer → one Arrow map<string,string>.

`field_table` handles single tables, and values that need a walk of their own. Source: rabbitmq.md 6.4; the texts are
defined in interface.md 32.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from storage_core.arrays import as_array, as_numbers, text_array
from storage_core.errors import FormatError
from storage_core.formats.layout import Bytes, Mask, Positions, values_at
from storage_core.formats.rabbitmq.amqp import field_table
from storage_core.formats.rabbitmq.erlang.cursor import Cursor, Steps, offsets_of_rows
from storage_core.formats.spans import gather, text

MAP_TYPE = pa.map_(pa.string(), pa.string())

_COUNTED = np.zeros(256, bool)
_COUNTED[[ord(letter) for letter in "SxFA"]] = True
_WIDTHS = np.full(256, -1, np.int64)
for _letter, _packer in field_table.NUMBERS.items():
    _WIDTHS[ord(_letter)] = _packer.size
_WIDTHS[[ord("t"), ord("V"), ord("D")]] = (1, 0, 5)
_LONGSTR = ord("S")
NESTED = "FA"
"""Types whose values contain other values."""
_INTEGERS = {ord(letter): field_table.NUMBERS[letter].format for letter in "bBsuIilL"}


@dataclass(frozen=True)
class HeaderSpans:
    """The items of n tables, flattened in the order (table, index): table number, name, type letter and value.

    A value's span excludes its length prefix. `ok[i]` is true if table i could be walked to its end.
    """

    ok: Mask
    rows: npt.NDArray[np.int64]
    name_starts: Positions
    name_stops: Positions
    letters: npt.NDArray[np.int64]
    starts: Positions
    stops: Positions


def locate(buffer: Bytes, starts: Positions, stops: Positions) -> HeaderSpans:
    """Walks the tables [start, stop) of `buffer` in lockstep, the k-th item of all of them at once. Never raises."""
    ok: Mask = np.ones(len(starts), bool)
    steps = Steps(len(starts))
    rows = np.flatnonzero(starts < stops)
    position = starts.astype(np.int64)
    while len(rows):
        cursor = Cursor(buffer, position[rows], stops[rows])
        name_start, name_stop = cursor.counted("u1")
        letters = cursor.number("u1")
        counted = _COUNTED[letters]
        widths = _WIDTHS[letters]
        cursor.ok &= counted | (widths >= 0)
        sizes = np.where(counted, values_at(buffer, ">u4", cursor.position), np.maximum(widths, 0)).astype(np.int64)
        cursor.move(np.where(counted, 4, 0))
        start = cursor.position
        cursor.move(sizes)
        good = cursor.ok
        ok[rows[~good]] = False
        rows = rows[good]
        stop = cursor.position[good]
        steps.add(rows, name_start[good], name_stop[good], letters[good], start[good], stop)
        position[rows] = stop
        rows = rows[stop < stops[rows]]
    item_rows, (name_starts, name_stops, letters, value_starts, value_stops) = steps.joined(5)
    return HeaderSpans(ok, item_rows, name_starts, name_stops, letters, value_starts, value_stops)


def check_nested(buffer: Bytes, spans: HeaderSpans) -> None:
    """Clears `ok` for tables with inner tables or arrays that do not parse."""
    for letter in NESTED:
        items = np.flatnonzero(spans.letters == ord(letter))
        values, codes = distinct_values(buffer, spans, items)
        broken = np.array([not _parses(letter, value) for value in values], bool)
        spans.ok[spans.rows[items[broken[codes]]]] = False


def distinct_values(
    buffer: Bytes, spans: HeaderSpans, items: npt.NDArray[np.int64]
) -> tuple[list[bytes], npt.NDArray[np.int32]]:
    """The distinct values of some items, as bytes that `field_table.decode_value` accepts, and each item's index into
    them: a value that needs a walk of its own is decoded once for all messages that share it.
    """
    before = np.where(_COUNTED[spans.letters[items]], 4, 0)
    encoded = gather(buffer, spans.starts[items] - before, spans.stops[items]).dictionary_encode()
    return encoded.dictionary.to_pylist(), as_numbers(encoded.indices)


def _parses(letter: str, value: bytes) -> bool:
    try:
        field_table.decode_value(letter, value)
    except FormatError:
        return False
    return True


def to_map(buffer: Bytes, spans: HeaderSpans, table_rows: npt.NDArray[np.int64], row_count: int) -> pa.MapArray:
    """The tables as rows `table_rows` (ascending) of a map array; other rows, and tables that are not ok, are null."""
    keep = spans.ok[spans.rows]
    items = np.flatnonzero(keep)
    names = text(gather(buffer, spans.name_starts[items], spans.name_stops[items]))
    items, names = _last_of_each_name(spans.rows, items, names)
    values = _texts(buffer, spans, items)
    rows = table_rows[spans.rows[items]]
    valid = np.zeros(row_count, bool)
    valid[table_rows[spans.ok]] = True
    pairs = pa.StructArray.from_arrays(
        [names, values], fields=[pa.field("key", pa.string(), False), MAP_TYPE.item_field]
    )
    offsets = pa.py_buffer(offsets_of_rows(rows, row_count))
    return pa.Array.from_buffers(MAP_TYPE, row_count, [as_array(valid).buffers()[1], offsets], children=[pairs])


def _last_of_each_name(
    rows: npt.NDArray[np.int64], items: npt.NDArray[np.int64], names: pa.StringArray
) -> tuple[npt.NDArray[np.int64], pa.StringArray]:
    """Drops an item if a later item of its table has the same name."""
    if len(items) < 2:
        return items, names
    encoded = names.dictionary_encode()
    codes = rows[items] * len(encoded.dictionary) + as_numbers(encoded.indices)
    _, last = np.unique(codes[::-1], return_index=True)
    if len(last) == len(items):
        return items, names
    kept = np.sort(len(items) - 1 - last)
    return items[kept], names.take(as_array(kept))


def _texts(buffer: Bytes, spans: HeaderSpans, items: npt.NDArray[np.int64]) -> pa.StringArray:
    letters = spans.letters[items]
    strings = letters == _LONGSTR
    if strings.all():
        return text(gather(buffer, spans.starts[items], spans.stops[items]))
    parts, chosen_items = [], []
    for letter in np.unique(letters).tolist():
        chosen = np.flatnonzero(letters == letter)
        rows = items[chosen]
        if letter == _LONGSTR:
            part = text(gather(buffer, spans.starts[rows], spans.stops[rows]))
        elif letter in _INTEGERS:
            numbers = values_at(buffer, _INTEGERS[letter], spans.starts[rows])
            part = pc.cast(as_array(numbers.astype(np.int64)), pa.string())
        else:
            part = _json_texts(buffer, spans, rows, chr(letter))
        parts.append(part)
        chosen_items.append(chosen)
    order = np.empty(len(items), np.int64)
    order[np.concatenate(chosen_items)] = np.arange(len(items))
    return pa.concat_arrays(parts).take(as_array(order))


def _json_texts(buffer: Bytes, spans: HeaderSpans, items: npt.NDArray[np.int64], letter: str) -> pa.StringArray:
    values, codes = distinct_values(buffer, spans, items)
    texts = (field_table.json_text(letter, field_table.decode_value(letter, value)) for value in values)
    return text_array(texts).take(as_array(codes))
