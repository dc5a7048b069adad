"""Takes what Python callers give: frames to write, which become Arrow tables, and fields of requests, which it checks.

The engines decide which columns a frame may have. Spark options and switches of the command line become fields of a
request after their own parsers, whose errors use the caller's words.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from enum import Enum
from typing import Any, TypeVar

import pyarrow as pa

from storage_core.errors import MqStoreError, OptionError, choices

_TEXTS = ("columns", "topics", "keys", "message_ids", "tags")
_COUNTS = ("min_partitions", "max_records_per_partition", "max_bytes_per_partition", "cores")
_TIMES = ("start_ms", "stop_ms")
# Store.read has parameters of its own for these.
_BY_PARAMETER = ("topics", "assign", "start", "stop")

E = TypeVar("E", bound=Enum)


def as_table(frame: Any) -> pa.Table:
    """Converts a frame to write into a table: a pyarrow Table or RecordBatch, a pandas DataFrame, a dict of columns.

    Raises MqStoreError for what cannot be converted.
    """
    try:
        table = frame if isinstance(frame, pa.Table) else pa.table(frame)
    except (TypeError, ValueError, OverflowError, pa.ArrowException) as error:
        reason = str(error).partition("\n")[0]
        raise MqStoreError(
            f"append takes a pyarrow Table or RecordBatch, a pandas DataFrame or a dict of columns, and this "
            f"{type(frame).__name__} cannot be made one: {reason}"
        ) from None
    # Columns that pandas adds for an index other than a plain range are not columns of messages.
    return table.select([name for name in table.column_names if not name.startswith("__index_level_")])


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


def check_read(
    request: type, topic: Any, queue_id: Any, options: Mapping[str, Any], **offsets: tuple[Any, int]
) -> None:
    """Checks the parameters of Store.read; `options` are fields of `request`, and each of the `offsets` comes with the
    one that is used if none is given. Raises OptionError for a wrong type, an unknown field, offsets without a queue.
    """
    one_text("topic", topic)
    for name, number in {"queue_id": queue_id, **{name: given for name, (given, _) in offsets.items()}}.items():
        _check_number(name, number)
    if queue_id is None and any(given != default for given, default in offsets.values()):
        raise OptionError("queue_id", "None", "offsets belong to one queue; give its number")
    known = [field.name for field in fields(request) if field.name not in _BY_PARAMETER]
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
