"""A new file that appears whole or not at all: written under a temporary name, and renamed when it is finished."""

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
    """A file to write; it is renamed to `path` if the block succeeds, and removed if it fails.

    Raises OptionError if a file of that name exists (unless `replace`) or its folder is missing, and OutputError if it
    cannot be written.
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
    """Raises OptionError if a new file of this name cannot be created: before long work, not after it."""
    _check(path, replace=False)


def _check(path: str, replace: bool) -> None:
    if "://" in path:
        raise OptionError("FILE", path, "is a URI; a file goes to a disk, and `mqstore copy` takes a store to a URI")
    folder = os.path.dirname(path) or "."
    if os.path.isdir(path):
        raise OptionError("FILE", path, "is a directory; give the name of a file")
    if os.path.exists(path) and not replace:
        raise OptionError("FILE", path, "already exists; choose another name or remove it")
    if not os.path.isdir(folder):
        raise OptionError("FILE", path, f"there is no directory {folder}; make it first, or choose another")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise OptionError("FILE", path, f"no permission to write in {folder}")
