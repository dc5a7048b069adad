"""Checks the fields of a request made in Python, as the parsers of `values` check texts: a wrong type is one line.

`store` declares the fields and what they mean. What Spark options and switches of the command line state has passed
its own parser before, whose errors use the caller's words.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any, TypeVar

from storage_core.errors import OptionError, choices

_TEXTS = ("columns", "topics", "keys", "message_ids", "tags")
_COUNTS = ("min_partitions", "max_records_per_partition", "max_bytes_per_partition", "cores")
_TIMES = ("start_ms", "stop_ms")
# Store.read has parameters of its own for these.
_BY_PARAMETER = ("topics", "assign", "start", "stop")

E = TypeVar("E", bound=Enum)


def check_request(request: Any, *enumerations: type[Enum]) -> None:
    """Checks the fields of a ScanRequest, makes tuples of its other sequences, and members of texts that name them.

    The fields of `enumerations` have the names of these classes in lower case. Raises OptionError.
    """
    for name in _TEXTS:
        object.__setattr__(request, name, _texts(name, getattr(request, name)))
    for allowed in enumerations:
        name = allowed.__name__.lower()
        object.__setattr__(request, name, _member(name, getattr(request, name), allowed))
    for name in _COUNTS:
        _check_number(name, getattr(request, name), 1)
    for name in _TIMES:
        _check_number(name, getattr(request, name))


def check_queue(topic: Any, queue_id: Any, start: Any, stop: Any, options: Mapping[str, Any]) -> None:
    """Checks the parameters of Store.read. Raises OptionError for a wrong type, an unknown field of a ScanRequest in
    `options`, and offsets without a queue.
    """
    from storage_core.store import EARLIEST, LATEST, ScanRequest

    one_text("topic", topic)
    for name, number in {"queue_id": queue_id, "start": start, "stop": stop}.items():
        _check_number(name, number)
    if queue_id is None and (start, stop) != (EARLIEST, LATEST):
        raise OptionError("queue_id", "None", "offsets belong to one queue; give its number")
    known = [name for name in ScanRequest.__dataclass_fields__ if name not in _BY_PARAMETER]
    for name, value in options.items():
        if name not in known:
            raise OptionError(name, str(value), f"there is no such field; {choices(name, known, 'fields', 40)}")


def one_text(name: str, value: Any) -> tuple[str, ...] | None:
    """A tuple with one text, or None if none is given. Raises OptionError for anything but a text."""
    if value is None:
        return None
    if not isinstance(value, str):
        raise OptionError(name, str(value), f"must be a text, not {_type(value)}")
    return (value,)


def _texts(name: str, value: Any) -> tuple[str, ...] | None:
    if value is None:
        return None
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        raise OptionError(name, str(value), f"must be a list or tuple of texts, such as [{str(value)!r}]")
    found = tuple(value)
    for each in found:
        if not isinstance(each, str):
            raise OptionError(name, str(each), f"holds texts only, not {_type(each)}")
    return found


def _member(name: str, value: Any, allowed: type[E]) -> E:
    if isinstance(value, allowed):
        return value
    for each in allowed:
        if isinstance(value, str) and value.lower() == each.value.lower():
            return each
    raise OptionError(name, str(value), f"allowed are {', '.join(each.value for each in allowed)}")


def _check_number(name: str, value: Any, least: int | None = None) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise OptionError(name, str(value), f"must be a whole number, not {_type(value)}")
    if least is not None and value < least:
        raise OptionError(name, str(value), f"must be at least {least}")


def _type(value: Any) -> str:
    return type(value).__name__
