"""The error classes. Every message states the place, the fact and what to do; every error survives pickling.

Formats and engines decide when to raise which one, `connector.errors` how Spark shows it.
"""

from __future__ import annotations

import errno
import functools
from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


class MqStoreError(Exception):
    """Base of all errors that mqstore raises deliberately: a user's mistake, a damaged file, a locked store.

    The text of a subclass begins with its name, which is added if it is missing.
    """

    def __init__(self, text: str) -> None:
        name = type(self).__name__
        named = type(self) is MqStoreError or text.startswith(f"{name}: ")
        super().__init__(text if named else f"{name}: {text}")

    def __reduce__(self) -> tuple[Any, ...]:
        # Exceptions pickle by calling the class with `args`, which for the subclasses below is the finished text.
        return _rebuild, (type(self), self.args, self.__dict__)


def _rebuild(kind: type[MqStoreError], args: tuple[Any, ...], state: dict[str, Any]) -> MqStoreError:
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(state)
    return error


class _PlacedError(MqStoreError):
    """An error at a position in a file; the text starts with the class name, the file and the position."""

    def __init__(self, path: str, position: int, reason: str) -> None:
        super().__init__(f"{path} at {position}: {reason}")
        self.path, self.position, self.reason = path, position, reason


class CorruptionError(_PlacedError):
    """Bytes inside the served part of a store that are not what was written there."""


class TornWriteError(_PlacedError):
    """An unfinished write at the end of a file: the only kind of damage that recovery may cut."""


class FormatError(MqStoreError):
    """Bytes that violate the format. Raised by `formats`, which do not know the path: engines add it.

    `position` counts from the start of the buffer that was decoded.
    """

    def __init__(self, position: int, reason: str) -> None:
        super().__init__(f"at {position}: {reason}")
        self.position, self.reason = position, reason

    def at(self, path: str, base: int = 0) -> CorruptionError:
        """The same error with its file; `base` is the file position of the buffer's first byte."""
        return CorruptionError(path, base + self.position, self.reason)


class UnsupportedFormatError(MqStoreError):
    """A store, or a part of one, in a variant that mqstore does not read; the text says what can be done instead."""


class StoreNotFoundError(MqStoreError):
    """The path is not a store, does not exist, or may not be read."""


class DiskError(MqStoreError, OSError):
    """The operating system rejected a call on a file or folder: a failing or full disk, too many open files, a folder
    where a file is expected, a missing file. Also an OSError, with its `errno`, `strerror` and `filename`.
    """

    def __init__(self, filename: str, number: int, reason: str) -> None:
        advice = f"; {_ADVICE[number]}" if number in _ADVICE else ""
        super().__init__(f"{filename}: {reason}{advice}")
        self.errno, self.strerror, self.filename = number, reason, filename

    def __str__(self) -> str:
        return str(self.args[0])

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.filename, self.errno, self.strerror)


class FileGoneError(DiskError, FileNotFoundError):
    """A file or folder that does not exist, or no longer exists."""


class NoFolderError(DiskError, NotADirectoryError):
    """A path in which a file takes the place of a folder."""


_ADVICE = {
    errno.EIO: "the disk fails: copy what can be read to another one, and go on there",
    errno.ENOSPC: "make room on this disk",
    errno.EDQUOT: "make room on this disk, or raise the quota",
    errno.EMFILE: "raise the number of files that a process may have open (ulimit -n)",
    errno.ENFILE: "this machine has too many files open; close some",
    errno.EROFS: "mount it for writing, or copy the store",
    errno.EISDIR: "a folder stands in the place of a file; move it away, or restore the file",
    errno.ELOOP: "a link leads to itself; remove it, or restore the file",
    errno.ENOENT: "it is gone, or never was; read again, or read a copy",
    errno.ENOTDIR: "a file stands in the place of a folder; move it away, or restore the folder",
}


def disk_error(error: OSError, filename: str) -> OSError:
    """The error of a system call on this file as an mqstore error; unchanged if callers expect its original type."""
    if isinstance(error, DiskError) or error.errno is None or isinstance(error, _PLAIN):
        return error
    if isinstance(error, FileNotFoundError):
        return FileGoneError(filename, error.errno, error.strerror or str(error))
    if isinstance(error, NotADirectoryError):
        return NoFolderError(filename, error.errno, error.strerror or str(error))
    return DiskError(filename, error.errno, error.strerror or str(error))


