"""Parsers of option values: convert texts as users write them to Python values, each with its exact error.

`read` and the engines assign a parser to each option; offsets in JSON are parsed by `offsets`, patterns by
`topic_pattern`. Every parser is called with the option's name and its text, and raises OptionError.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from storage_core.errors import OptionError, closest

_DIGITS = re.compile(r"[0-9]{1,19}")
_SIZE = re.compile(r"([0-9]+)\s*([kmgt]?)(?:i?b)?", re.IGNORECASE)
_RELATIVE = re.compile(r"-\s*(\d{1,19})\s*(ms|s|m|h|d|w)")
_RELATIVE_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|)")
_DURATION_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "": 1.0}
_SIZE_SHIFT = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}
_LONG_HEX = re.compile(r"[0-9A-Fa-f]{24,}")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LIMIT = 1 << 63


def flag(name: str, text: str) -> bool:
    """`true` or `false`, case-insensitive."""
    value = text.strip().lower()
    if value not in ("true", "false"):
        raise OptionError(name, text, "allowed are true and false")
    return value == "true"


def choice(*allowed: str) -> Callable[[str, str], str]:
    """A parser for one of `allowed`, case-insensitive; returns the spelling of `allowed`."""
    by_lower = {value.lower(): value for value in allowed}

    def parse(name: str, text: str) -> str:
        value = by_lower.get(text.strip().lower())
        if value is None:
            near = closest(text.strip(), list(allowed), 1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise OptionError(name, text, f"allowed are {', '.join(allowed)}{hint}")
        return value

    return parse


def whole(text: str) -> int | None:
    """The number that a text of up to 19 digits states, else None: Python refuses to convert thousands of digits."""
    return int(text) if _DIGITS.fullmatch(text) else None


def count_of(least: int) -> Callable[[str, str], int]:
    """A parser for whole numbers of at least `least`."""

    def parse(name: str, text: str) -> int:
        number = text.strip()
        if not number.isascii() or not number.isdigit() or (value := _bounded(name, text, number)) < least:
            raise OptionError(name, text, f"must be a whole number of at least {least}")
        return value

    return parse


def _bounded(name: str, text: str, digits: str, shift: int = 0) -> int:
    """The number in decimal digits, shifted left by `shift` bits. Raises OptionError from 2^63 on."""
    number = whole(digits.lstrip("0") or "0")
    if number is None or number << shift >= _LIMIT:
        raise OptionError(name, text, f"is too large; the largest value is {_LIMIT - 1}")
    return number << shift


def size_of(least: int) -> Callable[[str, str], int]:
    """A parser for bytes: a whole number of at least `least`, with k, m, g or t for powers of 1024."""

    def parse(name: str, text: str) -> int:
        match = _SIZE.fullmatch(text.strip())
        value = _bounded(name, text, match[1], _SIZE_SHIFT[match[2].lower()]) if match else 0
        if value < least:
            examples = "such as 268435456, 262144k, 256m or 1g"
            raise OptionError(name, text, f"must be a number of bytes of at least {least}, {examples}")
        return value

    return parse


count, size = count_of(1), size_of(1)


def duration_s(name: str, text: str) -> float:
    """Seconds of a duration such as `500ms`, `60s`, `5m` or `1h`; a bare number is in seconds."""
    match = _DURATION.fullmatch(text.strip().lower())
    if not match:
        raise OptionError(name, text, "must be a duration such as 500ms, 60s or 5m")
    return float(match[1]) * _DURATION_S[match[2]]


def instant_ms(now_ms: int) -> Callable[[str, str], int]:
    """A parser for times: epoch milliseconds, ISO 8601 (UTC if it names no zone), or relative to now (`-10m`, `-1d`).

    Returns whole milliseconds since 1970, rounded up: store times are whole, so `>=` and `<` keep their meaning.
    """

    def parse(name: str, text: str) -> int:
        value = text.strip()
        number = whole(value)
        if number is not None and number < _LIMIT:
            return number
        match = _RELATIVE.fullmatch(value)
        if match:
            return max(0, now_ms - int(match[1]) * _RELATIVE_MS[match[2]])
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            raise OptionError(
                name,
                text,
                "must be epoch milliseconds, ISO 8601 such as 2024-06-01T12:00:00Z, or before now: -10m, -2h, -1d",
            ) from None
        moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
        return max(0, -((_EPOCH - moment) // timedelta(milliseconds=1)))

    return parse


def unicode(name: str, text: str) -> str:
    """The text, which no store contains if it is not Unicode: a shell's argument that is not UTF-8, half a pair of
    surrogates in JSON.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        raise OptionError(name, ascii(text)[1:-1], "is not UTF-8 text") from None
    return text


