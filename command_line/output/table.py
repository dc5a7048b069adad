"""Tables fitted to the width of a terminal, the less important columns left out first; in a pipe, all of them.

The commands define the columns and their texts.
"""

from __future__ import annotations

import os
import shutil
import sys
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from command_line.output.lines import line

GAP = "  "
SHORTEST = 12
"""A text column is not cut to fewer characters than this."""
WIDE = {"W", "F"}


@dataclass(frozen=True)
class Column:
    """One column: its title, and the text of a row in it. Columns of a higher `rank` are left out first."""

    title: str
    text: Callable[[Mapping[str, Any]], str]
    right: bool = False
    rank: int = 0


def column(title: str, name: str | None = None, right: bool = False, rank: int = 0) -> Column:
    """A column that shows the value called `name`, by default the one called `title`."""
    key = name or title

    def text(row: Mapping[str, Any]) -> str:
        value = row.get(key)
        if value is None:
            return ""
        if isinstance(value, bool):
            return "yes" if value else "no"
        if isinstance(value, int):
            return f"{value:,}"
        return ", ".join(map(str, value)) if isinstance(value, list) else str(value)

    return Column(title, text, right, rank)


def print_table(
    columns: Sequence[Column], rows: Sequence[Mapping[str, Any]], total: Mapping[str, str] | None = None
) -> None:
    """Prints the rows below a header line; `total` has the texts of a last line, by title.

    Columns that are empty in all rows are left out.
    """
    shown = [each for each in columns if any(each.text(row) for row in rows)]
    cells = [[each.text(row) for row in rows] for each in shown]
    last = [(total or {}).get(each.title, "") for each in shown]
    widths = [
        max(width_of(text) for text in (each.title, *texts, end))
        for each, texts, end in zip(shown, cells, last, strict=True)
    ]
    kept, widths = _fitted(shown, widths, room())
    line(bold(_joined(shown, kept, widths, [shown[at].title for at in kept])))
    for row in range(len(rows)):
        line(_joined(shown, kept, widths, [cells[at][row] for at in kept]))
    if total:
        line(bold(_joined(shown, kept, widths, [last[at] for at in kept])))


def room() -> int | None:
    """The width in characters of the terminal on stdout; None if stdout is no terminal: a pipe has no width."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def width_of(text: str) -> int:
    """The number of terminal columns that a text occupies."""
    if text.isascii():
        return len(text)
    return sum(2 if unicodedata.east_asian_width(c) in WIDE else not unicodedata.combining(c) for c in text)


def bold(text: str) -> str:
    """The text in bold if stdout is a terminal, unless NO_COLOR is set."""
    if not text.strip() or not sys.stdout.isatty() or os.environ.get("NO_COLOR"):
        return text
    return f"\x1b[1m{text}\x1b[0m"


def _fitted(columns: Sequence[Column], widths: list[int], limit: int | None) -> tuple[list[int], list[int]]:
    """The numbers of the columns that fit into a line, and the width of each."""
    kept = list(range(len(columns)))
    if limit is None:
        return kept, [widths[at] for at in kept]
    while len(kept) > 1 and _line(kept, widths) > limit and max(columns[at].rank for at in kept):
        kept.remove(max(kept, key=lambda at: (columns[at].rank, at)))
    own = {at: widths[at] for at in kept}
    while _line(kept, own) > limit:
        longest = max((at for at in kept if not columns[at].right), key=lambda at: own[at], default=None)
        if longest is None or own[longest] <= SHORTEST:
            break
        own[longest] = max(SHORTEST, own[longest] - (_line(kept, own) - limit))
    return kept, [own[at] for at in kept]


def _line(kept: Sequence[int], widths: Mapping[int, int] | Sequence[int]) -> int:
    return sum(widths[at] for at in kept) + len(GAP) * (len(kept) - 1)


def _joined(columns: Sequence[Column], kept: Sequence[int], widths: Sequence[int], texts: Sequence[str]) -> str:
    parts = []
    for at, width, text in zip(kept, widths, texts, strict=True):
        fitting = _cut(text, width)
        blanks = " " * (width - width_of(fitting))
        parts.append(blanks + fitting if columns[at].right else fitting + blanks)
    return GAP.join(parts).rstrip()


def _cut(text: str, width: int) -> str:
    """The text, with its middle replaced by … if it is too wide."""
    if width_of(text) <= width:
        return text
    head = text[: (width - 1) // 2]
    tail = ""
    while width_of(head) + width_of(tail) + 1 < width:
        tail = text[len(text) - len(tail) - 1 :]
    return f"{head}…{tail}"
