"""A new file that is there whole or not at all: written beside its name, which it gets when it is finished."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO

from command_line.output.lines import OutputError
from command_line.signals import stop_if_asked
from storage_core.errors import OptionError


@contextmanager
def new_file(path: str, replace: bool = False) -> Iterator[IO[bytes]]:
    """A file to write; it is called `path` when the block ends well, and is gone when it does not.

    Raises OptionError where there is a file of the name already (unless `replace`), or no folder for it, and
    OutputError when it cannot be written.
    """
    _check(path, replace)
    folder, name = os.path.split(path)
    aside = os.path.join(folder, f".{name}.part-{os.getpid()}")
    try:
        with open(aside, "xb") as file:
            yield file
        stop_if_asked()
        os.rename(aside, path)
    except OSError as error:
        raise OutputError(f"{path} cannot be written: {error.strerror or error}") from None
    finally:
        with suppress(OSError):
            os.unlink(aside)


def check_new(path: str) -> None:
    """OptionError where a new file of this name cannot be made: before long work, not after it."""
    _check(path, replace=False)


def _check(path: str, replace: bool) -> None:
    if "://" in path:
        raise OptionError("FILE", path, "is a URI; a file goes to a disk, and `mqstore copy` takes a store to a URI")
    folder = os.path.dirname(path) or "."
    if os.path.isdir(path):
        raise OptionError("FILE", path, "is a directory; give the name of a file")
    if os.path.exists(path) and not replace:
        raise OptionError("FILE", path, "is there already; choose another name or remove it")
    if not os.path.isdir(folder):
        raise OptionError("FILE", path, f"there is no directory {folder}; make it first, or choose another")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise OptionError("FILE", path, f"no permission to write in {folder}")
