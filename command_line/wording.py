"""Errors and warnings worded for a shell: switches instead of Spark's options, no class names, one line.

The engines' texts are written for Spark users; this module rewords them for the command line.
"""

from __future__ import annotations

import re

from command_line.switches import ALIASES, QUEUE, SWITCHES, switch_of
from storage_core.errors import MqStoreError, OptionError, shorten

_CLASS = re.compile(r"^(?:[A-Za-z]+Error: )+")
_VALUE = r"[^\s,;:()'\"]*[^\s,;:()'\".]"
_CAMEL = [name for name in (*SWITCHES, *ALIASES) if name != name.lower()]
_ASSIGNED = [*SWITCHES, *ALIASES]
# "option scan=log", "the option 'commitLogPath'", "option mode = 'X'", "options topic and queue" stay readable.
_OPTION = re.compile(rf"\b(?:(?:the|an?) )?options? '?([a-z][A-Za-z_]*)'?(?:\s?=\s?'?({_VALUE})'?)?")
_PAIR = re.compile(
    rf"(?:\b(?:set|with) )?(?<![-/\w'])({'|'.join(sorted(_ASSIGNED, key=len, reverse=True))})=({_VALUE})"
)
_WORD = re.compile(rf"(?<![-\w'])({'|'.join(sorted(_CAMEL, key=len, reverse=True))})(?![\w'])")
_READ = re.compile(r"\bread\(([^)]*)\)")
_USE_MODE = re.compile(r"\buse mode=(\w+)")
_FILTER = re.compile(r"use where\(\) on \w+ or \w+")
_OR_FILTER = re.compile(r" or where\(\w+\)")
# Lists that end a text and name columns, or options of `--set`: they are spelled like options, but are no switches.
_NAMES = re.compile(r"(?:did you mean|\b[Tt]he (?:columns|options of a write) are) .*")
_ABOUT_OPTIONS = re.compile(r"leave the option out")
# Words after "option" that name no option.
_NO_NAMES = {"of", "out", "that", "is", "and", "or", "with", "to", "in", "as", "names", "which", "such"}


def error_text(error: MqStoreError, by_queue: bool = False) -> str:
    """The text of an error for a user of the command line, on one line.

    With `by_queue`, the queues were given by --queue.
    """
    if isinstance(error, OptionError):
        return f"{_subject(_of_queue(error) if by_queue else error)}: {in_switches(error.allowed)}"
    return in_switches(_CLASS.sub("", " ".join(str(error).split())))


def _of_queue(error: OptionError) -> OptionError:
    """An error of `assign` as one of --queue, whose numbers the engines receive as `orders/99` by that option."""
    if error.name != "assign":
        return error
    return OptionError(QUEUE, error.value.rpartition("/")[2], error.allowed)


def _subject(error: OptionError) -> str:
    """The wrong switch or argument, and its value."""
    plain = error.name.startswith("-") or error.name.isupper()
    name = error.name if plain else switch_of(error.name)
    value = shorten(error.value)
    if error.name.isupper():
        return value
    return f"{name}={value}" if name.startswith("--set ") else f"{name} {value}".rstrip()


def in_switches(text: str) -> str:
    """A text with each option that its advice names replaced by its switch; columns that it lists are left alone."""
    text = " ".join(text.split())
    names = _NAMES.search(text)
    return _advice(text) if names is None else _advice(text[: names.start()]) + names[0]


def _advice(text: str) -> str:
    text = _ABOUT_OPTIONS.sub("leave it out", text)
    text = _USE_MODE.sub(lambda found: f"read it with `mqstore cat --mode {found[1].lower()}`", text)
    text = _FILTER.sub("use `mqstore find`, which searches messageId, correlationId and guid", text)
    text = _OR_FILTER.sub("", text)
    text = _READ.sub(lambda found: "`mqstore export` with " + found[1].replace(",", ""), text)
    text = _OPTION.sub(_named, text)
    text = _PAIR.sub(lambda found: f"{_before(found[0])}{switch_of(found[1])} {found[2]}", text)
    return _WORD.sub(lambda found: switch_of(found[1]), text)


def _named(found: re.Match[str]) -> str:
    name, value = found[1], found[2]
    if name in _NO_NAMES:
        return found[0]
    switch = switch_of(name)
    if value is None:
        return switch
    return f"{switch}={value}" if switch.startswith("--set ") else f"{switch} {value}"


def _before(text: str) -> str:
    """`set x=y` becomes `give --x y`."""
    word = text.split(" ", maxsplit=1)[0] if " " in text else ""
    return {"set": "give ", "with": "with "}.get(word, "")
