r"""Templates of a row: `{topic} {properties.city} {body.price}\n`, names of columns and of values inside them.

The form of values belongs to `rows`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from storage_core.errors import OptionError
from storage_core.options import values

_PIECE = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")
_ESCAPE = re.compile(r"\\(n|t|r|0|\\)")
_ENDED = re.compile(r"(\\[ntr0]|\n|\t)$")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "\\": "\\"}


class Template:
    r"""A parsed template. `{{` and `}}` are braces; `\n`, `\t`, `\r`, `\0`, `\\` mean what they mean in a shell.
    If it does not end with one of these, a line ends after each row.

    `columns` are those it names, in order. Raises OptionError for an unmatched brace.
    """

    def __init__(self, text: str) -> None:
        self._pieces: list[str | Callable[[Mapping[str, Any]], str]] = []
        text = text if _ENDED.search(text) else text + "\n"
        columns: list[str] = []
        position = 0
        for found in _PIECE.finditer(text):
            self._pieces.append(_unescaped(text[position : found.start()]))
            position = found.end()
            if found[0] in ("{{", "}}"):
                self._pieces.append(found[0][0])
            elif not found[1]:
                wanted = "a column's name stands in braces, such as {topic} or {properties.city}; {{ is a brace"
                raise OptionError("--format", text, wanted)
            else:
                name, _, rest = values.unicode("--format", found[1]).partition(".")
                columns.append(name)
                self._pieces.append(_taker(name, rest.split(".") if rest else []))
        self._pieces.append(_unescaped(text[position:]))
        self.columns = tuple(dict.fromkeys(columns))
        self.looks_inside = frozenset(found[1].partition(".")[0] for found in _PIECE.finditer(text)
                                      if found[1] and "." in found[1])  # fmt: skip

    def fill(self, row: Mapping[str, Any]) -> str:
        """The template with the values of a row; missing values are empty."""
        return "".join(piece if isinstance(piece, str) else piece(row) for piece in self._pieces)


def _unescaped(text: str) -> str:
    return _ESCAPE.sub(lambda found: _ESCAPES[found[1]], text)


def _taker(name: str, keys: list[str]) -> Callable[[Mapping[str, Any]], str]:
    def take(row: Mapping[str, Any]) -> str:
        value = row.get(name)
        for key in keys:
            if isinstance(value, Mapping):
                value = value.get(key)
            elif isinstance(value, list) and key.isdigit() and int(key) < len(value):
                value = value[int(key)]
            else:
                return ""
        return text_of(value)

    return take


def text_of(value: Any) -> str:
    """A value as text: empty for null, JSON for lists and objects."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False)
