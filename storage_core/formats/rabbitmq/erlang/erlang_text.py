"""Erlang terms as text, the way `file:consult` reads them and `~p` prints them: `.config`, `clean.dot`, scripts.

Values are those of `external_term`: atoms are `Atom`, binaries `bytes`, strings lists of code points.
Source: the Erlang reference manual's chapter on data types.
"""

from __future__ import annotations

import re
from typing import Any

from storage_core.errors import FormatError
from storage_core.formats.rabbitmq.erlang.external_term import Atom

_TOKEN = re.compile(
    r"""(?P<skip>\s+|%[^\n]*)
      | (?P<float>[+-]?[0-9]+\.[0-9]+(?:[eE][+-]?[0-9]+)?)
      | (?P<radix>[+-]?[0-9]{1,2}\#[0-9A-Za-z]+)
      | (?P<int>[+-]?[0-9]+)
      | (?P<atom>[a-z][0-9a-zA-Z_@]*)
      | (?P<quoted>'(?:[^'\\]|\\.)*')
      | (?P<string>"(?:[^"\\]|\\.)*")
      | (?P<char>\$(?:\\.|.))
      | (?P<mark>\#\{|=>|<<|>>|[{}\[\],.|:/])""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "b": "\b", "f": "\f", "v": "\v", "e": "\x1b", "s": " ", "d": "\x7f"}
_BARE_ATOM = re.compile(r"[a-z][0-9a-zA-Z_@]*")
_RESERVED = re.compile(
    "after|and|andalso|band|begin|bnot|bor|bsl|bsr|bxor|case|catch|cond|div|end|fun|if|let|maybe|not|of|or|orelse|"
    "receive|rem|try|when|xor"
)
_MAX_DEPTH = 200


def parse(text: str) -> list[Any]:
    """All terms of `text`, each ended by a full stop (optional for the last).

    Raises FormatError with the position of the offending character.
    """
    parser = _Parser(text)
    terms = []
    while parser.kind != "end":
        terms.append(parser.term(0))
        if parser.kind != "end":
            parser.expect(".")
    return terms


class _Parser:
    """A recursive-descent parser; `kind`, `value`, `start` describe the next token."""

    def __init__(self, text: str) -> None:
        self.text, self.position = text, 0
        self.advance()

    def advance(self) -> None:
        while self.position < len(self.text):
            found = _TOKEN.match(self.text, self.position)
            if found is None:
                raise FormatError(self.position, f"unexpected character {self.text[self.position]!r}")
            self.start, self.position = self.position, found.end()
            if found.lastgroup != "skip":
                self.kind, self.value = str(found.lastgroup), found.group()
                return
        self.kind, self.value, self.start = "end", "", len(self.text)

    def expect(self, mark: str) -> None:
        if self.kind != "mark" or self.value != mark:
            raise FormatError(self.start, f"{mark!r} expected, found {self.value or 'the end'!r}")
        self.advance()

    def at(self, mark: str) -> bool:
        return self.kind == "mark" and self.value == mark

    def term(self, depth: int) -> Any:
        if depth > _MAX_DEPTH:
            raise FormatError(self.start, f"terms nested deeper than {_MAX_DEPTH}")
        if self.kind == "mark":
            return self.compound(depth)
        if self.kind == "end":
            raise FormatError(self.start, "a term expected, found the end")
        kind, value, start = self.kind, self.value, self.start
        self.advance()
        return self.string(value) if kind == "string" else _scalar(kind, value, start)

    def string(self, value: str) -> list[int]:
        parts = [_unescape(value[1:-1])]
        while self.kind == "string":
            parts.append(_unescape(self.value[1:-1]))
            self.advance()
        return [ord(character) for character in "".join(parts)]

    def compound(self, depth: int) -> Any:
        mark, start = self.value, self.start
        self.advance()
        if mark == "{":
            return tuple(self.items("}", depth))
        if mark == "[":
            return self.items("]", depth)
        if mark == "#{":
            return self.pairs(depth)
        if mark == "<<":
            return self.binary(start)
        raise FormatError(start, f"unexpected {mark!r}")

    def items(self, closing: str, depth: int) -> list[Any]:
        found: list[Any] = []
        while not self.at(closing):
            if found:
                self.expect(",")
            found.append(self.term(depth + 1))
        self.advance()
        return found

    def pairs(self, depth: int) -> dict[Any, Any]:
        found: dict[Any, Any] = {}
        while not self.at("}"):
            if found:
                self.expect(",")
            start = self.start
            key = self.term(depth + 1)
            self.expect("=>")
            try:
                found[key] = self.term(depth + 1)
            except TypeError:
                raise FormatError(start, "a map whose key is a list or a map is not supported") from None
        self.advance()
        return found

    def binary(self, start: int) -> bytes:
        found = bytearray()
        first = True
        while not self.at(">>"):
            if not first:
                self.expect(",")
            first = False
            item = self.term(0)
            numbers = item if isinstance(item, list) else [item]
            utf8 = self.at("/")
            if utf8:
                self.advance()
                if self.kind != "atom" or self.value != "utf8":
                    raise FormatError(self.start, "only the type utf8 is supported in a binary")
                self.advance()
            try:
                found += "".join(map(chr, numbers)).encode() if utf8 else bytes(numbers)
            except (ValueError, TypeError):
                raise FormatError(start, "a binary of something other than bytes") from None
        self.advance()
        return bytes(found)


def _scalar(kind: str, value: str, start: int) -> Any:
    if kind == "int":
        return int(value)
    if kind == "float":
        return float(value)
    if kind == "atom":
        return Atom(value)
    if kind == "quoted":
        return Atom(_unescape(value[1:-1]))
    if kind == "char":
        return ord(_unescape(value[1:]))
    base, digits = value.lstrip("+-").split("#")
    try:
        number = int(digits, int(base))
    except ValueError:
        raise FormatError(start, f"{value} is no number") from None
    return -number if value.startswith("-") else number


def _unescape(text: str) -> str:
    def plain(found: re.Match[str]) -> str:
        code = found[1]
        if code[0] == "x":
            return chr(int(code[1:].strip("{}"), 16))
        if code[0] in "01234567":
            return chr(int(code, 8))
        if code[0] == "^":
            return chr(ord(code[1]) & 31)
        return _ESCAPES.get(code, code)

    return re.sub(r"\\(x\{[0-9a-fA-F]+\}|x[0-9a-fA-F]{2}|[0-7]{1,3}|\^.|.)", plain, text, flags=re.DOTALL)


def render(term: Any) -> str:
    """`term` on one line, without a full stop; binaries as lists of decimal bytes, as a node writes `clean.dot`."""
    if isinstance(term, str):
        return _render_atom(term)
    if isinstance(term, bool):
        return "true" if term else "false"
    if isinstance(term, int):
        return str(term)
    if isinstance(term, float):
        text = repr(term)
        mantissa, mark, exponent = text.partition("e")
        return (mantissa if "." in mantissa else mantissa + ".0") + mark + exponent
    if isinstance(term, bytes):
        return "<<" + ",".join(map(str, term)) + ">>"
    if isinstance(term, tuple):
        return "{" + ",".join(map(render, term)) + "}"
    if isinstance(term, list):
        return "[" + ",".join(map(render, term)) + "]"
    if isinstance(term, dict):
        return "#{" + ",".join(f"{render(key)} => {render(value)}" for key, value in term.items()) + "}"
    raise TypeError(f"{type(term).__name__} is no Erlang term")


def _render_atom(name: str) -> str:
    if _BARE_ATOM.fullmatch(name) and not _RESERVED.fullmatch(name):
        return name
    escaped = name.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n")
    return f"'{escaped}'"
