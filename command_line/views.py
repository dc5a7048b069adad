"""Rows of a store's views, and the tables that show them.

Fitting columns to a terminal belongs to `output.table`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from command_line.output.lines import line
from command_line.output.rows import json_rows
from command_line.output.table import Column, column
from command_line.output.units import moment_text, size_text
from command_line.selection import Selection
from command_line.stores import NamedStore, Stores
from storage_core.errors import UnsupportedFormatError

Row = dict[str, Any]


def view_rows(stores: Stores, wanted: Selection, view: str) -> list[Row]:
    """The rows of a view of every store that the selection touches, each with its store's name. Of several stores, one
    that cannot be read is reported and left out.
    """
    selected = {each.named: each for each in wanted.chosen(stores)}

    def rows(named: NamedStore) -> list[Row]:
        batches = named.store.view(view, selected[named].request)
        return [{**row, "store": named.name} for batch in batches for row in json_rows(batch)]

    return [row for _, found in stores.gather(rows, list(selected)) for row in found]


def store_rows(named: NamedStore, view: str) -> list[Row]:
    """The rows of a view of one store, as values that JSON can represent."""
    return [row for batch in named.store.view(view) for row in json_rows(batch)]


def group_rows(named: NamedStore) -> list[Row] | None:
    """The committed offsets of a store's consumer groups; None for a store that has no groups, or that keeps their
    offsets where mqstore does not read them.
    """
    if named.holds_queues_only:
        return None
    try:
        return store_rows(named, "offsets")
    except UnsupportedFormatError:
        return None


def print_json(rows: Sequence[Mapping[str, Any]]) -> None:
    """Prints one JSON object per line."""
    for row in rows:
        line(json.dumps(row, ensure_ascii=False))


def by_engine(stores: Stores, rows: Sequence[Row]) -> list[tuple[str, list[Row]]]:
    """The rows by engine, because the columns of the engines differ."""
    engines = {named.name: named.store.engine for named in stores}
    return [
        (engine, [row for row in rows if engines[row["store"]] == engine])
        for engine in sorted({engines[row["store"]] for row in rows}, reverse=True)
    ]


def size_column(name: str = "bytes", title: str = "size", rank: int = 0) -> Column:
    """A column of bytes in readable units."""
    return Column(title, lambda row: "" if row.get(name) is None else size_text(row[name]), True, rank)


def time_column(title: str, name: str, rank: int) -> Column:
    """A column of times to the second, in UTC."""
    return Column(title, lambda row: moment_text(row.get(name)), False, rank)


def several_column(name: str, rows: Sequence[Row]) -> list[Column]:
    """A column, only if the rows differ in it."""
    return [column(name)] if len({row.get(name) for row in rows}) > 1 else []


def largest_first(rows: list[Row], by: str) -> list[Row]:
    """The rows sorted by a number, or by `last`, the last time, largest first; `name` leaves them as they are."""
    if by == "name":
        return rows
    name = {"last": "lastStoreTimestamp"}.get(by, by)
    return sorted(rows, key=lambda row: (row.get(name) is not None, row.get(name) or 0), reverse=True)
