"""One family of errors. Every message says the place, the fact and what to do; every error survives pickling.

Leaves to others: when to raise which one (formats and engines), how Spark shows it (`connector.errors`).
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
    """Base of everything mqstore raises on purpose: a user's mistake, a damaged file, a locked store.

    The text of a subclass begins with its name, which is added where it is missing.
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
    """An error at a position of a file; the text starts with the class name, the file and the position."""

    def __init__(self, path: str, position: int, reason: str) -> None:
        super().__init__(f"{path} at {position}: {reason}")
        self.path, self.position, self.reason = path, position, reason


class CorruptionError(_PlacedError):
    """Bytes inside the served part of a store that are not what was written there."""


class TornWriteError(_PlacedError):
    """An unfinished write at the end of a file: the only kind of damage that recovery may cut."""


class FormatError(MqStoreError):
    """Bytes that are not what the format says. Raised by `formats`, which know no path: engines add it.

    `position` counts from the start of the buffer that was decoded.
    """

    def __init__(self, position: int, reason: str) -> None:
        super().__init__(f"at {position}: {reason}")
        self.position, self.reason = position, reason

    def at(self, path: str, base: int = 0) -> CorruptionError:
        """The same fact with its file; `base` is the file position of the buffer's first byte."""
        return CorruptionError(path, base + self.position, self.reason)


class UnsupportedFormatError(MqStoreError):
    """A store, or a part of one, in a variant that mqstore does not read; the text says which way is open."""


class StoreNotFoundError(MqStoreError):
    """The path is no store, does not exist, or may not be read."""


class DiskError(MqStoreError, OSError):
    """The operating system refused a call on a file or folder: a failing or full disk, too many open files, a folder
    where a file is expected, a file that is gone. An OSError too, with its `errno`, `strerror` and `filename`.
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
    """A file or folder that is not there, or not any more."""


class NoFolderError(DiskError, NotADirectoryError):
    """A path that leads through a file."""


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
    """The error of a system call on this file as one of mqstore's; unchanged where callers ask for its own kind."""
    if isinstance(error, DiskError) or error.errno is None or isinstance(error, _PLAIN):
        return error
    if isinstance(error, FileNotFoundError):
        return FileGoneError(filename, error.errno, error.strerror or str(error))
    if isinstance(error, NotADirectoryError):
        return NoFolderError(filename, error.errno, error.strerror or str(error))
    return DiskError(filename, error.errno, error.strerror or str(error))


_PLAIN = (PermissionError, FileExistsError, BlockingIOError, ProcessLookupError)
"""What a caller did, may not do, or has to wait for."""


def told_with(name_of: Callable[[object], str]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorator of what works on a path or descriptor, its first argument: what fails is a `disk_error` of that, whose
    path `name_of` gives.
    """

    def told(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            try:
                return function(*args, **kwargs)
            except OSError as error:
                raise disk_error(error, name_of(args[0])) from None

        return call

    return told


class StoreLockedError(MqStoreError):
    """A broker, a node or another writer holds the store."""


class StoreClosedError(MqStoreError):
    """The store object was closed."""


class StoreChangedError(MqStoreError):
    """An object of a remote store was replaced, cut or deleted after it was listed: rows of two versions would mix."""


class StorageError(MqStoreError):
    """A remote store that cannot be reached or may not be read: no answer, no right, a wrong key."""


class OffsetOutOfRangeError(MqStoreError):
    """An offset after the end, or a range whose start lies after its stop."""


class DataLossError(MqStoreError):
    """Offsets that were asked for no longer exist; the text names the option that changes the behaviour."""


class CheckpointError(MqStoreError):
    """A checkpoint of a stream that does not belong to the store, or that this version cannot read."""


class OptionError(MqStoreError):
    """A wrong option name or value.

    `allowed` lists the values (or names) that exist; the closest ones are put into the text.
    """

    def __init__(self, name: str, value: str, allowed: str) -> None:
        super().__init__(f"option '{name}' = '{shorten(value)}': {allowed}")
        self.name, self.value, self.allowed = name, value, allowed


class RowError(MqStoreError):
    """A row that may not be written: which column and value, which rule, which row of its task (from 0)."""

    def __init__(self, column: str, value: str, rule: str, row: int) -> None:
        super().__init__(f"row {row} of its task: column '{column}' is {value}: {rule}")
        self.column, self.rule, self.row = column, rule, row


class ColumnError(MqStoreError):
    """A column of a frame to write that is unknown, given twice, missing or of a wrong type."""

    def __init__(self, column: str, reason: str) -> None:
        super().__init__(f"column '{column}': {reason}")
        self.column, self.reason = column, reason


FEW = 8


def shorten(value: str, limit: int = 80) -> str:
    """`value` cut to `limit` characters for an error message."""
    return value if len(value) <= limit else value[: limit - 1] + "…"


def closest(wanted: str, known: Iterable[str], count: int = 3) -> list[str]:
    """The names among `known` that are spelled most like `wanted`, in any case."""
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
    """What an error says after a name that does not exist: the close ones, and all where they are few.

    `plural` says of what they are names; at most `limit` are listed, in their order (those of a set sorted).
    """
    names = sorted(known) if isinstance(known, AbstractSet) else list(dict.fromkeys(known))
    if not names:
        return f"there are no {plural}"
    near, every = closest(wanted, names), f"the {plural} are {listing(names, limit)}"
    if not near:
        return every
    return f"did you mean {either(near)}?" + (f" {every[0].upper()}{every[1:]}" if len(names) <= FEW else "")
