"""Text formats of messages: JSON lines, CSV, or the user's template. `write` receives the text."""

from __future__ import annotations

import csv
import io
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence

import pyarrow as pa

from command_line.output.rows import BODY_COLUMNS, json_rows
from command_line.output.template import Template, text_of
from storage_core.errors import OptionError

Write = Callable[[str], object]
JSON, CSV = "json", "csv"


class TextFormat(ABC):
    """Rows as text."""

    @property
    def columns(self) -> tuple[str, ...] | None:
        """The columns that the format needs, if it names them."""
        return None

    def head(self, names: Sequence[str], write: Write) -> None:
        """Writes what comes before the first row."""

    @abstractmethod
    def rows(self, batch: pa.RecordBatch, write: Write) -> None:
        """Writes the rows of a batch."""


class JsonLines(TextFormat):
    """One JSON object per line."""

    def __init__(self, body: str) -> None:
        self._body = body
        self._dump = json.JSONEncoder(ensure_ascii=False, check_circular=False).encode

    def rows(self, batch: pa.RecordBatch, write: Write) -> None:
        """Writes an object for each row."""
        write("".join(f"{self._dump(row)}\n" for row in json_rows(batch, self._body)))


class Csv(TextFormat):
    """A header line and one line per row, as in RFC 4180 except for the line ending; lists and maps are JSON."""

    def __init__(self, body: str) -> None:
        self._body = body

    def head(self, names: Sequence[str], write: Write) -> None:
        """Writes the names of the columns."""
        write(_csv_text([names]))

    def rows(self, batch: pa.RecordBatch, write: Write) -> None:
        """Writes the rows."""
        write(_csv_text([text_of(value) for value in row.values()] for row in json_rows(batch, self._body)))


class Filled(TextFormat):
    """A template, filled for each row."""

    def __init__(self, template: Template, body: str) -> None:
        self._template = template
        # `{body.price}` looks into a body that is JSON.
        self._body = "json" if template.looks_inside & set(BODY_COLUMNS) else body

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that the template names."""
        return self._template.columns

    def rows(self, batch: pa.RecordBatch, write: Write) -> None:
        """Writes the template filled for each row."""
        write("".join(self._template.fill(row) for row in json_rows(batch, self._body)))


def text_format(name: str, body: str) -> TextFormat:
    """The format called `json` or `csv`, or that of a template. Raises OptionError for anything else."""
    if name.lower() == JSON:
        return JsonLines(body)
    if name.lower() == CSV:
        return Csv(body)
    template = Template(name)
    if not template.columns:
        raise OptionError("--format", name, "must be json, csv, or a template such as '{topic} {queueOffset} {body}'")
    return Filled(template, body)


def _csv_text(rows: Iterable[Sequence[str]]) -> str:
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerows(rows)
    return buffer.getvalue()