def names(name: str, text: str) -> tuple[str, ...]:
    """A comma-separated list, or a JSON list if the text begins with `[`; keeps the order, drops duplicates."""
    return tuple(dict.fromkeys(_listed(name, text)))


def directories(name: str, text: str) -> tuple[str, ...]:
    """`names`, local ones as absolute paths: who finishes a stopped job may work in another directory."""
    paths = (each if "://" in each else os.path.abspath(each) for each in _listed(name, text))
    return tuple(dict.fromkeys(paths))


def _listed(name: str, text: str) -> list[str]:
    value = text.strip()
    if value.startswith("["):
        items = _json(name, text)
        if not isinstance(items, list) or not all(isinstance(item, str) for item in items):
            raise OptionError(name, text, 'must be a JSON list of texts such as ["orders", "payments"]')
        if "" in items:
            number = items.index("") + 1
            raise OptionError(name, text, f"has an empty text as number {number} of its list; leave it out")
    else:
        items = [item.strip() for item in value.split(",") if item.strip()]
    if not items:
        raise OptionError(name, text, "names nothing; give a comma list, or leave the option out")
    return items


def columns(name: str, text: str) -> tuple[str, ...]:
    """A list of column names without duplicates, in the order of the output."""
    wanted = [unicode(name, item) for item in _listed(name, text)]
    if len(set(wanted)) < len(wanted):
        twice = next(item for item in wanted if wanted.count(item) > 1)
        raise OptionError(name, text, f"names the column {twice} twice")
    return tuple(wanted)


def texts(name: str, text: str) -> tuple[str, ...]:
    """One text, or a JSON list of texts if it begins with `[`; keeps the order, drops duplicates."""
    return names(name, text) if text.strip().startswith("[") else (filled(name, text),)


def message_ids(name: str, text: str) -> tuple[str, ...]:
    """Message ids: any UNIQ_KEY, or offset ids of 32 or 56 hex digits; a JSON list when the text begins with `[`."""
    found = texts(name, text)
    for item in found:
        if _LONG_HEX.fullmatch(item) and len(item) not in (32, 56):
            raise OptionError(name, item, f"has {len(item)} hex digits; a message id has 32, or 56 with IPv6")
    return found


def tag_expression(name: str, text: str) -> tuple[str, ...] | None:
    """The tags of `A || B`; None for `*`, which means everything."""
    if unicode(name, text).strip() == "*":
        return None
    found = tuple(dict.fromkeys(piece.strip() for piece in text.split("||") if piece.strip()))
    if not found or any("|" in tag or "&&" in tag for tag in found):
        raise OptionError(name, text, "must be one tag, several as A || B, or * for everything")
    return found


def filled(name: str, text: str) -> str:
    """A text that is not blank, without surrounding whitespace."""
    if not text.strip():
        raise OptionError(name, text, "is empty; leave the option out")
    return text.strip()


def any_text(name: str, value: str) -> str:
    """Any text, as it was given."""
    del name
    return value


def as_text(value: Any) -> str:
    """A Python value as the text of an option: `true`, a number, JSON for lists and dicts."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return json.dumps(value) if isinstance(value, list | tuple | dict) else str(value)


def json_object(name: str, text: str, example: str) -> dict[str, Any]:
    """A JSON object without duplicate keys."""
    value = _json(name, text, example)
    if not isinstance(value, dict):
        raise OptionError(name, text, f"must be a JSON object such as {example}")
    return value


def _json(name: str, text: str, example: str = '["orders", "payments"]') -> Any:
    try:
        return json.loads(text, object_pairs_hook=_once)
    except _RepeatedError as error:
        raise OptionError(name, text, f"names {error} twice") from None
    except (ValueError, RecursionError):
        raise OptionError(name, text, f"is not JSON; write it like {example}") from None


class _RepeatedError(Exception):
    """A key that occurs twice in one JSON object; the text is the key."""


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        raise _RepeatedError(next(key for key in keys if keys.count(key) > 1))
    return found
