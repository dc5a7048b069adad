"""Translates Java regular expressions, as `subscribePattern` accepts them, to Python's syntax.

The engine does the matching, and requires a full match. Java constructs that Python cannot express are rejected.
"""

from __future__ import annotations

import re
import warnings

from storage_core.errors import OptionError

# java.util.regex.Pattern, "POSIX character classes (US-ASCII only)", as the inside of a Python class.
_POSIX = {
    "Lower": "a-z", "Upper": "A-Z", "Alpha": "a-zA-Z", "Digit": "0-9", "Alnum": "a-zA-Z0-9", "XDigit": "0-9a-fA-F",
    "Space": r" \t\n\x0b\f\r", "Blank": r" \t", "Punct": r"!-/:-@\[-`{-~", "ASCII": r"\x00-\x7f",
    "Graph": "!-~", "Print": " -~", "Cntrl": r"\x00-\x1f\x7f",
}  # fmt: skip
_TOKEN = re.compile(
    r"\\Q(?P<quoted>.*?)(?:\\E|\Z)"
    r"|\\(?P<sign>[pP])\{(?P<kind>\w+)\}"
    r"|\\k<(?P<reference>\w+)>"
    r"|\(\?<(?P<group>[A-Za-z]\w*)>"
    r"|\\(?P<escape>.)"
    r"|(?P<open>\[\^?\]?)|(?P<close>\])|(?P<both>&&)",
    re.DOTALL,
)
_FLAGS = re.compile(r"\(\?([imsx]+)\)")
_REFUSED = "GRXhHvVNcu"


def java_pattern(name: str, text: str) -> str:
    """The Python pattern that matches the same names. Raises OptionError if there is none or the text is invalid."""
    source = text.strip()
    if not source:
        raise OptionError(name, text, "is empty; .* takes every topic")
    flags = ""
    if head := _FLAGS.match(source):
        flags, source = "".join(dict.fromkeys(head[1])), source[head.end() :]
    pattern = f"(?a{flags}:{_Translation(name, text).of(source)})"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            re.compile(pattern)
    except (re.error, FutureWarning, OverflowError, RecursionError) as error:
        reason = error.msg if isinstance(error, re.error) else str(error)
        raise OptionError(name, text, f"is not a regular expression that mqstore can use: {reason}") from None
    return pattern


class _Translation:
    """One pass over a Java pattern; tracks whether it is inside a character class."""

    def __init__(self, name: str, text: str) -> None:
        self._name, self._text, self._in_class = name, text, False

    def of(self, source: str) -> str:
        return _TOKEN.sub(self._token, source)

    def _token(self, match: re.Match[str]) -> str:
        if match["quoted"] is not None:
            return re.escape(match["quoted"])
        if match["kind"] is not None:
            return self._posix(match["sign"], match["kind"])
        if match["reference"] is not None:
            return f"(?P={match['reference']})"
        if match["group"] is not None and not self._in_class:
            return f"(?P<{match['group']}>"
        if match["escape"] is not None:
            return self._escape(match["escape"])
        return self._bracket(match)

    def _posix(self, sign: str, kind: str) -> str:
        inside = _POSIX.get(kind)
        if inside is None or (sign == "P" and self._in_class):
            self._refuse(f"\\{sign}{{{kind}}}")
        if self._in_class:
            return str(inside)
        return f"[{'^' if sign == 'P' else ''}{inside}]"

    def _escape(self, letter: str) -> str:
        if letter == "z":
            return r"\Z"
        if letter == "Z":
            return r"(?=\n?\Z)"
        if letter == "e":
            return r"\x1b"
        if letter in _REFUSED:
            self._refuse("\\" + letter)
        return "\\" + letter

    def _bracket(self, match: re.Match[str]) -> str:
        token = match[0]
        if match["open"] and not self._in_class:
            self._in_class = True
            return token.replace("]", r"\]")
        if match["open"]:
            self._refuse("a character class inside another")
        if match["both"] and self._in_class:
            self._refuse("&& in a character class")
        if match["close"]:
            self._in_class = False
        return token

    def _refuse(self, what: str) -> None:
        raise OptionError(
            self._name,
            self._text,
            f"uses {what}, which mqstore does not support; write it differently, or list the topics with 'topic'",
        )
