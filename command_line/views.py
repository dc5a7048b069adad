"""Rows of a store's views, and the tables that show them.

Leaves to `output.table` which columns fit on a terminal.
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

Row = dict[str, Any]


def view_rows(stores: Stores, wanted: Selection, view: str) -> list[Row]:
    """The rows of a view of every store that the selection touches, each with its store's name. Of several stores, one
    that cannot be read is told and left out.
    """
    selected = {each.named: each for each in wanted.chosen(stores)}

    def rows(named: NamedStore) -> list[Row]:
        batches = named.store.view(view, selected[named].request)
        return [{**row, "store": named.name} for batch in batches for row in json_rows(batch)]

    return [row for _, found in stores.gather(rows, list(selected)) for row in found]


def store_rows(named: NamedStore, view: str) -> list[Row]:
    """The rows of a view of one store, with values that JSON has."""
    return [row for batch in named.store.view(view) for row in json_rows(batch)]


def print_json(rows: Sequence[Mapping[str, Any]]) -> None:
    """One JSON object a line."""
    for row in rows:
        line(json.dumps(row, ensure_ascii=False))


def by_engine(stores: Stores, rows: Sequence[Row]) -> list[tuple[str, list[Row]]]:
    """The rows of each engine's stores: their columns differ."""
    engines = {named.name: named.store.engine for named in stores}
    return [
        (engine, [row for row in rows if engines[row["store"]] == engine])
        for engine in sorted({engines[row["store"]] for row in rows}, reverse=True)
    ]


def size_column(name: str = "bytes", title: str = "size", rank: int = 0) -> Column:
    """Bytes in a unit that people read."""
    return Column(title, lambda row: "" if row.get(name) is None else size_text(row[name]), True, rank)


def time_column(title: str, name: str, rank: int) -> Column:
    """A time to the second, in UTC."""
    return Column(title, lambda row: moment_text(row.get(name)), False, rank)


def several_column(name: str, rows: Sequence[Row]) -> list[Column]:
    """A column only where the rows differ in it."""
    return [column(name)] if len({row.get(name) for row in rows}) > 1 else []


def largest_first(rows: list[Row], by: str) -> list[Row]:
    """The rows by a number, or by `last`, the last time, the largest first; by `name` they stay as they are."""
    if by == "name":
        return rows
    name = {"last": "lastStoreTimestamp"}.get(by, by)
    return sorted(rows, key=lambda row: (row.get(name) is not None, row.get(name) or 0), reverse=True)
