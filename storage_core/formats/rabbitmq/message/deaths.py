"""The deaths that a broker recorded for many messages: terms in containers → headers `x-death`, as a node builds them.

`message_container` handles a single message. Source: rabbitmq.md 8.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from storage_core.arrays import as_array
from storage_core.formats.layout import Bytes, Mask, Positions
from storage_core.formats.rabbitmq.binary_columns import counted, fixed, joined, listed, where
from storage_core.formats.rabbitmq.erlang import external_term as et
from storage_core.formats.rabbitmq.erlang.binary_lists import ListHeads
from storage_core.formats.rabbitmq.erlang.cursor import Cursor
from storage_core.formats.rabbitmq.erlang.simple_terms import SimpleTerms
from storage_core.formats.spans import gather, is_ascii

Numbers = npt.NDArray[np.int64]
_MOST_DEATHS, _MOST_PAIRS = 16, 3
_PAIR, _KEY, _RECORD = (bytes((et.SMALL_TUPLE, size)) for size in (2, 2, 5))
_NAME, _FIRST, _LAST, _TTL = "death", "first_time", "last_time", "ttl"


@dataclass(frozen=True)
class Deaths:
    """Some deaths, of the messages `rows`, ascending. Spans are (starts, stops); times are in ms; `ttl` is -1 if it was
    not recorded. `key_owners`, ascending, holds the number of the death that each routing key belongs to.
    """

    rows: Numbers
    queue: tuple[Positions, Positions]
    reason: tuple[Positions, Positions]
    exchange: tuple[Positions, Positions]
    count: Numbers
    first_ms: Numbers
    ttl: Numbers
    key_owners: Numbers
    keys: tuple[Positions, Positions]

    def of(self, rows: Numbers) -> Deaths:
        """The deaths of the messages `rows`, which are ascending and are renumbered."""
        kept = np.isin(self.rows, rows)
        keys = kept[self.key_owners]
        queue, reason, exchange = (
            (starts[kept], stops[kept]) for starts, stops in (self.queue, self.reason, self.exchange)
        )
        owners = (np.cumsum(kept) - 1)[self.key_owners[keys]]
        return Deaths(
            np.searchsorted(rows, self.rows[kept]), queue, reason, exchange, self.count[kept], self.first_ms[kept],
            self.ttl[kept], owners, (self.keys[0][keys], self.keys[1][keys]),
        )  # fmt: skip


def walk(cursor: Cursor) -> list[Deaths]:
    """Reads the lists of deaths at the cursor's positions and advances past them; the k-th deaths of all messages are
    one `Deaths`. Rows with a list of another kind are not ok, and their deaths are undefined.
    """
    heads = ListHeads.next(cursor, _MOST_DEATHS)
    found = []
    for rows, inner in cursor.rounds(heads.counts):
        found.append(_next(inner, rows))
    heads.end(cursor)
    return found


def _next(cursor: Cursor, rows: Numbers) -> Deaths:
    """Reads the next death of each row: {{Queue, Reason}, {death, Exchange, Keys, Count, Times}}."""
    cursor.expect(_PAIR + _KEY)
    queue, reason = SimpleTerms.next(cursor), SimpleTerms.next(cursor)
    cursor.expect(_RECORD)
    record, exchange, keys, count = (SimpleTerms.next(cursor) for _ in range(4))
    counts, counted_right = count.numbers()
    cursor.ok &= (
        queue.is_binary & reason.is_atom & record.is_named(_NAME) & exchange.is_binary & keys.is_list & counted_right
    )
    first, ttl = _first_and_ttl(cursor)
    return Deaths(
        rows, (queue.starts, queue.stops), (reason.starts, reason.stops), (exchange.starts, exchange.stops), counts,
        first, ttl, keys.item_rows, (keys.item_starts, keys.item_stops),
    )  # fmt: skip


def _first_and_ttl(cursor: Cursor) -> tuple[Numbers, Numbers]:
    """The first time and the time to live in a map that holds only those and the last time."""
    cursor.ok &= cursor.number("u1") == et.MAP
    pairs = cursor.number(">u4")
    cursor.ok &= pairs <= _MOST_PAIRS
    first, ttl = np.full((2, len(pairs)), -1)
    for rows, inner in cursor.rounds(pairs):
        name, value = SimpleTerms.next(inner), SimpleTerms.next(inner)
        numbers, right = value.numbers()
        known: Mask = np.zeros(len(rows), bool)
        for text, column in ((_FIRST, first), (_TTL, ttl), (_LAST, None)):
            same = name.is_named(text)
            known |= same
            if column is not None:
                column[rows[same]] = numbers[same]
        inner.ok &= right & known
    cursor.ok &= first >= 0
    return first, ttl


def headers(buffer: Bytes, found: list[Deaths], count: int) -> tuple[pa.BinaryArray, Mask]:
    """The header `x-death` of each of `count` messages, all of which have a list of deaths; and for which of them all
    reasons have the same bytes in every encoding.
    """
    right = np.ones(count, bool)
    elements, owners = [gather(buffer, *np.zeros((2, 0), np.int64))], [np.zeros(0, np.int64)]
    for deaths in found:
        tables, plain = _tables(buffer, deaths)
        right[deaths.rows[~plain]] = False
        elements.append(joined(b"F", counted(tables, ">u4")))
        owners.append(deaths.rows)
    rows = np.concatenate(owners)
    order = np.argsort(rows, kind="stable")
    values = listed(pa.concat_arrays(elements).take(as_array(order)), rows[order], count)
    return joined(b"\x07x-deathA", counted(values, ">u4")), right


def _tables(buffer: Bytes, deaths: Deaths) -> tuple[pa.BinaryArray, Mask]:
    """The table of each death, and which deaths have an ASCII reason."""
    queue, reason, exchange = (
        counted(gather(buffer, *span), ">u4") for span in (deaths.queue, deaths.reason, deaths.exchange)
    )
    names = gather(buffer, *deaths.reason)
    plain = np.ones(len(names), bool)
    if not is_ascii(names):
        plain = np.array([name.isascii() for name in names.to_pylist()], bool)
    texts = pc.cast(as_array(deaths.ttl), pa.string()).cast(pa.binary())
    keys = listed(joined(b"S", counted(gather(buffer, *deaths.keys), ">u4")), deaths.key_owners, len(deaths.rows))
    table = joined(
        where(deaths.ttl >= 0, joined(b"\x13original-expirationS", counted(texts, ">u4"))),
        b"\x05countl", fixed(deaths.count.astype(">i8")), b"\x06reasonS", reason, b"\x05queueS", queue,
        b"\x04timeT", fixed((deaths.first_ms // 1000).astype(">u8")), b"\x08exchangeS", exchange,
        b"\x0crouting-keysA", counted(keys, ">u4"),
    )  # fmt: skip
    return table, plain
