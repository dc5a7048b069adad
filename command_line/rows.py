"""Rows as JSON lines and as tables on a terminal.

Source: interface.md 38: names of the native columns, times as ISO 8601 UTC with milliseconds.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import click
import numpy as np
import pyarrow as pa
from rich.console import Console
from rich.table import Table

BODIES: dict[str, Callable[[bytes], str]] = {
    "text": lambda body: body.decode("utf-8", "replace"),
    "hex": bytes.hex,
    "base64": lambda body: base64.b64encode(body).decode(),
}
"""How a body is shown. Other binary columns are always base64."""
WIDE = 1 << 16


def json_rows(batch: pa.RecordBatch, body: str = "text") -> Iterable[dict[str, Any]]:
    """The rows of a batch with values that JSON has."""
    columns = [_values(field, batch.column(place), body) for place, field in enumerate(batch.schema)]
    return (dict(zip(batch.schema.names, row, strict=True)) for row in zip(*columns, strict=True))


def _values(field: pa.Field, column: pa.Array, body: str) -> list[Any]:
    if pa.types.is_timestamp(field.type):
        return _times(column)
    values = column.to_pylist()
    if pa.types.is_binary(field.type):
        shown = BODIES[body if field.name in ("body", "value") else "base64"]
        return [None if value is None else shown(value) for value in values]
    if pa.types.is_map(field.type):
        return [None if value is None else dict(value) for value in values]
    return list(values)


def _times(column: pa.Array) -> list[str | None]:
    """A timestamp property may be any number of seconds: Python's years end at 9999, numpy's do not."""
    micros = column.cast(pa.timestamp("us")).cast(pa.int64())
    texts = np.datetime_as_string(micros.fill_null(0).to_numpy().astype("M8[us]"), unit="ms")
    present = column.is_valid().to_pylist()
    return [f"{text}Z" if there else None for text, there in zip(texts.tolist(), present, strict=True)]


def print_line(row: Mapping[str, Any]) -> None:
    """One JSON object on a line of its own."""
    click.echo(json.dumps(row, ensure_ascii=False))


def print_table(rows: list[dict[str, Any]]) -> None:
    """Rows of one kind as a table; columns in which no row says anything are left out."""
    if not rows:
        return
    names = [name for name in rows[0] if any(row[name] not in (None, [], {}) for row in rows)]
    numbers = {name for name in names if all(isinstance(row[name], int | None) for row in rows)}
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in names:
        table.add_column(name, justify="right" if name in numbers else "left", overflow="fold")
    for row in rows:
        table.add_row(*(_shown(row[name]) for name in names))
    # A pipe has no width: there a line is as long as its row.
    width = None if Console().is_terminal else WIDE
    Console(width=width, highlight=False, markup=False, emoji=False).print(table)


def _shown(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
