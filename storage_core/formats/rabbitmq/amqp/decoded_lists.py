"""Encodes many property lists that a broker keeps decoded, as `P_basic` terms, into the lists that it delivers.

`properties.from_decoded` handles a single list; its type names are `field_table.NAMES`. Source: rabbitmq.md 6.3.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from storage_core.arrays import NO_BYTES, as_array, as_mask, as_numbers, bytes_array
from storage_core.formats.layout import Bytes, Mask, Positions
from storage_core.formats.rabbitmq.amqp import field_table, properties
from storage_core.formats.rabbitmq.amqp.properties import MOST_SHORT
from storage_core.formats.rabbitmq.amqp.property_columns import encode_properties
from storage_core.formats.rabbitmq.amqp.term_values import encode_values
from storage_core.formats.rabbitmq.binary_columns import counted, fixed, joined, lengths, listed, placed
from storage_core.formats.rabbitmq.erlang import external_term as et
from storage_core.formats.rabbitmq.erlang.cursor import Cursor, Steps
from storage_core.formats.rabbitmq.erlang.simple_terms import SimpleTerms, spelled_atom
from storage_core.formats.spans import gather

TAG = "P_basic"
_Rows = npt.NDArray[np.int64]
_MOST_OCTET, _LENGTH_SIZE = 255, 4
_MOST_NESTED, _MOST_STEPS = 8, 256
_AT_ONCE = 800
"""How many tables are walked at once; limited because the notes on their items take memory."""
_MOST_DIGITS, _MOST_TIME = 18, 10**18
_ITEM, _ELEMENT = (bytes((et.SMALL_TUPLE, size)) for size in (3, 2))
_TABLE, _ARRAY, _END = ord("F"), ord("A"), 0


def walk(cursor: Cursor, tag: int) -> tuple[pa.BinaryArray, _Rows]:
    """The property lists of the terms at the cursor's positions, whose atoms have this tag, and their expirations as
    numbers, -1 for those that are not numbers. Advances past the terms. Rows with any other term are not ok, and their
    results are undefined.
    """
    count = len(cursor.position)
    cursor.expect(bytes((et.SMALL_TUPLE, len(properties.FIELDS) + 1)) + spelled_atom(tag, TAG))
    columns = {}
    for name, kind in properties.FIELDS:
        if kind == properties.TABLE:
            columns[name] = _next_tables(cursor)
            continue
        value = SimpleTerms.next(cursor)
        absent = value.is_named("undefined")
        if kind == properties.SHORT:
            right = value.is_binary & (value.sizes <= MOST_SHORT)
            rows = np.flatnonzero(cursor.ok & right)
            texts = gather(cursor.buffer, value.starts[rows], value.stops[rows])
            columns[name] = placed([(rows, texts)], count)
        else:
            numbers, right = value.numbers()
            right &= (numbers <= _MOST_OCTET) | (kind == properties.LONG)
            columns[name] = as_array(numbers, ~right)
        cursor.ok &= absent | right
    times = _numbers(columns["expiration"])
    cursor.ok &= times < _MOST_TIME
    return encode_properties(columns, count), times


def _numbers(texts: pa.BinaryArray) -> _Rows:
    """Texts of digits as numbers, those with too many as _MOST_TIME; -1 for other texts and for null."""
    found = np.full(len(texts), -1)
    at = np.flatnonzero(as_mask(pc.match_substring_regex(texts, "^[0-9]+$")))
    found[at] = _MOST_TIME
    at = at[lengths(texts)[at] <= _MOST_DIGITS]
    found[at] = as_numbers(texts.take(as_array(at)).cast(pa.string()).cast(pa.int64()))
    return found


def _next_tables(cursor: Cursor) -> pa.BinaryArray:
    """The header tables, null where a list has none."""
    count, tags = len(cursor.position), cursor.at("u1", cursor.position)
    has_list = (tags == et.LIST) | (tags == et.NIL)
    rows, others = np.flatnonzero(cursor.ok & has_list), np.flatnonzero(~has_list)
    rest = Cursor(cursor.buffer, cursor.position[others], cursor.stop[others])
    rest.ok &= SimpleTerms.next(rest).is_named("undefined")
    cursor.ok[others] &= rest.ok
    cursor.position[others] = rest.position
    tables = [(rows[:0], bytes_array([]))]
    for first in range(0, len(rows), _AT_ONCE):
        some = rows[first : first + _AT_ONCE]
        inner = Cursor(cursor.buffer, cursor.position[some], cursor.stop[some])
        tables.append((some, _Walk(inner).tables()))
        cursor.ok[some], cursor.position[some] = inner.ok, inner.position
    return placed(tables, count)


class _Walk:
    """Walks tables, which are nested lists, in lockstep: in each step every row reads an item, or the end of a list.

    For each level, `left` is the number of items still to come, `named` whether they have names, and `closed` whether
    the list ends without a tail, as an empty list does.
    """

    def __init__(self, cursor: Cursor) -> None:
        count = len(cursor.position)
        self.cursor, self.steps = cursor, Steps(count)
        self.level = np.zeros(count, np.int64)
        self.left, self.named = np.zeros((_MOST_NESTED, count), np.int64), np.ones((_MOST_NESTED, count), bool)
        self.closed = np.zeros((_MOST_NESTED, count), bool)
        self._open(np.arange(count), cursor)

    def tables(self) -> pa.BinaryArray:
        """The tables of all rows, without their length prefixes; advances past them."""
        cursor = self.cursor
        for _ in range(_MOST_STEPS):
            rows = np.flatnonzero(cursor.ok & (self.level >= 0))
            if not len(rows):
                break
            ending = self.left[self.level[rows], rows] == 0
            self._end(rows[ending])
            self._take(rows[~ending])
        cursor.ok &= self.level < 0
        owners, columns = self.steps.joined(len(_Items.__dataclass_fields__))
        whole = cursor.ok[owners]
        owners, items = owners[whole], _Items(*(column[whole] for column in columns))
        encoded, right = items.encoded(cursor.buffer)
        cursor.ok[owners[~right]] = False
        return listed(encoded, owners[items.letters != _END], len(cursor.position))

    def _open(self, rows: _Rows, cursor: Cursor) -> None:
        """Enters the lists of some rows at the positions of `cursor`; advances past their heads."""
        level, tags = self.level[rows], cursor.number("u1")
        some = tags == et.LIST
        cursor.ok &= some | (tags == et.NIL)
        self.left[level, rows] = np.where(some, cursor.at(">u4", cursor.position), 0)
        self.closed[level, rows] = ~some
        cursor.move(np.where(some, _LENGTH_SIZE, 0))

    def _end(self, rows: _Rows) -> None:
        cursor, level = self.cursor, self.level[rows]
        open_yet = ~self.closed[level, rows]
        cursor.ok[rows] &= ~open_yet | (cursor.at("u1", cursor.position[rows]) == et.NIL)
        cursor.position[rows] += open_yet
        self.level[rows] -= 1
        inner = level > 0
        self.steps.add(rows[inner], *np.zeros((5, np.count_nonzero(inner)), np.int64), level[inner])

    def _take(self, rows: _Rows) -> None:
        """Reads the next item of each row."""
        level = self.level[rows]
        named = self.named[level, rows]
        self.left[level, rows] -= 1
        cursor = Cursor(self.cursor.buffer, self.cursor.position[rows], self.cursor.stop[rows])
        names = _next_names(cursor, named)
        letters = _letters(SimpleTerms.next(cursor))
        nested = (letters == _TABLE) | (letters == _ARRAY)
        cursor.ok &= (letters != _END) & (~nested | (level + 1 < _MOST_NESTED))
        starts = cursor.position.copy()
        inside, simple = np.flatnonzero(cursor.ok & nested), np.flatnonzero(cursor.ok & ~nested)
        self.level[rows[inside]] += 1
        self.named[self.level[rows[inside]], rows[inside]] = letters[inside] == _TABLE
        lists, values = (Cursor(cursor.buffer, starts[part], cursor.stop[part]) for part in (inside, simple))
        self._open(rows[inside], lists)
        SimpleTerms.next(values)
        for part, each in ((inside, lists), (simple, values)):
            cursor.ok[part], cursor.position[part] = each.ok, each.position
        self.cursor.ok[rows], self.cursor.position[rows] = cursor.ok, cursor.position
        self.steps.add(rows, letters, named, *names, starts, level + nested)


def _next_names(cursor: Cursor, named: Mask) -> tuple[Positions, Positions]:
    """Reads the heads of items, and their names where they are `named`; returns the spans of the names."""
    cursor.ok &= cursor.at("S2", cursor.position) == np.where(named, _ITEM, _ELEMENT)
    cursor.move(len(_ITEM))
    starts, stops, rows = cursor.position.copy(), cursor.position.copy(), np.flatnonzero(named)
    inner = Cursor(cursor.buffer, starts[rows], cursor.stop[rows])
    inner.ok &= inner.number("u1") == et.BINARY
    starts[rows], stops[rows] = inner.counted(">u4")
    cursor.ok[rows] &= inner.ok & (stops[rows] - starts[rows] <= MOST_SHORT)
    cursor.position[rows] = inner.position
    return starts, stops


def _letters(types: SimpleTerms) -> _Rows:
    """The letters of types, by type name; _END for an unknown name."""
    found = np.full(len(types.tags), _END)
    for word, letter in field_table.NAMES.items():
        if found.all():
            break
        found[types.is_named(word)] = ord(letter)
    return found


@dataclass(frozen=True)
class _Items:
    """Items of tables and arrays: a list precedes its contents, and its end follows them. `starts` are the positions of
    the values, at their tags. `levels` is the depth of a list's items, for the list and for its end.
    """

    letters: _Rows
    named: _Rows
    name_starts: Positions
    name_stops: Positions
    starts: Positions
    levels: _Rows

    def encoded(self, buffer: Bytes) -> tuple[pa.BinaryArray, Mask]:
        """Names, letters and values of all items except ends, and which items have a value supported here."""
        count, shown, named = len(self.letters), self.letters != _END, np.flatnonzero(self.named)
        names = counted(gather(buffer, self.name_starts[named], self.name_stops[named]), "u1")
        heads = joined(placed([(named, names)], count).fill_null(NO_BYTES), fixed(self.letters.astype("u1")))
        values, right = encode_values(buffer, self.letters, self.starts)
        opens = np.flatnonzero(np.isin(self.letters, (_TABLE, _ARRAY)))
        right[opens] = right[~shown] = True
        sizes = np.where(shown, lengths(heads) + lengths(values), 0)
        sizes[opens] += _LENGTH_SIZE
        inside = fixed(self._inside(np.cumsum(sizes)).astype(">u4"))
        values = joined(placed([(opens, inside)], count).fill_null(NO_BYTES), values)
        return joined(heads, values).filter(as_array(shown)), right

    def _inside(self, ends: _Rows) -> _Rows:
        """The size in bytes of the items in each list; `ends` is where each item ends."""
        places = np.flatnonzero(np.isin(self.letters, (_TABLE, _ARRAY, _END)))
        # Lists of one level follow one another: a list, its end, the next list.
        pairs = places[np.lexsort((places, self.levels[places]))].reshape(-1, 2)
        pairs = pairs[np.argsort(pairs[:, 0])]
        found: _Rows = ends[pairs[:, 1]] - ends[pairs[:, 0]]
        return found