_PLAIN = (PermissionError, FileExistsError, BlockingIOError, ProcessLookupError)
"""Errors about what a caller did, may not do, or has to wait for."""


def naming_disk_errors(name_of: Callable[[object], str]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorator for functions whose first argument is a path or descriptor: an OSError becomes a `disk_error` of that
    argument's path, which `name_of` returns.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            try:
                return function(*args, **kwargs)
            except OSError as error:
                raise disk_error(error, name_of(args[0])) from None

        return call

    return decorate


class StoreLockedError(MqStoreError):
    """A broker, a node or another writer holds the store."""


class StoreClosedError(MqStoreError):
    """The store object was closed."""


class StoreChangedError(MqStoreError):
    """An object of a remote store was replaced, cut or deleted after it was listed: rows of two versions would mix."""


class StorageError(MqStoreError):
    """A remote store that cannot be reached or may not be read: no answer, no permission, a wrong key."""


class OffsetOutOfRangeError(MqStoreError):
    """An offset after the end, or a range whose start is after its stop."""


class DataLossError(MqStoreError):
    """Requested offsets no longer exist; the text names the option that changes the behaviour."""


class CheckpointError(MqStoreError):
    """A checkpoint of a stream that does not belong to the store, or that this version cannot read."""


class OptionError(MqStoreError):
    """A wrong option name or value.

    `allowed` ends the text: what is allowed or exists, or the rule that is broken. Callers add similar names to it.
    """

    def __init__(self, name: str, value: str, allowed: str) -> None:
        super().__init__(f"option '{name}' = '{shorten(value)}': {allowed}")
        self.name, self.value, self.allowed = name, value, allowed


class RowError(MqStoreError):
    """A row that may not be written: the column and value, the rule, and the number of the row in its task (from 0)."""

    def __init__(self, column: str, value: str, rule: str, row: int) -> None:
        super().__init__(f"row {row} of its task: column '{column}' is {value}: {rule}")
        self.column, self.rule, self.row = column, rule, row


class ColumnError(MqStoreError):
    """A column of a frame to write that is unknown, given twice, missing or of the wrong type."""

    def __init__(self, column: str, reason: str) -> None:
        super().__init__(f"column '{column}': {reason}")
        self.column, self.reason = column, reason


FEW = 8


def shorten(value: str, limit: int = 80) -> str:
    """`value` cut to `limit` characters for an error message."""
    return value if len(value) <= limit else value[: limit - 1] + "…"


def closest(wanted: str, known: Iterable[str], count: int = 3) -> list[str]:
    """The names among `known` that are spelled most like `wanted`, ignoring case."""
    from difflib import get_close_matches  # few processes ever need it

    by_lower: dict[str, str] = {}
    for name in known:
        by_lower.setdefault(name.lower(), name)
    return [by_lower[match] for match in get_close_matches(wanted.lower(), by_lower, count, 0.6)]


def either(items: Sequence[str]) -> str:
    """`a, b or c`."""
    return " or ".join(filter(None, (", ".join(items[:-1]), *items[-1:])))


def listing(items: Sequence[str], limit: int = 20) -> str:
    """Names for an error message, cut after `limit`."""
    shown = ", ".join(items[:limit])
    return f"{shown}, … ({len(items)} in all)" if len(items) > limit else shown


def choices(wanted: str, known: Iterable[str], plural: str, limit: int = 20) -> str:
    """The hint of an error about an unknown name: the most similar names, and all names if there are few.

    `plural` says what they are names of; at most `limit` are listed, in the given order (a set is sorted).
    """
    names = sorted(known) if isinstance(known, AbstractSet) else list(dict.fromkeys(known))
    if not names:
        return f"there are no {plural}"
    near, every = closest(wanted, names), f"the {plural} are {listing(names, limit)}"
    if not near:
        return every
    return f"did you mean {either(near)}?" + (f" {every[0].upper()}{every[1:]}" if len(names) <= FEW else "")
